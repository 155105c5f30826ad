"""The package's version (floor 0): the build and every file that records it take it from here."""

__version__ = "0.1.0"
