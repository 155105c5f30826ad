"""Runs ranked and compared (floor 5): a checked EvaluateConfig in, metrics as plain dicts and files out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from marius_py.config import CONFIG_FILE, EvaluateConfig, saved_settings
from marius_py.edge_files import read_edges
from marius_py.errors import MissingPathError, StorageError
from marius_py.graph import Graph
from marius_py.metrics import Metrics
from marius_py.parts import available_cores, resolve_device
from marius_py.rank_files import check_ranks_file
from marius_py.results import rank_split
from marius_py.run import Run, load
from marius_py.run_reader import DEMO_GRAPH

log = logging.getLogger(__name__)

OnStage = Callable[[str, int, int | None, str], None]
"""(stage, done, total or None, unit)."""

_NAME_BLOCK = 1 << 16


def evaluate(config: EvaluateConfig, on_stage: OnStage | None = None) -> dict[str, Any]:
    """Link-prediction metrics of a run's last commit, or of several runs side by side.

    Returns:
        The metrics of `config.run`. With `config.compare`: {"same_graph": …, "note": what may be compared,
        "runs": [{"run": folder, …metrics}, …]}, and the metrics of `config.run` beside them.

    Raises:
        ConfigError: a folder is no run's, or an edge file names what the graph lacks. StorageError,
        FormatError: a file is missing or damaged.
    """
    if config.ranks is not None:
        check_ranks_file(config.ranks, overwrite=True)
    device = resolve_device(config.device)
    torch.set_num_threads(config.compute_threads or available_cores())
    folders = [Path(run).absolute() for run in (config.run, *config.compare)]
    graphs: list[Graph] = []
    results: list[dict[str, Any]] = []
    for folder in folders:
        with load(folder, graph=_graph_of(folder), device=str(device)) as run:
            if run.unfinished is not None:
                log.warning("%s", run.unfinished)
            graphs.append(run.graph)
            results.append(_evaluate_one(config, run, on_stage))
    if not config.compare:
        return results[0]
    same = len({graph.fingerprint for graph in graphs}) == 1
    note = _note(same, [str(graph.path) for graph in graphs], config.edges)
    if not same:
        log.warning("%s", note)
    runs = [{"run": str(folder), **result} for folder, result in zip(folders, results, strict=True)]
    return {**results[0], "same_graph": same, "note": note, "runs": runs}


def _graph_of(folder: Path) -> Path:
    """The graph of a run, by the settings of its last commit."""
    settings = saved_settings(folder)
    if settings is None:
        raise MissingPathError(
            f"run={folder} is no run folder: it has no {CONFIG_FILE}; marius-train writes one"
        )
    named = settings.get("graph")
    if named is None:
        return folder / DEMO_GRAPH
    if not Path(str(named)).is_dir():
        raise StorageError(f"the graph of run={folder}, {named}, is gone; put it back to rank its edges")
    return Path(str(named))


def _evaluate_one(config: EvaluateConfig, run: Run, on_stage: OnStage | None) -> dict[str, Any]:
    graph = run.graph
    given = None if config.edges is None else read_edges(config.edges, graph)
    with graph.edges() as edges:
        metrics = rank_split(
            run.path,
            graph,
            edges,
            run.model,
            config.split,
            mode=config.mode,
            ks=config.ks,
            candidates=config.candidates,
            max_edges=config.max_edges,
            given=given,
            details=config.details,
            memory_bytes=config.memory_bytes,
            precision=config.precision,
            seed=config.seed,
            progress=on_stage,
        )
    if config.ranks is not None:
        _write_ranks(config.ranks, metrics, graph)
    names = graph.relation_names() if config.details and graph.has_relations else None
    result = metrics.to_json(details=config.details, relation_names=names)
    result["edges"] = config.split if config.edges is None else str(Path(config.edges).absolute())
    return result


def _write_ranks(path: str, metrics: Metrics, graph: Graph) -> None:
    relations = graph.relation_names()
    metrics.write_ranks(
        path,
        node_names=lambda ids: node_names_at(graph, ids),
        relation_names=lambda ids: [relations[i] for i in ids.tolist()],
        overwrite=True,
    )


def node_names_at(graph: Graph, ids: NDArray[np.int64]) -> list[str]:
    """Names of ascending, distinct node ids (n,); only blocks of the table that hold one are read."""
    names: list[str] = []
    for block in np.unique(ids // _NAME_BLOCK).tolist():
        first, last = np.searchsorted(ids, (block * _NAME_BLOCK, (block + 1) * _NAME_BLOCK))
        low, high = int(ids[first]), int(ids[last - 1]) + 1
        part = graph.node_names(low, high)
        names += [part[i - low] for i in ids[first:last].tolist()]
    return names


def _note(same: bool, graphs: list[str], edges: str | None) -> str:
    """What the figures of several runs may be used for."""
    if same:
        return "all runs are of the same graph and rank the same edges: their figures compare the models"
    what = (
        "the same edges, each run among its own nodes"
        if edges is not None
        else "its own edges among its own nodes"
    )
    return (
        f"the runs are of different graphs ({', '.join(dict.fromkeys(graphs))}) and each ranks {what}: "
        "their figures do not compare the models"
    )
