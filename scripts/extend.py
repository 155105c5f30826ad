"""The same as the command marius-extend, for a checkout."""

import sys

from marius_py.cli import extend

if __name__ == "__main__":
    sys.exit(extend())
