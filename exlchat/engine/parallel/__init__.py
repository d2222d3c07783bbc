"""Tensor parallel: every matrix cut for several cards, which compute each layer together."""
