"""Distinct queries and the filter, compared with sets."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from marius_py.evaluation.ranking.candidates import AllNodes, SampledNodes, gather_rows
from marius_py.evaluation.ranking.known import KnownFinder, group_queries
from tests.evaluation.ranking.helpers import ArrayReader

NODES, RELATIONS = 9, 3
EDGES = st.lists(
    st.tuples(st.integers(0, NODES - 1), st.integers(0, RELATIONS - 1), st.integers(0, NODES - 1)),
    max_size=40,
)


def as_array(edges):
    return np.array(edges, dtype=np.int32).reshape(-1, 3)


@given(EDGES.filter(bool), EDGES, st.integers(1, 12), st.booleans())
def test_filter_equals_sets(asked, others, tile, sampled):
    block = group_queries(as_array(asked), NODES, RELATIONS)
    ids = np.array([1, 4, 5, 8]) if sampled else np.arange(NODES)
    reader = ArrayReader(np.zeros((NODES, 1)))
    source = SampledNodes(ids, reader.rows[ids]) if sampled else AllNodes(reader, NODES)
    parts = [as_array(asked), as_array(others)]
    finder = KnownFinder(source, lambda: parts, NODES, RELATIONS)
    known = finder.find(block, tile)
    found = set()
    for number in range(-(-ids.size // tile)):
        for query, column in zip(*known.in_tile(0, block.keys.size, number), strict=True):
            found.add((int(query), int(ids[number * tile + column])))
    edges = set(asked) | set(others)
    expected = set()
    for q in range(block.keys.size):
        anchor, relation = block.anchors[q], block.relations[q]
        for h, r, t in edges:
            if r != relation:
                continue
            if q < block.num_tails and h == anchor and t in ids:
                expected.add((q, t))
            if q >= block.num_tails and t == anchor and h in ids:
                expected.add((q, h))
    assert found == expected
    np.testing.assert_array_equal(
        known.per_query, [sum(1 for p in expected if p[0] == q) for q in range(block.keys.size)]
    )
    assert (finder.count(block) >= known.per_query).all()


@given(EDGES.filter(bool))
def test_every_answer_keeps_its_place(edges):
    block = group_queries(as_array(edges), NODES, RELATIONS)
    items = [(h, r, t, "tail") for h, r, t in edges] + [(t, r, h, "head") for h, r, t in edges]
    assert block.keys.size == len({(anchor, r, side) for anchor, r, _, side in items})
    assert (np.diff(block.query_of) >= 0).all()
    for answer, place in enumerate(block.order.tolist()):
        anchor, relation, node, side = items[place]
        query = block.query_of[answer]
        assert block.answers[answer] == node
        assert (block.anchors[query], block.relations[query]) == (anchor, relation)
        assert (query < block.num_tails) == (side == "tail")


def test_rows_are_gathered_or_streamed():
    rows = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    reader = ArrayReader(rows)
    ids = np.array([0, 5, 400, 401, 999])
    np.testing.assert_array_equal(gather_rows(reader, ids, 1000, 3, 64), rows[ids])
    assert reader.largest == 64


def test_few_rows_of_a_large_table_are_read_by_themselves():
    rows = np.random.default_rng(0).normal(size=(200_000, 10)).astype(np.float32)
    reader = ArrayReader(rows)
    ids = np.array([7, 90_000, 90_003, 199_999])
    np.testing.assert_array_equal(gather_rows(reader, ids, 200_000, 10, 50_000), rows[ids])
    assert reader.largest == 4  # 90,000 to 90,003 together
    many = np.arange(0, 200_000, 5_000)
    np.testing.assert_array_equal(gather_rows(reader, many, 200_000, 10, 50_000), rows[many])
    assert reader.largest == 50_000
