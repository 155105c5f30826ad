"""What the documentation takes from the program: tables of settings, choices of groups, help of commands.

In: a page with blocks from `<!-- settings TrainConfig: written by docs/documentation.py -->` to
`<!-- settings TrainConfig: end -->`, or a docstring. Out: the page with what belongs between these lines, or
reStructuredText. `python docs/documentation.py` writes the pages anew; a test finds those out of date.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

from marius_py import config
from marius_py.config.fields import default_of, keys_of, type_of
from marius_py.config.groups import conf_dir, group_options, groups_of
from marius_py.config.help import shown
from marius_py.config.values import allowed
from marius_py.errors import ConfigError

BLOCK = re.compile(
    r"^(<!-- (\w+) ([\w-]+): written by docs/documentation\.py -->\n)(.*?)(^<!-- \2 \3: end -->$)",
    re.MULTILINE | re.DOTALL,
)

_CODE = re.compile(r"(``[^`]*``|`[^`]+`)")
_MARK = re.compile(r"[*|]|(?<=\w)_(?!\w)|(?:(?<=: [A-Za-z])|(?<=^[A-Za-z]))\.$")
"""What would begin or end something in reStructuredText: a letter and a full stop alone begin a list."""
_ROLE = re.compile(r":\w+:$")
_ERROR = r"[A-Z]\w*(?:Error|Interrupt)"
_NEXT_ERROR = re.compile(rf"(?:(?<=[.;]) |(?<!,)\n\s*)(?={_ERROR}(?: \([^)]*\))?(?:,\s+{_ERROR})*:\s)")


def fill_blocks(page: str) -> str:
    """Put into every block of a page what the program says today.

    Raises:
        ConfigError: a block names something that is not made here, or a configuration class or command that
            does not exist.
    """
    return BLOCK.sub(lambda match: f"{match[1]}\n{_made(match[2], match[3])}\n\n{match[5]}", page)


def settings_tables(name: str) -> str:
    """A table for each section of a configuration class: key, default, what it takes, what it does."""
    tables: list[str] = []
    section = None
    for key, owner, item in keys_of(_kind(name)):
        if owner is not section:
            section = owner
            prefix = getattr(owner, "PREFIX", "")
            purpose = (owner.__doc__ or "").strip().splitlines()[0]
            if prefix:
                tables += ["", f"### `{prefix}`", "", purpose]
            tables += ["", "| key | default | takes | what |", "|---|---|---|---|"]
        takes = allowed(type_of(owner, item.name), item)
        cells = (f"`{key}`", f"`{shown(default_of(item))}`", takes, item.metadata["text"])
        tables.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(tables).strip()


def groups_table(name: str) -> str:
    """The groups of a configuration class and their choices."""
    lines = ["| group | choices |", "|---|---|"]
    for group in sorted(groups_of(_kind(name))):
        choices = ", ".join(f"`{choice}`" for choice in group_options(conf_dir(), group))
        lines.append(f"| `{group}` | {choices} |")
    return "\n".join(lines)


def command_help(command: str) -> str:
    """What `COMMAND --help` prints, as a block of text."""
    if command not in COMMANDS:
        raise ConfigError(f"no command is called {command!r}; there are {', '.join(COMMANDS)}")
    with contextlib.redirect_stdout(io.StringIO()) as text, mock.patch.dict("os.environ", {"COLUMNS": "100"}):
        function_of(command)(["--help"])
    return f"```text\n{text.getvalue().rstrip()}\n```"


def function_of(command: str) -> Callable[[Sequence[str] | None], int]:
    """The function behind a command."""
    module, _, name = COMMANDS[command].partition(":")
    found: Callable[[Sequence[str] | None], int] = getattr(importlib.import_module(module), name)
    return found


def as_restructured_text(lines: list[str]) -> None:
    """Rewrite a docstring in place: names in single backquotes become code, other marks are taken literally.

    Docstrings are written to be read in the source; there `*` is a shape, `|x|` a length, and what is
    indented after a colon and a blank line is code. Errors follow each other in lines of one depth.
    """
    _part_errors(lines)
    literal: int | None = None
    for number, line in enumerate(lines):
        depth = len(line) - len(line.lstrip())
        if literal is not None and (depth > literal or not line.strip()):
            continue
        literal = None
        if line.lstrip().startswith((">>>", "...")):
            continue
        parts = _CODE.split(line)
        for place, part in enumerate(parts):
            if place % 2 == 0:
                parts[place] = re.sub(_MARK, lambda mark: "\\" + mark[0], part)
            elif not part.startswith("``") and not _ROLE.search(parts[place - 1]):
                parts[place] = f"`{part}`"
        lines[number] = "".join(parts)
        following = lines[number + 1 : number + 3]
        opens = line.endswith(":") and len(following) == 2 and not following[0].strip()
        if opens and len(following[1]) - len(following[1].lstrip()) > depth:
            lines[number] += ":"
            literal = depth


def _part_errors(lines: list[str]) -> None:
    """Give each error of a section "Raises:" one line: napoleon takes every line of its depth for another."""
    start = next((number for number, line in enumerate(lines, 1) if line.strip() == "Raises:"), len(lines))
    stop = next((number for number in range(start, len(lines)) if not lines[number].strip()), len(lines))
    if start < stop:
        depth = len(lines[start]) - len(lines[start].lstrip())
        errors = _NEXT_ERROR.split("\n".join(lines[start:stop]).strip())
        lines[start:stop] = [" " * depth + " ".join(error.split()) for error in errors]


def _made(what: str, name: str) -> str:
    if what not in _MAKERS:
        raise ConfigError(f"nothing is called {what!r}; a block is one of {', '.join(_MAKERS)}")
    return _MAKERS[what](name)


def _kind(name: str) -> type:
    kind = getattr(config, name, None)
    if not isinstance(kind, type):
        raise ConfigError(f"no configuration class is called {name!r}")
    return kind


_MAKERS: dict[str, Callable[[str], str]] = {
    "settings": settings_tables,
    "groups": groups_table,
    "help": command_help,
}
COMMANDS: dict[str, str] = tomllib.loads(
    (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
)["project"]["scripts"]
"""Every command and its function, "marius-train" → "marius_py.cli:train"."""


if __name__ == "__main__":
    for path in sorted(Path(__file__).parent.glob("*.md")):
        before = path.read_text(encoding="utf-8")
        after = fill_blocks(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
