"""The same as the command marius-train, for a checkout."""

import sys

from marius_py.cli import train

if __name__ == "__main__":
    sys.exit(train())
