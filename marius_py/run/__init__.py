"""A run folder (floor 4): its path in; rows, answers and metrics out. Written: result.json, metrics.jsonl."""

from marius_py.run.opened import Run, load

__all__ = ["Run", "load"]
