"""Markdown read: its grammar, and TeX made readable in one line."""
