"""`exlchat doctor`."""
