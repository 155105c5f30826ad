"""Numbers of two things, such as users and items, are warned of: the same number would be one node."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from marius_py import graph_from
from marius_py.errors import ConfigError
from marius_py.prepare import prepare

BOTH = "'userId' and 'movie_id' hold numbers, and the same number in both is one node"


def frame(first: str, second: str, prefix: str = "") -> pd.DataFrame:
    numbers = range(1, 9)
    return pd.DataFrame({"rating": 3.5, second: numbers, first: [f"{prefix}{n}" for n in numbers]}).astype(
        {} if prefix else {first: int}
    )


def prepared(kind: str, data: pd.DataFrame, folder: Path, columns: list[str]) -> int:
    if kind == "frame":
        return graph_from(data, folder / "g", columns=columns).num_nodes
    path = folder / f"e.{kind}"
    data.to_parquet(path) if kind == "parquet" else data.to_csv(path, index=False)
    return prepare(path, folder / "g", columns=list(columns)).num_nodes


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
def test_users_and_items_of_the_same_numbers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    columns = ["userId", "movie_id"]
    assert prepared(kind, frame(*columns), tmp_path, columns) == 8
    assert BOTH in caplog.text
    assert "such as user/7 and movie/7" in caplog.text


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
@pytest.mark.parametrize(
    ("columns", "prefix"),
    [
        (["userId", "movie_id"], "u"),
        (["source_id", "target_id"], ""),
        (["id1", "id2"], ""),
        (["node1_id", "node2_id"], ""),
        (["user", "friend"], ""),
    ],
)
def test_names_and_numbers_of_one_thing_are_no_doubt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, columns: list[str], prefix: str
) -> None:
    prepared(kind, frame(*columns, prefix=prefix), tmp_path, columns)
    assert "hold numbers" not in caplog.text


def test_columns_of_types_are_asked_about(tmp_path: Path) -> None:
    columns = {"head_type": ["author"], "head": [7], "type": ["writes"], "tail_type": ["paper"], "tail": [7]}
    with pytest.raises(ConfigError, match="numbers of their own, make names of both first, such as author/7"):
        graph_from(pd.DataFrame(columns), tmp_path / "g")
    with pytest.raises(ConfigError) as caught:
        graph_from(pd.DataFrame({**columns, "year": [2020]}), tmp_path / "g")
    assert "author/7" not in str(caught.value)
