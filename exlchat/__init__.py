"""exlchat: chat in the terminal with quantized language models, on an engine of its own."""

__version__ = "0.1.0"
