"""From settings to a run (floor 5): makes every part, joins them, writes the run folder.

In: a checked TrainConfig or EvaluateConfig. Out: a trained run folder (config.yaml, metrics.jsonl,
checkpoint/, result.json) and the metrics as plain dicts. All classes are made and all settings that can be
checked without data are checked before any data is opened.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from marius_py.config import (
    CONFIG_FILE,
    Components,
    EvaluateConfig,
    TrainConfig,
    check_buffer,
    make_components,
    make_regularizers,
    plain,
    saved_settings,
    with_penalties,
    write_yaml,
)
from marius_py.data.rounds import EpochOrder
from marius_py.errors import ConfigError, MariusError
from marius_py.evaluating import evaluate as evaluate_runs
from marius_py.generate import planted_graph
from marius_py.graph import Graph, open_graph
from marius_py.memory import MemoryMeter
from marius_py.nn.model import LinkPredictionModel
from marius_py.parts import (
    DEMO_PARTITIONS,
    automatic_capacity,
    available_cores,
    check_resumable,
    edges_of,
    identity,
    log_memory,
    make_batch_settings,
    make_model,
    make_ordering,
    number_of,
    order_of,
    partitioning_of,
    resolve_device,
    spare_slots,
)
from marius_py.pipeline.runner import stage_of
from marius_py.pipeline.watchdog import Watchdog
from marius_py.planning import resolve_auto
from marius_py.results import (
    CHECKPOINT_FOLDER,
    METRICS_FILE,
    RESULT_FILE,
    evaluate_split,
    memory_report,
    peak_rss_bytes,
    summarize,
    versions,
    write_json,
    write_lines,
)
from marius_py.resume import (
    CONFIG_META,
    EPOCH_META,
    RESULT_META,
    EpochSettings,
    check_free,
    check_spare_slots,
    claimed,
    log_changes,
    plain_json,
    record,
    record_settings,
    unfinished,
)
from marius_py.run_state import RunState
from marius_py.snapshots import best_snapshot, update_snapshots
from marius_py.storage.files import remove
from marius_py.storage.hdf5_edges import Hdf5EdgeStore
from marius_py.storage.hdf5_nodes import (
    create_node_store,
    has_commit,
    open_node_store,
)
from marius_py.storage.hdf5_store import Hdf5PartitionStore
from marius_py.storage.protocols import NodeTable
from marius_py.storage.reader import open_node_reader
from marius_py.trainer import Trainer, TrainerSettings
from marius_py.validation import VALIDATION_META, ValidationPlan, decline_of, gap_of, plan_validation

log = logging.getLogger(__name__)

DEMO_FOLDER = "graph"


class Watcher:
    """What a run reports while it goes on; the defaults say nothing. Called from the run's threads."""

    def on_hang(self, message: str) -> None:
        """A stage hangs in such a way that the run cannot end by itself; commands end the process here."""

    def on_start(self, trainer: Trainer, num_edges: int, epochs_done: int) -> None:
        """Training is about to start; an epoch has `num_edges` edges."""

    def on_progress(self, edges: int) -> None:
        """A batch of `edges` edges is done."""

    def on_epoch(self, line: Mapping[str, Any]) -> None:
        """An epoch is done and committed; `line` is its line of metrics.jsonl."""

    def on_stage(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """`done` of `total` units of a stage other than training (preparing, ranking) are done."""


def train(config: TrainConfig, watcher: Watcher | None = None) -> dict[str, Any]:
    """Train, test and write the run folder; `config.resume` goes on with the one in `config.output`.

    Returns:
        The content of result.json, and under "output" the run folder.

    Raises:
        ConfigError: the settings do not fit the graph or the run to resume. InterruptedRunError: stopped by
        `Trainer.interrupt`, state committed. StorageError, FormatError, PipelineError: the run failed; its
        last commit is intact.
    """
    watcher = watcher or Watcher()
    device = resolve_device(config.device)
    if config.storage.device == "cuda" and device.type != "cuda":
        raise ConfigError(
            "storage.device=cuda, but this machine has no usable CUDA device: set storage.device=cpu"
        )
    torch.set_num_threads(config.pipeline.compute_threads or available_cores())
    components = make_components(config)
    folder = run_folder(config)
    check_free(folder, resume=config.resume)
    if config.graph is not None:
        open_graph(config.graph)  # before the folder is made
    config = resolve_auto(config, folder)
    with claimed(folder), Watchdog(config.pipeline.stall_seconds, watcher.on_hang) as watchdog:
        return _train(config, components, folder, device, watcher, watchdog)


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
    begun = saved_settings(folder) if config.resume else None
    config = with_penalties(config, graph.num_nodes, graph.num_edges["train"], begun)
    components = replace(components, regularizers=make_regularizers(config))
    partitioning = partitioning_of(graph, config)
    model = make_model(config, components, graph, device)
    table = NodeTable(partitioning, model.dim, model.node_state_dim)
    settings = plain_json(resolved(config, folder, graph))
    meta = identity(config, graph, partitioning) | {CONFIG_META: settings}
    with open_store(config, folder, table, meta) as store:
        capacity = capacity_of(config, store)
        record_settings(store, settings)
        write_yaml(settings, folder / CONFIG_FILE)
        with edges_of(graph, partitioning, folder) as edges:
            check_validation(config, edges)
            plan = plan_validation(config, graph, committed_meta(store))
            meta |= {VALIDATION_META: plan.to_meta()}
            join = Joint(
                config, components, model, graph, edges, folder, device, meta, watcher, watchdog, plan
            )
            try:
                history = join.train(store, capacity)
            except BaseException:
                with suppress(MariusError):  # what ended the run matters more
                    join.write_history(store)
                raise
            join.write_history(store)
            declined = decline_of(RunState(history=history).validations())
            if declined is not None and not config.checkpoint.best:
                log.warning(declined)
            log_memory(table, capacity)
            phases["training"] = peak_rss_bytes()
            with stage_of("evaluate", watchdog):
                test = join.evaluate("test") if edges.num_edges("test") else None
                valid = join.full_validation(history)
                best = join.best()
        result = {"test": test, "train": summarize(history), "versions": versions()}
        result |= {"valid": valid} if valid else {}
        result |= {"best": best} if best else {}
        phases["evaluation"] = peak_rss_bytes()
        join.memory.put("evaluation", config.evaluation.memory_bytes)
        result["memory"] = memory_report(join.memory.peaks, phases)
        write_json(folder / RESULT_FILE, result)
        record(store, {RESULT_META: plain_json(result)})
    return {**result, "output": str(folder)}


def evaluate(config: EvaluateConfig, watcher: Watcher | None = None) -> dict[str, Any]:
    """Link-prediction metrics of a run's last commit, or of several runs; see `evaluating.evaluate`."""
    return evaluate_runs(config, None if watcher is None else watcher.on_stage)


def demo_graph(folder: Path, config: TrainConfig, watcher: Watcher) -> Graph:
    """The built-in demo graph, prepared inside the run folder on the first start."""
    path = folder / DEMO_FOLDER
    if path.exists():
        return open_graph(path)
    return planted_graph(
        path,
        seed=config.training.seed,
        partitions=number_of(config, "partitions") or DEMO_PARTITIONS,
        progress=watcher.on_stage,
    )


def resolved(config: TrainConfig, folder: Path, graph: Graph) -> dict[str, Any]:
    """The settings for config.yaml, paths made absolute, so that the run can be used from anywhere."""
    return {
        **plain(config),
        "resume": False,
        "output": str(folder),
        "graph": str(graph.path.absolute()) if config.graph else None,
    }


def run_folder(config: TrainConfig) -> Path:
    """The run folder, which need not exist yet."""
    return Path(config.output or Path("runs") / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")).absolute()


# ---------------------------------------------------------------------- store and trainer


def open_store(
    config: TrainConfig, folder: Path, table: NodeTable, meta: Mapping[str, Any]
) -> Hdf5PartitionStore:
    """Create the run's node store, or open the committed one that is resumed.

    Raises:
        ConfigError: the run was made with settings or a graph that cannot change.
    """
    nodes = folder / CHECKPOINT_FOLDER
    if not (config.resume and has_commit(nodes)):
        if config.resume:
            log.info("nothing was committed in %s: the run starts from the beginning", folder)
        return create_node_store(nodes, table, spare_slots=spare_slots(config, table))
    store = open_node_store(nodes)
    try:
        checkpoint = store.checkpoint()
        committed = dict(checkpoint.meta) if checkpoint else {}
        check_resumable(committed, meta, folder)
        log_changes(committed.get(CONFIG_META, {}), meta[CONFIG_META])
    except BaseException:
        store.close()
        raise
    return store


def capacity_of(config: TrainConfig, store: Hdf5PartitionStore) -> int:
    """The buffer's capacity: as asked for, else as many as fit, and no more than before in a resumed run."""
    capacity = number_of(config, "capacity")
    if capacity is None:
        capacity = automatic_capacity(store.table, config.storage.device)
        checkpoint = store.checkpoint()
        if checkpoint is not None and EPOCH_META in checkpoint.meta:
            capacity = min(capacity, EpochSettings.from_meta(checkpoint.meta[EPOCH_META]).capacity)
    check_buffer(store.table.partitioning.num_partitions, capacity)
    check_spare_slots(store, capacity)
    return capacity


def committed_meta(store: Hdf5PartitionStore) -> Mapping[str, Any]:
    """Metadata of the last commit; empty before the first."""
    checkpoint = store.checkpoint()
    return {} if checkpoint is None else checkpoint.meta


def check_validation(config: TrainConfig, edges: Hdf5EdgeStore) -> None:
    """Refuse settings that go by validation on a graph that has no validation edges.

    Raises:
        ConfigError: names the setting.
    """
    if edges.num_edges("valid"):
        return
    for key, wanted in (
        (f"training.patience={config.training.patience}", config.training.patience is not None),
        ("optimizer.schedule.name=plateau", config.optimizer.schedule.name == "plateau"),
    ):
        if wanted:
            raise ConfigError(
                f"{key} goes by validation MRR, but the graph has no validation edges: leave it out, or "
                "prepare the graph with input.valid or input.split"
            )


@dataclass(frozen=True, slots=True)
class Joint:
    """The parts of a run, and what is made of several of them."""

    config: TrainConfig
    components: Components
    model: LinkPredictionModel
    graph: Graph
    edges: Hdf5EdgeStore
    folder: Path
    device: torch.device
    meta: Mapping[str, Any]
    watcher: Watcher
    watchdog: Watchdog
    validation: ValidationPlan
    memory: MemoryMeter = field(default_factory=MemoryMeter)

    def evaluate(
        self, split: str, folder: Path | None = None, plan: ValidationPlan | None = None
    ) -> dict[str, Any]:
        """Metrics of the last commit in the run folder, or in a snapshot's; of a sample if `plan` is one."""
        settings = self.config.evaluation
        how = {"mode": settings.mode, "candidates": settings.candidates} if plan is None else plan.arguments()
        return evaluate_split(
            folder or self.folder,
            self.graph,
            self.edges,
            self.model,
            split,
            **how,
            ks=settings.ks,
            memory_bytes=settings.memory_bytes,
            precision=settings.precision,
            seed=self.config.training.seed,
            progress=self.watcher.on_stage,
            touch=partial(self.watchdog.touch, threading.current_thread().name),
        )

    def snapshot(self) -> None:
        """Bring the snapshots up to the epoch that has just ended."""
        settings = self.config.checkpoint
        update_snapshots(self.folder, keep=settings.keep, best=settings.best, touch=self.watchdog.touch)

    def best(self) -> dict[str, Any] | None:
        """Metrics on the test edges of the epoch that was best on the validation edges."""
        folder = best_snapshot(self.folder) if self.config.checkpoint.best else None
        if folder is None or not self.edges.num_edges("test"):
            return None
        with open_node_reader(folder / CHECKPOINT_FOLDER) as reader:
            checkpoint = reader.checkpoint()
        self.model.load_state_arrays(checkpoint.arrays)
        epoch, history = checkpoint.meta["position"][0], checkpoint.meta["history"]
        return {"epoch": epoch, "valid": history[-1]["valid"], "test": self.evaluate("test", folder)}

    def validate(self, epochs_done: int) -> dict[str, Any] | None:
        """Metrics on the validation edges, in the epochs that are due one."""
        every = self.config.training.valid_every
        if not every or epochs_done % every or not self.edges.num_edges("valid"):
            return None
        return self.evaluate("valid", plan=self.validation)

    def full_validation(self, history: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        """Metrics of the last commit on all validation edges, and how far the sample's were off.

        None where the validations ranked all anyway, or the gap is not asked for.
        """
        settings, plan = self.config.evaluation, self.validation
        wanted = settings.valid.gap and settings.mode == "full" and self.config.training.valid_every > 0
        if not (wanted and plan.sampled and self.edges.num_edges("valid")):
            return None
        sampled = (history[-1].get("valid") if history else None) or self.evaluate("valid", plan=plan)
        full = self.evaluate("valid")
        gap = gap_of(sampled, full)
        log.info(
            "validation MRR of the last epoch: %.4f (%s), %.4f with all edges and nodes: off by %+.4f",
            sampled["mrr"],
            sampled["protocol"],
            full["mrr"],
            gap["difference"]["mrr"],
        )
        return {**full, "gap": gap}

    def train(self, store: Hdf5PartitionStore, capacity: int) -> list[dict[str, Any]]:
        """Train to the end; an epoch that began under other settings is first finished under those."""
        checkpoint = store.checkpoint()
        epochs = self.config.training.epochs
        if self.config.training.valid_every and self.edges.num_edges("valid"):
            log.info("validation: %s", self.validation.describe(self.edges.num_edges("valid")))
        self.write_history(store)
        if checkpoint is not None and checkpoint.meta["position"][0] < epochs:
            record(store, {}, drop=(RESULT_META,))
            remove(self.folder / RESULT_FILE)
        rest = unfinished(checkpoint, EpochSettings.of(self.config, capacity, self.order(store, capacity)))
        if rest is not None and rest[0] < epochs:
            epoch, began = rest
            config = began.applied(self.config)
            earlier = replace(self, config=config, components=make_components(config))
            earlier.trainer(store, began.capacity).train(epoch + 1)
        return self.trainer(store, capacity).train(epochs)

    def write_history(self, store: Hdf5PartitionStore) -> None:
        """Bring metrics.jsonl up to the last commit, however the run ends."""
        checkpoint = store.checkpoint()
        if checkpoint is not None and checkpoint.meta["history"]:
            write_lines(self.folder / METRICS_FILE, checkpoint.meta["history"])

    def order(self, store: Hdf5PartitionStore, capacity: int) -> EpochOrder:
        """The order that an epoch follows, and how often."""
        return order_of(self.config, store.table, capacity, self.edges.num_edges("train"))

    def trainer(self, store: Hdf5PartitionStore, capacity: int) -> Trainer:
        """A trainer that writes metrics.jsonl into the run folder."""
        config = self.config
        order = self.order(store, capacity)
        if capacity < store.table.partitioning.num_partitions:
            log.info("an epoch: ordering.name=%s ordering.rounds=%d", order.name, order.rounds)

        def on_epoch(line: dict[str, Any]) -> None:
            write_lines(self.folder / METRICS_FILE, trainer.state.history)
            self.watcher.on_epoch(line)

        trainer = Trainer(
            self.model,
            store,
            self.edges,
            make_ordering(config, store.table, capacity, self.edges.bucket_counts(), order),
            self.components.sampler,
            make_batch_settings(config, self.model.compiled),
            TrainerSettings(
                capacity,
                config.pipeline.mode,
                config.pipeline.max_in_flight,
                config.checkpoint.every_steps,
                config.checkpoint.every_seconds,
                self.folder / "trace.json" if config.pipeline.trace else None,
                self.components.rate,
                config.training.patience,
                config.storage.device == "cuda",
                config.pipeline.compute_workers,
                "bfloat16" if config.pipeline.precision == "bfloat16" else "float32",
            ),
            device=self.device,
            degrees=self.edges.degrees if self.components.sampler.needs_degrees else None,
            meta={**self.meta, EPOCH_META: EpochSettings.of(config, capacity, order).to_meta()},
            validate=self.validate,
            on_epoch=on_epoch,
            on_progress=self.watcher.on_progress,
            on_boundary=self.snapshot,
            watchdog=self.watchdog,
            memory=self.memory,
        )
        self.watcher.on_start(trainer, self.edges.num_edges("train"), trainer.epochs_done)
        return trainer
