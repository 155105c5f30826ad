"""What reading commands and their Python twins say when something is in the way."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import numpy as np
import pytest

import marius_py
from marius_py import cli
from marius_py.errors import ConfigError, MissingPathError, StorageError
from marius_py.resuming.extending import check_run
from tests.end_to_end.conftest import Train
from tests.small_runs import write_run


def test_an_inverse_relation_by_the_name_that_is_listed(tmp_path: Path) -> None:
    folder = write_run(tmp_path, reciprocal=True)[0]
    with marius_py.load(folder) as run:
        for name, row in zip(*run.relations(), strict=True):
            np.testing.assert_array_equal(run.relation(name), row)
        with pytest.raises(ConfigError, match="no relation"):
            run.relation("likes^-1", inverse=True)
        with pytest.raises(ConfigError, match="no relation"):
            run.relation("nothing^-1")


def test_an_inverse_relation_of_a_run_without_them(tmp_path: Path) -> None:
    with (
        marius_py.load(write_run(tmp_path)[0]) as run,
        pytest.raises(ConfigError, match="reciprocal=false"),
    ):
        run.relation("likes^-1")


def test_a_moved_graph_is_given_by_flag_or_argument(tmp_path: Path) -> None:
    folder, graph, _, _ = write_run(tmp_path)
    shutil.move(graph.path, tmp_path / "moved")
    with pytest.raises(StorageError, match=r"is gone; .*--graph DIR, or in Python load\(.*, graph=…\)"):
        marius_py.load(folder)


def test_an_existing_file_is_replaced_by_an_argument_in_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path)[0]
    file = tmp_path / "v.parquet"
    with marius_py.load(folder) as run:
        run.to_parquet(file)
        with pytest.raises(ConfigError, match="in Python overwrite=True"):
            run.to_parquet(file)
        run.to_parquet(file, overwrite=True)
    assert cli.export([str(folder), "--format", "parquet", "--output", str(file)]) == 2
    assert "--overwrite" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("decoder", "why"),
    [("rescal", "operator linear could hold them"), ("rotate", "no operator that scores like")],
)
def test_why_relations_are_not_written_for_pbg(
    decoder: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path, decoder=decoder, dr=16 if decoder == "rescal" else 2)[0]
    words = [str(folder), "--format", "pbg", "--output", str(tmp_path / "pbg")]
    assert cli.export(words) == 2
    said = capsys.readouterr().err
    assert why in said
    assert "for dot, distmult, complex, transe: leave them out with --no-relations" in said
    assert cli.export([*words, "--no-relations"]) == 0


def test_the_run_to_extend_has_to_be_of_the_graph(run_train: Train, graph: Path, tmp_path: Path) -> None:
    run_train("training.epochs=1")
    check_run(tmp_path / "run", graph)
    (tmp_path / "other").mkdir()
    other = write_run(tmp_path / "other")[1]
    with pytest.raises(ConfigError, match=r"run=.* was not trained on graph=.*: give its graph"):
        check_run(tmp_path / "run", other.path)
    for missing in (tmp_path / "nope", graph):
        with pytest.raises(MissingPathError, match=r"^\S+ is no run folder"):
            check_run(missing, graph)


def test_an_opened_run_that_was_trained_on_says_so(run_train: Train, graph: Path, tmp_path: Path) -> None:
    run_train("training.epochs=1")
    with marius_py.load(tmp_path / "run") as run:
        name = run.node_names()[0]
        run.embedding(name)
        marius_py.train(output=tmp_path / "run", settings={"training.epochs": 3}, resume=True).close()
        with pytest.raises(StorageError, match=r"replaced by training since .* marius_py\.load"):
            run.embedding(name)
        again = copy.copy(run)
    with again:
        assert again.epochs == 3
        again.embedding(name)


@pytest.mark.parametrize("path", [None, 3, ["run"]])
def test_a_run_is_opened_by_its_folder(path: object) -> None:
    with pytest.raises(ConfigError, match=r"path is .* allowed: the folder of a run"):
        marius_py.load(path)  # type: ignore[arg-type]


def test_the_graph_of_a_run_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"graph is 5, int; allowed: a prepared graph's folder"):
        marius_py.load(write_run(tmp_path)[0], graph=5)  # type: ignore[arg-type]
