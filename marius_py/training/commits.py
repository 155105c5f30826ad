"""The commits of a run (floor 4): resident rows, relations and the position in; one checkpoint at a time out.

When one is due depends on the clock, on swaps, and on how many versions of partitions the store has room for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marius_py.buffer import PartitionBuffer
from marius_py.buffer.numbers import check_numbers
from marius_py.nn.model import LinkPredictionModel
from marius_py.pipeline.runner import stage_of
from marius_py.pipeline.trace import Trace
from marius_py.pipeline.watchdog import Watchdog
from marius_py.run_state import RunState
from marius_py.storage.protocols import Checkpoint, Float32, JsonText, PartitionStore
from marius_py.types import Position


@dataclass(frozen=True, slots=True)
class CommitRhythm:
    """When to commit inside an epoch.

    Attributes:
        swaps: after so many swaps; None: at the epoch's end only.
        seconds: when so much time has passed; None: never for that reason.
    """

    swaps: int | None = None
    seconds: float | None = None


class Commits:
    """Commits a run, and says when that is due.

    Args:
        store: where rows and checkpoint go.
        buffer: holds the residents.
        model: holds the relations.
        rhythm: when to commit inside an epoch.
        meta: facts that every commit carries. What else the loaded one says stays, as results of a test do,
            until batches are trained.
        trace: notes the seconds. watchdog: told that a commit is under way.
        on_commit: called with the meta of each commit once it is made.
    """

    def __init__(
        self,
        store: PartitionStore,
        buffer: PartitionBuffer,
        model: LinkPredictionModel,
        rhythm: CommitRhythm,
        meta: Mapping[str, Any],
        *,
        trace: Trace,
        watchdog: Watchdog,
        on_commit: Callable[[Mapping[str, Any]], None] = lambda meta: None,
    ) -> None:
        self._store, self._buffer, self._model = store, buffer, model
        self._rhythm, self._meta = rhythm, dict(meta)
        self._trace, self._watchdog = trace, watchdog
        self._on_commit = on_commit
        self._loaded_at: Position | None = None
        self._kept: dict[str, Any] = {}
        self._at = time.monotonic()
        self._spare_slots = 0

    def begin(self) -> None:
        """Note the room for further versions, once the store has its first commit."""
        self._spare_slots = self._store.free_slots()

    def load(self) -> RunState | None:
        """The state of the last commit, its relations given to the model; None: there is none yet."""
        checkpoint = self._store.checkpoint()
        if checkpoint is None:
            return None
        self._model.load_state_arrays(dict(checkpoint.arrays))
        state = RunState.from_meta(checkpoint.meta)
        own = self._meta.keys() | state.to_meta().keys()
        self._kept = {name: value for name, value in checkpoint.meta.items() if name not in own}
        self._loaded_at = state.position
        return state

    def commit(self, state: RunState) -> None:
        """Flush the residents and commit them with the relations and the state, atomically. No batch may run.

        Raises:
            StorageError: the disk failed; DivergedError: rows are no numbers. The last commit is intact.
        """
        with stage_of("commit", self._watchdog, self._trace):
            self._buffer.flush()
            history = JsonText(f"[{', '.join(state.encoded_history())}]")
            kept = self._kept if state.position == self._loaded_at else {}
            meta = {**kept, **self._meta, **state.to_meta(), "history": history}
            arrays = self._model.state_arrays(copy=False)
            check_numbers(arrays["relations"], "rows of relations", self._committed_relations)
            self._store.commit(Checkpoint(arrays=arrays, meta=meta))
        self._at = time.monotonic()
        self._on_commit(meta)

    def _committed_relations(self) -> Float32 | None:
        checkpoint = self._store.checkpoint()
        return None if checkpoint is None else checkpoint.arrays["relations"]

    def due(self, position: Position, last: Position, swaps_before: Sequence[int]) -> bool:
        """Whether to commit at a position inside an epoch.

        Args:
            position: reached now. last: that of the last commit.
            swaps_before: swaps before each step of the epoch, and in all of it.
        """
        rhythm = self._rhythm
        if position == last or position.step >= len(swaps_before) - 1:
            return False
        if rhythm.seconds is not None and time.monotonic() - self._at >= rhythm.seconds:
            return True
        if position.batch:
            return False
        since = swaps_before[position.step] - swaps_before[last.step]
        if rhythm.swaps is not None and since >= rhythm.swaps:
            return True
        # Until it is asked again, entering steps of which all but the last have no edges writes back what was
        # resident, and a commit after them all that then is.
        needed = since + 2 * self._buffer.capacity
        return min(needed, self._store.table.partitioning.num_partitions) > self._spare_slots
