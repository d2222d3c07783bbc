"""What a conversation is. Imports neither torch nor a terminal library."""
