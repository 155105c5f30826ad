"""Runs ranked and compared (floor 5): a checked EvaluateConfig in, metrics as plain dicts and files out."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from marius_py.config import EvaluateConfig
from marius_py.errors import ConfigError, MissingPathError, StorageError
from marius_py.evaluation.edge_files import read_edges
from marius_py.evaluation.evaluator import none_among
from marius_py.evaluation.metrics import Metrics
from marius_py.evaluation.rank_files import check_ranks_file
from marius_py.evaluation.ranking.candidates import Ids, position_in
from marius_py.evaluation.ranking.scorer import ModelScorer
from marius_py.graph import Graph
from marius_py.graph.manifest import GRAPH_FILE
from marius_py.machine import available_cores, resolve_device
from marius_py.pipeline.execution import torch_threads
from marius_py.predict.chosen import chosen_ids
from marius_py.predict.queries import names_of
from marius_py.predict.query_files import read_names
from marius_py.run import Run, load
from marius_py.run_files.names import CHECKPOINT_FOLDER, CONFIG_FILE
from marius_py.run_files.outputs import check_output
from marius_py.run_files.results import rank_split
from marius_py.storage.file_io import os_errors_as_storage
from marius_py.storage.protocols import Edges
from marius_py.types import StageProgress

log = logging.getLogger(__name__)

_BLOCK_EDGES = 1 << 20
"""Edges that are looked at at once."""


def evaluate(config: EvaluateConfig, on_stage: StageProgress | None = None) -> dict[str, Any]:
    """Link-prediction metrics of a run's last commit, or of several runs side by side.

    Args:
        config: the run or runs, what to rank and how.
        on_stage: told of the progress.

    Returns:
        The metrics of `config.run`. With `config.compare`: {"same_graph": …, "note": what may be compared,
        "runs": [{"run": folder, …metrics}, …]}, and the metrics of `config.run` beside them.

    Raises:
        ConfigError: a folder is no run's, its graph has no edges of the split, a file of edges or names has
        what the graph lacks, no end of an edge is among the named nodes (of a sample by `max_edges`, found
        once it is ranked), the precision is not for a run's decoder, two of `edges`, `among`, `ranks` and
        `output` are one file, or `ranks` or `output` is one of a run or its graph. StorageError, FormatError:
        a file is missing or damaged. Of several runs each is opened and checked before the first is ranked.
    """
    _check_files(config)
    device = resolve_device(config.device)
    folders = [Path(run).absolute() for run in (config.run, *config.compare)]
    names = [f"{'compare' if place else 'run'}={folder}" for place, folder in enumerate(folders)]
    given: dict[str, Edges] = {}
    among: dict[str, Ids] = {}
    results: list[dict[str, Any]] = []
    with ExitStack() as stack:
        stack.enter_context(torch_threads(config.compute_threads or available_cores()))
        runs = [
            stack.enter_context(_opened(folder, name, config.graph, device, place > 0))
            for place, (folder, name) in enumerate(zip(folders, names, strict=True))
        ]
        for run in runs:
            for key in ("ranks", "output"):
                value = getattr(config, key)
                if value is not None:
                    check_output(run, value, f"{key}={value}")
        graphs = [run.graph for run in runs]
        for graph, name in zip(graphs, names, strict=True):
            _check_edges(config, graph, name, given)
        names_among = None if config.among is None else read_names(config.among, "among=")
        for run, name in zip(runs, names, strict=True):
            if names_among is not None and run.graph.fingerprint not in among:
                with _named(name):
                    chosen = among[run.graph.fingerprint] = chosen_ids(run, names_among)
                    _check_among(config, run.graph, given.get(run.graph.fingerprint), chosen)
        for run, name in zip(runs, names, strict=True):
            with _named(name):
                ModelScorer(run.model, run.dim, config.precision)  # refuses a precision for its decoder
        # One file for all runs of a graph: train edges, of which samples are drawn, lie in another order in
        # another number of partitions.
        first_of = {graph.fingerprint: graph for graph in reversed(graphs)}
        for run, name in zip(runs, names, strict=True):
            if run.unfinished is not None:
                log.warning("%s", run.unfinished)
            with _named(name):
                key = run.graph.fingerprint
                one = _evaluate_one(config, run, first_of[key], given.get(key), among.get(key), on_stage)
                results.append(one)
    if not config.compare:
        return results[0]
    same = len({graph.fingerprint for graph in graphs}) == 1
    note = _note(same, [str(graph.path) for graph in graphs], config.edges)
    if not same:
        log.warning("%s", note)
    lines = [{"run": str(folder), **result} for folder, result in zip(folders, results, strict=True)]
    return {**results[0], "same_graph": same, "note": note, "runs": lines}


def _check_files(config: EvaluateConfig) -> None:
    """Refuse ranks that cannot be written, and outputs that would replace an input or each other."""
    if config.ranks is not None:
        check_ranks_file(config.ranks, overwrite=True)
    seen: dict[Path, str] = {}
    for key in ("edges", "among", "ranks", "output"):
        value = getattr(config, key)
        if value is None:
            continue
        file, named = Path(os.path.realpath(value)), f"{key}={value}"
        if file in seen:
            raise ConfigError(f"{seen[file]} and {named} are one file; give {key} another name")
        seen[file] = named


def _opened(folder: Path, name: str, graph: str | None, device: torch.device, has_own: bool) -> Run:
    """A run, called `name` in the message that there is none.

    It has `graph`, or, if it `has_own` and that is where it was, its own.
    """
    with os_errors_as_storage("open", folder):
        is_run = (folder / CHECKPOINT_FOLDER).is_dir() or (folder / CONFIG_FILE).is_file()
    if not is_run:
        hint = "marius-train writes one"
        if (folder / GRAPH_FILE).is_file():
            hint = "this is a prepared graph: give the run that was trained on it"
        raise MissingPathError(f"{name} is no run folder: it holds no {CHECKPOINT_FOLDER}/; {hint}")
    if graph is not None and has_own:
        with suppress(ConfigError, StorageError):  # moved as well
            return load(folder, device=str(device))
    return load(folder, graph=graph, device=str(device))


def _check_edges(config: EvaluateConfig, graph: Graph, name: str, given: dict[str, Edges]) -> None:
    """Refuse a graph without edges to rank; those of a file are added to `given`, by graph fingerprint."""
    if config.edges is None:
        if not graph.num_edges.get(config.split):
            raise ConfigError(
                f"{name}: its graph {graph.path} has no {config.split} edges to rank; choose another split, "
                "prepare the graph with one, or give edges=FILE"
            )
    elif graph.fingerprint not in given:
        with _named(name):
            given[graph.fingerprint] = read_edges(config.edges, graph, **config.input.reading)


def _check_among(config: EvaluateConfig, graph: Graph, given: Edges | None, among: Ids) -> None:
    """Refuse edges none of which has an end among the nodes to rank among. (Of a sample, ranking tells.)"""
    with graph.edges() as store:
        blocks = iter([given]) if given is not None else store.blocks(config.split, _BLOCK_EDGES)
        if any((position_in(among, block[:, ::2].astype(np.int64)) >= 0).any() for block in blocks):
            return
    of, count = (config.split, graph.num_edges[config.split]) if given is None else ("given", len(given))
    raise none_among(count, of, among.size)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Say of which run a ConfigError is; a path that leads nowhere says enough."""
    try:
        yield
    except MissingPathError:
        raise
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def _evaluate_one(
    config: EvaluateConfig,
    run: Run,
    graph: Graph,
    given: Edges | None,
    among: Ids | None,
    on_stage: StageProgress | None,
) -> dict[str, Any]:
    """Metrics of a run by the edges of `graph`, which is the run's, in any number of partitions."""
    with graph.edges() as edges:
        metrics = rank_split(
            run.nodes,
            graph,
            edges,
            run.model,
            config.split,
            mode=config.mode,
            ks=config.ks,
            candidates=config.candidates,
            max_edges=config.max_edges,
            given=given,
            among=among,
            details=config.details,
            memory_bytes=config.memory_bytes,
            precision=config.precision,
            seed=config.seed,
            progress=on_stage,
        )
    if config.ranks is not None:
        _write_ranks(config.ranks, metrics, run)
    names = graph.relation_names() if config.details and graph.has_relations else None
    result = metrics.to_json(details=config.details, relation_names=names)
    if config.details:
        result["has_relations"] = graph.has_relations  # else "relations" has the one that all edges count as
    if config.among is not None:
        result["among"] = {"file": str(Path(config.among).absolute()), **result["among"]}
    result["edges"] = config.split if config.edges is None else str(Path(config.edges).absolute())
    return result


def _write_ranks(path: str, metrics: Metrics, run: Run) -> None:
    relations = run.relation_names
    metrics.write_ranks(
        path,
        node_names=lambda ids: list(names_of(run, ids).values()),  # ids ascend
        relation_names=lambda ids: [relations[i] for i in ids.tolist()],
        overwrite=True,
    )


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
