"""What enters the model, a Batch (floor 1): tensors on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from marius_py.nn.known_answers import KnownAnswers
from marius_py.types import Side


@dataclass(frozen=True, slots=True)
class Importance:
    """What each negative counts for an edge, where the negatives at hand do not stand evenly for all nodes.

    Attributes:
        group: (C, K) int64, the group of each negative, in [0, G).
        weight: (C, P, G) float32, what a negative of each group counts for an edge; positive.
    """

    group: Tensor
    weight: Tensor

    def members(self, chunks: slice = slice(None)) -> Tensor:
        """(C, G, K) float32, 1 where a negative belongs to the group."""
        group = self.group[chunks].unsqueeze(1)
        table = self.weight.new_zeros(group.shape[0], self.weight.shape[2], group.shape[2])
        return table.scatter_(1, group, 1.0)

    def part(self, chunks: slice, inside: slice) -> Importance:
        """That of the edges `inside` each of the `chunks`."""
        return Importance(self.group[chunks], self.weight[chunks, inside].contiguous())


def mask_without(dropped: Tensor | KnownAnswers, shape: tuple[int, int, int]) -> Tensor:
    """A mask of a shape (C, P, K), bool: False at the positions (M,) int64 of its flattened form."""
    if isinstance(dropped, KnownAnswers):
        return dropped.mask()
    mask = dropped.new_ones(shape, dtype=torch.bool)
    mask.view(-1).index_fill_(0, dropped, False)
    return mask


@dataclass(frozen=True, slots=True)
class Corruption:
    """Shared negatives of one side.

    Attributes:
        nodes: (C, K) int64, local indices into `Batch.rows`.
        importance: what the negatives count; None counts all alike.
        dropped: (M,) int64, ascending and on the host distinct: positions in the flattened (C, P, K) that do
            not count, since the corrupted edge is known to be true. They are few, and a list of them is made
            and read in no time where a mask takes as long as a pass over the scores. None drops nothing.
        edge_weight: (B,) float32, what each edge's loss on this side counts; None: 1. The mean over the batch
            still divides by B, and the loss that is reported does not know of it.
        known: finds what does not count in the place of `dropped`, on the device where it is: the host sends
            none.
    """

    nodes: Tensor
    importance: Importance | None = None
    dropped: Tensor | None = None
    edge_weight: Tensor | None = None
    known: KnownAnswers | None = None

    def tensors(self) -> list[Tensor]:
        """All tensors that the host sends to a device, in a fixed order."""
        found = [self.nodes, self.dropped, self.edge_weight]
        if self.importance is not None:
            found += [self.importance.group, self.importance.weight]
        return [one for one in found if one is not None]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Corruption:
        """The same with others in the place of `tensors()`."""
        left = list(tensors)
        nodes = left.pop(0)
        dropped = None if self.dropped is None else left.pop(0)
        edge_weight = None if self.edge_weight is None else left.pop(0)
        importance = None if self.importance is None else Importance(*left)
        return Corruption(nodes, importance, dropped, edge_weight, self.known)

    @property
    def left_out(self) -> Tensor | KnownAnswers | None:
        """What does not count, or what finds it."""
        return self.dropped if self.known is None else self.known

    def mask(self, num_edges: int) -> Tensor | None:
        """Which negatives count for which of a batch of B edges: (C, P, K) bool, or None if all do."""
        left_out = self.left_out
        if left_out is None:
            return None
        chunks, count = self.nodes.shape
        return mask_without(left_out, (chunks, num_edges // chunks, count))

    def part(self, chunks: slice, inside: slice, chunk_edges: int) -> Corruption:
        """That of the edges `inside` each of the `chunks`, of chunks of P = `chunk_edges`."""
        dropped = self.dropped
        if dropped is not None:
            count = self.nodes.shape[1]
            chunk, within = dropped // (chunk_edges * count), dropped // count % chunk_edges
            mine = (chunk >= chunks.start) & (chunk < chunks.stop)
            mine &= (within >= inside.start) & (within < inside.stop)
            edge = (chunk - chunks.start) * (inside.stop - inside.start) + within - inside.start
            dropped = (edge * count + dropped % count)[mine]
        return Corruption(
            self.nodes[chunks],
            None if self.importance is None else self.importance.part(chunks, inside),
            dropped,
            self.edge_weights(chunks, inside),
            None if self.known is None else self.known.part(chunks, inside),
        )

    def edge_weights(self, chunks: slice, inside: slice) -> Tensor | None:
        """`edge_weight` of the edges `inside` each of the `chunks`, flattened."""
        if self.edge_weight is None:
            return None
        return self.edge_weight.view(len(self.nodes), -1)[chunks, inside].reshape(-1)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows and indices of one batch; edge b belongs to chunk b // P.

    Attributes:
        rows: (U, D) float32 embeddings of the batch's unique nodes.
        head, tail: (B,) int64 local indices into `rows`.
        relation: (B,) int64 relation ids.
        negatives: corrupted side → its shared negatives; C divides B.
        seed: seed of the batch's dropout stream.
        rate: factor of the learning rate; a () float32 tensor where a device is not to wait for the host.
    """

    rows: Tensor
    head: Tensor
    relation: Tensor
    tail: Tensor
    negatives: dict[Side, Corruption]
    seed: int
    rate: float | Tensor = 1.0

    def tensors(self) -> list[Tensor]:
        """All tensors, in a fixed order."""
        found = [self.rows, self.head, self.relation, self.tail]
        if isinstance(self.rate, Tensor):
            found.append(self.rate)
        for one in self.negatives.values():
            found += one.tensors()
        return found

    def with_tensors(self, tensors: Sequence[Tensor]) -> Batch:
        """The same batch with others in the place of `tensors()`."""
        rows, head, relation, tail, *left = tensors
        rate = left.pop(0) if isinstance(self.rate, Tensor) else self.rate
        negatives = {}
        for side, one in self.negatives.items():
            count = len(one.tensors())
            negatives[side] = one.with_tensors(left[:count])
            left = left[count:]
        return Batch(rows, head, relation, tail, negatives, self.seed, rate)
