"""Embeddings for other programs (floor 4): a run in; files of common formats out, written in blocks."""

from marius_py.export.embeddings import export

__all__ = ["export"]
