"""Names of queries as ids, ids of answers as names (floor 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from marius_py.arrays import distinct
from marius_py.errors import ConfigError
from marius_py.evaluation.ranking.candidates import Ids
from marius_py.run_files.given_names import Names, is_name, name_list, name_text

if TYPE_CHECKING:
    from marius_py.run_files.reader import RunReader

PARTS = ("head", "relation", "tail")
_NAME_BLOCK = 1 << 16

Place = Callable[[int], str]
"""Number of a query, from 0 → what messages call it."""


def numbered(number: int) -> str:
    """What messages call a query that stands in no file.

    >>> numbered(0)
    'query 1'
    """
    return f"query {number + 1}"


class Queries:
    """Queries by name, all of which exist.

    Args:
        run: knows the names.
        head, relation, tail: a name for all queries, or one a query; None for what is asked.
        place: what messages call a query.

    Attributes:
        names: Q times head, relation and tail.
        ids: (Q, 3) int64, −1 for what is asked.
        asked: (Q,) the part that is asked for, 0 head to 2 tail; −1 for none.

    Raises:
        ConfigError: lists of different lengths, more than one part left out, or an unknown name.
    """

    def __init__(
        self, run: RunReader, head: Names, relation: Names, tail: Names, place: Place = numbered
    ) -> None:
        self._place = place
        given = [_texts(part, what) for part, what in zip((head, relation, tail), PARTS, strict=True)]
        lengths = {len(part) for part in given if isinstance(part, list)}
        if len(lengths) > 1:
            raise ConfigError(f"head, relation and tail are lists of different lengths: {sorted(lengths)}")
        count = lengths.pop() if lengths else 1
        columns = [part if isinstance(part, list) else [part] * count for part in given]
        if not run.graph.has_relations:
            columns[1] = [name or "" for name in columns[1]]
        self.names = list(zip(*columns, strict=True))
        for number, names in enumerate(self.names):
            if sum(name is None for name in names) > 1:
                missing = " and ".join(part for part, name in zip(PARTS, names, strict=True) if name is None)
                raise ConfigError(
                    f"{place(number)} leaves out {missing}; give two of head, relation and tail, and the "
                    "third is predicted"
                )
        self.ids = np.full((count, 3), -1, dtype=np.int64)
        self._fill((0, 2), run.node_ids, run.graph.node_ids)
        self._fill((1,), run.relation_ids, run.graph.relation_ids)
        has_gap = (self.ids < 0).any(1)
        self.asked = np.where(has_gap, (self.ids < 0).argmax(1), -1)

    def asks(self, part: str, block: range | None = None) -> Ids:
        """Numbers of the queries of a block (None: all) that ask for a part, or for "nothing"."""
        block = range(len(self.names)) if block is None else block
        place = PARTS.index(part) if part in PARTS else -1
        return np.flatnonzero(self.asked[block.start : block.stop] == place) + block.start

    def _fill(
        self, parts: Sequence[int], find: Callable[[list[str]], Ids], look_up: Callable[[list[str]], Ids]
    ) -> None:
        """Write the ids of the given names; of unknown ones the first query is named.

        Args:
            parts: columns of head, relation and tail.
            find: names to ids (n,), or a ConfigError.
            look_up: names to ids (n,), -1 for an unknown one.
        """
        given = [
            (number, part)
            for number, names in enumerate(self.names)
            for part in parts
            if names[part] is not None
        ]
        if not given:
            return
        numbers, places = np.array(given).T
        names = [self.names[number][part] or "" for number, part in given]
        try:
            self.ids[numbers, places] = find(names)
        except ConfigError as error:
            if self._place is numbered and len(self.names) == 1:
                raise
            affected = distinct(numbers[look_up(names) < 0])
            more = f" and {affected.size - 1} more" if affected.size > 1 else ""
            raise ConfigError(f"{self._place(int(affected[0]))}{more}: {error}") from error


def _texts(given: Names, what: str) -> str | list[str | None] | None:
    """One name, or those of several queries."""
    if given is None:
        return None
    if is_name(given):
        return name_text(given, what)
    return [None if name is None else name_text(name, what) for name in name_list(given, what)]


def names_of(run: RunReader, ids: Ids) -> dict[int, str]:
    """Names of node ids of any shape by ascending id, negative ones left out; only blocks that hold one are
    read."""
    wanted = distinct(ids.reshape(-1))
    wanted = wanted[wanted >= 0]
    found: dict[int, str] = {}
    for block in distinct(wanted // _NAME_BLOCK).tolist():
        start = block * _NAME_BLOCK
        first, last = np.searchsorted(wanted, (start, start + _NAME_BLOCK))
        low, high = int(wanted[first]), int(wanted[last - 1]) + 1
        names = run.node_names(low, high)
        found.update((node, names[node - low]) for node in wanted[first:last].tolist())
    return found
