"""The same as the command marius-verify, for a checkout."""

import sys

from marius_py.cli import verify

if __name__ == "__main__":
    sys.exit(verify())
