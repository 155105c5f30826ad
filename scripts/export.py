"""The same as the command marius-export, for a checkout."""

import sys

from marius_py.cli import export

if __name__ == "__main__":
    sys.exit(export())
