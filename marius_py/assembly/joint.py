"""The parts of a run, joined (floor 5): model, graph, edges, store and plan in, epochs and metrics out.

Trains, validates between epochs, keeps snapshots, and ranks at the end; an epoch that began under other
settings is finished under those first.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from marius_py.config import (
    Components,
    TrainConfig,
    make_components,
)
from marius_py.data.rounds import HALF_FILLED, MANY_BATCHES, EpochOrder
from marius_py.errors import FormatError, StorageError
from marius_py.graph import Graph
from marius_py.memory import MemoryMeter
from marius_py.nn.model import LinkPredictionModel
from marius_py.parts import (
    epoch_work,
    make_batch_settings,
    make_ordering,
    make_trainer_settings,
    order_of,
)
from marius_py.pipeline.watchdog import Watchdog
from marius_py.planning.ranking import asked_for, ranking_advice
from marius_py.resuming.resume import (
    EPOCH_META,
    EpochSettings,
    plain_json,
    unfinished,
)
from marius_py.resuming.snapshots import best_snapshot, update_snapshots
from marius_py.run_files.names import CHECKPOINT_FOLDER, METRICS_FILE, RESULT_FILE, RESULT_META
from marius_py.run_files.results import rank_split, write_lines
from marius_py.storage.files import remove
from marius_py.storage.hdf5_edges import Hdf5EdgeStore
from marius_py.storage.hdf5_store import Hdf5PartitionStore
from marius_py.storage.reader import open_node_reader
from marius_py.training.commits import CommitRhythm
from marius_py.training.trainer import Trainer
from marius_py.validation import ValidationPlan, gap_of

log = logging.getLogger(__name__)


class Watcher:
    """What a run reports while it goes on; the defaults say nothing. Called from the run's threads."""

    def on_hang(self, message: str) -> None:
        """A stage hangs in such a way that the run cannot end by itself; commands end the process here."""

    def on_start(self, trainer: Trainer, num_edges: int, epochs_done: int) -> None:
        """Training is about to start; an epoch has `num_edges` edges, and so many epochs are done.

        `trainer.interrupt()`, now or later and in any thread, lets the run commit and end with an
        InterruptedRunError.
        """

    def on_progress(self, edges: int) -> None:
        """A batch of `edges` edges is done."""

    def on_epoch(self, line: Mapping[str, Any]) -> None:
        """An epoch is done and committed; `line` is its line of metrics.jsonl."""

    def on_stage(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """`done` of `total` units of a stage other than training (preparing, ranking) are done."""


class Passing(Watcher):
    """Passes everything on to another watcher."""

    def __init__(self, inner: Watcher) -> None:
        self.inner = inner

    def on_hang(self, message: str) -> None:
        """Pass on."""
        self.inner.on_hang(message)

    def on_start(self, trainer: Trainer, num_edges: int, epochs_done: int) -> None:
        """Pass on."""
        self.inner.on_start(trainer, num_edges, epochs_done)

    def on_progress(self, edges: int) -> None:
        """Pass on."""
        self.inner.on_progress(edges)

    def on_epoch(self, line: Mapping[str, Any]) -> None:
        """Pass on."""
        self.inner.on_epoch(line)

    def on_stage(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """Pass on."""
        self.inner.on_stage(stage, done, total, unit)


@dataclass(frozen=True, slots=True)
class Joint:
    """The parts of a run, and what is made of several of them.

    Attributes:
        edges: in the run's partitions. own_edges: in the graph's own.
    """

    config: TrainConfig
    components: Components
    model: LinkPredictionModel
    graph: Graph
    edges: Hdf5EdgeStore
    own_edges: Hdf5EdgeStore
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
        """Metrics of the last commit in the run folder, or in a snapshot's; of a sample if `plan` is one.

        Candidates by degree are ends of edges at random places: they come from the graph's own file, so that
        they are the same in any number of partitions. It is open all along: the graph may be prepared anew.
        """
        settings = self.config.evaluation
        asked = {"mode": settings.mode, "max_edges": settings.max_edges, "candidates": settings.candidates}
        metrics = rank_split(
            folder or self.folder,
            self.graph,
            self.own_edges,
            self.model,
            split,
            **(asked if plan is None else plan.arguments()),
            ks=settings.ks,
            memory_bytes=settings.memory_bytes,
            precision=settings.precision,
            seed=self.config.training.seed,
            progress=self.watcher.on_stage,
            touch=partial(self.watchdog.touch, threading.current_thread().name),
        )
        return metrics.to_json()

    def snapshot(self) -> None:
        """Bring the snapshots up to the epoch that has just ended."""
        settings = self.config.checkpoint
        update_snapshots(self.folder, keep=settings.keep, best=settings.best, touch=self.watchdog.touch)

    def best(
        self, history: Sequence[Mapping[str, Any]], test: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        """The epoch that was best on the validation edges, if it was kept, and its metrics on the test edges.

        Args:
            history: lines of all epochs.
            test: metrics on the test edges of the last epoch; taken again if that was the best. None: there
                are no test edges.
        """
        folder = best_snapshot(self.folder, history) if self.config.checkpoint.best else None
        if folder is None:
            return None
        try:
            with open_node_reader(folder / CHECKPOINT_FOLDER) as reader:
                checkpoint = reader.checkpoint()
            lines = checkpoint.meta["history"]
            epoch, valid = len(lines), lines[-1].get("valid") if lines else None
            if not valid or epoch > len(history) or valid != plain_json(history[epoch - 1].get("valid")):
                raise FormatError(f"{folder} is a snapshot of another run")
            log.info("epoch %d was the best on the validation edges", epoch)
            if epoch == len(history) or test is None:
                return {"epoch": epoch, "valid": valid, "test": test}
            self.model.load_state_arrays(checkpoint.arrays)
            del checkpoint, reader  # each with all relations, and ranking opens its own
            return {"epoch": epoch, "valid": valid, "test": self.evaluate("test", folder)}
        except (StorageError, FormatError) as error:
            log.warning("%s; the results leave out the best epoch", error)
            return None

    def validate(self, epochs_done: int) -> dict[str, Any] | None:
        """Metrics on the validation edges, in the epochs that are due one."""
        every = self.config.training.valid_every
        if not every or epochs_done % every or not self.edges.num_edges("valid"):
            return None
        return self.evaluate("valid", plan=self.validation)

    def full_validation(self, history: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        """Metrics of the last commit on all validation edges, and how far the sample's were off.

        None where the validations ranked as many anyway, or the gap is not asked for.
        """
        settings, plan = self.config.evaluation, self.validation
        if not self._measures_gap():
            return None
        sampled = history[-1].get("valid") if history else None
        if not sampled or any(f"hits@{k}" not in sampled for k in settings.ks):  # they may have changed since
            sampled = self.evaluate("valid", plan=plan)
        full = self.evaluate("valid")
        gap = gap_of(sampled, full)
        log.info(
            "validation MRR of the last epoch: %.4f (%s), %.4f (%s): off by %+.4f",
            sampled["mrr"],
            sampled["protocol"],
            full["mrr"],
            full["protocol"],
            gap["difference"]["mrr"],
        )
        return {**full, "gap": gap}

    def _measures_gap(self) -> bool:
        """Whether more validation edges, or against more nodes, are ranked at the end than between epochs."""
        settings, plan = self.config.evaluation, self.validation
        number = asked_for(self.config, self.edges.num_edges("valid"))
        more = plan.mode == "candidates" or (plan.sampled and number > (plan.max_edges or 0))
        wanted = settings.valid.gap and settings.mode == "full" and self.config.training.valid_every > 0
        return wanted and more and number > 0

    def train(self, store: Hdf5PartitionStore, capacity: int) -> list[dict[str, Any]]:
        """Train to the end; an epoch that began under other settings is first finished under those."""
        meta = store.meta
        epochs = self.config.training.epochs
        self._announce_validation()
        advice = ranking_advice(self.config, self.graph, gap=self._measures_gap())
        if advice is not None:
            log.warning(advice)
        self.write_views(store)
        rest = unfinished(meta, EpochSettings.of(self.config, capacity, self.order(store, capacity)))
        if rest is None:
            return self.trainer(store, capacity).train(epochs)
        epoch, began = rest
        config = began.applied(self.config)
        earlier = replace(self, config=config, components=make_components(config))
        first = earlier.trainer(store, began.capacity)
        first.train(epoch + 1)
        trainer = self.trainer(store, capacity)
        trainer.follow(first)
        if first.is_interrupted:  # between its end and the watcher's hearing of the next
            trainer.interrupt()
        return trainer.train(epochs)

    def _announce_validation(self) -> None:
        """Say how epochs are validated, or that none is."""
        training, number = self.config.training, self.edges.num_edges("valid")
        if not training.valid_every or not number:
            return
        if training.valid_every > training.epochs:
            idle = " and ".join(self.config.by_validation)
            log.log(
                logging.WARNING if idle else logging.INFO,
                "no epoch is validated%s: training.valid_every=%d is more than training.epochs=%d",
                f", which leaves {idle} without effect" if idle else "",
                training.valid_every,
                training.epochs,
            )
        else:
            log.info("validation: %s", self.validation.describe(number))

    def write_views(self, store: Hdf5PartitionStore) -> None:
        """Bring metrics.jsonl up to the last commit, and remove a result.json of one before."""
        meta = store.meta
        if meta is None:
            return
        store.check_place()
        self.drop_result(meta)
        if meta["history"]:
            write_lines(self.folder / METRICS_FILE, meta["history"])

    def drop_result(self, committed: Mapping[str, Any]) -> None:
        """Remove result.json where the last commit has no results: those are of embeddings before it."""
        if RESULT_META not in committed:
            remove(self.folder / RESULT_FILE)

    def order(self, store: Hdf5PartitionStore, capacity: int) -> EpochOrder:
        """The order that an epoch follows, and how often."""
        return order_of(self.config, store.table, capacity, self.edges.num_edges("train"))

    def _announce_order(self, store: Hdf5PartitionStore, capacity: int, order: EpochOrder) -> None:
        """Say how an epoch goes through the partitions, and whether that leaves its batches small."""
        log.info("an epoch: ordering.name=%s ordering.rounds=%d", order.name, order.rounds)
        p, edges = store.table.partitioning.num_partitions, self.edges.num_edges("train")
        batches = epoch_work(self.config, store.table, capacity, edges).batches(order, p, capacity)
        if batches.number >= MANY_BATCHES and batches.filling < HALF_FILLED:
            log.warning(
                "batches hold %.0f %% of training.batch_size=%d on average: each of the %d steps of an epoch"
                " has its own; %sfewer storage.partitions (%d) or a larger storage.capacity (%d) fill them",
                100 * batches.filling,
                self.config.training.batch_size,
                batches.number,
                f"fewer ordering.rounds ({order.rounds}), " if order.rounds > 1 else "",
                p,
                capacity,
            )

    def trainer(self, store: Hdf5PartitionStore, capacity: int) -> Trainer:
        """A trainer that writes metrics.jsonl into the run folder."""
        config = self.config
        order = self.order(store, capacity)
        if capacity < store.table.partitioning.num_partitions:
            self._announce_order(store, capacity, order)
        if self.graph.mean_weight is not None:
            log.info("edges count by their weights, %.4g on average", self.graph.mean_weight)

        def on_epoch(line: dict[str, Any]) -> None:
            with self.watchdog.doing("write metrics.jsonl"):
                write_lines(self.folder / METRICS_FILE, trainer.state.encoded_history())
            self.watcher.on_epoch(line)

        trainer = Trainer(
            self.model,
            store,
            self.edges,
            make_ordering(config, store.table, capacity, self.edges.bucket_counts(), order),
            self.components.sampler,
            make_batch_settings(config, self.model.compiled, self.graph.mean_weight),
            replace(
                make_trainer_settings(config, store.table, capacity, self.edges.num_edges("train")),
                commits=CommitRhythm(config.checkpoint.every_steps, config.checkpoint.every_seconds),
                trace=self.folder / "trace.json" if config.pipeline.trace else None,
                rate=self.components.rate,
                patience=config.training.patience,
            ),
            device=self.device,
            degrees=self.edges.degrees if self.components.sampler.needs_degrees else None,
            meta={**self.meta, EPOCH_META: EpochSettings.of(config, capacity, order).to_meta()},
            validate=self.validate,
            on_epoch=on_epoch,
            on_progress=self.watcher.on_progress,
            on_commit=self.drop_result,
            on_boundary=self.snapshot,
            watchdog=self.watchdog,
            memory=self.memory,
        )
        self.watcher.on_start(trainer, self.edges.num_edges("train"), trainer.epochs_done)
        return trainer
