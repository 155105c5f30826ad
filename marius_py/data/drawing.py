"""Negatives of a batch, and its ids as places in the buffer (floor 2): LeasedEdges → EdgeBatch.

For a buffer on a device, translating ids and finding distinct ones are left to it: LeasedEdges → DrawnBatch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from marius_py.buffer import PartitionBuffer
from marius_py.buffer.device import DeviceBuffer
from marius_py.data.batch_settings import BatchSettings
from marius_py.data.distinct import DistinctIndex
from marius_py.data.drawn_ahead import draw_both, is_foreign
from marius_py.data.drawn_batch import DrawnBatch
from marius_py.data.edge_batch import EdgeBatch, GroupWeights, Ids
from marius_py.data.importance import group_shares, group_weights, resident_groups
from marius_py.data.leased_edges import LeasedEdges
from marius_py.data.recurring import padded_positions
from marius_py.data.resident_edges import EdgesAtHand
from marius_py.errors import ConfigError
from marius_py.nn.known_edges import KnownEdges, own_answers
from marius_py.nn.negatives import NegativeSampler, ResidentNodes
from marius_py.pool import Pool
from marius_py.storage.protocols import Edges
from marius_py.streams import Purpose, stream_seed
from marius_py.types import SIDES, Side


def checked(drawn: Any, num_edges: int, resident: ResidentNodes) -> NDArray[np.int64]:
    """What a sampler has drawn, as (C, K) int64, if it may be trained on.

    Args:
        drawn: what its `sample` returned.
        num_edges: B, edges of the batch.
        resident: the nodes that were to be drawn from.

    Raises:
        ConfigError: no integers, of another shape, or a node that is not in the buffer; names
        `negatives.sampler`.
    """
    allowed = "allowed: (C, K) integers, C a divisor of the batch's edges and K at least 1"
    try:
        ids = np.asarray(drawn)
    except Exception as error:  # whatever an object of another library raises
        raise ConfigError(
            f"negatives.sampler draws {type(drawn).__name__}, which is no array ({error}); {allowed}"
        ) from error
    if ids.dtype.kind not in "iu" or ids.ndim != 2:
        what = type(drawn).__name__ if ids.dtype.kind == "O" else f"{ids.dtype} of shape {ids.shape}"
        raise ConfigError(f"negatives.sampler draws {what}; {allowed}")
    if not ids.size or num_edges % len(ids):
        raise ConfigError(
            f"negatives.sampler draws integers of shape {ids.shape} for a batch of {num_edges} edges; "
            f"{allowed}"
        )
    ids = ids.astype(np.int64, copy=False)
    part = np.searchsorted(resident.starts, ids, side="right") - 1
    outside = (part < 0) | (ids >= (resident.starts + resident.sizes)[part])
    if outside.any():
        raise ConfigError(
            f"negatives.sampler draws node {ids[outside][0]}, which is not in memory; allowed: ids of "
            f"resident nodes, such as resident.uniform(rng, size) draws ({resident.count} of them, "
            f"{resident.starts[0]} to {resident.starts[-1] + resident.sizes[-1] - 1})"
        )
    return ids


class BatchDrawing:
    """Draws batches; several threads may each draw one. What is drawn depends on positions alone.

    Args:
        buffer: where the batches' nodes lie.
        sampler: draws negatives among the resident nodes.
        batches: the run's seed, and which negatives count and what.
    """

    def __init__(self, buffer: PartitionBuffer, sampler: NegativeSampler, batches: BatchSettings) -> None:
        self._buffer = buffer
        self._sampler = sampler
        self._batches = batches
        self._shares = None
        if batches.weigh:
            self._shares = group_shares(buffer.store.table.partitioning.num_partitions, buffer.capacity)
        self._is_foreign = is_foreign(sampler)
        # Their order means nothing. Rows of the host are read and added to faster in the order of memory, and
        # so is a search for known edges; a device does not care. What is another's may change: it is copied.
        self._sorts = self._is_foreign or batches.mask_known or not isinstance(buffer, DeviceBuffer)
        self._distinct = Pool(lambda: DistinctIndex(buffer.num_rows, compiled=batches.compiled))

    def draw(self, leased: LeasedEdges) -> EdgeBatch | DrawnBatch:
        """Draw negatives, find those that must not count, translate ids to rows, find distinct ones."""
        seed = stream_seed(self._batches.seed, Purpose.DROPOUT, *leased.here)
        if isinstance(self._buffer, DeviceBuffer):
            at_hand = leased.known if isinstance(leased.known, EdgesAtHand) else None
            reads = self._sampler.reads_edges or (self._batches.mask_known and at_hand is None)
            edges = leased.edges.astype(np.int64) if reads else leased.edges
            negatives, dropped = self._negatives(edges, leased)
            return DrawnBatch(
                here=leased.here,
                position=leased.after,
                edges=leased.edges,
                negatives=negatives,
                dropped={side: padded_positions(positions) for side, positions in dropped.items()},
                first_row=leased.first_row,
                seed=seed,
                lease=leased.lease,
                known=at_hand,
                weight=leased.weight,
            )
        ids = np.ascontiguousarray(leased.edges.T, dtype=np.int64)  # (3, B)
        negatives, dropped = self._negatives(ids.T, leased)
        weights = self._edge_weights(ids.T, leased)
        return self._located(ids, negatives, dropped, weights, seed, leased)

    def _negatives(self, edges: Edges, leased: LeasedEdges) -> tuple[dict[Side, Ids], dict[Side, Ids]]:
        """Corrupted side → (C, K) node ids, and → positions of those that do not count."""
        lent = edges.view()
        lent.flags.writeable = False  # what a sampler wrote there would be trained on
        both = draw_both(self._sampler, self._batches.seed, lent, leased.nodes, leased.here)
        drawn: dict[Side, Ids] = {}
        dropped: dict[Side, Ids] = {}
        for side, found in both.items():
            if self._is_foreign:
                found = checked(found, len(edges), leased.nodes)
            drawn[side] = np.sort(found, axis=1) if self._sorts else found
            if isinstance(leased.known, EdgesAtHand):
                continue  # the device finds them, own answers among them
            if self._batches.mask_known and leased.known is not None:
                dropped[side] = leased.known.false_negatives(edges, drawn[side], side)
            elif self._sampler.holds_answers:
                dropped[side] = own_answers(edges, drawn[side], side)
        return drawn, dropped

    def _edge_weights(self, edges: Edges, leased: LeasedEdges) -> dict[Side, NDArray[np.float32]]:
        """Corrupted side → (B,) what edges count; empty if all count alike."""
        found: dict[Side, NDArray[np.float32]] = {}
        if self._batches.per_question and isinstance(leased.known, KnownEdges):
            found = {side: leased.known.question_weights(edges, side) for side in SIDES}
        if leased.weight is None:
            return found
        return {side: found[side] * leased.weight if found else leased.weight for side in SIDES}

    def _located(
        self,
        ids: Ids,
        drawn: dict[Side, Ids],
        dropped: dict[Side, Ids],
        edge_weight: dict[Side, NDArray[np.float32]],
        seed: int,
        leased: LeasedEdges,
    ) -> EdgeBatch:
        edges = ids.shape[1]
        everything = np.concatenate([ids[0], ids[2], *(drawn[side].ravel() for side in SIDES)])
        rows = self._buffer.index(everything, leased.first_row, self._batches.compiled)
        with self._distinct.lend() as distinct:
            index, local = distinct(rows)
        negatives: dict[Side, Ids] = {}
        offset = 2 * edges
        for side in SIDES:
            size, shape = drawn[side].size, drawn[side].shape
            negatives[side] = local[offset : offset + size].reshape(shape)
            offset += size
        return EdgeBatch(
            here=leased.here,
            position=leased.after,
            index=index,
            head=local[:edges],
            relation=ids[1],
            tail=local[edges : 2 * edges],
            negatives=negatives,
            dropped=dropped,
            importance=self._importance(rows, edges, drawn, leased.first_row),
            edge_weight=edge_weight,
            seed=seed,
            lease=leased.lease,
        )

    def _importance(
        self, rows: Ids, edges: int, drawn: dict[Side, Ids], first_rows: Ids
    ) -> dict[Side, GroupWeights]:
        """Corrupted side → what its negatives count; empty if all count alike.

        Args:
            rows: buffer rows of B = `edges` heads, as many tails and the drawn nodes of both sides.
        """
        if self._shares is None:
            return {}
        resident = np.flatnonzero(first_rows >= 0)
        group_of_slot = np.zeros(self._buffer.num_slots, np.int64)
        group_of_slot[self._buffer.slot(first_rows[resident])] = resident_groups(first_rows)[resident]
        sizes = [edges, edges, *(drawn[side].size for side in SIDES)]
        heads, tails, *negatives, _ = np.split(group_of_slot[self._buffer.slot(rows)], np.cumsum(sizes))
        weights = group_weights(heads, tails, self._shares, self._buffer.capacity)
        return {
            side: GroupWeights(
                group.reshape(drawn[side].shape), weights.reshape(len(drawn[side]), -1, weights.shape[1])
            )
            for side, group in zip(SIDES, negatives, strict=True)
        }
