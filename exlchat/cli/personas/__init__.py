"""`exlchat personas`: who can speak, as files."""
