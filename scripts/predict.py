"""The same as the command marius-predict, for a checkout."""

import sys

from marius_py.cli import predict

if __name__ == "__main__":
    sys.exit(predict())
