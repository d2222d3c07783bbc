"""Requests into events: prompts read, tokens chosen, text told, several answers at once."""
