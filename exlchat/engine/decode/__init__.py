"""Decoded tokens on a card: chains of kernels, captured as graphs."""
