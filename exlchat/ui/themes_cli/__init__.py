"""`exlchat themes`."""
