"""The progress hook of preparing (floor 4): the library reports, the command's edge draws."""

from __future__ import annotations

from typing import Protocol


class ProgressHook(Protocol):
    """Called from the preparing thread, once a block, with counts that only grow within a stage."""

    def __call__(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """Report that `done` of `total` (None: unknown) units ("B" or "edges") of `stage` are through."""
        ...


def silent(stage: str, done: int, total: int | None, unit: str) -> None:
    """The hook that does nothing."""
