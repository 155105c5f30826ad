"""Public functions refuse arguments of a wrong type by one message that names the argument."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marius_py
from marius_py.errors import ConfigError, FormatError, StorageError
from marius_py.evaluation.rank_files import check_ranks_file
from marius_py.export import export
from marius_py.importing import dglke_graph, dglke_run, pbg_graph, pbg_run
from marius_py.predict import fit_temperature, neighbors, open_index, predict, score
from marius_py.prepare import prepare, prepare_arrays
from marius_py.prepare.extend import extend_graph
from marius_py.report import write_report
from marius_py.resuming.extending import extend_run
from marius_py.run import Run
from marius_py.storage.reader import open_node_reader
from marius_py.verify import verify
from tests.small_runs import write_run

EDGES = np.array([(0, 0, 1), (1, 0, 2), (2, 0, 0)])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with marius_py.load(write_run(tmp_path_factory.mktemp("given"))[0]) as opened:
        yield opened


PATHS: dict[str, tuple[str, Callable[[Run, Any], object]]] = {
    "verify": ("path", lambda run, given: verify(given)),
    "load": ("path", lambda run, given: marius_py.load(given)),
    "open_graph": ("path", lambda run, given: marius_py.open_graph(given)),
    "repartition": ("folder", lambda run, given: run.graph.repartition(2, given)),
    "open_node_reader": ("folder", lambda run, given: open_node_reader(given)),
    "export": ("output", lambda run, given: export(run, given)),
    "to_parquet": ("output", lambda run, given: run.to_parquet(given)),
    "write_report": ("output", lambda run, given: write_report(run, given)),
    "ranks": ("ranks", lambda run, given: check_ranks_file(given)),
    "prepare": ("output", lambda run, given: prepare("e.tsv", given)),
    "prepare_arrays": ("output", lambda run, given: prepare_arrays(EDGES, given)),
    "graph_from": ("output", lambda run, given: marius_py.graph_from(EDGES, given)),
    "extend_graph": ("output", lambda run, given: extend_graph(run.graph, "e.tsv", given)),
    "pbg_graph": ("entities", lambda run, given: pbg_graph(given, "edges", "g")),
    "pbg_run": ("checkpoint", lambda run, given: pbg_run(given, run.graph, "r")),
    "dglke_graph": ("input.train", lambda run, given: dglke_graph(given, "g")),
    "dglke_run": ("checkpoint", lambda run, given: dglke_run(given, run.graph, "r")),
}


@pytest.mark.parametrize("name", PATHS)
def test_a_path_is_a_text_or_a_path(name: str, run: Run) -> None:
    argument, call = PATHS[name]
    for wrong, told in ((5, r"5, int"), ([1], r"\[1\], list"), (b"g", "b'g', bytes"), (run, r"Run\(.*, Run")):
        with pytest.raises(ConfigError, match=rf"^{argument} is {told}; allowed: "):
            call(run, wrong)


FLAGS: dict[str, Callable[[Run, Path, Any], object]] = {
    "filter_known": lambda run, path, given: run.predict("東京", "likes", filter_known=given),
    "allow_self": lambda run, path, given: run.predict("東京", "likes", allow_self=given),
    "probabilities": lambda run, path, given: run.predict("東京", "likes", probabilities=given),
    "filter_known of fit": lambda run, path, given: fit_temperature(run, filter_known=given),
    "allow_self of fit": lambda run, path, given: fit_temperature(run, allow_self=given),
    "inverse": lambda run, path, given: run.relation("likes", inverse=given),
    "details": lambda run, path, given: run.evaluate(details=given),
    "overwrite of export": lambda run, path, given: export(run, path / "e.npy", overwrite=given),
    "relations": lambda run, path, given: export(run, path / "e.npy", relations=given),
    "overwrite of report": lambda run, path, given: write_report(run, path / "r.html", overwrite=given),
    "overwrite of ranks": lambda run, path, given: check_ranks_file(path / "r.csv", overwrite=given),
    "overwrite": lambda run, path, given: prepare_arrays(EDGES, path / "g", overwrite=given),
    "undirected": lambda run, path, given: prepare_arrays(EDGES, path / "g", undirected=given),
    "mirror": lambda run, path, given: marius_py.graph_from(EDGES, path / "g", mirror=given),
    "weighted": lambda run, path, given: prepare_arrays(EDGES, path / "g", weighted=given),
    "quoting": lambda run, path, given: prepare(_edge_list(path), path / "g", quoting=given),
    "importance": lambda run, path, given: dglke_graph("e.tsv", path / "g", importance=given),
}


def _edge_list(folder: Path) -> Path:
    file = folder / "e.tsv"
    file.write_text("a\tlikes\tb\nb\tlikes\ta\n")
    return file


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_is_true_or_false(name: str, run: Run, tmp_path: Path) -> None:
    for wrong, told in (("no", "'no', str"), (1, "1, int")):
        with pytest.raises(ConfigError, match=f"^{name.split()[0]} is {told}; allowed: True or False$"):
            FLAGS[name](run, tmp_path, wrong)


RUNS: dict[str, Callable[[Any], object]] = {
    "predict": lambda given: predict(given, "東京", "likes"),
    "neighbors": lambda given: neighbors(given, "東京"),
    "score": lambda given: score(given, []),
    "fit_temperature": fit_temperature,
    "open_index": open_index,
    "write_report": lambda given: write_report(given, "report.html"),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_an_open_one(name: str, run: Run) -> None:
    for wrong in (str(run.path), None, run.graph):
        with pytest.raises(ConfigError, match=r"^run is .*, \w+; allowed: an open run, as marius_py.load"):
            RUNS[name](wrong)


def test_the_graph_of_an_imported_or_extended_run_is_an_open_one(run: Run, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^graph is '/.*, str; allowed: an opened graph, as marius_py.open"
    ):
        extend_run(run.path, str(run.graph.path), tmp_path / "r")  # type: ignore[arg-type]


def test_edges_are_arrays(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="train has a block that is a int; edges need a NumPy array"):
        prepare_arrays(5, tmp_path / "g")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, "5", 1.5, True, 0])
def test_block_bytes_are_a_whole_number(wrong: Any, run: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"block_bytes is .* allowed: a whole number from 1"):
        export(run, tmp_path / "e.npy", block_bytes=wrong)


@pytest.mark.parametrize("wrong", ["5", 1.5, True, -1])
def test_ids_are_whole_numbers(wrong: Any, run: Run) -> None:
    with pytest.raises(ConfigError, match=r"^id range .*:10 of nodes.parquet; allowed: within 0:10$"):
        run.node_names(wrong)
    with pytest.raises(ConfigError, match=r"^id range 0:.* of nodes.parquet; allowed: within 0:10$"):
        run.graph.node_names(0, wrong)
    with pytest.raises(StorageError, match=r"^node range 0:.* lies outside 0:10$"):
        run.read_rows(0, wrong)
    with pytest.raises(ConfigError, match=r"allowed: within 0:10$"):
        run.graph.degrees(wrong, 5)


@pytest.mark.parametrize("wrong", ["2", None, 1.5, True, 0])
def test_partitions_are_a_whole_number(wrong: Any, run: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^number of partitions is .*; allowed: 1 to the number of nodes"):
        run.graph.repartition(wrong, tmp_path)


def test_names_are_a_list(run: Run) -> None:
    for look_up in (run.graph.node_ids, run.graph.relation_ids):
        with pytest.raises(ConfigError, match=r"^names is 5, int; pass a list of names$"):
            look_up(5)  # type: ignore[arg-type]
