"""Training from Python (floor 5): a graph in whatever form and settings in, an open `Run` out."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from marius_py import build, tracking
from marius_py.config import TrainConfig, load_config, words_of
from marius_py.convert import graph_from, is_graph_data
from marius_py.errors import ConfigError
from marius_py.graph import Graph, open_graph
from marius_py.resume import check_free
from marius_py.run import Run, load

GRAPH_SUFFIX = "-graph"


def train(
    graph: Any = None,
    output: Path | str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    resume: bool = False,
    watcher: build.Watcher | None = None,
) -> Run:
    """Train, test, and open the run for use.

    Args:
        graph: the folder of a prepared graph, an open `Graph`, or what `graph_from` takes: a frame, an array
            or list of edges, a NetworkX graph, a PyG graph, which is prepared in OUTPUT-graph beside the run;
            None: the built-in demo graph. Or a `TrainConfig`, which says everything.
        output: the run folder; None: runs/ and the time.
        settings: any settings of `marius-train` by their keys, {"model.dim": 64}, or nested as config.yaml
            has them, {"model": {"dim": 64}}; see its --help. Groups too, {"experiment": "fb15k_237/complex"}.
        resume: go on with the run in `output`. An object must be the one that the run's graph was made from,
            its rows in the same order: it is prepared once more, beside the run, to compare them.
        watcher: told of the progress.

    Returns:
        The run; `run.result` holds its metrics. Close it, or use it in a `with` block.

    Raises:
        ConfigError: an unknown key, a wrong value, an object that is no graph, or with `resume` one that is
        not the run's, or no run and no graph. StorageError, FormatError, PipelineError: the run failed; its
        last commit is intact.

    >>> import tempfile
    >>> edges = [(f"node {i}", f"node {(i * i + 1) % 20}") for i in range(60)]
    >>> small = {"model.decoder": "dot", "model.dim": 8, "training.epochs": 2, "training.valid_every": 0}
    >>> with tempfile.TemporaryDirectory() as folder, train(edges, f"{folder}/run", small) as run:
    ...     run.epochs, run.embedding("node 3").shape
    (2, (8,))
    """
    if isinstance(graph, TrainConfig):
        if output is not None or settings:
            raise ConfigError("a TrainConfig says everything: change output and settings in it")
        return load(tracking.train(graph, watcher)["output"])
    folder = (
        Path(output) if output is not None else Path("runs") / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    )
    words = [] if settings is None else words_of(settings)
    words.append(f"output={folder}")
    if resume:
        words.append("resume=true")
    if graph is not None:
        # Settings are checked before a graph is prepared for them.
        load_config([word for word in words if word != "resume=true"])
        words.append(f"graph={_graph_folder(graph, folder, resume)}")
    return load(tracking.train(load_config(words), watcher)["output"])


def _graph_folder(graph: Any, folder: Path, resume: bool) -> Path:
    """The folder of the prepared graph; prepares an object beside the run."""
    if isinstance(graph, Graph):
        return graph.path
    if isinstance(graph, (str, Path)):
        return Path(graph)
    if not is_graph_data(graph):
        raise ConfigError(
            f"graph is {type(graph).__name__}; allowed: a prepared graph's folder, a Graph, a frame, an "
            "array or list of edges, a NetworkX graph, a PyG Data or HeteroData"
        )
    beside = folder.with_name(folder.name + GRAPH_SUFFIX)
    check_free(folder, resume=resume, trains=True)
    if resume and beside.is_dir():
        _check_same(graph, beside)
        return beside
    return graph_from(graph, beside).path


def _check_same(graph: Any, prepared: Path) -> None:
    """Refuse an object from which another graph would come than the one that was prepared before."""
    known = open_graph(prepared).fingerprint
    with tempfile.TemporaryDirectory(dir=prepared.parent, prefix=f".{prepared.name}.") as place:
        found = graph_from(graph, Path(place) / "graph").fingerprint
    if found != known:
        raise ConfigError(
            f"graph: these data are not those that {prepared} was prepared from (fingerprints {found} and "
            f"{known}; names, edges and their order count): give the same data, graph={str(prepared)!r} to "
            "go on with that graph, or another output for a run on these"
        )
