"""The decoder itself, for any number of tokens on any device: the reference."""
