"""`python -m exlchat`: the `exlchat` command where that is not on the path."""

import sys

from exlchat.cli.main import program

if __name__ == "__main__":
    sys.exit(program())
