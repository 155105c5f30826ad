"""Training (floor 4): epochs over a schedule, commits in between, one line of metrics an epoch.

In: a model, a node store, edges, an ordering. Out: a committed store and the run's history. Batches take the
`BatchPath`; `Commits` says when to commit and does. The trainer holds no random state: what an epoch does
follows from the seed, the position and the partitions that were resident when it began, all of which are in
the checkpoint.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import lru_cache, partial
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from marius_py.buffer import PartitionBuffer
from marius_py.buffer.device import DeviceBuffer
from marius_py.buffer.swap import IOThread
from marius_py.buffer.transfer import transfer_to
from marius_py.data.batch_settings import BatchSettings
from marius_py.data.batches import BatchSource
from marius_py.data.plan import DIVISION
from marius_py.errors import ConfigError, DivergedError, InterruptedRunError, StalledError, StorageError
from marius_py.memory import MemoryMeter
from marius_py.nn.model import LinkPredictionModel
from marius_py.nn.negatives import NegativeSampler
from marius_py.pipeline.runner import stage_of
from marius_py.pipeline.stages import Done, beyond_repair
from marius_py.pipeline.trace import Trace
from marius_py.pipeline.watchdog import Watchdog
from marius_py.run_state import RunState
from marius_py.storage.protocols import EdgeStore, PartitionStore
from marius_py.training.accounting import Accounting
from marius_py.training.batch_path import BatchPath, finds_known_on_device
from marius_py.training.commits import Commits
from marius_py.training.epoch_ends import EpochEnds
from marius_py.training.patience import is_exhausted
from marius_py.training.settings import TrainerSettings
from marius_py.types import Position, Schedule

log = logging.getLogger(__name__)

Ordering = Callable[[int, tuple[int, ...] | None], Schedule]
"""(epoch, partitions resident at its start or None) → the epoch's schedule; must be deterministic. The I/O
thread asks too, perhaps for an epoch that does not come."""


class Trainer:
    """Trains a model over a store.

    Args:
        model: decoder, loss, optimizer and relation parameters.
        store: node partitions; initialised on the first start, continued afterwards.
        edges: train edges in buckets of the store's partitioning.
        ordering: makes an epoch's schedule.
        sampler: draws negatives.
        batches: batch size, chunks, seed.
        settings: capacity, pipeline, commits.
        device: where batches are computed.
        degrees: (start, stop) → train degrees of node ids, where the sampler needs them.
        meta: facts that every commit carries (fingerprint, settings).
        validate: called after the commit of an epoch with the number of epochs done; its dict is the
            line's `valid`.
        on_epoch: called with every finished line. on_progress: called with the edges of each batch.
        on_commit: called with the meta of each commit. on_boundary: called between epochs, after commit and
            validation, also on going on there.
        watchdog: told what each thread does; its alarm ends the run.
        memory: told what buffer, edges, batches, relations and workspaces hold.
        quiet: log no lines of beginning, of what computes batches and of epochs.
    """

    def __init__(
        self,
        model: LinkPredictionModel,
        store: PartitionStore,
        edges: EdgeStore,
        ordering: Ordering,
        sampler: NegativeSampler,
        batches: BatchSettings,
        settings: TrainerSettings,
        *,
        device: torch.device | None = None,
        degrees: Callable[[int, int], NDArray[np.int64]] | None = None,
        meta: Mapping[str, Any] | None = None,
        validate: Callable[[int], dict[str, Any] | None] | None = None,
        on_epoch: Callable[[dict[str, Any]], None] = lambda line: None,
        on_progress: Callable[[int], None] = lambda edges: None,
        on_commit: Callable[[Mapping[str, Any]], None] = lambda meta: None,
        on_boundary: Callable[[], None] = lambda: None,
        watchdog: Watchdog | None = None,
        memory: MemoryMeter | None = None,
        quiet: bool = False,
    ) -> None:
        if store.table.partitioning != edges.partitioning:
            raise ConfigError(
                f"the node store has {store.table.partitioning}, the edges have {edges.partitioning}; "
                "both must agree (storage.partitions)"
            )
        if settings.device_buffer and batches.per_question:
            raise ConfigError("what a question counts is found on the host: it needs a buffer there, in RAM")
        device = device or torch.device("cpu")
        self._model = model
        self._store = store
        self._ordering = lru_cache(maxsize=1)(ordering)  # asked once before an epoch and once in its turn
        self._settings = settings
        self._on_progress = on_progress
        self._quiet = quiet
        self._seed = batches.seed
        self._num_edges = max(1, edges.num_edges("train"))
        self._train_order = edges.train_order()
        self._interrupted = threading.Event()
        self._watchdog = watchdog or Watchdog()
        self._trace = Trace(keep_events=settings.trace is not None, current=self._watchdog.current)
        self._io = IOThread(self._watchdog.current, self._trace.tell)
        self._buffer: PartitionBuffer
        if settings.device_buffer:
            self._buffer = DeviceBuffer(store, settings.capacity, self._io, transfer_to(device))
        else:
            self._buffer = PartitionBuffer(store, settings.capacity, self._io)
        on_device = finds_known_on_device(
            model, batches, edges.partitioning.num_nodes, device_buffer=settings.device_buffer
        )
        self._source = BatchSource(
            self._buffer, edges, self._io, batches, sampler, degrees, known_on_device=on_device
        )
        self._accounting = Accounting(
            self._buffer, self._source, self._trace, threaded=settings.mode != "inline"
        )
        self.memory = memory or MemoryMeter()
        self.memory.put("buffer", self._buffer.bytes)
        self.memory.put("relations", model.relation_bytes)
        execution = settings.execution(
            device,
            store.table.partitioning.num_partitions,
            reads_edges=(batches.reads_known and not on_device) or sampler.reads_edges,
        )
        self._path = BatchPath(
            self._buffer,
            model,
            self._source,
            sampler,
            batches,
            execution,
            device=device,
            trace=self._trace,
            watchdog=self._watchdog,
            memory=self.memory,
        )
        if not quiet:
            self._path.announce()
        self._commits = Commits(
            store,
            self._buffer,
            model,
            settings.commits,
            {**(meta or {}), "seed": batches.seed},
            trace=self._trace,
            watchdog=self._watchdog,
            on_commit=on_commit,
        )
        self._ends = EpochEnds(
            self._commits,
            trace=self._trace,
            watchdog=self._watchdog,
            validate=validate,
            on_epoch=on_epoch,
            on_boundary=on_boundary,
            quiet=quiet,
        )
        self.state = RunState()

    @property
    def epochs_done(self) -> int:
        """Epochs that the store's last commit holds."""
        meta = self._store.meta
        return 0 if meta is None else int(meta["position"][0])

    @property
    def edges_done(self) -> int:
        """Edges of the epoch under way that the store's last commit holds."""
        meta = self._store.meta
        return 0 if meta is None else int(meta["current"]["edges"])

    @property
    def stage_seconds(self) -> Mapping[str, float]:
        """Seconds so far in each stage of the pipeline and in each wait, by name; stages overlap."""
        return self._trace.seconds

    def follow(self, earlier: Trainer) -> None:
        """Write the trace of a trainer that has ended, and began the epoch under way, with one's own."""
        self._trace.follow(earlier._trace)

    @property
    def is_interrupted(self) -> bool:
        """Whether `interrupt` has been called, be it too late for `train` to heed it."""
        return self._interrupted.is_set()

    def interrupt(self) -> None:
        """Ask the run to stop: batches in flight end, the state is committed. Safe anywhere."""
        self._interrupted.set()

    def watched(self, what: str) -> AbstractContextManager[None]:
        """A block of this thread that the run's watchdog watches as `what`."""
        return self._watchdog.doing(what)

    def train(self, epochs: int) -> list[dict[str, Any]]:
        """Train until `epochs` epochs are done in all, or patience has run out, from the last commit on.

        Returns:
            The history, a dict an epoch (the lines of metrics.jsonl).

        Raises:
            InterruptedRunError: `interrupt` was called; the state is committed.
            PipelineError, StorageError: a stage or the disk failed; the last commit is intact.
        """
        with ExitStack() as ends:  # each comes, the last one first, though an interrupt meets another
            ends.push(self._write_trace)
            # The trainer itself may live on, by way of what it calls.
            for end in (self._buffer.close, self._path.close, self._source.close, self._io.shutdown):
                ends.callback(end)
            try:
                with self._watchdog.listening(self._give_up):
                    self._start()
                    self._ends.go_on(self.state)
                    patience = self._settings.patience
                    while self.state.position.epoch < epochs and not is_exhausted(self.state, patience):
                        self._run_epoch(epochs)
                    if self.is_interrupted:
                        raise InterruptedRunError(
                            f"interrupted after epoch {self.state.position.epoch}; the state is committed: "
                            "go on with resume=true"
                        )
            except BaseException:
                self._buffer.abort()
                raise
        return self.state.history

    def _write_trace(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the trace, if there is to be one; an error that ends the run is not hidden by another."""
        if self._settings.trace is None:
            return
        try:
            self._trace.write(self._settings.trace)
        except StorageError as failure:
            if error is None:
                raise
            log.warning("the trace is not written: %s", failure)

    def _give_up(self, error: StalledError) -> None:
        """Wake whoever waits for the disk or for a batch; from the watchdog's thread."""
        self._io.abandon(error)
        self._buffer.abort()

    # ------------------------------------------------------------------ start

    def _start(self) -> None:
        committed = self._commits.load()
        if committed is None:
            if not self._quiet:
                log.info("initialising %d nodes", self._store.table.partitioning.num_nodes)
            with stage_of("initialise", self._watchdog, self._trace):
                self._buffer.fill_store(self._fill)
            self._commits.commit(self.state)
        else:
            self.state = committed
        self._commits.begin()

    def _fill(self, start: int, rows: NDArray[np.float32], state: NDArray[np.float32]) -> None:
        self._watchdog.touch()
        self._model.init_nodes(rows, start, self._seed)
        self._model.init_node_state(state)

    # ------------------------------------------------------------------ an epoch

    def _run_epoch(self, epochs: int) -> None:
        """Run what is left of the epoch; `epochs` in all are wanted."""
        state = self.state
        epoch = state.position.epoch
        schedule = self._ordering(epoch, state.epoch_start)
        self._check_schedule(schedule)
        swaps_before = np.cumsum([0] + [len(step.admit) for step in schedule.steps]).tolist()
        then = partial(self._ordering, epoch + 1, schedule.final) if epoch + 1 < epochs else None
        while state.position.step < len(schedule.steps):
            self._run_segment(schedule, swaps_before, then)
            is_interrupted = self.is_interrupted
            if is_interrupted or state.position.step < len(schedule.steps):
                self._commit_within()
            if is_interrupted:
                raise InterruptedRunError(
                    f"interrupted in epoch {epoch + 1}, after {state.position.step} of "
                    f"{len(schedule.steps)} steps; the state is committed: go on with resume=true"
                )
        with self._accounting.segment(state):
            self._flush()
        self._ends.finish(state, schedule.final, self._rates()(0))

    def _commit_within(self) -> None:
        """Commit inside an epoch, to which what it moves and how long it takes belong.

        The commit itself cannot tell how long it took: its state is that of when the rows were written.
        """
        with self._accounting.segment(self.state):
            self._flush()
        with self._accounting.segment(self.state):
            self._commits.commit(self.state)

    def _flush(self) -> None:
        with stage_of("flush", self._watchdog, self._trace):
            self._buffer.flush()

    def _check_schedule(self, schedule: Schedule) -> None:
        """Note schedule and order of edges; inside an epoch they must be those of the position."""
        state = self.state
        divided = f"{schedule!r}, division {DIVISION}, edges {self._train_order}"
        found = hashlib.blake2b(divided.encode(), digest_size=8).hexdigest()
        if not state.is_between_epochs and state.schedule not in (None, found):
            raise ConfigError(
                f"epoch {state.position.epoch + 1} has begun with another schedule than the one built now: "
                "storage.capacity, ordering.* or the version of the package differ, or the graph was "
                "prepared anew and has its edges in another order; let them be as they were until the epoch "
                "is done"
            )
        state.schedule = found

    def _run_segment(
        self, schedule: Schedule, swaps_before: Sequence[int], then: Callable[[], Schedule] | None
    ) -> None:
        """Run the pipeline until the epoch ends, a commit is due or an interrupt is asked for.

        Args:
            schedule: the epoch's.
            swaps_before: swaps before each of its steps, and in all.
            then: makes the next epoch's, if there is to be one.
        """
        state = self.state
        last, ended = state.position, Position(state.position.epoch, len(schedule.steps), 0)
        paused = False

        def pause(position: Position) -> bool:
            nonlocal paused
            paused = self.is_interrupted or self._commits.due(position, last, swaps_before)
            return paused

        with self._accounting.segment(state) as trained:

            def on_done(done: Done) -> None:
                trained.add(done.num_edges, done.loss)
                state.position = done.position
                self._on_progress(done.num_edges)

            leased = self._source.run(schedule, state.position, pause, then)
            try:
                self._path.run(leased, on_done, self._rates())
            except DivergedError as error:
                if error.stage == "compute" and state.position == last != Position(0, 0, 0):
                    raise beyond_repair(error) from error
                raise
            self._io.raise_failure()
        if not paused:
            state.position = ended

    def _rates(self) -> Callable[[int], float]:
        """Edges of a batch → its factor of the learning rate, for the batches from here on, in order.

        The factor depends on the edges before the batch, not on when it is computed.
        """
        state, schedule = self.state, self._settings.rate
        if schedule is None:
            return lambda edges: 1.0
        epoch, begun = state.position.epoch, state.current.edges
        validations = [mrr for _, mrr in state.validations()]

        def rate(edges: int) -> float:
            nonlocal begun
            factor = schedule.factor(epoch + begun / self._num_edges, validations)
            begun += edges
            return factor

        return rate
