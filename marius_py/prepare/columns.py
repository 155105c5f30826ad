"""Which columns are head, relation and tail, and whether the first line is a header (floor 4).

In: the cells of a file's first line (or its schema's names), those of some lines below it, and the user's
`columns` and `header`. Out: `Columns`, positions by role. Names decide when one is a usual word for the head
and another for the tail; a first line of text is then a header, as it is when only its ends are no numbers.
`column_names` says what names tell, `first_line` what the lines below do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from marius_py.errors import ConfigError, FormatError
from marius_py.prepare.advice import ELSEWHERE, WITHOUT_HEADER, other_reading, unclear
from marius_py.prepare.column_names import (
    Roles,
    UnclearColumnsError,
    first_of,
    is_word,
    log_left_out,
    log_order,
    offer_weight_of,
    recognise_columns,
)
from marius_py.prepare.first_line import NUMBER, FirstLine

ColumnKey = int | str
Header = bool | Literal["auto"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Columns(Roles):
    """The columns of a file to read, of `count` in all, that of weights as well where there is one."""

    has_header: bool
    count: int
    weight: int | None = None


class MissingColumnError(ConfigError):
    """A chosen column is in no file of this kind."""


@dataclass(frozen=True, slots=True)
class WeightKey:
    """The column of weights, by position or name, and whether a file needs one: else it is left out.

    Attributes:
        column: see there. needed: see there.
        of: cells of the rows in which `column` is a position; shorter ones of a file that needs no weights
            are taken for rows without them.
    """

    column: ColumnKey
    needed: bool = True
    of: int = 0


def resolve_columns(
    cells: Sequence[str],
    columns: Sequence[ColumnKey] | None,
    header: Header,
    where: str,
    following: Sequence[Sequence[str]] = (),
    numbered: Callable[[], bool] | None = None,
    weight: WeightKey | None = None,
) -> Columns:
    """Decide the columns of a file.

    Args:
        cells: the cells of the first line, or the names of a schema (then `header` is True).
        columns: two or three positions (from 0, negative from the end) or header names in the order head,
            (relation,) tail, where a number that is no position is a name; None: by the header's words if
            they tell head and tail (`WORDS`), otherwise in that order.
        header: whether the first line is a header; "auto": when it has usual words for head and tail, or one
            of `NO_RELATION` among two or three and numbers below it in all `following` lines, two or more, or
            when head and tail are no numbers and in all `following` lines the head is a whole number and the
            tail a number, which are two or more, or one if the names are `numbered`; without that, a warning
            says that the first line may be a header.
        where: file and line for messages.
        following: the cells of some lines after the first.
        numbered: says whether all names known before are whole numbers, as those of a graph that is extended
            may be; None: none are known.
        weight: the column of weights, which is no part of an edge whatever its name; None: there is none.

    Raises:
        FormatError: not two or three columns, a chosen name that several columns have, names that tell head
        and tail beside a column that may or may not be the relation, or names of which the order would take
        one of `NO_RELATION` for an end or the relation.
        ConfigError: columns of the wrong number or type, repeated, that the file lacks, or names without a
        header.
    """
    if header not in (True, False, "auto"):
        raise ConfigError(f"header is {header!r}; allowed: true, false, auto")
    place = None if weight is None else _place_of_weight(weight, cells, header, where)
    if weight is None or place is None:
        line = FirstLine(cells, where, following, numbered)
        return _without_weight(line, columns, header, None)
    if isinstance(weight.column, str):
        header = True
    kept = [i for i in range(len(cells)) if columns is not None or i != place]
    rows = [[row[i] for i in kept] if len(row) == len(cells) else [] for row in following]
    line = FirstLine([cells[i] for i in kept], where, rows, numbered)
    found = _without_weight(line, columns, header, kept)
    head, tail = kept[found.head], kept[found.tail]
    relation = None if found.relation is None else kept[found.relation]
    if place in (head, relation, tail):
        raise ConfigError(
            f"input.weight={weight.column} is a column of input.columns, too ({list(columns or ())}); the "
            "weight is no part of an edge"
        )
    read = place if weight.needed else None
    return replace(found, head=head, relation=relation, tail=tail, count=len(cells), weight=read)


def _place_of_weight(weight: WeightKey, cells: Sequence[str], header: Header, where: str) -> int | None:
    """Position of the column of weights; None where it is not needed and the file has none."""
    key = weight.column
    if isinstance(key, bool) or not isinstance(key, (int, str)):
        raise ConfigError(f"weight is {key!r}; give the position of a column from 0, or a header name")
    if isinstance(key, str) and header is False:
        raise ConfigError(
            f"input.weight={key} with input.header=false: a name needs a header, or give a position from 0"
        )
    found = [i for i, cell in enumerate(cells) if cell == key]
    if isinstance(key, int):
        there = -len(cells) <= key < len(cells) and (weight.needed or len(cells) >= weight.of)
        found = [key % len(cells)] if there else []
    if len(found) > 1:
        raise FormatError(f"{where} has {len(found)} columns named {key!r}; input.weight takes one")
    if not found and weight.needed:
        raise MissingColumnError(
            f"input.weight={key}, but {where} has no such column; it has {len(cells)}: {first_of(cells)}"
        )
    return found[0] if found else None


def _without_weight(
    line: FirstLine, columns: Sequence[ColumnKey] | None, header: Header, places: Sequence[int] | None
) -> Columns:
    """As `resolve_columns`, of cells without the weight; `places` are theirs in the file if there is one."""
    found = _by_default(line, header, places) if columns is None else _chosen(line, columns, header)
    if found.has_header:
        line.doubt_names(found)
    return found


def _chosen(line: FirstLine, columns: Sequence[ColumnKey], header: Header) -> Columns:
    """The columns that a user has chosen."""
    cells = line.cells
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
    positions = [_position(key, cells, columns, line.where) for key in keys]
    if len(set(positions)) != len(positions):
        raise ConfigError(f"columns is {columns!r}: two of them are the same column")
    head, tail = positions[0], positions[-1]
    has_header = header is True or by_name
    if not has_header and header == "auto":
        has_header = is_word(cells[head], "head") and is_word(cells[tail], "tail")
        if has_header and len(positions) == 3 and not is_word(cells[positions[1]], "relation"):
            logger.info(
                "%s: taken for a header; if it is an edge, set input.header=false %s",
                line.where, WITHOUT_HEADER,
            )  # fmt: skip
        if not has_header and line.heads_numbers(head, tail):
            has_header = line.is_header(head, tail)
        elif not has_header:
            line.doubt_edge(positions)
    relation = positions[1] if len(positions) == 3 else None
    return Columns(head, relation, tail, has_header, len(cells))


def _by_default(line: FirstLine, header: Header, places: Sequence[int] | None) -> Columns:
    """The columns by the words of a header, else in their order."""
    cells, where = line.cells, line.where
    last = len(cells) - 1
    has_header = header is True or (header == "auto" and line.tells_header())
    above_numbers = (
        header == "auto" and not has_header and len(cells) in (2, 3) and line.heads_numbers(0, last)
    )
    if above_numbers:
        has_header = line.is_header(0, last)
    if has_header:
        try:
            named = recognise_columns(cells)
        except UnclearColumnsError as error:
            raise unclear(error, cells, where, places, may_be_edge=header == "auto") from None
        if named is not None:
            log_left_out(cells, named, where)
            return Columns(named.head, named.relation, named.tail, True, len(cells))
    if len(cells) not in (2, 3):
        held, choice = "", ""
        if len(cells) > 1:
            held = "" if cells[0] == "0" else f" ({first_of(cells)})"  # those of an array are numbers
            choice = f": choose with input.columns, by name or number, such as [0,1,2] {ELSEWHERE}"
        beside = "" if places is None else " beside the weight"
        if places is None and len(cells) == 4 and NUMBER.fullmatch(cells[-1]):
            choice += f"; {offer_weight_of(3)}"
        raise FormatError(
            f"{where} has {len(cells)} column{'s' if len(cells) != 1 else ''}{beside}{held}; edges need two "
            f"(head, tail) or three (head, relation, tail){choice}{other_reading(cells)}"
        )
    if has_header:
        log_order(cells, where, "input.columns chooses others")
    elif header == "auto" and not above_numbers:  # else doubted already, or no doubt
        line.doubt_edge(range(len(cells)))
    line.doubt_tails(has_header=has_header)
    return Columns(0, 1 if len(cells) == 3 else None, last, has_header, len(cells))


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
    names = first_of(cells)
    if not found:
        raise MissingColumnError(
            f"input.columns is {columns!r}, but {where} has no column named {key!r}; its columns are {names}"
        )
    if len(found) > 1:
        raise FormatError(f"{where} has {len(found)} columns named {key!r}; its columns are {names}")
    return found[0]
