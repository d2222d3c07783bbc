"""Which keys do what."""
