"""Figures as they come (floor 5): settings and epochs in; other programs' logs and metrics.csv out."""

from marius_py.tracking.trackers import Tracker

__all__ = ["Tracker"]
