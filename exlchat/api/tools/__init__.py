"""Functions that a client offers: told to the model in its family's way, and its calls of them read."""
