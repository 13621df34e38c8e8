"""`python -m mixtura`: the command line."""

import sys

from mixtura.cli import main

if __name__ == "__main__":
    sys.exit(main())
