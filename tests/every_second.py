"""Shapes of a test of which the default tests take half, and the slow tests the others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def every_second(*choices: Sequence[Any]) -> list[Any]:
    """All combinations of choices, as `parametrize` takes them; every second one is slow.

    Of several choices each value stays among the default ones, with every second value of another.
    """
    found = []
    for chosen in itertools.product(*(enumerate(values) for values in choices)):
        is_slow = sum(place for place, _ in chosen) % 2 == 1
        found.append(
            pytest.param(*(value for _, value in chosen), marks=[pytest.mark.slow] if is_slow else [])
        )
    return found
