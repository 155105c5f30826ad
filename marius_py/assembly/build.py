"""From settings to a run (floor 5): makes every part, joins them, writes the run folder.

In: a checked TrainConfig. Out: a trained run folder (config.yaml, metrics.jsonl, checkpoint/, result.json)
and the metrics as plain dicts. All classes are made and all settings that can be checked without data are
checked before any data is opened.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from marius_py.assembly.checks import (
    check_capacity,
    check_components,
    check_least,
    check_validation,
    hint_at_margin,
    warn_of_warmup,
)
from marius_py.assembly.folder import named, run_folder
from marius_py.assembly.joint import Joint
from marius_py.assembly.joint import Watcher as Watcher  # others name it build.Watcher
from marius_py.assembly.planned import resolve_auto
from marius_py.assembly.store import committed_meta, open_store
from marius_py.config import (
    Components,
    TrainConfig,
    make_components,
    make_regularizers,
    plain,
    saved_settings,
    with_penalties,
    write_yaml,
)
from marius_py.errors import MariusError, MissingPathError
from marius_py.generate import planted_graph
from marius_py.graph import Graph, open_graph
from marius_py.machine import available_cores
from marius_py.parts import (
    DEMO_PARTITIONS,
    edges_of,
    identity,
    log_memory,
    make_model,
    number_of,
    partitioning_of,
    training_device,
)
from marius_py.pipeline.execution import torch_threads
from marius_py.pipeline.runner import stage_of
from marius_py.pipeline.watchdog import Watchdog
from marius_py.resuming.resume import (
    check_begun,
    check_content,
    check_free,
    claimed,
    plain_json,
    record,
    record_settings,
)
from marius_py.resuming.snapshots import best_epoch, best_snapshot
from marius_py.run_files.names import (
    CONFIG_FILE,
    CONFIG_META,
    DEMO_GRAPH,
    RESULT_BEFORE_META,
    RESULT_FILE,
    RESULT_META,
)
from marius_py.run_files.results import (
    memory_peaks,
    memory_report,
    peak_rss_bytes,
    summarize,
    versions,
    write_json,
)
from marius_py.run_state import validations_of
from marius_py.storage.protocols import NodeTable
from marius_py.validation import VALIDATION_META, chance_of, decline_of, plan_validation

log = logging.getLogger(__name__)


def train(config: TrainConfig, watcher: Watcher | None = None) -> dict[str, Any]:
    """Train, test and write the run folder; `config.resume` goes on with the one in `config.output`.

    Returns:
        The content of result.json, and under "output" the run folder.

    Raises:
        ConfigError: the settings do not fit the graph or the run to resume. InterruptedRunError: stopped by
        `Trainer.interrupt`, state committed. StorageError, FormatError, PipelineError: the run failed; its
        last commit is intact.
    """
    # The caller may be in modes in which tensors cannot be trained, or products are rounded.
    with (
        torch.inference_mode(False),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
    ):
        return _checked_and_trained(config, watcher or Watcher())


def _checked_and_trained(config: TrainConfig, watcher: Watcher) -> dict[str, Any]:
    """Train in the run folder, claimed for it."""
    components, device = check(config)
    threads = config.pipeline.compute_threads or available_cores()
    with torch_threads(threads), named(config) as config:
        folder = run_folder(config)
        if config.resume:
            check_begun(folder, config.graph)
        if config.graph is not None:
            _check_graph(config.graph, folder if config.resume else None)
        config = resolve_auto(config, folder)
        with claimed(folder), Watchdog(config.pipeline.stall_seconds, watcher.on_hang) as watchdog:
            check_content(folder, resume=config.resume, trains=True)  # a run may have come and gone meanwhile
            return _train(config, components, folder, device, watcher, watchdog)


def _check_graph(graph: str, resumed: Path | None) -> None:
    """Open and close a graph and its edges before a run's folder is made, or before it goes on with them.

    Raises:
        MissingPathError: it is not there. Other errors of `open_graph` and of its edges.
    """
    try:
        open_graph(graph).edges().close()
    except MissingPathError as error:
        if resumed is None or (saved_settings(resumed) or {}).get("graph") != graph:
            raise
        raise MissingPathError(
            f"the graph of the run {resumed}, {graph}, is gone; if it was moved, give graph=DIR"
        ) from error


def check(config: TrainConfig) -> tuple[Components, torch.device]:
    """Check all that needs no data: the device, the classes, the run folder. Returns classes and device.

    Raises:
        ConfigError: no such device or class, a decoder or optimizer of which no run can be made, or a run
        folder with other content. StorageError: it is in use.
    """
    device = training_device(config)
    components = make_components(config)
    check_components(config, components, device)
    warn_of_warmup(config)
    hint_at_margin(config, components)
    if config.output is not None:
        check_free(run_folder(config), resume=config.resume, trains=True)
    return components, device


def _train(
    config: TrainConfig,
    components: Components,
    folder: Path,
    device: torch.device,
    watcher: Watcher,
    watchdog: Watchdog,
) -> dict[str, Any]:
    """Train in a claimed folder."""
    phases = {"start": peak_rss_bytes()}
    graph = open_graph(config.graph) if config.graph is not None else demo_graph(folder, config, watcher)
    check_validation(config, graph.num_edges["valid"])  # before anything is written
    begun = saved_settings(folder) if config.resume else None
    config = with_penalties(config, graph.num_nodes, graph.num_edges["train"], begun)
    components = replace(components, regularizers=make_regularizers(config))
    partitioning = partitioning_of(graph, config)
    table = NodeTable(partitioning, *components.row_floats)
    check_least(config, table)
    model = make_model(config, components, graph, device)
    settings = plain_json(resolved(config, folder, graph))
    meta = identity(config, graph, partitioning) | {CONFIG_META: settings}
    store, capacity = open_store(config, folder, graph, table, model.relation_bytes, meta)
    with store:
        if store.meta is not None:  # a new run has written them before its store
            record_settings(store, settings)
            write_yaml(settings, folder / CONFIG_FILE)
        with graph.edges() as own, edges_of(graph, partitioning, folder) as edges:
            plan = plan_validation(config, graph, committed_meta(store))
            meta |= {VALIDATION_META: plan.to_meta()}
            join = Joint(
                config, components, model, graph, edges, own, folder, device, meta, watcher, watchdog, plan
            )
            try:
                history = join.train(store, capacity)
            except BaseException:
                with suppress(MariusError):  # what ended the run matters more
                    join.write_views(store)
                raise
            join.write_views(store)
            warn_of_decline(config, history, folder)
            log_memory(table, capacity, config.storage.device)
            peaks = memory_peaks()
            phases["training"] = peaks["peak_rss_bytes"]
            with stage_of("evaluate", watchdog):
                test = join.evaluate("test") if edges.num_edges("test") else None
                valid = join.full_validation(history)
                best = join.best(history, test)
            warn_of_chance([test, valid, history[-1].get("valid")], history)
        result = {"test": test, "train": summarize(history, peaks), "versions": versions()}
        result |= {"valid": valid} if valid else {}
        result |= {"best": best} if best else {}
        phases["evaluation"] = peak_rss_bytes()
        join.memory.put("evaluation", config.evaluation.memory_bytes)
        result["memory"] = memory_report(join.memory.peaks, phases)
        with watchdog.doing("write result.json"):
            store.check_place()
            facts, before = {RESULT_META: plain_json(result)}, committed_meta(store).get(RESULT_META)
            if before is None:
                write_json(folder / RESULT_FILE, result)
                record(store, facts)
            else:  # tested again: until the file is written, the commit tells the old one from a damaged one
                record(store, facts | {RESULT_BEFORE_META: before})
                write_json(folder / RESULT_FILE, result)
    return {**result, "output": str(folder)}


def warn_of_decline(config: TrainConfig, history: list[dict[str, Any]], folder: Path) -> None:
    """Say that the best epoch was not kept though it should be, or that a run ends far below it."""
    kept, best = best_snapshot(folder, history), best_epoch(history)
    if config.checkpoint.best and best is not None and kept is None:
        log.warning(
            "epoch %d was best on the validation edges (MRR %.4f), but no snapshot of it was kept, as before "
            "checkpoint.best=true: there is no best epoch to test",
            best,
            history[best - 1]["valid"]["mrr"],
        )
    declined = decline_of(validations_of(history))
    if declined is not None and config.training.patience is None and not (config.checkpoint.best and kept):
        log.warning(declined)


def warn_of_chance(measured: list[dict[str, Any] | None], history: list[dict[str, Any]]) -> None:
    """Say that a run ranks hardly better than by chance, by the metrics of the most ranks at its end."""
    metrics = max(filter(None, measured), key=lambda one: int(one["count"]), default=None)
    nothing = None if metrics is None else chance_of(metrics, history)
    if nothing is not None:
        log.warning(nothing)


def demo_graph(folder: Path, config: TrainConfig, watcher: Watcher) -> Graph:
    """The built-in demo graph, prepared inside the run folder on the first start.

    Raises:
        ConfigError: a buffer is asked for that its partitions do not allow; before it is prepared.
    """
    path = folder / DEMO_GRAPH
    if path.exists():
        return open_graph(path)
    partitions = number_of(config, "partitions") or DEMO_PARTITIONS
    capacity = number_of(config, "capacity")
    if capacity is not None:
        check_capacity(config, partitions, capacity)
    return planted_graph(path, seed=config.training.seed, partitions=partitions, progress=watcher.on_stage)


def resolved(config: TrainConfig, folder: Path, graph: Graph) -> dict[str, Any]:
    """The settings for config.yaml, paths made absolute, so that the run can be used from anywhere."""
    return {
        **plain(config),
        "resume": False,
        "output": str(folder),
        "graph": str(graph.path.absolute()) if config.graph else None,
    }
