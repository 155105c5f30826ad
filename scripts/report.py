"""The same as the command marius-report, for a checkout."""

import sys

from marius_py.cli import report

if __name__ == "__main__":
    sys.exit(report())
