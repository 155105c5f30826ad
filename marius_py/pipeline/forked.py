"""Threads after a fork (floor 3): a number of torch's threads in, the number that can be used out.

Threads do not survive a fork. Where torch or faiss had some, an operation of the child that is shared out
among them waits for ever for those that are gone; one that the calling thread does alone does not. So a
process that is forked after this module was imported begins with one thread of each.
"""

from __future__ import annotations

import logging
import os
import sys

log = logging.getLogger(__name__)

_forked = _told = False
_lost = 1
"""Threads that torch had before the fork."""


def _limit() -> None:
    """Go on with one thread in a child. What is not loaded yet has lost none."""
    global _forked, _told, _lost
    _forked, _told = True, False
    if (count := getattr(sys.modules.get("torch"), "get_num_threads", None)) is not None:
        _lost = max(_lost, count())
    for module, name in (("torch", "set_num_threads"), ("faiss", "omp_set_num_threads")):
        if (set_threads := getattr(sys.modules.get(module), name, None)) is not None:
            set_threads(1)


os.register_at_fork(after_in_child=_limit)


def usable_threads(number: int) -> int:
    """`number`, or 1 in a process that was forked after this module was imported; told there once."""
    if not _forked or number == 1:
        return number
    _tell(number)
    return 1


def tell_of_fork() -> None:
    """Say in a forked process, once, that torch computes with one thread there, if it had more."""
    if _lost > 1:
        _tell(_lost)


def _tell(number: int) -> None:
    global _told
    if not _told:
        _told = True
        log.warning(
            "this process was forked, and torch's threads do not survive a fork: torch computes with 1 "
            'thread here, not %d; start processes with the method "spawn" to use more '
            '(multiprocessing.get_context("spawn"))',
            number,
        )
