"""How edges become batches (floor 2), and what memory must hold for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marius_py.data.resident_edges import most_between
from marius_py.data.step_edges import BLOCK_EDGES
from marius_py.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """How edges become batches.

    Attributes:
        batch_size: B, most edges a batch. chunks: C, groups of a batch that share negatives.
        seed: the run's seed. mask_known: leave known edges out of the negatives,
            of the block at hand alone where more than `block_edges` lie between the residents.
        spread: divide each bucket among all steps that hold both of its partitions; otherwise it runs whole
            in the step that the schedule names. block_edges: edges of a step that are shuffled at once.
        weigh: let negatives count so that together they stand for all nodes (see `group_weights`).
        compiled: search known edges and level steps with loops compiled with Numba.
        per_question: let questions count alike, however many known edges answer them (K-vs-all);
            at most `block_edges` may lie between the residents.
        mean_weight: of the train edges, which count by their weight; None: they have none.
    """

    batch_size: int
    chunks: int
    seed: int
    mask_known: bool = False
    spread: bool = False
    block_edges: int = BLOCK_EDGES
    weigh: bool = False
    compiled: bool = True
    per_question: bool = False
    mean_weight: float | None = None

    @property
    def reads_known(self) -> bool:
        """Whether batches need to know the edges between the residents."""
        return self.mask_known or self.per_question


def check_answers(counts: NDArray[np.int64], capacity: int, limit: int = BLOCK_EDGES) -> None:
    """Refuse to count answers among the edges of a block only, which would be a random part of them.

    Args:
        counts: (p, p) train edges a bucket.
        capacity: c, partitions in the buffer.
        limit: most edges that are held between these.

    Raises:
        ConfigError: there may be more.
    """
    most = most_between(counts, capacity)
    if most > limit:
        raise ConfigError(
            f"negatives.per_question=true counts answers among the known edges between the partitions in "
            f"the buffer, at most {limit}; with storage.capacity={capacity} of "
            f"storage.partitions={len(counts)} there may be {most}: set a smaller "
            "storage.capacity, more storage.partitions, or negatives.per_question=false"
        )
