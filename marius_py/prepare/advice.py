"""What messages advise a user to set, so that a file of edges is read as it was meant (floor 4).

In: the cells of a file's first line, or positions of columns. Out: words, in which each key stands with who
takes it, since several commands and functions read edges.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from marius_py.errors import FormatError
from marius_py.prepare.column_names import UnclearColumnsError, offer_weight

_PLAIN_NAME = re.compile(r"(?!(null|true|false|inf|nan)\Z)[a-z_][\w-]*", re.ASCII | re.IGNORECASE)
"""A name that hydra takes for just that text: other letters it cannot read, and those words are values."""
_DELIMITERS = {",": "a comma", "\t": "a tab", " ": "a blank", ";": "a semicolon", "|": "a bar"}
_COMMENTS = ("#", "%", "//")


def elsewhere(argument: str, otherwise: str) -> str:
    """Who takes a key of input.* that a message names, in words that hold for every command that reads edges.

    Args:
        argument: its name in Python.
        otherwise: what helps with a command that has no such key.
    """
    commands = "marius-prepare, marius-extend and marius-evaluate"
    return f"(a key of {commands}; {argument}= in Python; for another command, {otherwise})"


ELSEWHERE = elsewhere("columns", "write a file with those columns only")
WITHOUT_HEADER = elsewhere("header", "write a line of names above it")
OWN_HEADER = elsewhere("header", "take this line out of the file")


def unclear(
    error: UnclearColumnsError,
    cells: Sequence[str],
    where: str,
    places: Sequence[int] | None,
    *,
    may_be_edge: bool,
) -> FormatError:
    """The error with both ways to choose, and with weights where one of the names may be of these.

    Args:
        error: what the names leave open.
        cells: names.
        where: file and line.
        places: of the cells in the file, where a column of weights stands between them.
        may_be_edge: the line may be an edge; nobody called it a header.
    """
    relation, plain = (
        columns_setting(cells, positions, places) for positions in (error.with_relation, error.without)
    )
    edge = (
        f"; if this line is an edge and no header, set input.header=false {WITHOUT_HEADER}"
        if may_be_edge
        else ""
    )
    other = "" if plain == relation else f", or without relations with input.columns={plain}"
    offer = offer_weight(cells) if places is None else ""
    counting = f"; {offer}" if offer else ""
    return FormatError(
        f"{where} {error.problem}. Choose with input.columns={relation}{other} {ELSEWHERE}{counting}{edge}"
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


def other_reading(cells: Sequence[str]) -> str:
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
