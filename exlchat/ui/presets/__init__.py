"""`exlchat presets`."""
