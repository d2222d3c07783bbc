"""The models of this user: where they lie, what they are called, what is remembered of each."""
