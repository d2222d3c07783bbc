"""The cards of this machine, and which of a model's layers lie on which."""
