"""Text for a reader's eyes (floor 0): what breaks a line or steers a terminal, escaped."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def readable(text: str) -> str:
    """A text in one line, with an escape for each control character and break of a line in it.

    >>> print(readable("Zürich\\n\\x1b[2J"))
    Zürich\\n\\x1b[2J
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def so_many(count: int, one: str, more: str) -> str:
    """A count and what is counted, with the words that go on with it.

    >>> so_many(1, "name is", "names are"), so_many(2, "name is", "names are")
    ('1 name is', '2 names are')
    """
    return f"{count} {one if count == 1 else more}"


def width_of(text: str) -> int:
    """Cells of a terminal that a text takes: two for a wide letter, none for a mark above or below one.

    >>> width_of("Oslo"), width_of("東京"), width_of("e\u0301")
    (4, 4, 1)
    """
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.category(one) in ("Mn", "Me", "Cf")
        else 1 + (unicodedata.east_asian_width(one) in "WF")
        for one in text
    )


def as_given(value: Any) -> str:
    """A plain value as one would write it on the command line, a class without arguments by its name.

    >>> as_given(True), as_given(None), as_given("rotate"), as_given({"_target_": "rotate"})
    ('true', 'null', 'rotate', 'rotate')
    """
    if isinstance(value, Mapping) and list(value) == ["_target_"]:
        value = value["_target_"]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
