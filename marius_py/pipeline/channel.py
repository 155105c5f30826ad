"""Hand-over between two stages (floor 3): a bounded queue that an error anywhere opens at once."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class StoppedError(Exception):
    """The pipeline is stopping because another stage failed; never reaches the user."""


class Stop:
    """One switch for a whole pipeline: waits of all channels and limits end when it is set."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.is_set = False

    def set(self) -> None:
        """Wake every waiting stage with StoppedError."""
        with self.condition:
            self.is_set = True
            self.condition.notify_all()


class Channel(Generic[T]):
    """First in, first out; `put` waits while `capacity` items are queued, `get` while none is.

    All waits of one pipeline share the Stop's condition: hand-overs are few (one a batch and stage), and
    one lock cannot be taken in two orders.
    """

    def __init__(self, capacity: int, stop: Stop) -> None:
        self._items: deque[T] = deque()
        self._capacity = capacity
        self._stop = stop
        self._closed = False

    def put(self, item: T) -> None:
        """Append an item. Raises StoppedError when the pipeline stops meanwhile."""
        with self._stop.condition:
            self._stop.condition.wait_for(lambda: self._stop.is_set or len(self._items) < self._capacity)
            self._raise_if_stopped()
            self._items.append(item)
            self._stop.condition.notify_all()

    def get(self) -> T | None:
        """Take the next item, or None once the channel is closed and empty. Raises StoppedError."""
        with self._stop.condition:
            self._stop.condition.wait_for(lambda: self._stop.is_set or self._items or self._closed)
            self._raise_if_stopped()
            if not self._items:
                return None
            item = self._items.popleft()
            self._stop.condition.notify_all()
            return item

    def waiting(self, most: int) -> list[T]:
        """Take those items that are here, at most so many. Raises StoppedError."""
        with self._stop.condition:
            self._raise_if_stopped()
            items = [self._items.popleft() for _ in range(min(most, len(self._items)))]
            self._stop.condition.notify_all()
            return items

    def close(self) -> None:
        """No item follows; the reader gets None after the last one."""
        with self._stop.condition:
            self._closed = True
            self._stop.condition.notify_all()

    def _raise_if_stopped(self) -> None:
        if self._stop.is_set:
            raise StoppedError


class InFlight:
    """Bounds the batches between gather and scatter: the staleness bound, 1 being exactly synchronous."""

    def __init__(self, limit: int, stop: Stop) -> None:
        self._left = limit
        self._stop = stop

    def acquire(self) -> None:
        """Wait for a place. Raises StoppedError when the pipeline stops meanwhile."""
        with self._stop.condition:
            self._stop.condition.wait_for(lambda: self._stop.is_set or self._left > 0)
            if self._stop.is_set:
                raise StoppedError
            self._left -= 1

    def release(self) -> None:
        """Give the place back."""
        with self._stop.condition:
            self._left += 1
            self._stop.condition.notify_all()
