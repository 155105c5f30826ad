"""Samplers draw resident nodes with the right frequencies; known edges are found exactly."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from marius_py.errors import ConfigError
from marius_py.nn import (
    AllNegatives,
    DegreeNegatives,
    NegativeSampler,
    ResidentNodes,
    UniformNegatives,
    known_edges,
    known_index,
    known_search,
)
from marius_py.nn.kernels import host
from marius_py.nn.known_edges import KnownEdges, own_answers
from marius_py.nn.negatives import chunks_of
from marius_py.nn.registry import SAMPLERS
from marius_py.types import SIDES, Side

STARTS, SIZES = np.array([10, 40, 70]), np.array([5, 0, 3])
DEGREES = [np.array([1, 0, 4, 0, 5]), np.zeros(0, np.int64), np.array([0, 10, 0])]


def resident() -> ResidentNodes:
    return ResidentNodes(STARTS, SIZES, [np.cumsum(degrees) for degrees in DEGREES])


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def test_uniform_draws_each_resident_node_alike() -> None:
    drawn = resident().uniform(rng(), 80_000)
    ids, counts = np.unique(drawn, return_counts=True)
    assert ids.tolist() == [10, 11, 12, 13, 14, 70, 71, 72]
    assert np.abs(counts / 10_000 - 1).max() < 0.06
    assert resident().count == 8
    neighbours = ResidentNodes(np.array([10, 15]), np.array([5, 3]))
    assert np.unique(neighbours.uniform(rng(), 1000)).tolist() == list(range(10, 18))


def test_by_degree_draws_in_proportion() -> None:
    drawn = resident().by_degree(rng(), 80_000)
    counts = np.bincount(drawn, minlength=80)
    for start, degrees in zip(STARTS, DEGREES, strict=True):
        for offset, degree in enumerate(degrees):
            assert counts[start + offset] == pytest.approx(4000 * degree, rel=0.07)


def test_by_degree_without_edges_is_uniform() -> None:
    nodes = ResidentNodes(STARTS, SIZES, [np.zeros(size, np.int64) for size in SIZES])
    assert set(nodes.by_degree(rng(), 1000).tolist()) == {10, 11, 12, 13, 14, 70, 71, 72}


def test_by_degree_without_degrees_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"negatives\.sampler .* set needs_degrees = True on the sampler"):
        ResidentNodes(STARTS, SIZES).by_degree(rng(), 4)


SAMPLER_CASES: list[NegativeSampler] = [
    UniformNegatives(6, 4),
    UniformNegatives(9, 4, count_tail=6),
    DegreeNegatives(9, 4, 0.5, count_head=2, count_tail=6),
    AllNegatives(),
    DegreeNegatives(6, 4, 0.5),
    DegreeNegatives(6, 4, 0.0),
    DegreeNegatives(6, 4, 1.0),
]


def test_every_registered_sampler_is_tested() -> None:
    assert {type(sampler) for sampler in SAMPLER_CASES} == set(SAMPLERS.values())


@pytest.mark.parametrize("sampler", SAMPLER_CASES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(("batch", "chunks"), [(12, 4), (9, 3), (7, 1), (1, 1)])
def test_shape_range_and_repeatability(sampler: NegativeSampler, batch: int, chunks: int) -> None:
    edges = np.zeros((batch, 3), np.int64)
    drawn = sampler.sample(edges, resident(), "tail", rng())
    assert drawn.shape == ((1, 8) if sampler.holds_answers else (chunks, 6))
    assert drawn.dtype == np.int64
    assert set(drawn.ravel().tolist()) <= {10, 11, 12, 13, 14, 70, 71, 72}
    np.testing.assert_array_equal(drawn, sampler.sample(edges, resident(), "tail", rng()))


def test_sides_have_counts_of_their_own() -> None:
    edges = np.zeros((8, 3), np.int64)
    for sampler in (UniformNegatives(5, 2, 3), DegreeNegatives(5, 2, 0.5, 3)):
        assert sampler.sample(edges, resident(), "head", rng()).shape == (2, 3)
        assert sampler.sample(edges, resident(), "tail", rng()).shape == (2, 5)
    assert not DegreeNegatives(1, 1, 0.4).needs_degrees
    assert DegreeNegatives(1, 1, 0.4, count_head=2).needs_degrees


def test_all_are_all_residents_once() -> None:
    drawn = AllNegatives().sample(np.zeros((8, 3), np.int64), resident(), "head", rng())
    assert drawn.tolist() == [[10, 11, 12, 13, 14, 70, 71, 72]]
    none = ResidentNodes(np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert none.count == len(none.all()) == 0


def test_a_fraction_comes_by_degree() -> None:
    sampler = DegreeNegatives(10, 1, 0.3)
    assert sampler.needs_degrees
    assert not DegreeNegatives(10, 1, 0.0).needs_degrees
    nodes = ResidentNodes(np.array([0]), np.array([1000]), [np.cumsum(np.arange(1000) == 7)])
    for fraction in (0.3, 0.29):  # 3 of 10, to the nearest
        drawn = DegreeNegatives(10, 1, fraction).sample(np.zeros((4, 3), np.int64), nodes, "head", rng())
        assert (drawn[:, :3] == 7).all()


@given(st.integers(1, 500), st.integers(1, 40))
def test_chunks_divide_the_batch(batch: int, chunks: int) -> None:
    count = chunks_of(batch, chunks)
    assert 1 <= count <= chunks + 1
    assert count == chunks or batch % chunks
    assert batch % count == 0


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: UniformNegatives(0), "count"),
        (lambda: UniformNegatives(True), "count"),
        (lambda: UniformNegatives(2.5), "count"),  # type: ignore[arg-type]
        (lambda: UniformNegatives(10, 0), "chunks"),
        (lambda: UniformNegatives(10, 1, count_head=0), "count_head"),
        (lambda: DegreeNegatives(10, 1, count_tail=-1), "count_tail"),
        (lambda: DegreeNegatives(10, 2, 1.5), "degree_fraction"),
        (lambda: DegreeNegatives(10, 2, -0.5), "degree_fraction"),
    ],
)
def test_refused_settings(make: object, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"negatives\.{key}"):
        make()  # type: ignore[operator]


@st.composite
def contrasts(draw: DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(known edges, batch, negatives) over few ids, so that everything collides."""
    nodes, relations = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))

    def edges(count: int) -> np.ndarray:
        ends = generator.integers(0, nodes, (count, 3))
        ends[:, 1] = generator.integers(0, relations, count)
        return ends

    chunks, chunk_edges, count = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 9))
    # ids too large to pack question and answer into one integer, by a few bits and by far
    offset = draw(st.sampled_from([0, 1 << 31, 1 << 40]))
    known, batch = edges(draw(st.integers(0, 60))), edges(chunks * chunk_edges)
    for table in (known, batch):
        table[:, [0, 2]] += offset
    return known, batch, generator.integers(0, nodes, (chunks, count)) + offset


def kept(dropped: np.ndarray, num_edges: int, negatives: np.ndarray) -> np.ndarray:
    """(C, P, K) bool, False at the positions that are dropped; these must be ascending and distinct."""
    assert (np.diff(dropped) > 0).all()
    keep = np.ones(num_edges * negatives.shape[1], np.bool_)
    keep[dropped] = False
    return keep.reshape(len(negatives), -1, negatives.shape[1])


@given(
    contrasts(),
    st.sampled_from(SIDES),
    st.booleans(),
    st.sampled_from([0, 1, 64]),
    st.sampled_from([0, 1000]),
    st.sampled_from([0, 1 << 20]),
    st.sampled_from([0, 16]),
)
def test_known_edges_are_left_out_and_nothing_else(
    case: tuple[np.ndarray, np.ndarray, np.ndarray],
    side: Side,
    compiled: bool,
    many_answers: int,
    cost: float,
    most_places: int,
    dense: int,
) -> None:
    known, batch, negatives = case
    chunk_edges = len(batch) // len(negatives)
    with (
        patch.multiple(known_search, _MANY_ANSWERS=many_answers, _COST=cost, _MOST_PLACES=most_places),
        patch.multiple(known_index, _DENSE=dense, _HUB=0, _TURNING_COST=0),
        patch.object(known_edges, "_LEAST_EDGES", 0 if compiled else 1 << 62),
    ):
        index = KnownEdges(known)
        dropped = index.false_negatives(batch, negatives, side)
        np.testing.assert_array_equal(index.false_negatives(batch, negatives, side), dropped)
        for_these = KnownEdges(known, asking=batch)
        np.testing.assert_array_equal(for_these.false_negatives(batch, negatives, side), dropped)
        with patch.object(known_index, "_LEAST_SHARE", 1):
            shared = KnownEdges(known, threads=3)
            for name in ("keys", "starts", "answers"):
                mine, one = (getattr(made._index[side], name) for made in (shared, index))
                np.testing.assert_array_equal(mine, one)
            for_these = KnownEdges(known, asking=batch, threads=3)
            np.testing.assert_array_equal(for_these.false_negatives(batch, negatives, side), dropped)
        for asking in (None, batch):
            for_drawn = KnownEdges(known, asking=asking, drawn={side: negatives.ravel()})
            np.testing.assert_array_equal(for_drawn.false_negatives(batch, negatives, side), dropped)
    keep, all_but_own = (
        kept(one, len(batch), negatives) for one in (dropped, own_answers(batch, negatives, side))
    )
    true = {tuple(edge) for edge in known.tolist()}
    for number, edge in enumerate(batch.tolist()):
        for column, node in enumerate(negatives[number // chunk_edges].tolist()):
            corrupted = (node, edge[1], edge[2]) if side == "head" else (edge[0], edge[1], node)
            own = corrupted == tuple(edge)
            place = number // chunk_edges, number % chunk_edges, column
            assert keep[place] == (corrupted not in true and not own)
            assert all_but_own[place] == (not own)


@pytest.mark.parametrize("spread", ["evenly", "in a few places", "alone"])
def test_questions_are_found_wherever_they_lie_among_the_keys(spread: str) -> None:
    generator = np.random.default_rng(1)
    keys = {
        "evenly": generator.integers(0, 10_000, 3000),
        "in a few places": np.concatenate([np.arange(2000), 10**12 + np.arange(0, 6000, 3), [1 << 60]]),
        "alone": np.array([77]),
    }[spread]
    keys = np.unique(keys).astype(np.int64)
    compiled = host.compiled_index()
    assert compiled is not None
    directory = known_index.Directory.of(keys, compiled)
    buckets = len(directory.first) - 1
    assert buckets <= max(1, len(keys))
    for number in range(buckets):
        inside = (keys - keys[0]) >> directory.shift == number
        begin, stop = directory.first[number : number + 2].tolist()
        assert np.flatnonzero(inside).tolist() == list(range(begin, stop))
    # No relation is 0 among these, so each question is one node.
    questions = np.concatenate([keys[:40], keys[-40:], keys[:40] + 1, keys[-40:] - 1, [-1, 0, 1 << 61]])
    answers = np.arange(len(keys)) % 50
    found, _ = host.compiled_known().false_negatives(  # type: ignore[union-attr]
        keys,
        directory.lowest,
        directory.shift,
        directory.first,
        np.arange(len(keys) + 1),
        answers,
        0,
        np.zeros(1, np.int32),
        np.zeros(0, np.int32),
        questions,
        np.full(len(questions), -1),
        np.arange(50)[None],
    )
    wanted = [
        number * 50 + int(answers[np.searchsorted(keys, one)])
        for number, one in enumerate(questions.tolist())
        if one in set(keys.tolist())
    ]
    assert found.tolist() == wanted


def assert_known_are_left_out(
    dropped: np.ndarray, known: np.ndarray, batch: np.ndarray, negatives: np.ndarray, side: Side
) -> None:
    """Of 40 edges in two chunks those negatives are dropped, and some are, that make a known edge."""
    keep = kept(dropped, len(batch), negatives).reshape(40, -1)
    true = {tuple(edge) for edge in known.tolist()}
    for number, (head, relation, tail) in enumerate(batch.tolist()):
        nodes = negatives[number // 20].tolist()
        made = [(node, relation, tail) if side == "head" else (head, relation, node) for node in nodes]
        assert keep[number].tolist() == [edge not in true for edge in made]
    assert not keep.all()


@pytest.mark.parametrize("count", [3, 500])
@pytest.mark.parametrize(("many_answers", "dense"), [(None, 0), (2, 0), (64, 0), (64, 16)])
@pytest.mark.parametrize("side", SIDES)
def test_known_edges_of_hubs_are_left_out(
    side: Side, many_answers: int | None, dense: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_edges, "_LEAST_EDGES", 0 if many_answers is None else 1 << 62)
    monkeypatch.setattr(known_index, "_DENSE", dense)
    if many_answers is not None:
        monkeypatch.setattr(known_search, "_MANY_ANSWERS", many_answers)
    monkeypatch.setattr(known_search, "_COST", 0)
    generator = np.random.default_rng(0)
    known = generator.integers(0, 4000, (6000, 3), dtype=np.int32)
    known[:, 1] = 0
    known[:, 0 if side == "tail" else 2] %= 3  # three questions with thousands of answers
    batch, negatives = known[:40].astype(np.int64), generator.integers(0, 4000, (2, count))
    index = KnownEdges(known)
    dropped = index.false_negatives(batch, negatives, side)
    index._index[side].turned.make()
    np.testing.assert_array_equal(index.false_negatives(batch, negatives, side), dropped)
    assert_known_are_left_out(dropped, known, batch, negatives, side)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("count", [2, 200])
def test_hubs_are_searched_beside_questions_of_few_answers(side: Side, count: int) -> None:
    """One question has a table, from id 100 on, and its answers come before those of all others."""
    generator = np.random.default_rng(0)
    ends = np.concatenate([np.zeros(2000, np.int64), generator.integers(1, 900, 2000)])
    known = np.stack([ends, np.zeros(4000, np.int64), generator.integers(100, 1000, 4000)], 1)
    known = known if side == "tail" else known[:, ::-1]
    batch, negatives = known[generator.permutation(4000)[:40]], generator.integers(0, 1000, (2, count))
    index = KnownEdges(known, compiled=False)
    searched, tables = index._searched[side], index._searched[side].tables
    assert len(tables.places) == 1
    arrays = (searched.keys, searched.starts, searched.answers, searched.low_bits)
    of_tables = tables.places.nbytes + tables.answers.nbytes
    assert searched.turned.by_node is not None
    assert searched.nbytes == sum(a.nbytes for a in arrays) + of_tables + searched.turned.by_node.nbytes
    dropped = index.false_negatives(batch, negatives, side)
    assert_known_are_left_out(dropped, known, batch, negatives, side)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12),
    st.sampled_from([0, 1 << 60]),  # a chunk and a key fit into one integer, or they do not
)
def test_edges_are_grouped_by_chunk_and_key(pairs: list[tuple[int, int]], offset: int) -> None:
    chunk, key = np.array(sorted(pairs)).T
    order, first = known_search._group_by(chunk, key + offset)
    assert sorted(order.tolist()) == list(range(len(pairs)))
    grouped = list(zip(chunk[order].tolist(), key[order].tolist(), strict=True))
    assert grouped == sorted(grouped)
    assert [grouped[place] for place in first] == sorted(set(grouped))
    assert first.tolist() == [grouped.index(pair) for pair in sorted(set(grouped))]


def test_positions_beyond_two_billion_are_not_cut_off() -> None:
    position, owner = known_index.concatenate_ranges(np.array([(1 << 31) - 2, 5]), np.array([4, 1]))
    assert (position - (1 << 31)).tolist() == [-2, -1, 0, 1, 5 - (1 << 31)]
    assert owner.tolist() == [0, 0, 0, 0, 1]
    assert known_index.index_type((1 << 31) - 1) is np.int32
    assert known_index.index_type(1 << 31) is np.int64


@pytest.mark.parametrize("nodes", [22, *(1 << bits for bits in range(2, 18))])
def test_compiled_and_plain_indices_are_equal_whatever_the_bits_of_an_id(nodes: int) -> None:
    compiled = host.compiled_index()
    assert compiled is not None
    generator = np.random.default_rng(nodes)
    edges = np.stack([generator.integers(0, size, 3000) for size in (nodes, 3, nodes)], 1)
    edges[0] = nodes - 1, 2, nodes - 1
    for side in SIDES:
        for relations in (3, 4, 7):
            plain = known_index.group_answers(edges, side, relations)
            found = known_index.group_answers(edges, side, relations, compiled)
            for name in ("keys", "starts", "answers"):
                np.testing.assert_array_equal(getattr(found, name), getattr(plain, name))


def test_repeated_edges_are_searched_once_and_counted_as_often_as_they_are() -> None:
    edges = np.array([[0, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 2], [1, 0, 2]])
    known = KnownEdges(edges, compiled=False)
    assert known._searched["tail"].answers.tolist() == [1, 2, 2]
    assert known._searched["tail"].starts.tolist() == [0, 2, 3]
    assert known._searched["head"].answers.tolist() == [0, 0, 1]
    weights = known.question_weights(edges, "tail")
    np.testing.assert_allclose(weights, np.array([1, 1, 1, 1, 4]) * weights[0])
    once = KnownEdges(edges[2:], compiled=False)
    assert once._searched["tail"].answers is once._index["tail"].answers


@pytest.mark.parametrize("compiled", [False, True])
def test_answers_are_turned_round_once_searching_has_cost_as_much(compiled: bool) -> None:
    kernels = host.compiled_index() if compiled else None
    edges = np.stack([np.arange(20) // 2, np.zeros(20, np.int64), np.arange(20) % 5 + 100], 1)
    turned = known_index.group_answers(edges, "tail", 1, kernels).turned
    assert turned.by_node is None
    turned.pay(10, 100)  # looking at what 100 nodes answer would have cost more
    turned.pay(79, 0)
    assert turned.by_node is None
    turned.pay(5, 1)  # one node of five answers a fifth of the twenty
    assert turned.by_node is not None
    np.testing.assert_array_equal(turned.by_node.starts, [0, 4, 8, 12, 16, 20])
    np.testing.assert_array_equal(turned.by_node.places[:4], [0, 2, 5, 7])
    assert turned.by_node.low == 100


def test_ids_far_apart_are_never_turned_round() -> None:
    edges = np.array([[0, 0, 0], [1, 0, 1], [2, 0, 2], [3, 0, 1 << 40]])
    turned = known_index.group_answers(edges, "tail", 1).turned
    turned.pay(1000, 0)
    turned.make()
    assert turned.by_node is None


@pytest.mark.parametrize("compiled", [False, True])
def test_known_edges_are_found_by_several_threads_at_once(compiled: bool) -> None:
    rng = np.random.default_rng(0)
    edges = np.stack([rng.integers(0, size, 40_000) for size in (300, 3, 300)], 1)
    known = KnownEdges(edges, compiled)
    batches = [rng.permutation(edges)[:200] for _ in range(40)]
    negatives = np.sort(rng.integers(0, 300, (4, 50)), axis=1)

    def find(batch: np.ndarray) -> np.ndarray:
        return known.false_negatives(batch, negatives, "tail")

    expected = [find(batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        for found, one in zip(pool.map(find, batches), expected, strict=True):
            np.testing.assert_array_equal(found, one)


def test_who_reads_the_edges_is_known() -> None:
    class Own(DegreeNegatives):
        def sample(self, edges: Any, resident: Any, side: Side, rng: np.random.Generator) -> np.ndarray:
            return super().sample(edges, resident, side, rng)

    assert not UniformNegatives(3).reads_edges
    assert not DegreeNegatives(3).reads_edges
    assert AllNegatives().reads_edges
    assert Own(3).reads_edges


def test_an_index_for_drawn_nodes_says_nothing_of_what_questions_weigh() -> None:
    """It lacks the answers that are not drawn."""
    edges = np.array([[0, 0, 1], [0, 0, 2], [3, 0, 2]])
    drawn: dict[Side, np.ndarray] = {"head": np.array([0]), "tail": np.array([1])}
    known = KnownEdges(edges, drawn=drawn)
    with pytest.raises(AssertionError, match="an index for drawn nodes"):
        known.question_weights(edges, "tail")
