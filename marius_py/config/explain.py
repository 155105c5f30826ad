"""What an error of hydra or OmegaConf says, in one line (floor 5)."""

from __future__ import annotations

import re

_SEVERAL = re.compile(
    r"(?:Ambiguous value for argument|Sweep parameters) '(?:\+\+|\+)?(.*?)' (?:1\.|requires)"
)


def explain(error: BaseException) -> str:
    """One line for an error of hydra or OmegaConf, with the cause that it wraps."""
    text = one_line(error)
    several = _SEVERAL.match(text)
    if several is not None:
        return (
            f"{several[1]} gives several values: with -m each makes a run of a sweep; a list is written as "
            "[value,value], a text with a comma in quotes"
        )
    if text.startswith("Interpolation key"):
        key = getattr(error, "full_key", None)
        place = f"{key}: " if key else ""
        return place + text + "; for the text ${ itself write \\${"
    cause = error.__cause__
    if cause is not None and one_line(cause) not in text:
        text = f"{text} ({one_line(cause)})"
    override = getattr(error, "override", None)
    if override is not None:
        text = text.split(" See https")[0]
        example = '["a value",b]' if "=[" in override else '"a value"'
        hint = f"quote special characters, for the shell too: 'key={example}'"
        text = f"{override!r} cannot be read ({text}): {hint}"
    return text


def one_line(error: BaseException) -> str:
    """An error's text without line breaks and without where OmegaConf met it."""
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(
        line
        for line in lines
        if line and not line.startswith(("full_key:", "object_type=", "reference_type="))
    )
