"""Copies between the host's memory and a device's (floor 2), beside what the device computes.

`Transfer` is the CPU's: there is one memory, nothing is copied and nothing waited for. `CudaTransfer` pins
what it copies and has a stream for each direction; it works out which stream has to wait for which. Both are
called in the same places, so that the order of events is tested without a device.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marius_py.storage.aligned import allocate
from marius_py.storage.protocols import Float32


@dataclass(frozen=True, slots=True)
class Arrival:
    """Tensors under way to the device, and the event after which they are there (None: they are)."""

    tensors: tuple[Tensor, ...]
    event: Any = None


class Late:
    """A small tensor that the device has yet to compute, to be read without waiting for it."""

    def __init__(self, value: Tensor, event: Any = None) -> None:
        self._value, self._event = value, event

    def is_there(self) -> bool:
        """Whether `read` would return at once."""
        return self._event is None or bool(self._event.query())

    def read(self) -> list[float]:
        """The values; waits for the device if they are not there."""
        if self._event is not None:
            self._event.synchronize()
        values: list[float] = self._value.tolist()
        return values


class Transfer:
    """Copies that cost nothing, on a machine with one memory; the base of those that do.

    One thread sends (`move`, `sent`), one computes (`wait`, `computed`, `late`), one fetches, and the I/O
    thread loads and saves partitions.

    Args:
        device: where the tensors go.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    # ------------------------------------------------------------------ batches

    def host(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Memory of the host that is copied from fastest."""
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")

    def move(self, tensor: Tensor) -> Tensor:
        """Begin to copy a tensor of the host to the device; it may be used after `wait`."""
        return tensor

    def sent(self) -> Arrival:
        """What has been moved since the last call."""
        return Arrival(())

    def wait(self, arrival: Arrival) -> None:
        """Let what is computed from here on, in this thread, see what was sent. The host does not wait."""

    def computed(self) -> Any:
        """A mark in what this thread has asked the device to compute, for `fetch` and `save`."""
        return None

    def fetch(self, tensors: Sequence[Tensor], computed: Any) -> list[Tensor]:
        """Copy tensors to the host once they are computed; waits for them."""
        return list(tensors)

    def late(self, value: Tensor) -> Late:
        """A 1-d tensor on its way to the host."""
        return Late(value.clone())

    # ------------------------------------------------------------------ partitions

    def slots(self, shape: Sequence[int]) -> Tensor:
        """Zeros in the device's memory."""
        return torch.from_numpy(allocate(tuple(shape)))

    def staging(self, shape: Sequence[int]) -> Float32:
        """Memory of the host that partitions pass through, fit for direct I/O."""
        return allocate(tuple(shape))

    def load(self, pairs: Sequence[tuple[Float32, Tensor]]) -> None:
        """Copy each array of the host to its tensor and wait for the copies."""
        for array, tensor in pairs:
            tensor.copy_(torch.from_numpy(array))

    def save(self, pairs: Sequence[tuple[Float32, Tensor]]) -> None:
        """Copy each tensor, as it is after the last `computed` mark, to its array and wait for the copies."""
        for array, tensor in pairs:
            torch.from_numpy(array).copy_(tensor)

    def close(self) -> None:
        """Wait until nothing is copied any more."""


class CudaTransfer(Transfer):
    """Copies to and from a CUDA device from pinned memory, on a stream for each direction.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        make_stream: Any = torch.cuda.Stream
        self._inward, self._outward, self._partitions = (make_stream(device) for _ in range(3))
        self._moved: list[Tensor] = []
        self._pinned: dict[int, Tensor] = {}
        self._last: Any = None

    def host(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Pinned memory; it is used again once the copies from it are done."""
        return torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=True)

    def move(self, tensor: Tensor) -> Tensor:
        """Pin, where it is not, and copy on the inward stream."""
        with torch.cuda.stream(self._inward):
            pinned = tensor if tensor.is_pinned() else tensor.pin_memory()
            there = pinned.to(self.device, non_blocking=True)
        self._moved.append(there)
        return there

    def sent(self) -> Arrival:
        """With an event of the inward stream."""
        moved, self._moved = tuple(self._moved), []
        return Arrival(moved, self._inward.record_event())

    def wait(self, arrival: Arrival) -> None:
        """The current stream waits; the memory stays taken until it is done with the tensors."""
        stream = torch.cuda.current_stream(self.device)
        if arrival.event is not None:
            stream.wait_event(arrival.event)
        for tensor in arrival.tensors:
            tensor.record_stream(stream)

    def computed(self) -> Any:
        """An event of the current stream."""
        self._last = torch.cuda.current_stream(self.device).record_event()
        return self._last

    def fetch(self, tensors: Sequence[Tensor], computed: Any) -> list[Tensor]:
        """On the outward stream, into pinned memory."""
        found = []
        with torch.cuda.stream(self._outward):
            self._outward.wait_event(computed)
            for tensor in tensors:
                found.append(self.host(tensor.shape, tensor.dtype).copy_(tensor, non_blocking=True))
                tensor.record_stream(self._outward)
            make_event: Any = torch.cuda.Event
            event = self._outward.record_event(make_event(blocking=True))  # others need the processor
        event.synchronize()
        return found

    def late(self, value: Tensor) -> Late:
        """Copied behind what has been asked for so far."""
        host = self.host(value.shape, value.dtype).copy_(value, non_blocking=True)
        return Late(host, torch.cuda.current_stream(self.device).record_event())

    def slots(self, shape: Sequence[int]) -> Tensor:
        """Zeros on the device; they are there when it returns, for other streams write to them next."""
        zeros = torch.zeros(tuple(shape), dtype=torch.float32, device=self.device)
        torch.cuda.current_stream(self.device).synchronize()
        return zeros

    def staging(self, shape: Sequence[int]) -> Float32:
        """Pinned memory, on a page of its own; of the next power of two of bytes, as PyTorch pins it."""
        tensor = torch.zeros(tuple(shape), dtype=torch.float32, device="cpu", pin_memory=True)
        array: Float32 = tensor.numpy()
        self._pinned[array.ctypes.data] = tensor
        return array

    def load(self, pairs: Sequence[tuple[Float32, Tensor]]) -> None:
        """On the partitions' stream."""
        with torch.cuda.stream(self._partitions):
            for array, tensor in pairs:
                tensor.copy_(self._tensor_of(array), non_blocking=True)
        self._partitions.synchronize()

    def save(self, pairs: Sequence[tuple[Float32, Tensor]]) -> None:
        """On the partitions' stream, behind the last mark."""
        with torch.cuda.stream(self._partitions):
            if self._last is not None:
                self._partitions.wait_event(self._last)
            for array, tensor in pairs:
                self._tensor_of(array).copy_(tensor, non_blocking=True)
        self._partitions.synchronize()

    def close(self) -> None:
        """Wait for all three streams. What they say while an error is under way is kept from hiding it."""
        known = (RuntimeError,) if sys.exc_info()[0] is not None else ()
        with suppress(*known):
            for stream in (self._inward, self._outward, self._partitions):
                stream.synchronize()
        self._pinned.clear()

    def _tensor_of(self, array: Float32) -> Tensor:
        """The pinned tensor whose memory an array of `staging` is: PyTorch knows it by that to be pinned."""
        return self._pinned.get(array.ctypes.data, torch.from_numpy(array))


def transfer_to(device: torch.device) -> Transfer:
    """The copies for a device.

    >>> type(transfer_to(torch.device("cpu"))).__name__
    'Transfer'
    """
    return CudaTransfer(device) if device.type == "cuda" else Transfer(device)
