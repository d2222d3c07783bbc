"""`exlchat serve`."""
