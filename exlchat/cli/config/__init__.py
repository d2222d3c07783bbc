"""`exlchat config`: show, edit and change the settings in the shell."""
