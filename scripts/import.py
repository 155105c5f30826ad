"""The same as the command marius-import, for a checkout."""

import sys

from marius_py.cli import import_

if __name__ == "__main__":
    sys.exit(import_())
