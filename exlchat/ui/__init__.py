"""What a person sees and presses."""
