"""Which columns are head, relation and tail, and whether the first line is a header (floor 4).

In: the cells of a file's first line (or its schema's names) and the user's `columns` and `header`. Out:
`Columns`, positions by role. Header detection is strict: a first line counts as a header only when every
cell that would be used is a usual word for its role.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from marius_py.errors import ConfigError, FormatError

ColumnKey = int | str
Header = bool | Literal["auto"]

_WORDS = {
    "head": {"head", "source", "src", "subject", "from", "lhs", "h", "head_id", "source_id", "head_entity"},
    "relation": {
        "relation",
        "rel",
        "predicate",
        "relationship",
        "edge_type",
        "r",
        "relation_id",
        "property",
        "type",
    },
    "tail": {
        "tail",
        "target",
        "dst",
        "destination",
        "object",
        "to",
        "rhs",
        "t",
        "tail_id",
        "target_id",
        "tail_entity",
    },
}


@dataclass(frozen=True, slots=True)
class Columns:
    """Positions (from 0) of the columns to read; `relation` is None for a graph without relations."""

    head: int
    relation: int | None
    tail: int
    has_header: bool
    count: int

    @property
    def used(self) -> tuple[int, ...]:
        """Positions in the order head, (relation,) tail."""
        return (self.head, self.tail) if self.relation is None else (self.head, self.relation, self.tail)


def resolve_columns(
    cells: Sequence[str], columns: Sequence[ColumnKey] | None, header: Header, where: str
) -> Columns:
    """Decide the columns of a file.

    Args:
        cells: the cells of the first line, or the names of a schema (then `header` is True).
        columns: two or three positions (from 0, negative from the end) or header names in the order head,
            (relation,) tail; None: by the header's words if they say it, otherwise in that order.
        header: whether the first line is a header; "auto": when its cells are usual words for the roles.
        where: file and line for messages.

    Raises:
        FormatError: not two or three columns, or a chosen column that the file lacks.
        ConfigError: columns of the wrong number or type, repeated, or names without a header.
    """
    if header not in (True, False, "auto"):
        raise ConfigError(f"header is {header!r}; allowed: true, false, auto")
    if columns is None:
        return _by_words_or_order(cells, header, where)
    keys = list(columns)
    if len(keys) not in (2, 3) or not all(
        isinstance(key, (int, str)) and not isinstance(key, bool) for key in keys
    ):
        raise ConfigError(
            f"columns is {columns!r}; give two (head, tail) or three (head, relation, tail), each a "
            "position from 0 or a header name"
        )
    by_name = any(isinstance(key, str) for key in keys)
    if by_name and header is False:
        raise ConfigError(
            f"columns is {columns!r} with header=false; names need a header, or give positions from 0"
        )
    positions = [_position(key, cells, where) for key in keys]
    if len(set(positions)) != len(positions):
        raise ConfigError(f"columns is {columns!r}: two of them are the same column")
    has_header = header is True or by_name
    if not has_header and header == "auto":
        roles = ("head", "tail") if len(positions) == 2 else ("head", "relation", "tail")
        has_header = all(_is_word(cells[p], role) for p, role in zip(positions, roles, strict=True))
    relation = positions[1] if len(positions) == 3 else None
    return Columns(positions[0], relation, positions[-1], has_header, len(cells))


def _by_words_or_order(cells: Sequence[str], header: Header, where: str) -> Columns:
    if len(cells) not in (2, 3):
        hint = "; is the delimiter right?" if len(cells) == 1 else ""
        raise FormatError(
            f"{where} has {len(cells)} column{'s' if len(cells) != 1 else ''}; edges need two (head, tail) "
            f"or three (head, relation, tail): choose with columns=, say columns=[0,1,2]{hint}"
        )
    by_role = {role: [i for i, cell in enumerate(cells) if _is_word(cell, role)] for role in _WORDS}
    wanted = ("head", "tail") if len(cells) == 2 else ("head", "relation", "tail")
    if header is not False and all(len(by_role[role]) == 1 for role in wanted):
        relation = by_role["relation"][0] if len(cells) == 3 else None
        return Columns(by_role["head"][0], relation, by_role["tail"][0], True, len(cells))
    return Columns(0, 1 if len(cells) == 3 else None, len(cells) - 1, header is True, len(cells))


def _is_word(cell: str, role: str) -> bool:
    return cell.strip().casefold().replace(" ", "_") in _WORDS[role]


def _position(key: ColumnKey, cells: Sequence[str], where: str) -> int:
    if isinstance(key, int):
        if not -len(cells) <= key < len(cells):
            raise FormatError(
                f"{where} has {len(cells)} columns; there is no column {key} (positions count from 0)"
            )
        return key % len(cells)
    found = [i for i, cell in enumerate(cells) if cell == key]
    if len(found) != 1:
        problem = "no column" if not found else f"{len(found)} columns"
        raise FormatError(
            f"{where} has {problem} named {key!r}; its columns are {', '.join(map(repr, cells))}"
        )
    return found[0]
