"""Which nodes the batches of a block will draw as negatives (floor 2): sampler and positions in, ids out.

Draws follow from positions alone, so they may be made twice: in a batch's turn, and before, when known edges
are indexed. Of these only such matter as one of the block's negatives can make, mostly a small part.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marius_py.data.edge_batch import Ids
from marius_py.nn.negatives import NegativeSampler, ResidentNodes
from marius_py.storage.protocols import Edges
from marius_py.streams import Purpose, stream
from marius_py.types import SIDES, Position, Side

_FEW = 0.5
"""Draws of a side, for each resident node, up to which what is not drawn is left out: 39 % are drawn then."""
_MOST = 1 << 22
"""Draws of a side that are made ahead, at most: 32 MiB."""


def is_foreign(sampler: NegativeSampler) -> bool:
    """Whether a sampler's draws are not our own: they may have to be checked, and made once only."""
    return type(sampler).sample.__module__ != NegativeSampler.__module__


def draws_few(sampler: NegativeSampler) -> bool:
    """Whether the draws of a block can be known ahead, and may be few of the nodes."""
    return not is_foreign(sampler) and not sampler.holds_answers


def draw_both(
    sampler: NegativeSampler, seed: int, edges: Edges, nodes: ResidentNodes, here: Position
) -> dict[Side, Ids]:
    """Corrupted side → what a sampler draws for a batch.

    Args:
        sampler: draws them.
        seed: the run's.
        edges: (B, 3) the batch's.
        nodes: to draw from.
        here: position of the batch.
    """
    rng = stream(seed, Purpose.NEGATIVES, *here)
    return {side: sampler.sample(edges, nodes, side, rng) for side in SIDES}


def drawn_ahead(
    sampler: NegativeSampler,
    seed: int,
    edges: Edges,
    nodes: ResidentNodes,
    batches: Sequence[tuple[Position, slice]],
) -> dict[Side, Ids] | None:
    """Corrupted side → (n,) int64 ids that the batches of a block will draw, with repeats.

    Args:
        sampler, seed, nodes: as for `draw_both`.
        edges: (E, 3) of the block, or (E, 4) with weights.
        batches: position of each, and its edges.

    Returns:
        None where they are too many to be of use, or cannot be foreseen.
    """
    if not draws_few(sampler) or not batches:
        return None
    drawn: dict[Side, list[Ids]] = {side: [] for side in SIDES}
    for number, (here, mine) in enumerate(batches):
        both = draw_both(sampler, seed, edges[mine, :3], nodes, here)
        if number == 0:
            expected = max(ids.size for ids in both.values()) * len(batches)
            if expected > min(_MOST, _FEW * nodes.count):
                return None
        for side, ids in both.items():
            drawn[side].append(ids.ravel())
    return {side: np.concatenate(ids) for side, ids in drawn.items()}
