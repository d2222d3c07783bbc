"""`exlchat convert`: files of a model, or first a table of those that a card holds."""
