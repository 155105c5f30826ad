"""Scratch tensors that outlive a step (floor 1), so that a step in steady state allocates nothing large."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar, cast

import torch
from torch import Tensor

REGISTER = 16
"""Floats of a register: rows of so many, and blocks of so many, leave a product no remainder."""

_MAX_VIEWS = 256
_MAX_REMEMBERED = 16

T = TypeVar("T")


def padded(size: int) -> int:
    """The least multiple of a register that is not smaller.

    >>> padded(100), padded(112)
    (112, 112)
    """
    return -(-size // REGISTER) * REGISTER


class Workspace:
    """Named scratch buffers that grow and never shrink. One thread at a time; contents are undefined.

    Args:
        device: where the buffers live.
        compiled: whether those who work in it should use compiled loops.

    Attributes:
        size_bytes: bytes held; any thread may read it.
    """

    def __init__(self, device: torch.device, compiled: bool = True) -> None:
        self.device = device
        self.compiled = compiled
        self.size_bytes = 0
        self._buffers: dict[str, Tensor] = {}
        self._views: dict[tuple[object, ...], Tensor] = {}
        self._remembered: dict[tuple[object, ...], object] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """Contiguous float32 tensor of `shape` with undefined content; the next take of `name` reuses it."""
        view = self._views.get((name, *shape))
        if view is None:
            view = self._views[(name, *shape)] = self._make(name, shape)
        return view

    def _make(self, name: str, shape: tuple[int, ...]) -> Tensor:
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            smaller = 0 if buffer is None else buffer.nbytes
            buffer = self._buffers[name] = torch.empty(size, dtype=torch.float32, device=self.device)
            self.size_bytes += buffer.nbytes - smaller
            # Views of the smaller buffer would keep it alive. Batches differ in their number of unique rows,
            # so that views would also pile up without the bound.
            self._views = {key: view for key, view in self._views.items() if key[0] != name}
        if len(self._views) > _MAX_VIEWS:
            self._views.clear()
        return buffer[:size].view(shape)

    def remember(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        """What `make` made for `key`, made once; for objects that hold views of buffers taken here.

        If a buffer has grown since, the object keeps the smaller one, which is still its own to use.
        """
        if key not in self._remembered:
            if len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = make()
        return cast(T, self._remembered[key])

    def zeros(self, name: str, *shape: int) -> Tensor:
        """As `take`, filled with zeros."""
        return self.take(name, *shape).zero_()
