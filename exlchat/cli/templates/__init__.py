"""`exlchat template`."""
