"""How fast a model runs here: load, prefill, decode, memory, and random models of known shapes to run it on."""
