"""Names of files and folders stand for themselves, whatever is in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_py.config import (
    EvaluateConfig,
    compose,
    load_config,
)
from marius_py.config.words import words_of


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "with space",
        "a=b",
        "a,b",
        "{x}",
        "[y]",
        "quote'd",
        'double"d',
        "back\\slash\\",
        "ünï",
        "#1",
        "~h",
        "'r",
        '"r',
        "'r' s",
        "'r\\'",
    ],
)
def test_any_file_name_is_a_path(name: str) -> None:
    config = load_config([f"graph=/data/{name}", f"output={name}"])
    assert (config.graph, config.output) == (f"/data/{name}", name)


@settings(max_examples=20)
@given(st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=20))
def test_any_text_is_a_path(name: str) -> None:
    name = "p" + name
    if "${" not in name:
        assert compose(EvaluateConfig, [f"run={name}"]).run == name


@pytest.mark.parametrize("name", ["null", "${oc.env:HOME}/x", "a${b", "\\${b}", "'r", "'r s'", '"', "x\\"])
def test_a_path_from_python_stands_for_itself(name: str) -> None:
    assert load_config(words_of({"graph": Path(name), "output": name})).output == name
    given = {"run": name, "compare": [name, Path(name)]}
    config = compose(EvaluateConfig, words_of(given, EvaluateConfig))
    assert (config.run, config.compare) == (name, (name, name))
    assert load_config(words_of({"graph": None})).graph is None


def test_a_folders_entry_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    with os.scandir(tmp_path) as entries:
        (entry,) = entries
    given = {"run": entry, "compare": [entry]}
    config = compose(EvaluateConfig, words_of(given, EvaluateConfig))
    assert (config.run, config.compare) == (entry.path, (entry.path,))


def test_quoted_and_interpolated_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARIUS_TEST_HOME", "/home/x")
    assert load_config(["graph='a b'"]).graph == "a b"
    assert load_config(["graph=${oc.env:MARIUS_TEST_HOME}/g"]).graph == "/home/x/g"
    assert load_config(["graph=2024"]).graph == "2024"
