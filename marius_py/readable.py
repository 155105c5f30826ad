"""Text for a reader's eyes (floor 0): what breaks a line or steers a terminal, escaped."""

from __future__ import annotations

import re

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def readable(text: str) -> str:
    """A text in one line, with an escape for each control character and break of a line in it.

    >>> print(readable("Zürich\\n\\x1b[2J"))
    Zürich\\n\\x1b[2J
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
