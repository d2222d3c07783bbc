"""`exlchat ask`: answers without a terminal."""
