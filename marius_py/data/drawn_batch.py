"""A batch of ids on its way to a buffer on a device (floor 2): DrawnBatch → one array → LocalBatch.

In: node ids, drawn and leased. Out: the rows of the device's buffer that they are, and which are distinct,
found on the device: for the host that is the longest part of making a batch. It is the arithmetic of
`PartitionBuffer.index` and `BatchDrawing`, but distinct rows come in the order of their last occurrence, not
ascending, which would need a sort.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marius_py.buffer import Lease
from marius_py.buffer.device import DeviceBuffer
from marius_py.data.edge_batch import Ids
from marius_py.data.importance import group_shares, resident_groups
from marius_py.data.resident_edges import EdgesAtHand
from marius_py.nn.batch import Corruption, Importance
from marius_py.nn.known_answers import AnswerTables
from marius_py.storage.protocols import Edges
from marius_py.types import SIDES, Position, Side


@dataclass(frozen=True, slots=True)
class DrawnBatch:
    """Ids of a batch, drawn and leased, not yet located.

    Attributes:
        here: position of the batch. position: where the run stands when it is done.
        edges: (B, 3) head, relation, tail, the store's integer type.
        negatives: corrupted side → (C, K) node ids.
        dropped: corrupted side → positions in the flattened (C, P, K) that do not count; the last one may
            come several times.
        first_row: (p,) buffer row of each partition's first node, -1 where it is not resident.
        seed: seed of the batch's dropout stream.
        lease: released when the batch's update has been handed to the device.
        known: edges for the device to find among the negatives, which ascend then in each chunk; nothing is
            `dropped`.
        weight: (B,) float32, what each edge counts; None: all count alike.
    """

    here: Position
    position: Position
    edges: Edges
    negatives: dict[Side, Ids]
    dropped: dict[Side, Ids]
    first_row: NDArray[np.int64]
    seed: int
    lease: Lease
    known: EdgesAtHand | None = None
    weight: NDArray[np.float32] | None = None

    @property
    def num_edges(self) -> int:
        """B."""
        return len(self.edges)

    def pack(self, rate: float, empty: Callable[[int], Tensor]) -> Tensor:
        """What travels to the device, (n,) uint8: 64-bit numbers, then the edges, and their weights if any.

        The numbers are the negatives of both sides, the first rows, the groups of partitions, what is
        dropped, and the bits of `rate`, the batch's factor of the learning rate.

        Args:
            rate: see there.
            empty: makes the tensor of n bytes.
        """
        numbers = [
            *(self.negatives[side].ravel() for side in SIDES),
            self.first_row,
            resident_groups(self.first_row),
            *(self.dropped[side] for side in SIDES if side in self.dropped),
            np.array([rate], np.float64).view(np.int64),
        ]
        size, weights = 8 * sum(len(part) for part in numbers), self.weight_bytes
        packed = empty(size + self.edges.nbytes + weights)
        np.concatenate(numbers, out=packed[:size].view(torch.int64).numpy())
        edges = packed[size : len(packed) - weights].numpy()
        edges.view(self.edges.dtype).reshape(self.edges.shape)[...] = self.edges
        if self.weight is not None:
            packed[len(packed) - weights :].numpy().view(np.float32)[...] = self.weight
        return packed

    @property
    def weight_bytes(self) -> int:
        """Bytes that the weights of edges take, 0 if there are none."""
        return 0 if self.weight is None else self.weight.nbytes


@dataclass(frozen=True, slots=True)
class LocalBatch:
    """A batch located in the buffer, on its device.

    Attributes:
        index: (n,) int64 buffer rows, the first `count` of them the batch's distinct nodes, the others 0.
        count: () number of distinct nodes; None: n.
        head, tail: (B,) indices into `index`. relation: (B,) relation ids.
        negatives: corrupted side → indices into `index`, and what they count.
        lost: () bool, whether a node's partition is not in the buffer.
        rate: () float32, factor of the learning rate.
    """

    index: Tensor
    count: Tensor | None
    head: Tensor
    tail: Tensor
    relation: Tensor
    negatives: dict[Side, Corruption]
    lost: Tensor
    rate: Tensor


class Locator:
    """Locates drawn batches in a buffer on a device. One thread; the scratch memory is reused.

    Args:
        buffer: the buffer.
        device: where it is.
        weigh: let negatives count so that together they stand for all nodes (see `group_weights`).
        padded: leave `index` as long as the batch, instead of waiting for the number of distinct nodes.
    """

    def __init__(self, buffer: DeviceBuffer, device: torch.device, *, weigh: bool, padded: bool) -> None:
        self._partitioning = buffer.store.table.partitioning
        self._capacity = buffer.capacity
        self._shares = group_shares(self._partitioning.num_partitions, self._capacity) if weigh else None
        self._padded = padded
        self._last = torch.zeros(buffer.num_rows, dtype=torch.int32, device=device)

    def __call__(self, drawn: DrawnBatch, packed: Tensor, tables: AnswerTables | None = None) -> LocalBatch:
        """Locate a batch, given what it was packed to as one (n,) uint8 tensor on the device.

        Args:
            drawn: the batch, of which only shapes are read.
            packed: its numbers.
            tables: hold the edges that it brings to be found, if it does.
        """
        edges = drawn.num_edges
        shapes = {side: drawn.negatives[side].shape for side in SIDES}
        dropped = [len(drawn.dropped[side]) if side in drawn.dropped else 0 for side in SIDES]
        sizes = [shape[0] * shape[1] for shape in shapes.values()]
        sent = [drawn.edges.nbytes, drawn.weight_bytes]
        numbers, triples, weights = torch.split(packed, [len(packed) - sum(sent), *sent])
        edge_weight = None if drawn.weight is None else weights.view(torch.float32)
        num_partitions = len(drawn.first_row)
        drawn_nodes, first_row, group_of, *positions, rate = torch.split(
            numbers.view(torch.int64), [sum(sizes), num_partitions, num_partitions, *dropped, 1]
        )
        own, relation = self._columns(triples, drawn.edges)
        everything = torch.cat((own, drawn_nodes))
        part, rows, lost = self._rows(everything, first_row)
        index, local, count = self._distinct(rows)
        head, tail, *negative = torch.split(local, [edges, edges, *sizes])
        if self._shares is not None:
            head_group, tail_group, *group = torch.split(group_of[part], [edges, edges, *sizes])
            weight = self._weights(head_group, tail_group, self._shares)
        heads, tails = own.view(2, -1)
        nodes = torch.split(drawn_nodes, sizes)
        negatives: dict[Side, Corruption] = {}
        for number, (side, shape) in enumerate(shapes.items()):
            importance, found = None, None
            if tables is not None and drawn.known is not None:
                known = heads if side == "tail" else tails
                found = tables.answers(side, known, relation, nodes[number].view(shape))
            if self._shares is not None:
                importance = Importance(group[number].view(shape), weight.view(shape[0], -1, self._capacity))
            negatives[side] = Corruption(
                negative[number].view(shape),
                importance=importance,
                dropped=positions[number] if side in drawn.dropped else None,
                edge_weight=edge_weight,
                known=found,
            )
        factor = rate.view(torch.float64).float().squeeze(0)
        return LocalBatch(index, count, head, tail, relation, negatives, lost, factor)

    @staticmethod
    def _columns(triples: Tensor, like: Edges) -> tuple[Tensor, Tensor]:
        """Heads and then tails (2 B,), and relations (B,), int64, of the bytes of edges."""
        columns = triples.view(torch.int32 if like.dtype == np.int32 else torch.int64).view(-1, 3).t()
        return columns[::2].reshape(-1).long(), columns[1].long().contiguous()

    def _rows(self, nodes: Tensor, first_row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Partitions and buffer rows of nodes, and whether any is not resident; as `Partitioning.locate`."""
        base, extra = divmod(self._partitioning.num_nodes, self._partitioning.num_partitions)
        boundary = extra * (base + 1)
        part = nodes.div(base + 1, rounding_mode="floor")
        if base:
            beyond = (nodes - boundary).div(base, rounding_mode="floor").add_(extra)
            part = torch.where(nodes < boundary, part, beyond)
        start = part * base + part.clamp_max(extra)
        first = first_row[part]
        # A node that is lost reads some row of the buffer until the host hears of it.
        return part, first.clamp_min(0) + (nodes - start), (first < 0).any()

    def _distinct(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Distinct rows in the order of their last occurrence, where each row is among them, their number."""
        place = torch.arange(len(rows), dtype=torch.int32, device=rows.device)
        self._last.index_fill_(0, rows, 0)
        self._last.scatter_reduce_(0, rows, place, "amax")  # of equal rows the last one, in any order
        last = self._last[rows]
        is_last = last == place
        local = is_last.cumsum(0, dtype=torch.int64).sub_(1)
        if not self._padded:
            return rows[is_last], local[last], None
        index = rows.new_zeros(len(rows) + 1)
        index.scatter_(0, torch.where(is_last, local, len(rows)), rows)
        return index[:-1], local[last], local[-1] + 1

    def _weights(self, head_group: Tensor, tail_group: Tensor, shares: tuple[float, float, float]) -> Tensor:
        """(B, c) what a negative of each group counts for each edge, as `group_weights`."""
        own, inside, between = shares
        others = torch.full_like(head_group, between, dtype=torch.float32)
        others.masked_fill_(head_group == tail_group, inside)
        weights = others.unsqueeze(1).repeat(1, self._capacity)
        for group in (head_group, tail_group):
            weights.scatter_(1, group.unsqueeze(1), own)
        return weights
