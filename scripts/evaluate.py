"""The same as the command marius-evaluate, for a checkout."""

import sys

from marius_py.cli import evaluate

if __name__ == "__main__":
    sys.exit(evaluate())
