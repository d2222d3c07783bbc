"""Checking a database and saving what can be read of a damaged one; imported by `exlchat sessions check` alone."""
