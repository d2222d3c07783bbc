"""How far a model has moved from the one that it was made of: divergence, perplexity, agreement."""
