"""Widgets, one class a file."""
