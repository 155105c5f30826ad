"""The same as the command marius-prepare, for a checkout."""

import sys

from marius_py.cli import prepare

if __name__ == "__main__":
    sys.exit(prepare())
