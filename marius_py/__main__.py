"""`python -m marius_py COMMAND …` (floor 6)."""

import sys

from marius_py.cli import main

if __name__ == "__main__":
    sys.exit(main())
