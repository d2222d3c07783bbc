"""The line mode: the same chat in the terminal's own scrollback, and for terminals and ears that need plain lines."""
