"""What the closed-form gradients of a group of chunks work on (floor 1): rows, their uses, scratch.

In: rows of a batch and indices of a group's edges. Out: values, and room for gradients that go back to the
rows. All of it lies in a `Workspace`, so that a step allocates nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from marius_py.nn.dropout import RowMasks
from marius_py.nn.kernels.host import add_rows
from marius_py.nn.kernels.workspace import Workspace


class Rows:
    """Rows of a group's edges, `values`, and their `gradient`, the first columns of (n, padded)."""

    def __init__(self, name: str, table: Tensor, index: Tensor, padded: int, workspace: Workspace) -> None:
        self._index = index
        self._name = name
        self._workspace = workspace
        self.values = torch.index_select(
            table, 0, index, out=workspace.take(name, len(index), table.shape[1])
        )
        self._padded = workspace.zeros(f"d_{name}", len(index), padded)
        self.gradient = self._padded[:, : table.shape[1]]

    def use(self, name: str, masks: RowMasks) -> Use:
        """The rows after dropout; `name` tells apart the uses that are open at once."""
        return Use(name, self, masks.take(len(self._index)), self._workspace)

    def add_gradient(self, table: Tensor) -> None:
        """Add the gradient to the table's, which is as wide as the padded one."""
        add_rows(table, self._index, self._padded, self._workspace.compiled)


class Use:
    """One use of rows: `values` after its dropout, and their `gradient`; both (n, width)."""

    def __init__(self, name: str, rows: Rows, mask: Tensor | None, workspace: Workspace) -> None:
        self._rows, self._mask = rows, mask
        self.values, self.gradient = rows.values, rows.gradient
        if mask is not None:
            self.values = torch.mul(rows.values, mask, out=workspace.take(f"use_{name}", *mask.shape))
            self.gradient = workspace.zeros(f"d_use_{name}", *mask.shape)

    def close(self) -> None:
        """Take the gradient back through dropout to the rows."""
        if self._mask is not None:
            self._rows.gradient.addcmul_(self.gradient, self._mask)


class Scratch:
    """Scratch of a group of g chunks of P edges with K candidates, and the views of it that are used.

    Views are made once for each shape: a step would otherwise spend a few per cent of its time on them.
    """

    def __init__(
        self,
        chunks: int,
        edges: int,
        count: int,
        dim: int,
        widths: tuple[int, int],
        blocks: Sequence[slice],
        ws: Workspace,
    ) -> None:
        width, gradient_width = widths
        flat = chunks * edges
        self.pairs = ws.take("pairs", flat, dim)
        self.extended = ws.take("query", flat, width)
        self.query = self.extended[:, :dim]
        gradient = ws.take("d_query", flat, gradient_width)
        self.d_query = gradient[:, :dim]
        self.positive_query = ws.take("positive_query", flat, dim)
        self.d_positive_query = ws.take("d_positive_query", flat, dim)
        queries, gradients = (one.view(chunks, edges, -1) for one in (self.extended, gradient))
        self.blocks = [
            BlockScratch(queries[:, block], gradients[:, block], block, count, ws) for block in blocks
        ]


class BlockScratch:
    """Scratch of n edges of each of g chunks.

    Attributes:
        edges: (start, stop) of its edges among those of one chunk. first, stop: of their scores.
        query, d_query: views of the group's, (g, n, W) and (g, n, G). unscaled: the query's first G columns.
        scaled: (g, n, G). scores, inverse, counts, softplus: (g, n, K).
    """

    def __init__(self, query: Tensor, d_query: Tensor, edges: slice, count: int, ws: Workspace) -> None:
        self.edges = edges
        self.first, self.stop = edges.start * count, edges.stop * count
        self.query, self.d_query = query, d_query
        self.unscaled = query[..., : d_query.shape[-1]]
        self.scaled = ws.take("scaled", *d_query.shape)
        shape = (query.shape[0], query.shape[1], count)
        self.scores = ws.take("scores", *shape)
        self.inverse = ws.take("inverse", *shape)
        self.counts = ws.take("counts", *shape)
        self.softplus = ws.take("softplus", *shape)
