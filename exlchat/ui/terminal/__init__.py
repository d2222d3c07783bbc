"""The terminal itself: standard streams, signals, its state, its clipboard, an editor in it."""
