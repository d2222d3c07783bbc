"""Markdown for a terminal: text to blocks, blocks to styled lines. Built for text that is still arriving."""
