"""Who competes for an answer (floor 4): all nodes, or those that a caller has chosen; names in, rows out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from marius_py.arrays import distinct
from marius_py.errors import ConfigError
from marius_py.evaluation.ranking.candidates import AllNodes, Float32, Ids, position_in
from marius_py.run_files.given_names import Name, name_texts

if TYPE_CHECKING:
    from marius_py.run_files.reader import RunReader


class EveryNode(AllNodes):
    """All nodes of a run; their places are their ids."""

    def __init__(self, run: RunReader) -> None:
        super().__init__(run, run.num_nodes)

    def nodes(self, places: Ids) -> Ids:
        """The places themselves."""
        return places


class ChosenNodes:
    """Some nodes of a run, whose rows are read when they are due, and no others.

    Args:
        run: an open run.
        ids: (n,) ascending distinct node ids, at least one.
    """

    def __init__(self, run: RunReader, ids: Ids) -> None:
        self._run = run
        self._ids = ids

    @property
    def size(self) -> int:
        """n."""
        return int(self._ids.size)

    def blocks(self, block_rows: int) -> Iterator[tuple[int, Float32]]:
        """(place of the first row, rows (≤ block_rows, D)) in ascending order."""
        for start in range(0, self.size, block_rows):
            yield start, self._run.embeddings(self._ids[start : start + block_rows])

    def index(self, nodes: Ids) -> Ids:
        """Place of each node id, −1 if it was not chosen."""
        return position_in(self._ids, nodes)

    def nodes(self, places: Ids) -> Ids:
        """Ids of places, any shape; −1 stays."""
        return np.where(places < 0, -1, self._ids[places])


Competitors = EveryNode | ChosenNodes
"""Candidates that know the node of each place."""


def competitors(run: RunReader, among: Iterable[Name] | None) -> Competitors:
    """The nodes of these names; None: all nodes.

    Raises:
        ConfigError: no name, or an unknown one; the message offers similar ones.
    """
    if among is None:
        return EveryNode(run)
    names = name_texts(among, "among")
    if not names:
        raise ConfigError("among holds no names; allowed: the names of one node or more, or None for all")
    return ChosenNodes(run, distinct(run.node_ids(names)))
