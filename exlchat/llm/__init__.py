"""The contract between a model, wherever it runs, and whoever talks to it: frozen values, no torch, nothing of ours."""
