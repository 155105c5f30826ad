"""The same as the command marius-neighbors, for a checkout."""

import sys

from marius_py.cli import neighbors

if __name__ == "__main__":
    sys.exit(neighbors())
