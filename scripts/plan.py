"""The same as the command marius-plan, for a checkout."""

import sys

from marius_py.cli import plan

if __name__ == "__main__":
    sys.exit(plan())
