"""Scratch objects lent to one user at a time (floor 0), for work that several threads do at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Pool(Generic[T]):
    """Makes an object whenever none is free, and keeps those that come back. Thread-safe.

    Args:
        make: makes one.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._free: list[T] = []

    @contextmanager
    def lend(self) -> Iterator[T]:
        """An object for the borrower alone while the block runs; after an error nobody gets it again."""
        try:
            one = self._free.pop()
        except IndexError:
            one = self._make()
        yield one
        self._free.append(one)

    @property
    def free(self) -> tuple[T, ...]:
        """Those that nobody holds now."""
        return tuple(self._free)
