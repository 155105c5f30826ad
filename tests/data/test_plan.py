"""Plans cover each train edge exactly once, where it may run, and level the steps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import deepcopy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_py.data import plan
from marius_py.data.plan import EpochSpans, Spans, level_targets, spread_spans, whole_spans
from marius_py.data.step_edges import _joined, batch_bounds, split_step
from marius_py.ordering import build_schedule
from marius_py.types import Schedule


def all_of(spans: EpochSpans, schedule: Schedule) -> list[Spans]:
    return [spans[step] for step in range(len(schedule.steps))]


def owners(spans: Iterable[Spans], num_edges: int) -> np.ndarray:
    """Step of each edge; fails if an edge is in two spans or in none."""
    step_of = np.full(num_edges, -1)
    for step, parts in enumerate(spans):
        for start, stop in parts:
            assert start < stop
            assert (step_of[start:stop] == -1).all()
            step_of[start:stop] = step
    assert (step_of >= 0).all()
    return step_of


@settings(max_examples=40)
@given(st.data())
def test_every_edge_is_in_one_step_that_holds_both_of_its_partitions(data: st.DataObject) -> None:
    p = data.draw(st.integers(1, 12), "p")
    c = data.draw(st.integers(min(2, p), p), "c")
    seed = data.draw(st.integers(0, 2**32), "seed")
    rng = np.random.default_rng(seed)
    counts = (rng.pareto(0.7, (p, p)) * data.draw(st.sampled_from([0, 1, 30]), "scale")).astype(np.int64)
    schedule = build_schedule(p, c, seed=seed, costs=(counts + 1).tolist())
    bucket = np.repeat(np.arange(p * p), counts.ravel())
    size, chunks = data.draw(st.sampled_from([(1, 1), (10, 10), (40, 4), (100, 10)]), "batch")
    for spans in (
        whole_spans(schedule, counts),
        spread_spans(schedule, counts, rng, batch_size=size, chunks=chunks),
    ):
        step_of = owners(all_of(spans, schedule), int(counts.sum()))
        for edge_bucket, step in set(zip(bucket.tolist(), step_of.tolist(), strict=True)):
            assert set(divmod(edge_bucket, p)) <= set(schedule.steps[step].resident)


@pytest.mark.parametrize(("p", "c"), [(8, 4), (16, 4), (32, 8)])
def test_spread_levels_the_work_and_mixes_buckets(p: int, c: int) -> None:
    counts = np.random.default_rng(0).poisson(200, (p, p))
    schedule = build_schedule(p, c, order="auto", seed=1, policy="eager")
    spans = all_of(spread_spans(schedule, counts, np.random.default_rng(1)), schedule)
    work = np.array([sum(stop - start for start, stop in parts) for parts in spans])
    eager = np.array([sum(counts[h, t] for h, t in step.buckets) for step in schedule.steps])
    assert work.sum() == eager.sum() == counts.sum()
    assert work.min() > 0.8 * work.mean()
    assert work.std() < 0.5 * eager.std()
    mixed = [len(parts) for parts in spans]
    assert np.mean(mixed) > 2 * p * p / len(schedule.steps)


def test_another_epoch_cuts_elsewhere_and_the_same_one_does_not() -> None:
    counts = np.full((6, 6), 100)
    schedule = build_schedule(6, 3, seed=0)
    first, again, other = (
        np.concatenate(all_of(spread_spans(schedule, counts, np.random.default_rng(s)), schedule))
        for s in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert first.tolist() != other.tolist()


def work_of(spans: EpochSpans, schedule: Schedule) -> np.ndarray:
    return np.array([int((own[:, 1] - own[:, 0]).sum()) for own in all_of(spans, schedule)])


@pytest.mark.parametrize(
    ("p", "c", "rounds", "edges", "size", "chunks"),
    [
        (8, 4, 11, 272_115, 1000, 10),
        (8, 4, 1, 120_011, 2000, 10),
        (8, 4, 9, 86_835, 1000, 8),
        (8, 4, 3, 9_990, 100, 5),
    ],
)
def test_steps_are_whole_batches_nearly_full(
    p: int, c: int, rounds: int, edges: int, size: int, chunks: int
) -> None:
    """11 rounds of FB15k-237's 272,115 edges had two batches and a bit a step: 369 instead of 278."""
    counts = np.random.default_rng(edges).multinomial(edges, np.full(p * p, 1 / p**2)).reshape(p, p)
    schedule = build_schedule(p, c, order="random", seed=2, policy="eager", rounds=rounds)
    spans = spread_spans(schedule, counts, np.random.default_rng(1), batch_size=size, chunks=chunks)
    work = work_of(spans, schedule)
    batches = [batch_bounds(own, size, chunks) for own in work.tolist()]
    fewest = max(len(work), edges / (0.99 * max(size - chunks, 0.9 * size)))
    assert sum(map(len, batches)) <= fewest + 1
    assert (work[:-1] % chunks == 0).all()
    assert max(map(len, batches)) - min(map(len, batches)) <= 1


def test_targets_are_level_and_hold_all_edges() -> None:
    batches = 31  # of at most 100 - 10 edges, and a hundredth less
    dealt = [3, 3, 3, 3, 3, 3, 3, 3, 3, 4]
    np.testing.assert_allclose(level_targets(2750, 10, 100, 10), np.array(dealt) * 2750 / batches)
    np.testing.assert_allclose(level_targets(300, 10, 100, 10), 30)  # not a batch a step
    np.testing.assert_allclose(level_targets(0, 3, 100, 10), 0)
    for one in (level_targets(2750, 10, 100, 10), level_targets(9_999, 7, 1, 1)):
        assert one.sum() == pytest.approx(2750 if len(one) == 10 else 9_999)


def test_a_step_whose_shares_are_too_small_keeps_its_rest() -> None:
    counts = np.ones((8, 8), np.int64)
    schedule = build_schedule(8, 4, order="random", seed=0, policy="eager")
    spans = spread_spans(schedule, counts, np.random.default_rng(0), batch_size=50, chunks=50)
    assert sorted(set(owners(all_of(spans, schedule), 64).tolist())) == list(range(len(schedule.steps)))


# What every run has followed since runs can be resumed, written share by share.


def plain_shares(
    bucket: np.ndarray, step: np.ndarray, edges: np.ndarray, size: int, chunks: int
) -> np.ndarray:
    def shares() -> np.ndarray:
        return weight[step] / np.bincount(bucket, weight[step], minlength=len(edges))[bucket]

    num_steps, number = int(step.max()) + 1, int(edges.sum())
    weight = np.ones(num_steps)
    batches = max(num_steps, math.ceil(number / (max(size - chunks, 0.9 * size) / 1.01)))
    dealt = [at * batches // num_steps for at in range(num_steps + 1)]
    target = np.array([stop - start for start, stop in pairwise(dealt)]) * (number / batches)
    for _ in range(60):
        work = np.bincount(step, shares() * edges.astype(np.float64)[bucket], minlength=num_steps)
        if (np.abs(work - target) <= 0.01 * target).all():
            break
        weight *= np.clip(target / np.maximum(work, 1e-9 * target), 0.5, 2.0)
        weight = np.clip(weight / weight.mean(), 1e-3, 1e3)
    return shares()


def plain_spans(
    schedule: Schedule, counts: np.ndarray, rng: Any, size: int, chunks: int
) -> list[list[tuple[int, int]]]:
    p, edges = len(counts), counts.ravel()
    resident = [np.asarray(step.resident, dtype=np.int64) for step in schedule.steps]
    bucket = np.concatenate([(parts[:, None] * p + parts).ravel() for parts in resident])
    step = np.repeat(np.arange(len(resident)), [len(parts) ** 2 for parts in resident])
    shares = plain_shares(bucket, step, edges, size, chunks)
    order = np.lexsort((rng.random(len(bucket)), bucket))
    bucket, step, shares = bucket[order], step[order], shares[order]
    first = np.searchsorted(bucket, bucket, side="left")
    running = np.cumsum(shares)
    upto = running - (running - shares)[first]
    is_last = np.append(bucket[1:] != bucket[:-1], True)
    stop = np.where(is_last, edges[bucket], np.rint(upto * edges[bucket]).astype(np.int64))
    start = np.where(first == np.arange(len(bucket)), 0, np.concatenate([[0], stop[:-1]]))
    turn = (rng.random(p * p) * edges).astype(np.int64)[bucket]
    arcs: list[list[list[int]]] = [[] for _ in resident]
    for at, part, low, high in np.stack([step, bucket, start + turn, stop + turn], axis=1).tolist():
        arcs[at].append([part, low, high])
    plain_passing(arcs, resident, p, chunks)
    origins = np.cumsum(edges) - edges
    spans: list[list[tuple[int, int]]] = [[] for _ in resident]
    for own, found in zip(spans, arcs, strict=True):
        for part, low, high in found:
            origin, whole = int(origins[part]), int(edges[part])
            if low >= whole:
                low, high = low - whole, high - whole
            own += [(origin + low, origin + min(high, whole)), (origin, origin + max(0, high - whole))]
    return [[span for span in step if span[0] < span[1]] for step in spans]


def plain_passing(arcs: list[list[list[int]]], resident: list[np.ndarray], p: int, chunks: int) -> None:
    """What a step has beyond a multiple of the chunks goes to the next, from its largest share that may."""
    for own in arcs:
        own.sort(key=lambda arc: arc[0])
    come, passed = 0, []
    for own, after in zip(arcs, resident[1:], strict=False):
        shared = [arc for arc in own if set(divmod(arc[0], p)) <= set(after.tolist())]
        giver = max(shared, key=lambda arc: arc[2] - arc[1])
        over = (sum(high - low for _, low, high in own) + come) % chunks
        come = over if over <= giver[2] - giver[1] else 0
        giver[2] -= come
        passed.append([giver[0], giver[2], giver[2] + come])
    for own, arc in zip(arcs[1:], passed, strict=True):
        own.append(arc)


class Coarse:
    """Draws few numbers, so that many are equal."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def random(self, size: Any) -> np.ndarray:
        return np.floor(self.rng.random(size) * 8) / 8


def plain_joined(spans: list[tuple[int, int]]) -> list[list[int]]:
    joined: list[list[int]] = []
    for start, stop in sorted(spans):
        if joined and joined[-1][1] == start:
            joined[-1][1] = stop
        else:
            joined.append([start, stop])
    return joined


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("p", "c", "order", "rounds"),
    [
        (1, 1, "auto", 1),
        (5, 5, "auto", 1),
        (4, 2, "auto", 3),
        (8, 4, "random", 4),
        (16, 3, "random", 1),
        (32, 8, "auto", 2),
        pytest.param(64, 16, "random", 1, marks=pytest.mark.slow),
    ],
)
def test_spans_are_the_same_as_ever(
    p: int, c: int, order: str, rounds: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was committed inside an epoch goes on with the edges that were left."""
    monkeypatch.setattr(plan, "_BAND_SHARES", 50)  # several bands
    monkeypatch.setattr(plan, "_CHUNK", 100)
    for seed, scale in enumerate((0, 1, 9, 101, 70_000)):
        rng = np.random.default_rng([seed, p])
        counts = (rng.pareto(1.2, (p, p)) * scale).astype(np.int64) if seed % 2 else np.full((p, p), scale)
        schedule = build_schedule(p, c, order=order, seed=seed, policy="eager", rounds=rounds)
        source: Any = Coarse(seed) if seed == 3 else np.random.Generator(np.random.SFC64(seed))
        size, chunks = ((1, 1), (100, 10), (64, 64), (5000, 7), (20_000, 10))[seed]
        expected = plain_spans(schedule, counts, deepcopy(source), size, chunks)
        spans = spread_spans(schedule, counts, source, batch_size=size, chunks=chunks, compiled=compiled)
        for step, plain in enumerate(expected):
            found = spans[step]
            assert [tuple(span) for span in found.tolist()] == plain
            limit = max(1, sum(stop - start for start, stop in plain) // 3)
            blocks = split_step(step, found, limit)
            for block in blocks:
                parts = [
                    tuple(a + (z - a) * k // len(blocks) for k in (block.order, block.order + 1))
                    for a, z in plain
                ]
                wanted = plain_joined([(a, z) for a, z in parts if a < z])
                assert _joined(block.ranges).tolist() == wanted
                assert block.num_edges == sum(z - a for a, z in wanted)


def test_many_shares_take_a_few_bytes_each() -> None:
    p, c = 96, 24
    counts = np.full((p, p), 300)
    schedule = build_schedule(p, c, order="random", seed=1, policy="eager")
    spans: Any = spread_spans(schedule, counts, np.random.default_rng(0))
    assert spans.start.nbytes + spans.length.nbytes == 4 * len(schedule.steps) * c * c
