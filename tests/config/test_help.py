"""What help and errors list of the keys follows from their declaration."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from marius_py.config import (
    Component,
    TrainConfig,
)
from marius_py.config.fields import is_note, keys_of, type_of
from marius_py.config.help import help_text
from tests.config.composing import COMMANDS, error_of


@pytest.mark.parametrize("kind", [kind for kind, _ in COMMANDS])
def test_help_shows_every_key_with_unit_and_range(kind: type[Any]) -> None:
    text = help_text(kind, "marius-x", "Does x.", ("marius-x a=b",))
    for key, _, _ in keys_of(kind):
        assert f"  {key}=" in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_the_keys_that_an_error_lists_can_be_given() -> None:
    listed = error_of("graph=g", "optimizer.schedule.foo=1").partition("(allowed here: ")[2].rstrip(")")
    keys = [key for key, _, _ in keys_of(TrainConfig) if key.startswith("optimizer.")]
    assert listed.split(", ") == keys
    assert "optimizer.arguments" not in keys


def test_every_field_is_declared_with_a_text() -> None:
    def walk(kind: type[Any]) -> None:
        for item in fields(kind):
            hint = type_of(kind, item.name)
            if is_dataclass(hint) and hint is not Component:
                walk(hint)  # type: ignore[arg-type]
            elif not is_note(item):
                assert item.metadata["text"]

    for kind, _ in COMMANDS:
        walk(kind)
