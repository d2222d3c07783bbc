"""The command line: a subcommand a file or folder, its parser and what it does."""
