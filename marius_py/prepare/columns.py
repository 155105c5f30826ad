"""Which columns are head, relation and tail, and whether the first line is a header (floor 4).

In: the cells of a file's first line (or its schema's names), those of some lines below it, and the user's
`columns` and `header`. Out: `Columns`, positions by role. Names decide when one is a usual word for the head
and another for the tail; a first line of text is then a header, as it is when only its ends are no numbers.
What is left over must plainly be no relation (`NO_RELATION`): a relation that is left out by mistake, or a
weight that is read as one, would silently make another graph.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from marius_py.errors import ConfigError, FormatError

ColumnKey = int | str
Header = bool | Literal["auto"]

WORDS = {
    "head": (
        "head", "source", "src", "subject", "from", "lhs", "h", "head_id", "source_id", "head_entity",
    ),
    "relation": (
        "relation", "rel", "predicate", "relationship", "edge_type", "r", "relation_id", "property", "type",
        "kind", "label",
    ),
    "tail": (
        "tail", "target", "dst", "destination", "object", "to", "rhs", "t", "tail_id", "target_id",
        "tail_entity",
    ),
}  # fmt: skip
"""Names by which a column is known as head, relation or tail, whatever their case."""

NO_RELATION = (
    "weight", "weights", "w", "score", "count", "timestamp", "time", "id", "index", "__index_level_0__",
    "unnamed: 0", "",
)  # fmt: skip
"""Names of columns that are left out beside a known head and tail: they plainly are no relation."""

_PLAIN_NAME = re.compile(r"[^\W\d][\w-]*")
_WHOLE_NUMBER = re.compile(r"\s*[+-]?[0-9]+\s*")
_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")
_LEVEL = re.compile(r"__index_level_[0-9]+__")
_DELIMITERS = {",": "a comma", "\t": "a tab", " ": "a blank", ";": "a semicolon", "|": "a bar"}
_COMMENTS = ("#", "%")
logger = logging.getLogger(__name__)


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


@dataclass(frozen=True, slots=True)
class NamedColumns:
    """What the names of columns say: positions by role, and of the columns to leave out."""

    head: int
    relation: int | None
    tail: int
    left_out: tuple[int, ...]

    @property
    def used(self) -> tuple[int, ...]:
        """Positions in the order head, (relation,) tail."""
        return (self.head, self.tail) if self.relation is None else (self.head, self.relation, self.tail)


class MissingColumnError(ConfigError):
    """A chosen column is in no file of this kind."""


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


def resolve_columns(
    cells: Sequence[str],
    columns: Sequence[ColumnKey] | None,
    header: Header,
    where: str,
    following: Sequence[Sequence[str]] = (),
    numbered: Callable[[], bool] | None = None,
) -> Columns:
    """Decide the columns of a file.

    Args:
        cells: the cells of the first line, or the names of a schema (then `header` is True).
        columns: two or three positions (from 0, negative from the end) or header names in the order head,
            (relation,) tail, where a number that is no position is a name; None: by the header's words if
            they tell head and tail (`WORDS`), otherwise in that order.
        header: whether the first line is a header; "auto": when it has usual words for head and tail, or one
            of `NO_RELATION` among two or three and numbers below it in all `following` lines, two or more, or
            when head and tail are no whole numbers and in all `following` lines they are, which are two or
            more, or one if the names are `numbered`; without that, a warning says that the first line may be
            a header.
        where: file and line for messages.
        following: the cells of some lines after the first.
        numbered: says whether all names known before are whole numbers, as those of a graph that is extended
            may be; None: none are known.

    Raises:
        FormatError: not two or three columns, a chosen name that several columns have, names that tell head
        and tail beside a column that may or may not be the relation, or names of which the order would take
        one of `NO_RELATION` for an end or the relation.
        ConfigError: columns of the wrong number or type, repeated, that the file lacks, or names without a
        header.
    """
    if header not in (True, False, "auto"):
        raise ConfigError(f"header is {header!r}; allowed: true, false, auto")
    if columns is None:
        return _by_words_or_order(cells, header, where, following, numbered)
    keys = [_number_or_name(key, cells, header) for key in columns]
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
    positions = [_position(key, cells, columns, where) for key in keys]
    if len(set(positions)) != len(positions):
        raise ConfigError(f"columns is {columns!r}: two of them are the same column")
    has_header = header is True or by_name
    if not has_header and header == "auto":
        has_header = _is_word(cells[positions[0]], "head") and _is_word(cells[positions[-1]], "tail")
        if has_header and len(positions) == 3 and not _is_word(cells[positions[1]], "relation"):
            logger.info(
                "%s: taken for a header; if it is an edge, set input.header=false %s", where, _WITHOUT_HEADER
            )
        if not has_header and _heads_numbers(cells, following, positions[0], positions[-1]):
            has_header = _takes_header(cells, following, positions[0], positions[-1], where, numbered)
    relation = positions[1] if len(positions) == 3 else None
    return Columns(positions[0], relation, positions[-1], has_header, len(cells))


def is_whole_number(name: str) -> bool:
    """Whether a name is a whole number, with a sign and blanks around it or without."""
    return _WHOLE_NUMBER.fullmatch(name) is not None


def tells_ends(names: Sequence[str]) -> bool:
    """Whether one of the names is a usual word for the head and another for the tail."""
    return all(any(_is_word(name, role) for name in names) for role in ("head", "tail"))


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
    found = {role: [i for i, name in enumerate(names) if _is_word(name, role)] for role in WORDS}
    known = {i for positions in found.values() for i in positions}
    left_out = [i for i in _no_relations(names) if i not in known]
    unknown = [i for i in range(len(names)) if i not in known and i not in left_out]
    head, tail = found["head"][0], found["tail"][0]
    problems = [
        f"{_listed(names, positions)} could each be the {role}"
        for role, positions in found.items()
        if len(positions) > 1
    ]
    if unknown:
        problems.append(
            f"{_listed(names, unknown)} {'is no name' if len(unknown) == 1 else 'are no names'} known for a "
            "relation, nor for what can be left out (such as weight, timestamp, id)"
        )
    candidates = [*found["relation"], *unknown]
    if problems:
        middle = (candidates or [i for i in range(len(names)) if i not in (head, tail)])[0]
        raise UnclearColumnsError(
            f"has the columns {', '.join(map(repr, names))}: {'; '.join(problems)}",
            (head, middle, tail),
            (head, tail),
        )
    return NamedColumns(head, found["relation"][0] if found["relation"] else None, tail, tuple(left_out))


def _check_order(names: Sequence[str]) -> None:
    """Refuse two or three columns in their order if one of them plainly is no head, relation or tail."""
    doubtful = _no_relations(names)
    if not doubtful or len(names) not in (2, 3):
        return
    last = len(names) - 1
    others = [i for i in range(len(names)) if i not in doubtful]
    raise UnclearColumnsError(
        f"has the columns {', '.join(map(repr, names))}, which do not tell head and tail, and "
        f"{_listed(names, doubtful)} {'is no name' if len(doubtful) == 1 else 'are no names'} for a part of "
        "an edge, as their order would have it",
        tuple(range(len(names))),
        (others[0], others[1]) if len(others) == 2 else (0, last),
    )


def _no_relations(names: Sequence[str]) -> list[int]:
    return [i for i, name in enumerate(names) if _normalised(name) in NO_RELATION]


def log_left_out(names: Sequence[str], columns: NamedColumns, where: str) -> None:
    """Log which columns are read and which are left out, if any are."""
    if columns.left_out:
        logger.info("%s: %s; left out: %s", where, _roles(names, columns), _listed(names, columns.left_out))


def log_order(names: Sequence[str], where: str, choice: str) -> None:
    """Log that two or three columns are taken in their order; `choice` says how to choose others."""
    columns = NamedColumns(0, 1 if len(names) == 3 else None, len(names) - 1, ())
    logger.info(
        "%s: the names of the columns do not tell head and tail, so their order does: %s; %s",
        where,
        _roles(names, columns),
        choice,
    )


def _roles(names: Sequence[str], columns: NamedColumns) -> str:
    relation = "no relation" if columns.relation is None else f"relation {names[columns.relation]!r}"
    return f"head {names[columns.head]!r}, {relation}, tail {names[columns.tail]!r}"


def _listed(names: Sequence[str], positions: Sequence[int]) -> str:
    parts = [repr(names[i]) for i in positions]
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def _by_words_or_order(
    cells: Sequence[str],
    header: Header,
    where: str,
    following: Sequence[Sequence[str]],
    numbered: Callable[[], bool] | None,
) -> Columns:
    has_header = header is True or (
        header == "auto" and (tells_ends(cells) or _leaves_numbers_out(cells, following))
    )
    above_numbers = (
        header == "auto"
        and not has_header
        and len(cells) in (2, 3)
        and _heads_numbers(cells, following, 0, len(cells) - 1)
    )
    if above_numbers:
        has_header = _takes_header(cells, following, 0, len(cells) - 1, where, numbered)
    if has_header:
        try:
            named = recognise_columns(cells)
        except UnclearColumnsError as error:
            raise _unclear(error, cells, header, where) from None
        if named is not None:
            log_left_out(cells, named, where)
            return Columns(named.head, named.relation, named.tail, True, len(cells))
    if len(cells) not in (2, 3):
        choice = "" if len(cells) == 1 else f": choose with input.columns=[0,1,2] {_ELSEWHERE}"
        raise FormatError(
            f"{where} has {len(cells)} column{'s' if len(cells) != 1 else ''}; edges need two (head, tail) "
            f"or three (head, relation, tail){choice}{_other_reading(cells)}"
        )
    if has_header:
        log_order(cells, where, "input.columns chooses others")
    elif above_numbers or header != "auto":
        pass  # doubted already, or no doubt
    elif doubtful := [i for i in _no_relations(cells) if cells[i].strip()]:
        logger.warning(
            "%s: taken for an edge, though %s may be a column's name; if this line is a header, set "
            "input.header=true and choose with input.columns %s",
            where, _listed(cells, doubtful), _ELSEWHERE,
        )  # fmt: skip
    return Columns(0, 1 if len(cells) == 3 else None, len(cells) - 1, has_header, len(cells))


def _leaves_numbers_out(cells: Sequence[str], following: Sequence[Sequence[str]]) -> bool:
    """Whether one of two or three cells is a name to be left out, above numbers in two lines or more."""
    return len(cells) in (2, 3) and len(following) > 1 and any(
        cells[i].strip() and all(len(row) == len(cells) and _NUMBER.fullmatch(row[i]) for row in following)
        for i in _no_relations(cells)
    )  # fmt: skip


def _heads_numbers(cells: Sequence[str], following: Sequence[Sequence[str]], head: int, tail: int) -> bool:
    """Whether head and tail are no whole numbers in the first line, and are in all those below, if any."""
    return (
        bool(following)
        and not any(is_whole_number(cells[i]) for i in (head, tail))
        and all(
            len(row) == len(cells) and all(is_whole_number(row[i]) for i in (head, tail)) for row in following
        )
    )


def _takes_header(
    cells: Sequence[str],
    following: Sequence[Sequence[str]],
    head: int,
    tail: int,
    where: str,
    numbered: Callable[[], bool] | None,
) -> bool:
    """Whether a first line that `_heads_numbers` is a header, which a warning says: one line is no proof."""
    is_header = len(following) > 1 or (numbered is not None and numbered())
    if is_header:
        taken, other, value, choice = "a header, as", "an edge", "false", _WITHOUT_HEADER
    else:
        taken, other, value, choice = "an edge, though", "a header", "true", _OWN_HEADER
    logger.warning(
        "%s: taken for %s %r and %r are no numbers and what stands below them are; if it is %s, set "
        "input.header=%s %s",
        where, taken, cells[head], cells[tail], other, value, choice,
    )  # fmt: skip
    return is_header


def _other_reading(cells: Sequence[str]) -> str:
    """What may be wrong with a first line of so many cells: a comment, or another delimiter."""
    sign = cells[0][:1]
    if sign in _COMMENTS:
        return (
            f"; if lines at the top that begin with {sign} are comments, set input.comment='{sign}' "
            f"{elsewhere('comment', 'take these lines out of the file')}"
        )
    if len(cells) > 1:
        return ""
    for delimiter, name in _DELIMITERS.items():
        if len(cells[0].split(delimiter)) in (2, 3):
            tab = delimiter == "\t"
            way = "input.format=tsv" if tab else f"'input.delimiter={delimiter}'"
            key = "format" if tab else "delimiter"
            return f"; is the delimiter {name}? Set {way} {elsewhere(key, 'write a .tsv file with tabs')}"
    return "; is the delimiter right?"


def elsewhere(argument: str, otherwise: str) -> str:
    """Who takes a key of input.* that a message names, in words that hold for every command that reads edges.

    Args:
        argument: its name in Python.
        otherwise: what helps with a command that has no such key.
    """
    commands = "marius-prepare and marius-extend"
    return f"(a key of {commands}; {argument}= in Python; for another command, {otherwise})"


_ELSEWHERE = elsewhere("columns", "write a file with those columns only")
_WITHOUT_HEADER = elsewhere("header", "write a line of names above it")
_OWN_HEADER = elsewhere("header", "take this line out of the file")


def _unclear(error: UnclearColumnsError, cells: Sequence[str], header: Header, where: str) -> FormatError:
    """The error with both ways to choose, in words that hold for every command that reads edges."""
    relation, plain = _setting(cells, error.with_relation), _setting(cells, error.without)
    edge = (
        f"; if this line is an edge and no header, set input.header=false {_WITHOUT_HEADER}"
        if header == "auto"
        else ""
    )
    other = "" if plain == relation else f", or without relations with input.columns={plain}"
    return FormatError(
        f"{where} {error.problem}. Choose with input.columns={relation}{other} {_ELSEWHERE}{edge}"
    )


def _setting(cells: Sequence[str], positions: Sequence[int]) -> str:
    """A value for input.columns: names, or positions where a name would not be read as that name."""
    plain = all(_PLAIN_NAME.fullmatch(cells[i]) and cells.count(cells[i]) == 1 for i in positions)
    return f"[{','.join(cells[i] if plain else str(i) for i in positions)}]"


def _normalised(cell: str) -> str:
    return cell.strip().casefold()


def _is_word(cell: str, role: str) -> bool:
    return _normalised(cell).replace(" ", "_") in WORDS[role]


def _number_or_name(key: ColumnKey, cells: Sequence[str], header: Header) -> ColumnKey:
    """A key; a number that is no position, but a name in a possible header, as that name."""
    outside = isinstance(key, int) and not -len(cells) <= key < len(cells)
    return str(key) if outside and header is not False and str(key) in cells else key


def _position(key: ColumnKey, cells: Sequence[str], columns: Sequence[ColumnKey], where: str) -> int:
    if isinstance(key, int):
        if not -len(cells) <= key < len(cells):
            raise MissingColumnError(
                f"input.columns is {columns!r}, but {where} has {len(cells)} columns; there is no column "
                f"{key} (positions count from 0)"
            )
        return key % len(cells)
    found = [i for i, cell in enumerate(cells) if cell == key]
    names = ", ".join(map(repr, cells))
    if not found:
        raise MissingColumnError(
            f"input.columns is {columns!r}, but {where} has no column named {key!r}; its columns are {names}"
        )
    if len(found) > 1:
        raise FormatError(f"{where} has {len(found)} columns named {key!r}; its columns are {names}")
    return found[0]
