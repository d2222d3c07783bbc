"""`exlchat bench`."""
