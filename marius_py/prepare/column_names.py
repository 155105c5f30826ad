"""Which columns their names tell to be head, relation and tail (floor 4).

In: the names of columns. Out: their positions by role, where one is a usual word for the head and another for
the tail. What is left over must plainly be no relation (`NO_RELATION`), and names whose order counts must
agree with it: a relation that is left out by mistake, or a weight that is read as one, would silently make
another graph.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marius_py.errors import ConfigError, FormatError

WORDS = {
    "head": (
        "head", "source", "src", "subject", "from", "lhs", "h", "head_id", "source_id", "head_entity",
        "subject_id", "source_node", "from_node", "src_id", "from_id",
    ),
    "relation": (
        "relation", "rel", "predicate", "relationship", "edge_type", "r", "relation_id", "property", "type",
        "kind", "label",
    ),
    "tail": (
        "tail", "target", "dst", "destination", "object", "to", "rhs", "t", "tail_id", "target_id",
        "tail_entity", "object_id", "target_node", "to_node", "dest", "dst_id", "to_id",
    ),
}  # fmt: skip
"""Names by which a column is known as head, relation or tail, whatever their case."""

NO_RELATION = (
    "weight", "weights", "w", "score", "count", "timestamp", "time", "id", "index", "__index_level_0__",
    "unnamed: 0", "",
)  # fmt: skip
"""Names of columns that are left out beside a known head and tail: they plainly are no relation."""

_WEIGHTS = ("weight", "weights", "w", "score", "count")
"""Those of them that may be weights of edges."""

_ROLES = {2: ("head", "tail"), 3: ("head", "relation", "tail")}
"""What columns are in their order, by how many there are."""

_ID = re.compile(r"(?P<of>.*[^\W_])[ _]?id", re.IGNORECASE)
"""The name of a column of ids: `user_id`, `userId`."""

_MARKS = re.compile(r"[0-9:/#]")
"""What names of nodes have that are numbered or carry a type, `gene/7`, and names of columns rarely."""

_MOST_NAMES, _MOST_LETTERS = 12, 40
"""Names of columns, and letters of each, that a message shows: frames of a pivot have thousands."""

_TYPES = "; if nodes of each type have numbers of their own, make names of both first, such as author/7"

_LEVEL = re.compile(r"__index_level_[0-9]+__")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Roles:
    """Positions (from 0) of columns by role; `relation` is None for a graph without relations."""

    head: int
    relation: int | None
    tail: int

    @property
    def used(self) -> tuple[int, ...]:
        """Positions in the order head, (relation,) tail."""
        return (self.head, self.tail) if self.relation is None else (self.head, self.relation, self.tail)


@dataclass(frozen=True, slots=True)
class NamedColumns(Roles):
    """What the names of columns say, the positions of those to leave out as well."""

    left_out: tuple[int, ...]


class UnclearColumnsError(FormatError):
    """Names that tell head and tail, and leave open what another column is, or whose order misleads.

    `with_relation` and `without` are positions in the order head, (relation,) tail that a user may choose;
    of two columns both are the same.
    """

    def __init__(self, problem: str, with_relation: tuple[int, ...], without: tuple[int, int]) -> None:
        super().__init__(problem)
        self.problem = problem
        self.with_relation = with_relation
        self.without = without


def listed_columns(columns: Any) -> list[Any] | None:
    """The columns that a caller has chosen, numbers and texts of NumPy as Python's; None: none were.

    Raises:
        ConfigError: they stand in a set, whose order is none, in a mapping, whose order nobody means, in one
        text, or in nothing that has several.
    """
    if columns is None:
        return None
    several = isinstance(columns, Iterable) and not (isinstance(columns, np.ndarray) and columns.ndim != 1)
    if not several or isinstance(columns, (str, bytes, set, frozenset, Mapping)):
        raise ConfigError(
            f"columns is {columns!r}, of type {type(columns).__name__}; allowed: a list, in the order head, "
            "(relation,) tail"
        )
    return [column.item() if isinstance(column, np.generic) else column for column in columns]


def tells_ends(names: Sequence[str]) -> bool:
    """Whether one of the names is a usual word for the head and another for the tail."""
    return all(any(is_word(name, role) for name in names) for role in ("head", "tail"))


def leave_out_index(names: Sequence[str], index: Sequence[str], where: str) -> tuple[list[str], list[str]]:
    """Take a pandas index away from the columns of a file, where it has no name or one of `NO_RELATION`.

    Args:
        names: the columns.
        index: those of them that hold the index.
        where: the file, for the log.

    Returns:
        The other columns, and those of the index among them that may be a part of the edges: the names do not
        tell head and tail, and an index stands at the end, wherever it stood in the frame.
    """
    plain = [name for name in index if _normalised(name) in NO_RELATION or _LEVEL.fullmatch(name)]
    if plain:
        logger.info("%s: left out, as the index of a pandas frame: %s", where, ", ".join(map(repr, plain)))
    rest = [name for name in names if name not in plain]
    return rest, [] if tells_ends(rest) else [name for name in index if name not in plain]


def recognise_columns(names: Sequence[str]) -> NamedColumns | None:
    """Read roles off the names of columns.

    Returns:
        The columns, or None if no name tells the head or none the tail: then their order does.

    Raises:
        UnclearColumnsError: two columns for one role, one that is neither known nor in `NO_RELATION`, or one
        of these where the order of two or three columns would use it.
    """
    if not tells_ends(names):
        _check_order(names)
        return None
    found = {role: [i for i, name in enumerate(names) if is_word(name, role)] for role in WORDS}
    known = {i for positions in found.values() for i in positions}
    left_out = [i for i in no_relations(names) if i not in known]
    unknown = [i for i in range(len(names)) if i not in known and i not in left_out]
    head, tail = found["head"][0], found["tail"][0]
    problems = [
        f"{listed(names, positions)} could each be the {role}"
        for role, positions in found.items()
        if len(positions) > 1
    ]
    if unknown:
        problems.append(
            f"{listed(names, unknown)} {'is no name' if len(unknown) == 1 else 'are no names'} known for a "
            "relation, nor for what can be left out (such as weight, timestamp, id)"
            + _TYPES
            * all(_normalised(names[i]).endswith("type") for i in unknown)
        )
    candidates = [*found["relation"], *unknown]
    if problems:
        middle = (candidates or [i for i in range(len(names)) if i not in (head, tail)])[0]
        raise UnclearColumnsError(
            f"has the columns {first_of(names)}: {'; '.join(problems)}",
            (head, middle, tail),
            (head, tail),
        )
    return NamedColumns(head, found["relation"][0] if found["relation"] else None, tail, tuple(left_out))


def _check_order(names: Sequence[str]) -> None:
    """Refuse two or three columns in their order if a name is that of another part of an edge, or of none."""
    if len(names) not in _ROLES:
        return
    roles = [_role_of(name) for name in names]
    doubtful = no_relations(names)
    misplaced = [
        i
        for i, (role, own) in enumerate(zip(roles, _ROLES[len(names)], strict=True))
        if role not in (None, own)
    ]
    problems = [
        f"{names[i]!r} would be the {_ROLES[len(names)][i]} by their order, and is a name of the {roles[i]}"
        for i in misplaced
    ]
    if doubtful:
        problems.append(
            f"{listed(names, doubtful)} {'is no name' if len(doubtful) == 1 else 'are no names'} for a part "
            "of an edge, as their order would have it"
        )
    if problems:
        order = _by_role(roles) if misplaced else tuple(range(len(names)))
        ends = [i for i in order if i not in doubtful]
        raise UnclearColumnsError(
            f"has the columns {', '.join(map(repr, names))}, which do not tell head and tail, and "
            f"{'; '.join(problems)}",
            order,
            (ends[0], ends[-1]) if len(ends) == 2 else (order[0], order[-1]),
        )


def _by_role(roles: Sequence[str | None]) -> tuple[int, ...]:
    """Positions in the order head, (relation,) tail: names with a role have it, the others what is left."""
    wanted = _ROLES[len(roles)]
    given = {role: roles.index(role) for role in wanted if role in roles}
    rest = [i for i in range(len(roles)) if i not in given.values()]
    return tuple(given[role] if role in given else rest.pop(0) for role in wanted)


def no_relations(names: Sequence[str]) -> list[int]:
    """Positions of names that plainly are no relation's."""
    return [i for i, name in enumerate(names) if _normalised(name) in NO_RELATION]


def may_be_names(cells: Sequence[str]) -> list[int]:
    """Positions of cells that may be names of columns: words for a part of an edge, or for what is none.

    Words of one letter are none of them: nodes have such names.
    """
    return [
        i
        for i, cell in enumerate(cells)
        if (_normalised(cell) in NO_RELATION and cell.strip()) or (_role_of(cell) and len(cell.strip()) > 1)
    ]


def log_left_out(names: Sequence[str], columns: NamedColumns, where: str) -> None:
    """Log which columns are read and which are left out, if any are."""
    if columns.left_out:
        logger.info("%s: %s; left out: %s", where, _roles(names, columns), listed(names, columns.left_out))
        offer = offer_weight([names[i] for i in columns.left_out])
        if offer:
            logger.info("%s: %s", where, offer)


def offer_weight(names: Sequence[str]) -> str:
    """How edges count by the first of these columns that may have weights; "" if none may."""
    key = next((name for name in names if _normalised(name) in _WEIGHTS), None)
    return "" if key is None else offer_weight_of(key)


def offer_weight_of(key: int | str) -> str:
    """How edges count by a column, in words that hold for every command that reads edges."""
    key_in_python = f"weight={key!r} in Python"
    return f"to let edges count by a weight, prepare the graph with input.weight={key} ({key_in_python})"


def log_order(names: Sequence[str], where: str, choice: str) -> None:
    """Log that two or three columns are taken in their order; `choice` says how to choose others."""
    columns = NamedColumns(0, 1 if len(names) == 3 else None, len(names) - 1, ())
    logger.info(
        "%s: the names of the columns do not tell head and tail, so their order does: %s; %s",
        where,
        _roles(names, columns),
        choice,
    )


def doubt_ids(head: str, tail: str, where: str) -> None:
    """Warn where two columns of numbers are named for ids of two things: equal numbers are one node.

    Args:
        head, tail: the names of columns that hold whole numbers.
        where: the file or frame, for the log.
    """
    things = [found["of"] for found in map(_ID.fullmatch, (head, tail)) if found]
    bare = [thing.casefold().strip("0123456789_ ") for thing in things]
    if len(things) == 2 and bare[0] != bare[1] and not tells_ends((head, tail)):
        logger.warning(
            "%s: %r and %r hold numbers, and the same number in both is one node; if %s 7 and %s 7 are not "
            "the same, make names of the numbers first, such as %s/7 and %s/7",
            where, head, tail, *things, *things,
        )  # fmt: skip


def unlike_below(cells: Sequence[str], following: Sequence[Sequence[str]], ends: tuple[int, int]) -> str:
    """Say how head and tail of a first line differ from all below, as `gene` does from `Gene::7`.

    Args:
        cells, following: the cells of the first line, and of some after it.
        ends: positions of head and tail.

    Returns:
        What ends a sentence: both have no digit or sign such as a colon, and both have in all of two or more
        lines below; "" if that is not so.
    """
    rows = [cells, *following]
    if len(following) < 2 or any(len(row) != len(cells) for row in following):
        return ""
    if any(bool(_MARKS.search(row[i])) is (row is cells) for row in rows for i in ends):
        return ""
    return (
        f"{listed(cells, ends)} have no digit, colon, slash or #, and all ends below have, such as "
        f"{listed(following[0], ends)}"
    )


def _roles(names: Sequence[str], columns: NamedColumns) -> str:
    relation = "no relation" if columns.relation is None else f"relation {names[columns.relation]!r}"
    return f"head {names[columns.head]!r}, {relation}, tail {names[columns.tail]!r}"


def listed(names: Sequence[str], positions: Sequence[int]) -> str:
    """Some of the names, for a message."""
    if len(positions) > _MOST_NAMES:
        return first_of([names[i] for i in positions])
    parts = [repr(names[i]) for i in positions]
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def first_of(names: Sequence[object]) -> str:
    """Names of columns for a message, as far as it has room for them."""
    texts = [str(name) for name in names[:_MOST_NAMES]]
    cut = [text if len(text) <= _MOST_LETTERS else text[:_MOST_LETTERS] + "…" for text in texts]
    rest = f", … ({len(names)} in all)" if len(names) > _MOST_NAMES else ""
    return ", ".join(map(repr, cut)) + rest


def _normalised(cell: str) -> str:
    return cell.strip().casefold()


def is_word(cell: str, role: str) -> bool:
    """Whether a name is a usual one for a role."""
    return _normalised(cell).replace(" ", "_") in WORDS[role]


def _role_of(name: str) -> str | None:
    return next((role for role in WORDS if is_word(name, role)), None)
