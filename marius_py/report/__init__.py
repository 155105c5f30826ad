"""A run to look at (floor 4): an opened run in; one HTML page out, and its figures as PNGs."""

from marius_py.report.page import write_report

__all__ = ["write_report"]
