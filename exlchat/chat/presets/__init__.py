"""How answers are wished for: sampling values with names, as files, and those of other programs."""
