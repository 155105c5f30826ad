"""The first line of a file of edges beside those below it: a header, or an edge (floor 4).

In: the cells of the first lines. Out: whether the first one is a header as far as numbers tell, and warnings
where it may be another thing than it is taken for, or where blanks and numbers may mean what was not meant.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from marius_py.prepare.advice import ELSEWHERE, OWN_HEADER, WITHOUT_HEADER, elsewhere
from marius_py.prepare.column_names import (
    Roles,
    doubt_ids,
    listed,
    may_be_names,
    no_relations,
    tells_ends,
    unlike_below,
)

_WHOLE_NUMBER = re.compile(r"\s*[+-]?[0-9]+\s*")
_WHOLE_VALUE = re.compile(r"\s*[+-]?[0-9]+(\.0*)?\s*")
"""A whole number, also as pandas writes it of a column that had a gap, `7.0`."""
NUMBER = re.compile(r"\s*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")
_IN_QUOTES = re.compile(r'".*"', re.DOTALL)
logger = logging.getLogger(__name__)


def is_whole_number(name: str) -> bool:
    """Whether a name is a whole number, with a sign and blanks around it or without."""
    return _WHOLE_NUMBER.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class FirstLine:
    """The beginning of a file.

    Attributes:
        cells: the cells of the first line, or the names of a schema.
        where: file and line for messages.
        following: the cells of some lines below.
        numbered: says whether all names known before are whole numbers, as those of a graph that is extended
            may be; None: none are known.
    """

    cells: Sequence[str]
    where: str
    following: Sequence[Sequence[str]] = ()
    numbered: Callable[[], bool] | None = None

    def tells_header(self) -> bool:
        """Whether names for a head and a tail, or for what is to be left out, make it a header."""
        return tells_ends(self.cells) or self._leaves_numbers_out()

    def heads_numbers(self, head: int, tail: int) -> bool:
        """Whether head and tail are no numbers here, and are in all lines below, if any.

        Heads are whole numbers there, `7` or `7.0`. Tails may be fractions, as weights in their place are.
        """
        return (
            bool(self.following)
            and not any(NUMBER.fullmatch(self.cells[i]) for i in (head, tail))
            and all(
                len(row) == len(self.cells)
                and _WHOLE_VALUE.fullmatch(row[head])
                and NUMBER.fullmatch(row[tail])
                for row in self.following
            )
        )

    def is_header(self, head: int, tail: int) -> bool:
        """Whether a line that `heads_numbers` is a header, which a warning says: one line is no proof."""
        found = len(self.following) > 1 or (self.numbered is not None and self.numbered())
        if found:
            taken, other, value, choice = "a header, as", "an edge", "false", WITHOUT_HEADER
        else:
            taken, other, value, choice = "an edge, though", "a header", "true", OWN_HEADER
        logger.warning(
            "%s: taken for %s %r and %r are no numbers and what stands below them are; if it is %s, set "
            "input.header=%s %s",
            self.where, taken, self.cells[head], self.cells[tail], other, value, choice,
        )  # fmt: skip
        return found

    def doubt_edge(self, used: Sequence[int]) -> None:
        """Warn that this line is taken for an edge if one of the cells that are used may be a name.

        Names in double quotes count, too: where quoting is off, the quotes are a part of the cell. So does an
        end that is no number above whole numbers, as a user's above ids, and ends that look unlike what is
        below.
        """
        cells = self.cells
        bare = [cell[1:-1] if _IN_QUOTES.fullmatch(cell) else cell for cell in cells]
        doubtful = [i for i in may_be_names(bare) if i in used]
        if not doubtful:
            above = [i for i in (used[0], used[-1]) if self._stands_above_numbers(i)]
            reason = unlike_below(cells, self.following, (used[0], used[-1]))
            if above:
                reason = f"{listed(cells, above)} is no number and what stands below is one in each line"
            if reason:
                logger.warning(
                    "%s: taken for an edge, though %s; if this line is a header, set input.header=true %s",
                    self.where, reason, OWN_HEADER,
                )  # fmt: skip
            return
        if any(bare[i] != cells[i] for i in doubtful):
            doubt = "quotes that are no part of the names stand around fields"
            choice = f"input.quoting=true {elsewhere('quoting', 'write a file without quotes')}"
        else:
            doubt = "this line is a header"
            choice = f"input.header=true and choose with input.columns {ELSEWHERE}"
        logger.warning(
            "%s: taken for an edge, though %s may be a column's name; if %s, set %s",
            self.where, listed(cells, doubtful), doubt, choice,
        )  # fmt: skip

    def doubt_names(self, roles: Roles) -> None:
        """Of a header: warn of names that mislead, by blanks around them or as ids of two things."""
        names = [i for i in roles.used if self.cells[i] != self.cells[i].strip()]
        rows = [row for row in self.following if len(row) == len(self.cells)]
        padded = [row[i] for row in rows for i in roles.used if row[i] != row[i].strip()]
        if names and padded:
            logger.warning(
                "%s: blanks stand around %s, and around fields below, such as %r; those of a field are part "
                "of the name, so %r would be another one: remove them from the file if they are not meant",
                self.where, listed(self.cells, names), padded[0], padded[0].strip(),
            )  # fmt: skip
        ends = (roles.head, roles.tail)
        if rows and len(rows) == len(self.following) and all(
            _WHOLE_VALUE.fullmatch(row[i]) for row in rows for i in ends
        ):  # fmt: skip
            doubt_ids(self.cells[roles.head], self.cells[roles.tail], self.where)

    def doubt_tails(self, *, has_header: bool) -> None:
        """Warn where tails of edges look like weights: fractions behind two whole numbers, or two nodes.

        Tails are numbers in all lines then; a name that is a head here and a relation there is a node.
        """
        rows = self.following if has_header else [self.cells, *self.following]
        if not all(len(row) == 3 and NUMBER.fullmatch(row[2]) for row in rows):
            return
        whole = all(is_whole_number(name) for row in rows for name in row[:2])
        if not whole and not {row[0] for row in rows} & {row[1] for row in rows}:
            return
        fractions = [row[2] for row in rows if not is_whole_number(row[2])]
        if fractions:
            logger.warning(
                "%s: three columns are head, relation and tail, so that nodes have names such as %r; if "
                "those are weights, let edges count by them with input.weight=2 (weight=2 in Python), or "
                "leave them out with input.columns=[0,1] %s",
                self.where, fractions[0], ELSEWHERE,
            )  # fmt: skip

    def _leaves_numbers_out(self) -> bool:
        """Whether one of two or three cells is a name to be left out, above numbers in two lines or more."""
        cells, rows = self.cells, self.following
        return len(cells) in (2, 3) and len(rows) > 1 and any(
            cells[i].strip() and all(len(row) == len(cells) and NUMBER.fullmatch(row[i]) for row in rows)
            for i in no_relations(cells)
        )  # fmt: skip

    def _stands_above_numbers(self, column: int) -> bool:
        """Whether a cell is no number, and whole numbers stand below it in two lines or more, and in all."""
        return (
            len(self.following) > 1
            and not NUMBER.fullmatch(self.cells[column])
            and all(
                len(row) == len(self.cells) and _WHOLE_VALUE.fullmatch(row[column]) for row in self.following
            )
        )
