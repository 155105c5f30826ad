"""A query in closed form (floor 1): uses of a node's and a relation's rows in, query and way back out."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from marius_py.nn.decoders.base import ClosedFormDecoder
from marius_py.types import Side


class UsedRows(Protocol):
    """One use of rows (n, width), after its dropout."""

    @property
    def values(self) -> Tensor:
        """The rows."""
        ...

    @property
    def gradient(self) -> Tensor:
        """What their gradient is added to."""
        ...

    def close(self) -> None:
        """Take the gradient back through dropout."""
        ...


class Query:
    """A query made of a use of the known node and one of the relation, written into `out` (n, D)."""

    def __init__(
        self, decoder: ClosedFormDecoder, side: Side, node: UsedRows, relation: UsedRows, out: Tensor
    ) -> None:
        self._decoder, self._side = decoder, side
        self._node, self._relation = node, relation
        self.values = out
        decoder.query_into(node.values, relation.values, side, out)

    def backward(self, gradient: Tensor) -> None:
        """Add the gradients of what it was made of, from its own (n, D), which may be overwritten."""
        node, relation = self._node, self._relation
        self._decoder.query_backward(
            node.values, relation.values, self._side, gradient, node.gradient, relation.gradient
        )
        node.close()
        relation.close()
