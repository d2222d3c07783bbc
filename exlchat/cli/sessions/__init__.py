"""`exlchat sessions`."""
