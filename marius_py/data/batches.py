"""An epoch as a stream of batches of edges (floor 2): the source of the pipeline.

In: a schedule and the position reached in it. Out: LeasedEdges, in order. While a step's batches are handed
out, the I/O thread reads the next partition and the next step's edges; at an epoch's end, those that the next
one begins with.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from marius_py.buffer import PartitionBuffer
from marius_py.buffer.swap import IOThread
from marius_py.data.batch_settings import BatchSettings, check_answers
from marius_py.data.division import Division, PlacedBlock, divide
from marius_py.data.drawn_ahead import drawn_ahead
from marius_py.data.leased_edges import LeasedEdges
from marius_py.data.resident_edges import EdgesAtHand, ResidentEdges
from marius_py.data.step_edges import EdgeBlock, batch_bounds, read_block
from marius_py.data.train_edges import HELD_EDGES, TrainEdges
from marius_py.nn.known_edges import KnownEdges
from marius_py.nn.negatives import NegativeSampler, ResidentNodes
from marius_py.storage.protocols import Edges, EdgeStore
from marius_py.storage.weighted import shares_of, without_weights
from marius_py.types import Position, Schedule, Step

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Begun:
    """What an epoch begins with, made before its turn: how it is divided, and its first block's edges."""

    division: Division
    edges: Edges


class BatchSource:
    """Walks schedules and hands out batches. One thread at a time; which edges depends on positions alone.

    Args:
        buffer: the partition buffer that is swapped along the way.
        edges: where train edges come from.
        io: the buffer's I/O thread, on which edges are read ahead.
        settings: batch size, chunks, seed.
        sampler: draws the batches' negatives.
        degrees: reads (start, stop) → (n,) train degrees; needed where negatives are drawn by them.
        known_on_device: a device finds known edges among the negatives: none are indexed here.

    Raises:
        ConfigError: answers are to be counted among more edges than are held in memory.
    """

    def __init__(
        self,
        buffer: PartitionBuffer,
        edges: EdgeStore,
        io: IOThread,
        settings: BatchSettings,
        sampler: NegativeSampler,
        degrees: Callable[[int, int], NDArray[np.int64]] | None = None,
        *,
        known_on_device: bool = False,
    ) -> None:
        self._buffer = buffer
        self._edges = TrainEdges(edges, HELD_EDGES, weights=settings.mean_weight is not None)
        self._io = io
        self._settings = settings
        self._sampler = sampler
        self._degrees = degrees
        self._degree_cumsum: dict[int, NDArray[np.int64]] = {}
        self._counts = self._edges.counts
        if settings.per_question:
            check_answers(self._counts, buffer.capacity, settings.block_edges)
        self._known: ResidentEdges | None = None
        self._known_on_device = known_on_device
        if settings.reads_known:
            self._known = ResidentEdges(
                self._edges, settings.block_edges, settings.compiled, on_device=known_on_device
            )
        self._division: Division | None = None
        self._block_bytes = self._ahead_bytes = 0
        self._begun: tuple[int, Future[_Begun | None]] | None = None
        self._begun_bytes = 0

    def run(
        self,
        schedule: Schedule,
        start: Position,
        pause: Callable[[Position], bool],
        then: Callable[[], Schedule] | None = None,
    ) -> Iterator[LeasedEdges]:
        """Yield the batches of an epoch from `start` on, until its end or until `pause()` is true.

        Args:
            schedule: the epoch's schedule.
            start: position reached; `start.batch` batches of its step are skipped.
            pause: asked before the first and after every batch with the position it leads to; true ends
                the stream, and the next call goes on from that position.
            then: makes the next epoch's schedule, if there is to be one: asked on the I/O thread once the
                last block is at hand, so that what that epoch begins with is there in time.
        """
        steps = schedule.steps
        if start.step >= len(steps) or pause(start):
            return
        begun = self._take_begun(schedule, start)
        blocks = self._remaining_blocks(schedule, start)
        first = next(blocks)  # a step without edges has one that is empty
        self._buffer.begin(steps[start.step].resident)
        entered = start.step
        ahead = self._io.submit(self._read, first[0], steps, start.epoch, begun)  # waited for first
        del begun
        if entered + 1 < len(steps):
            self._buffer.prefetch_for(steps[entered + 1])
        here: PlacedBlock | None = first
        while here is not None:
            (block, first_batch, skip), here = here, next(blocks, None)
            while entered < block.step:
                entered += 1
                self._buffer.enter(steps[entered], steps[entered + 1] if entered + 1 < len(steps) else None)
            edges, between = self._buffer.timed(ahead)
            self._block_bytes, self._ahead_bytes = edges.nbytes, 0
            if here is not None:
                ahead = self._io.submit(self._read, here[0], steps, start.epoch)
            else:
                del ahead  # and with it what is to be masked
            self._buffer.write_back()
            resident = steps[entered].resident
            places = self._places(start.epoch, block, len(edges), first_batch, skip)
            nodes = self._resident_nodes(resident)
            known = self._find_known(resident, between, edges, nodes, places)
            between = None  # it holds what it needs
            if here is None and then is not None and self._begun is None:
                future = self._io.submit(self._begin, then, start.epoch + 1)
                self._begun = start.epoch + 1, future
            for batch in self._batches(block, edges, places, resident, nodes, known):
                yield batch
                if pause(batch.after):
                    return
        if self._begun is not None:
            self._buffer.timed(self._begun[1])  # the I/O thread does nothing else before

    def _find_known(
        self,
        resident: tuple[int, ...],
        between: Edges | None,
        edges: Edges,
        nodes: ResidentNodes,
        places: Sequence[tuple[Position, slice]],
    ) -> KnownEdges | EdgesAtHand | None:
        """What finds known edges among the negatives of a block, of what was loaded or of its own edges."""
        if self._known is None:
            return None
        if self._known_on_device:
            return self._known.at_hand(resident, between, edges)
        drawn = None
        if not self._settings.per_question and not self._known.serves_again(resident, between):
            drawn = drawn_ahead(self._sampler, self._settings.seed, edges, nodes, places)
        return self._known.index(resident, between, edges, drawn)

    def close(self) -> None:
        """Let go of all edges; nothing is to be run any more."""
        self._begun = self._division = None
        self._block_bytes = self._ahead_bytes = 0
        self._edges.clear()
        if self._known is not None:
            self._known.clear()

    def _begin(self, then: Callable[[], Schedule], epoch: int) -> _Begun | None:
        """Make what an epoch begins with before its turn; I/O thread.

        None if that fails: the epoch before is not to blame, and the epoch itself will say why.
        """
        before = self._edges.bytes_read
        try:
            schedule = then()
            division = divide(schedule, epoch, self._counts, self._settings)
            block, *_ = next(division.blocks(Position(epoch, 0, 0), self._settings))
            edges, _ = self._read(block, schedule.steps, epoch)
        except Exception:
            log.debug("epoch %d: its first edges are not read ahead", epoch + 1, exc_info=True)
            return None
        self._ahead_bytes = edges.nbytes
        self._begun_bytes = self._edges.bytes_read - before
        return _Begun(division, edges)

    def _take_begun(self, schedule: Schedule, start: Position) -> Edges | None:
        """The first edges of an epoch that begins here, if they were read; they count as its own from now.

        What was read for the epoch after this one stays.
        """
        if self._begun is None or self._begun[0] > start.epoch:
            return None
        begun, self._begun = self._buffer.timed(self._begun[1]), None
        self._begun_bytes = 0
        if begun is None or not begun.division.is_of(start.epoch, schedule):
            return None
        self._division = begun.division
        return begun.edges if start == Position(start.epoch, 0, 0) else None

    def _remaining_blocks(self, schedule: Schedule, start: Position) -> Iterator[PlacedBlock]:
        """Blocks from `start` on. The division is kept until another epoch's comes, for commits inside it."""
        if self._division is None or not self._division.is_of(start.epoch, schedule):
            self._division = None  # its memory goes to the next one
            self._division = divide(schedule, start.epoch, self._counts, self._settings)
        return self._division.blocks(start, self._settings)

    def _read(
        self, block: EdgeBlock, steps: Sequence[Step], epoch: int, edges: Edges | None = None
    ) -> tuple[Edges, Edges | None]:
        """The block's edges, shuffled, and those to be masked (None: nothing, or its own). I/O thread.

        Args:
            block: of an epoch with these steps.
            edges: its edges, if they have been read.
        """
        started, threads = time.perf_counter(), torch.get_num_threads()
        between = None if self._known is None else self._known.load(steps[block.step].resident)
        seed = self._settings.seed
        is_read = edges is None or between is not None
        if edges is None and self._known is not None and between is not None:
            edges = read_block(self._known.rows, block, seed, epoch, threads=threads)
        elif edges is None:
            edges = read_block(self._edges.rows, block, seed, epoch, threads=threads)
        self._ahead_bytes = edges.nbytes + (0 if between is None else between.nbytes)
        if is_read:
            self._io.tell("read edges", started, epoch=epoch + 1, step=block.step + 1)
        return edges, between

    @property
    def held_bytes(self) -> Mapping[str, int]:
        """Bytes of edges, of all or of the blocks at hand and ahead, and of known ones with their index."""
        known = 0 if self._known is None else self._known.nbytes
        blocks = self._block_bytes + self._ahead_bytes
        return {"edges": blocks + self._edges.nbytes, "known edges": known}

    @property
    def edge_bytes_read(self) -> int:
        """Bytes of edges read so far, without those that the next epoch begins with."""
        return self._edges.bytes_read - self._begun_bytes

    def _places(
        self, epoch: int, block: EdgeBlock, num_edges: int, first_batch: int, skip: int
    ) -> list[tuple[Position, slice]]:
        """Positions of a block's batches, and which of its edges they have; `skip` of them are done."""
        bounds = batch_bounds(num_edges, self._settings.batch_size, self._settings.chunks)
        return [
            (Position(epoch, block.step, first_batch + number), slice(*bounds[number]))
            for number in range(skip, len(bounds))
        ]

    def _batches(
        self,
        block: EdgeBlock,
        edges: Edges,
        places: Sequence[tuple[Position, slice]],
        resident: tuple[int, ...],
        nodes: ResidentNodes,
        known: KnownEdges | EdgesAtHand | None,
    ) -> Iterator[LeasedEdges]:
        first_row = self._buffer.first_rows()
        mean = self._settings.mean_weight
        for here, mine in places:
            done = block.last and mine.stop == len(edges)
            epoch, step, order = here
            yield LeasedEdges(
                edges=edges[mine] if mean is None else without_weights(edges[mine]),
                here=here,
                after=Position(epoch, step + 1, 0) if done else Position(epoch, step, order + 1),
                nodes=nodes,
                known=known,
                first_row=first_row,
                lease=self._buffer.lease(resident),
                weight=None if mean is None else shares_of(edges[mine], mean),
            )

    def _resident_nodes(self, resident: tuple[int, ...]) -> ResidentNodes:
        partitioning = self._buffer.store.table.partitioning
        cumsum: tuple[NDArray[np.int64], ...] | None = None
        if self._degrees is not None:
            kept = {part: total for part, total in self._degree_cumsum.items() if part in resident}
            for part in resident:
                if part not in kept:
                    kept[part] = np.cumsum(
                        self._degrees(partitioning.start(part), partitioning.start(part + 1)), dtype=np.int64
                    )
            self._degree_cumsum = kept
            cumsum = tuple(kept[part] for part in resident)
        return ResidentNodes(
            starts=np.array([partitioning.start(part) for part in resident], dtype=np.int64),
            sizes=np.array([partitioning.size(part) for part in resident], dtype=np.int64),
            degree_cumsum=cumsum,
        )
