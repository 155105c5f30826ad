"""What tests of settings share: a command each, the message of a refusal, the settings of a saved run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marius_py.config import (
    EvaluateConfig,
    PrepareConfig,
    TrainConfig,
    compose,
    load_config,
    plain,
    write_yaml,
)
from marius_py.errors import ConfigError

COMMANDS: list[tuple[type[Any], list[str]]] = [
    (TrainConfig, ["graph=g"]),
    (EvaluateConfig, ["run=r"]),
    (PrepareConfig, ["input.train=f", "output=o"]),
]


def error_of(*overrides: str, kind: type[Any] = TrainConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(kind, list(overrides))
    message = str(caught.value)
    assert "\n" not in message
    return message


def saved_words(tmp_path: Path, *words: str) -> str:
    saved = load_config(["graph=g", f"output={tmp_path}", *words])
    write_yaml(plain(saved), tmp_path / "config.yaml")
    return f"output={tmp_path}"
