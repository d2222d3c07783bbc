"""Model folders and checkpoints: what a path holds, its tensors, its name."""
