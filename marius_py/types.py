"""Words of the package as types (floor 0): no torch, no h5py, nothing but the standard library.

Shape letters used in all docstrings: N nodes, R relations, D embedding width, S optimizer-state width,
B batch, C chunks, P = B/C edges a chunk, K negatives a chunk, U unique nodes of a batch, p partitions,
c buffer capacity in partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

Side = Literal["head", "tail"]
"""The corrupted (or ranked) end of an edge."""

SIDES: tuple[Side, Side] = ("head", "tail")

SPLITS = ("train", "valid", "test")
"""The splits of a graph's edges."""

AnswerFormat = Literal["table", "tsv", "csv", "json", "parquet"]
"""How answers of a trained run are written."""

ANSWER_FORMATS: tuple[AnswerFormat, ...] = get_args(AnswerFormat)

ExportFormat = Literal["npy", "parquet", "tsv", "word2vec", "safetensors", "pbg", "projector"]
"""How embeddings are written for other programs."""

EXPORT_FORMATS: tuple[ExportFormat, ...] = get_args(ExportFormat)

Progress = Callable[[int, int], None]
"""Told of progress: (done, total)."""

StageProgress = Callable[[str, int, int | None, str], None]
"""Told of the progress of a stage: (stage, done, total or None, unit)."""

MAX_PARTITIONS = 1024
"""Most partitions of a node table. An epoch's schedule has p² buckets, a million then. The first takes
about half a minute with 8 partitions in the buffer, over a minute with 2."""

MAX_SEED = 2**63 - 1
"""Largest seed: one that fits 64 bits with a sign."""

MAX_THREADS = 1024
"""Most threads that a setting asks for. With some thousands OpenMP ends the process."""


class Bucket(NamedTuple):
    """The edges whose head lies in partition `head` and whose tail lies in partition `tail`."""

    head: int
    tail: int


class Position(NamedTuple):
    """A point of a training run: `batch` batches of step `step` of epoch `epoch` are done (all from 0)."""

    epoch: int
    step: int
    batch: int


@dataclass(frozen=True, slots=True)
class Step:
    """One state of the buffer with the buckets that run in it.

    Attributes:
        resident: the c resident partitions after the swap, ascending.
        admit: partitions loaded on entering (empty for the first step, whose residents are `initial`).
        evict: partitions written back on entering, as many as `admit`.
        buckets: buckets that run in this step; both ends are resident.
    """

    resident: tuple[int, ...]
    admit: tuple[int, ...]
    evict: tuple[int, ...]
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """An epoch's order: `p` partitions pass through a buffer of `c`, each of the p² buckets runs once.

    Attributes:
        p: number of partitions.
        c: buffer capacity in partitions.
        initial: partitions resident at the start, ascending.
        steps: states in order; `steps[0].resident == initial`.
    """

    p: int
    c: int
    initial: tuple[int, ...]
    steps: tuple[Step, ...]

    @property
    def swaps(self) -> int:
        """Partitions admitted after the start (S of the literature)."""
        return sum(len(step.admit) for step in self.steps)

    @property
    def loads(self) -> int:
        """Partitions read in an epoch that starts with an empty buffer: c + swaps."""
        return self.c + self.swaps

    @property
    def final(self) -> tuple[int, ...]:
        """Partitions resident after the last step, ascending."""
        return self.steps[-1].resident if self.steps else self.initial
