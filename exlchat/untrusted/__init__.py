"""What others made (files, names, text), made harmless. Imports nothing of ours; every floor may use it."""
