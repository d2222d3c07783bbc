"""Bytes on disk -> a Linear: one module a format."""
