"""The `--help` of a configured command (floor 5), written from the declarations of its settings.

In: a configuration class. Out: text with every key, its default, unit and range. Imports neither hydra nor
torch, so that help is there at once.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from marius_py.config.fields import Component, default_of, keys_of, type_of
from marius_py.config.groups import OWN, conf_dir, group_options, groups_of
from marius_py.config.values import allowed

WIDTH = 100
"""Columns of the text."""

KEY_WIDTH = 30

FLAGS = (
    ("-h, --help", "this text"),
    ("--version", "the version"),
    ("--config-dir DIR", "a folder with groups of yours, DIR/model/mine.yaml for model=mine"),
    ("--log-level LEVEL", "debug, info, warning or error; debug also prints tracebacks"),
    ("--cfg job", "print the composed configuration and stop"),
    ("-m, --multirun", "run once for each combination of comma-separated values, model.dim=64,128"),
)


def help_text(kind: type[Any], command: str, purpose: str, examples: tuple[str, ...]) -> str:
    """The whole help text of a command.

    Args:
        kind: its configuration class.
        command: its name.
        purpose: one sentence.
        examples: command lines.
    """
    lines = [f"usage: {command} [KEY=VALUE …]", "", purpose, "", "examples:"]
    lines += [f"  {example}" for example in examples]
    lines += ["", "keys (default; what is allowed):"]
    lines += list(setting_lines(kind))
    groups = list(_group_lines(kind))
    if groups:
        lines += ["", "groups, each a set of settings under a name, KEY=NAME:", *groups]
    lines += ["", "flags:", *(f"  {flag:<20} {text}" for flag, text in FLAGS)]
    lines += [
        "",
        *textwrap.wrap(
            "A list is written [1,3,10]; quote it for the shell. File and folder names are taken as they "
            "stand, with spaces, commas or '=' too: quote the whole word, 'graph=my graph'; ${…} is "
            "interpolated by hydra. With -m commas separate values of these keys too, so a name that holds "
            "other than letters, digits and . / - _ is quoted once more, 'graph=\"a,b\"'. Exit codes: 0 "
            "done, 1 failed, 2 bad usage or configuration, 130 interrupted.",
            WIDTH,
        ),
    ]
    return "\n".join(lines) + "\n"


def setting_lines(kind: type[Any]) -> Iterator[str]:
    """Two columns: key=default, and what it does and takes."""
    for key, owner, item in keys_of(kind):
        text = f"{item.metadata['text']} · {allowed(type_of(owner, item.name), item)}"
        head = f"  {key}={shown(default_of(item))}"
        wrapped = textwrap.wrap(text, WIDTH - KEY_WIDTH)
        if len(head) >= KEY_WIDTH:
            yield head
        else:
            yield f"{head:<{KEY_WIDTH}}{wrapped.pop(0)}"
        yield from (" " * KEY_WIDTH + line for line in wrapped)


def shown(value: Any) -> str:
    """A default as one would write it on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Component):
        return value.target
    if isinstance(value, tuple):
        return "[" + ",".join(str(one) for one in value) + "]"
    return str(value)


def _group_lines(kind: type[Any]) -> Iterator[str]:
    for group in sorted(groups_of(kind)):
        options = [one for one in group_options(conf_dir(), group) if one != OWN]
        yield from textwrap.wrap(
            f"{group}: {', '.join(options)}", WIDTH, initial_indent="  ", subsequent_indent="      "
        )
