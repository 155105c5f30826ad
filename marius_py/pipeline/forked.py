"""Threads of torch after a fork (floor 3): a number of threads in, the number that can be used out.

Threads do not survive a fork. Where torch had some, an operation of the child that is shared out among them
waits for ever for those that are gone; one that the calling thread does alone does not.
"""

from __future__ import annotations

import logging
import os

log = logging.getLogger(__name__)

_forked = _told = False


def _note() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_note)


def usable_threads(number: int) -> int:
    """`number`, or 1 in a process that was forked after this module was imported; told there once."""
    global _told
    if not _forked or number == 1:
        return number
    if not _told:
        _told = True
        log.warning(
            "this process was forked, and torch's threads do not survive a fork: torch computes with 1 "
            'thread here, not %d; start processes with the method "spawn" to use more '
            '(multiprocessing.get_context("spawn"))',
            number,
        )
    return 1
