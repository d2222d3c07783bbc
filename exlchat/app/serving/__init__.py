"""The user's models for other programs."""
