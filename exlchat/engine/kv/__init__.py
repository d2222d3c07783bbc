"""Keys and values in pages: which page holds what, their tensors, budgets, the running sequence."""
