"""Conversations in SQLite: the schema, what is written, found, undone and kept safe."""
