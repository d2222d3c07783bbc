"""Pages of keys and values: which tokens each holds, its memory, and what outlives the program."""
