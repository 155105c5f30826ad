"""Who competes for an answer (floor 4): all nodes, or those that a caller has chosen; names in, rows out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from marius_py.arrays import distinct
from marius_py.errors import ConfigError
from marius_py.evaluation.ranking.candidates import AllNodes, ChosenNodes, Ids
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


class NamedNodes(ChosenNodes):
    """Some nodes of a run.

    Args:
        run: an open run.
        ids: (n,) ascending distinct node ids, at least one.
    """

    def __init__(self, run: RunReader, ids: Ids) -> None:
        super().__init__(run, ids, run.dim)

    def nodes(self, places: Ids) -> Ids:
        """Ids of places, any shape; −1 stays."""
        return np.where(places < 0, -1, self._ids[places])


Competitors = EveryNode | NamedNodes
"""Candidates that know the node of each place."""


def competitors(run: RunReader, among: Iterable[Name] | None) -> Competitors:
    """The nodes of these names; None: all nodes.

    Raises:
        ConfigError: no name, or an unknown one; the message offers similar ones.
    """
    return EveryNode(run) if among is None else NamedNodes(run, chosen_ids(run, among))


def chosen_ids(run: RunReader, among: Iterable[Name]) -> Ids:
    """Ids (n,) of the nodes of these names, ascending and distinct; ConfigError as `competitors`."""
    names = name_texts(among, "among")
    if not names:
        raise ConfigError("among holds no names; allowed: the names of one node or more, or None for all")
    return distinct(run.node_ids(names))
