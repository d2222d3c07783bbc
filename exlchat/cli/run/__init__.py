"""`exlchat run`: a whole file of requests."""
