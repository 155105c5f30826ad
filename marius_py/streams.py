"""Random streams (floor 0, numpy only): every draw's generator follows from seed, purpose and position.

No generator is carried from batch to batch, so a resumed run draws what the uninterrupted one would have
drawn, and the order in which threads reach their draws does not matter.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream is for; the value enters the seed, so it must never change."""

    PARTITION = 1
    SPLIT = 2
    GENERATE = 3
    SCHEDULE = 4
    SHUFFLE = 5
    NEGATIVES = 6
    DROPOUT = 7
    INIT_NODES = 8
    INIT_RELATIONS = 9
    EVALUATE = 10
    STORED_EDGES = 11


def stream(seed: int, purpose: Purpose, *position: int) -> np.random.Generator:
    """Generator for one purpose at one position (say epoch, step, batch), independent of all others.

    Args:
        seed: the run's seed, 0 ≤ seed < 2⁶⁴.
        purpose: what the numbers are for.
        position: non-negative integers that tell draws of one purpose apart.
    """
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence([seed, int(purpose), *position])))


def stream_seed(seed: int, purpose: Purpose, *position: int) -> int:
    """A 63-bit seed derived like `stream`, for generators of other libraries (`torch.Generator`)."""
    sequence = np.random.SeedSequence([seed, int(purpose), *position])
    low, high = sequence.generate_state(2, np.uint32).tolist()
    return int(low) | (int(high) & 0x7FFF_FFFF) << 32
