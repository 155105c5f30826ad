"""Known edges on a device (floor 1): edges in, which negatives answer a batch's questions out; PyTorch.

A question is a known end and a relation, its answers the nodes at the other end. An edge is one number, its
question times the number of nodes plus its answer, and the numbers of all edges ascend in a table a side:
the answers of a question stand together, and a node is one of them if its number is there. `KnownEdges` does
the same on the host, where such searches wait for memory; a device has thousands under way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from marius_py.nn.known_index import ends
from marius_py.types import SIDES, Side

_END = torch.iinfo(torch.int64).max
"""What fills a table up: larger than any edge's number."""
_LEAST = 1024
"""Numbers that a table has room for, at least."""
_PAIRS = 1 << 22
"""Pairs of edges and negatives that are searched at once where no kernel does it."""


@dataclass(frozen=True, slots=True)
class KnownAnswers:
    """Negatives that do not count because they answer their edge's question, by what finds them.

    Attributes:
        table: (N,) int64, ascending numbers of known edges.
        first: (B,) int64, the number that node 0 would have as an answer to each edge's question.
        nodes: (C, K) int64 node ids of the negatives, ascending in each chunk; C divides B.
        num_nodes: more than any node id: an edge's answers have numbers in [first, first + num_nodes).
    """

    table: Tensor
    first: Tensor
    nodes: Tensor
    num_nodes: int

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Where the answers of each edge's question begin and end in the table, (B,) int64 each."""
        both = torch.stack((self.first, self.first + self.num_nodes))
        begin, end = torch.searchsorted(self.table, both).unbind()
        return begin, end

    def mask(self) -> Tensor:
        """Which negatives count: (C, P, K) bool. Waits for no device, and holds 24 bytes for some pairs."""
        chunks, count = self.nodes.shape
        first = self.first.view(chunks, -1, 1)
        keep = torch.empty((chunks, first.shape[1], count), dtype=torch.bool, device=self.first.device)
        edges = max(1, _PAIRS // (chunks * count))
        for begin in range(0, first.shape[1], edges):
            wanted = first[:, begin : begin + edges] + self.nodes.unsqueeze(1)
            place = torch.searchsorted(self.table, wanted).clamp_max_(len(self.table) - 1)
            torch.ne(self.table[place], wanted, out=keep[:, begin : begin + edges])
        return keep

    def part(self, chunks: slice, inside: slice) -> KnownAnswers:
        """Those of the edges `inside` each of the `chunks`."""
        first = self.first.view(len(self.nodes), -1)[chunks, inside].reshape(-1)
        return replace(self, first=first, nodes=self.nodes[chunks])


class AnswerTables:
    """Tables of known edges on a device, one a side, which stay in place from some edges to the next.

    One thread. What is launched reads them in the order in which it was asked for.

    Args:
        num_nodes, num_relations: more than any id of a node or relation; `fit` says how many may be.
        device: where the tables are.
    """

    def __init__(self, num_nodes: int, num_relations: int, device: torch.device) -> None:
        self._num_nodes, self._num_relations, self._device = num_nodes, num_relations, device
        self._tables: dict[Side, Tensor] = {}

    @staticmethod
    def fit(num_nodes: int, num_relations: int) -> bool:
        """Whether the numbers of edges, and those beyond a question's last answer, are 64-bit integers.

        >>> AnswerTables.fit(20_000_000, 10_000), AnswerTables.fit(200_000_000, 1_000)
        (True, False)
        """
        return (num_nodes * num_relations + 1) * num_nodes < _END

    @property
    def size(self) -> int:
        """Numbers that a table has room for. As long as this stays the same, so does where the tables are."""
        return len(self._tables["tail"]) if self._tables else 0

    def hold(self, edges: np.ndarray) -> None:
        """Put the edges (E, 3), integers, in the place of those held before.

        The device takes 16 bytes an edge, and some 50 more while it sorts them.
        """
        there = torch.from_numpy(edges).to(self._device, non_blocking=True)
        if not self._tables or len(edges) > self.size:
            self._tables.clear()
            self._tables |= {side: self._room_for(len(edges)) for side in SIDES}
        for side, table in self._tables.items():
            known, answering = ends(side)
            numbers = self._first(there[:, known], there[:, 1]).add_(there[:, answering])
            table[: len(edges)] = numbers.sort().values
            table[len(edges) :] = _END

    def _room_for(self, count: int) -> Tensor:
        """An empty table for so many edges, and for some more: most of the next ones are about as many."""
        grain = max(_LEAST, 1 << max(0, count.bit_length() - 4))
        return torch.empty(max(1, -(-count // grain)) * grain, dtype=torch.int64, device=self._device)

    def _first(self, known: Tensor, relation: Tensor) -> Tensor:
        """(n,) int64 numbers of node 0 as an answer to the questions of known ends and relations."""
        question = known.to(torch.int64).mul(self._num_relations).add_(relation)
        return question.mul_(self._num_nodes)

    def answers(self, side: Side, known: Tensor, relation: Tensor, nodes: Tensor) -> KnownAnswers:
        """What finds the negatives of a batch's `side` that do not count.

        Args:
            side: the corrupted end.
            known, relation: (B,) int64 the other end, and the relations, of the batch's edges.
            nodes: (C, K) int64 node ids of the negatives, ascending in each chunk.
        """
        return KnownAnswers(self._tables[side], self._first(known, relation), nodes, self._num_nodes)
