"""Guesses of tokens ahead, checked in one pass."""
