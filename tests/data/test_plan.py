"""Plans cover each train edge exactly once, where it may run, and level the steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_py.data.plan import Span, spread_spans, whole_spans
from marius_py.ordering import build_schedule


def owners(spans: list[list[Span]], num_edges: int) -> np.ndarray:
    """Step of each edge; fails if an edge is in two spans or in none."""
    step_of = np.full(num_edges, -1)
    for step, parts in enumerate(spans):
        for start, stop in parts:
            assert start < stop or start == stop
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
    for spans in (whole_spans(schedule, counts), spread_spans(schedule, counts, rng)):
        step_of = owners(spans, int(counts.sum()))
        for edge_bucket, step in set(zip(bucket.tolist(), step_of.tolist(), strict=True)):
            assert set(divmod(edge_bucket, p)) <= set(schedule.steps[step].resident)


@pytest.mark.parametrize(("p", "c"), [(8, 4), (16, 4), (32, 8)])
def test_spread_levels_the_work_and_mixes_buckets(p: int, c: int) -> None:
    counts = np.random.default_rng(0).poisson(200, (p, p))
    schedule = build_schedule(p, c, order="auto", seed=1, policy="eager")
    spans = spread_spans(schedule, counts, np.random.default_rng(1))
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
    first, again, other = (spread_spans(schedule, counts, np.random.default_rng(s)) for s in (1, 1, 2))
    assert first == again
    assert first != other
