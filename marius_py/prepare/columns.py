"""Which columns are head, relation and tail, and whether the first line is a header (floor 4).

In: the cells of a file's first line (or its schema's names), those of some lines below it, and the user's
`columns` and `header`. Out: `Columns`, positions by role. Names decide when one is a usual word for the head
and another for the tail; a first line of text is then a header, as it is when only its ends are no numbers.
`column_names` says what names tell. A first line that is taken for an edge though it may be a header, numbers
that may be weights, and blanks around names are warned of.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from marius_py.errors import ConfigError, FormatError
from marius_py.prepare.column_names import (
    Roles,
    UnclearColumnsError,
    doubt_ids,
    first_of,
    is_word,
    listed,
    log_left_out,
    log_order,
    may_be_names,
    no_relations,
    recognise_columns,
    tells_ends,
    unlike_below,
)

ColumnKey = int | str
Header = bool | Literal["auto"]

_PLAIN_NAME = re.compile(r"(?!(null|true|false|inf|nan)\Z)[a-z_][\w-]*", re.ASCII | re.IGNORECASE)
"""A name that hydra takes for just that text: other letters it cannot read, and those words are values."""
_WHOLE_NUMBER = re.compile(r"\s*[+-]?[0-9]+\s*")
_WHOLE_VALUE = re.compile(r"\s*[+-]?[0-9]+(\.0*)?\s*")
"""A whole number, also as pandas writes it of a column that had a gap, `7.0`."""
NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")
_IN_QUOTES = re.compile(r'".*"', re.DOTALL)
_DELIMITERS = {",": "a comma", "\t": "a tab", " ": "a blank", ";": "a semicolon", "|": "a bar"}
_COMMENTS = ("#", "%", "//")
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
    """The column of weights, by position or name, and whether a file needs one: else it is left out."""

    column: ColumnKey
    needed: bool = True


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
        return _without_weight(cells, columns, header, where, following, numbered, range(len(cells)))
    if isinstance(weight.column, str):
        header = True
    kept = [i for i in range(len(cells)) if columns is not None or i != place]
    rows = [[row[i] for i in kept] if len(row) == len(cells) else [] for row in following]
    found = _without_weight([cells[i] for i in kept], columns, header, where, rows, numbered, kept)
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
        found = [key % len(cells)] if -len(cells) <= key < len(cells) else []
    if len(found) > 1:
        raise FormatError(f"{where} has {len(found)} columns named {key!r}; input.weight takes one")
    if not found and weight.needed:
        raise MissingColumnError(
            f"input.weight={key}, but {where} has no such column; it has {len(cells)}: {first_of(cells)}"
        )
    return found[0] if found else None


def _without_weight(
    cells: Sequence[str],
    columns: Sequence[ColumnKey] | None,
    header: Header,
    where: str,
    following: Sequence[Sequence[str]],
    numbered: Callable[[], bool] | None,
    places: Sequence[int],
) -> Columns:
    """As `resolve_columns`, of a file without weights; `places` are those of the cells in the file."""
    if columns is None:
        by_default = _by_words_or_order(cells, header, where, following, numbered, places)
        _doubt_blanks(cells, following, by_default, where)
        _doubt_numbers(cells, following, by_default, where)
        return by_default
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
        has_header = is_word(cells[positions[0]], "head") and is_word(cells[positions[-1]], "tail")
        if has_header and len(positions) == 3 and not is_word(cells[positions[1]], "relation"):
            logger.info(
                "%s: taken for a header; if it is an edge, set input.header=false %s", where, _WITHOUT_HEADER
            )
        if not has_header and _heads_numbers(cells, following, positions[0], positions[-1]):
            has_header = _takes_header(cells, following, positions[0], positions[-1], where, numbered)
        elif not has_header:
            _doubt_edge(cells, positions, following, where)
    relation = positions[1] if len(positions) == 3 else None
    chosen = Columns(positions[0], relation, positions[-1], has_header, len(cells))
    _doubt_blanks(cells, following, chosen, where)
    _doubt_numbers(cells, following, chosen, where)
    return chosen


def is_whole_number(name: str) -> bool:
    """Whether a name is a whole number, with a sign and blanks around it or without."""
    return _WHOLE_NUMBER.fullmatch(name) is not None


def _by_words_or_order(
    cells: Sequence[str],
    header: Header,
    where: str,
    following: Sequence[Sequence[str]],
    numbered: Callable[[], bool] | None,
    places: Sequence[int],
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
            raise _unclear(error, cells, header, where, places) from None
        if named is not None:
            log_left_out(cells, named, where)
            return Columns(named.head, named.relation, named.tail, True, len(cells))
    if len(cells) not in (2, 3):
        held, choice = "", ""
        if len(cells) > 1:
            held = "" if cells[0] == "0" else f" ({first_of(cells)})"  # those of an array are numbers
            choice = f": choose with input.columns, by name or number, such as [0,1,2] {_ELSEWHERE}"
        raise FormatError(
            f"{where} has {len(cells)} column{'s' if len(cells) != 1 else ''}{held}; edges need two "
            f"(head, tail) or three (head, relation, tail){choice}{_other_reading(cells)}"
        )
    if has_header:
        log_order(cells, where, "input.columns chooses others")
    elif above_numbers or header != "auto":
        pass  # doubted already, or no doubt
    else:
        _doubt_edge(cells, range(len(cells)), following, where)
    _doubt_tails(following if has_header else [cells, *following], where)
    return Columns(0, 1 if len(cells) == 3 else None, len(cells) - 1, has_header, len(cells))


def _doubt_edge(
    cells: Sequence[str], used: Sequence[int], following: Sequence[Sequence[str]], where: str
) -> None:
    """Warn that the first line is taken for an edge if one of the cells that are used may be a name.

    Names in double quotes count, too: where quoting is off, the quotes are a part of the cell. So does an end
    that is no number above whole numbers, as a user's above ids, and ends that look unlike what is below.
    """
    bare = [cell[1:-1] if _IN_QUOTES.fullmatch(cell) else cell for cell in cells]
    doubtful = [i for i in may_be_names(bare) if i in used]
    if not doubtful:
        above = [i for i in (used[0], used[-1]) if _stands_above_numbers(cells, following, i)]
        reason = unlike_below(cells, following, (used[0], used[-1]))
        if above:
            reason = f"{listed(cells, above)} is no number and what stands below is one in each line"
        if reason:
            logger.warning(
                "%s: taken for an edge, though %s; if this line is a header, set input.header=true %s",
                where, reason, _OWN_HEADER,
            )  # fmt: skip
        return
    if any(bare[i] != cells[i] for i in doubtful):
        doubt = "quotes that are no part of the names stand around fields"
        choice = f"input.quoting=true {elsewhere('quoting', 'write a file without quotes')}"
    else:
        doubt = "this line is a header"
        choice = f"input.header=true and choose with input.columns {_ELSEWHERE}"
    logger.warning(
        "%s: taken for an edge, though %s may be a column's name; if %s, set %s",
        where, listed(cells, doubtful), doubt, choice,
    )  # fmt: skip


def _doubt_blanks(
    cells: Sequence[str], following: Sequence[Sequence[str]], columns: Columns, where: str
) -> None:
    """Warn where names of the columns that are used have blanks around them, and names below them, too."""
    names = [i for i in columns.used if columns.has_header and cells[i] != cells[i].strip()]
    rows = [row for row in following if len(row) == len(cells)]
    padded = [row[i] for row in rows for i in columns.used if row[i] != row[i].strip()]
    if names and padded:
        logger.warning(
            "%s: blanks stand around %s, and around fields below, such as %r; those of a field are part of "
            "the name, so %r would be another one: remove them from the file if they are not meant",
            where, listed(cells, names), padded[0], padded[0].strip(),
        )  # fmt: skip


def _doubt_numbers(
    cells: Sequence[str], following: Sequence[Sequence[str]], columns: Columns, where: str
) -> None:
    """Warn where heads and tails are numbers of two things, by the names of their columns."""
    ends = (columns.head, columns.tail)
    if columns.has_header and following and all(
        len(row) == len(cells) and all(_WHOLE_VALUE.fullmatch(row[i]) for i in ends) for row in following
    ):  # fmt: skip
        doubt_ids(cells[columns.head], cells[columns.tail], where)


def _doubt_tails(rows: Sequence[Sequence[str]], where: str) -> None:
    """Warn where the tails of edges look like weights: fractions behind two whole numbers, in all lines."""
    if not all(
        len(row) == 3 and all(map(is_whole_number, row[:2])) and NUMBER.fullmatch(row[2]) for row in rows
    ):
        return
    fractions = [row[2] for row in rows if not is_whole_number(row[2])]
    if fractions:
        logger.warning(
            "%s: three columns are head, relation and tail, so that nodes have names such as %r; if those "
            "are weights, let edges count by them with input.weight=2 (weight=2 in Python), or leave them "
            "out with input.columns=[0,1] %s",
            where, fractions[0], _ELSEWHERE,
        )  # fmt: skip


def _leaves_numbers_out(cells: Sequence[str], following: Sequence[Sequence[str]]) -> bool:
    """Whether one of two or three cells is a name to be left out, above numbers in two lines or more."""
    return len(cells) in (2, 3) and len(following) > 1 and any(
        cells[i].strip() and all(len(row) == len(cells) and NUMBER.fullmatch(row[i]) for row in following)
        for i in no_relations(cells)
    )  # fmt: skip


def _heads_numbers(cells: Sequence[str], following: Sequence[Sequence[str]], head: int, tail: int) -> bool:
    """Whether head and tail are no numbers in the first line, and are in all those below, if any.

    Heads are whole numbers there, `7` or `7.0`. Tails may be fractions, as weights in their place are.
    """
    return (
        bool(following)
        and not any(NUMBER.fullmatch(cells[i]) for i in (head, tail))
        and all(
            len(row) == len(cells) and _WHOLE_VALUE.fullmatch(row[head]) and NUMBER.fullmatch(row[tail])
            for row in following
        )
    )


def _stands_above_numbers(cells: Sequence[str], following: Sequence[Sequence[str]], column: int) -> bool:
    """Whether a cell is no number, and whole numbers stand below it in two lines or more, and in all."""
    return (
        len(following) > 1
        and not NUMBER.fullmatch(cells[column])
        and all(len(row) == len(cells) and _WHOLE_VALUE.fullmatch(row[column]) for row in following)
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
    sign = next(filter(cells[0].startswith, _COMMENTS), None)
    if sign is not None:
        return (
            f"; if lines at the top that begin with {sign} are comments, set input.comment='{sign[0]}' "
            f"{elsewhere('comment', 'take these lines out of the file')}"
        )
    if len(cells) > 1:
        return ""
    for delimiter in _DELIMITERS:
        if len(cells[0].split(delimiter)) in (2, 3):
            return f"; {other_delimiter(delimiter)}"
    return "; is the delimiter right?"


def other_delimiter(delimiter: str) -> str:
    """The question whether this is the delimiter, and how to say so; "" for what rarely is one."""
    if delimiter not in _DELIMITERS:
        return ""
    tab = delimiter == "\t"
    way, key = ("input.format=tsv", "format") if tab else (f"'input.delimiter={delimiter}'", "delimiter")
    otherwise = elsewhere(key, "write a .tsv file with tabs")
    return f"is the delimiter {_DELIMITERS[delimiter]}? Set {way} {otherwise}"


def elsewhere(argument: str, otherwise: str) -> str:
    """Who takes a key of input.* that a message names, in words that hold for every command that reads edges.

    Args:
        argument: its name in Python.
        otherwise: what helps with a command that has no such key.
    """
    commands = "marius-prepare, marius-extend and marius-evaluate"
    return f"(a key of {commands}; {argument}= in Python; for another command, {otherwise})"


_ELSEWHERE = elsewhere("columns", "write a file with those columns only")
_WITHOUT_HEADER = elsewhere("header", "write a line of names above it")
_OWN_HEADER = elsewhere("header", "take this line out of the file")


def _unclear(
    error: UnclearColumnsError, cells: Sequence[str], header: Header, where: str, places: Sequence[int]
) -> FormatError:
    """The error with both ways to choose, in words that hold for every command that reads edges."""
    relation, plain = (
        columns_setting(cells, positions, places) for positions in (error.with_relation, error.without)
    )
    edge = (
        f"; if this line is an edge and no header, set input.header=false {_WITHOUT_HEADER}"
        if header == "auto"
        else ""
    )
    other = "" if plain == relation else f", or without relations with input.columns={plain}"
    return FormatError(
        f"{where} {error.problem}. Choose with input.columns={relation}{other} {_ELSEWHERE}{edge}"
    )


def columns_setting(
    cells: Sequence[str], positions: Sequence[int], places: Sequence[int] | None = None
) -> str:
    """A value for input.columns: names, or positions where a name would not be read as that name.

    Args:
        cells: names.
        positions: of the columns to choose, among them.
        places: of all cells in the file, if there are others between them.
    """
    plain = all(_PLAIN_NAME.fullmatch(cells[i]) and cells.count(cells[i]) == 1 for i in positions)
    numbers = range(len(cells)) if places is None else places
    return f"[{','.join(cells[i] if plain else str(numbers[i]) for i in positions)}]"


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
