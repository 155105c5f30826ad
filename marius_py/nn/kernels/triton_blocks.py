"""Shapes of the contrast kernels' blocks (floor 1): width of rows and precision in, the fastest known out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self

Kernel = Literal["forward", "backward"]


class TooLargeError(Exception):
    """Blocks of a kernel do not fit the device or its registers, or cannot be assembled for it.

    Attributes:
        kernel: which.
    """

    def __init__(self, kernel: Kernel, why: str) -> None:
        said = " ".join(why.split())  # an assembler's errors have many lines
        super().__init__(f"{kernel}: {said}")
        self.kernel = kernel


@dataclass(frozen=True, slots=True)
class Block:
    """Shape of a kernel's blocks; the best depends on the device, the precision and the width of rows.

    Attributes:
        own: rows whose sums a block keeps: queries forward, candidates backward; a power of 2, 16 to `ROWS`.
        other: rows that a block goes over at a time, likewise.
        warps: warps a block. stages: blocks that are loaded ahead.
    """

    own: int
    other: int
    warps: int = 4
    stages: int = 2

    def smaller(self) -> Self | None:
        """The next smaller block, for a device that this does not fit; None: there is none.

        >>> Block(16, 16, stages=1).smaller() is None
        True
        """
        if self.stages > 1:
            return replace(self, stages=1)
        if max(self.own, self.other) > 16:
            return replace(self, own=max(16, self.own // 2), other=max(16, self.other // 2))
        return None


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of both kernels.

    Attributes:
        forward, backward: their shapes.
        programs: blocks that the backward kernel is cut into at least, by sharing out the edges of a chunk.
    """

    forward: Block
    backward: Block
    programs: int = 528

    def smaller(self, kernel: Kernel) -> Self | None:
        """With the next smaller block of one kernel, or None if there is none."""
        if kernel == "forward":
            forward = self.forward.smaller()
            return None if forward is None else replace(self, forward=forward)
        backward = self.backward.smaller()
        return None if backward is None else replace(self, backward=backward)


def default_blocks(dim: int, precision: str) -> Blocks:
    """The fastest of those measured on an H100, and for tf32x3 on an H200, at D = 100.

    >>> default_blocks(100, "bf16").forward
    Block(own=64, other=64, warps=4, stages=2)
    """
    if dim > 128:
        wide = Block(64, 32, warps=8, stages=1)
        return Blocks(wide, wide)
    if precision == "bf16":
        return Blocks(Block(64, 64), Block(64, 128, stages=3))
    if precision == "tf32":
        return Blocks(Block(64, 32), Block(128, 64, warps=8))
    if precision == "tf32x3":
        return Blocks(Block(64, 32, stages=1), Block(128, 64, warps=8, stages=1))
    return Blocks(Block(64, 32), Block(64, 32))
