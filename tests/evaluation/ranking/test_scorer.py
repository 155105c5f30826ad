"""Exact scores are functions of the rows; the band holds every rounding of the fast scores."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_py.evaluation.ranking import scorer as scorer_module
from marius_py.evaluation.ranking.scorer import (
    ModelScorer,
    in_float64,
    ordered_sum,
    room_for,
    scored,
    similarity_of,
)
from marius_py.evaluation.ranking.trained import TrainedModel, make_decoder
from marius_py.nn.decoders import ComplEx, Decoder, Dot, RotatE, TransE

DIM = 12
DECODERS = [
    Dot(DIM),
    ComplEx(DIM),
    TransE(DIM),
    TransE(DIM, norm="l1"),
    RotatE(DIM),
    RotatE(DIM, norm="moduli"),
]


class SquaredDistance(TransE):
    """A decoder of one's own: it inherits what its parent says of itself, which no longer holds."""

    def compare(self, query, candidates):
        norms = query.square().sum(-1, keepdim=True) + candidates.square().sum(-1).unsqueeze(1)
        return -torch.baddbmm(norms, query, candidates.transpose(1, 2), alpha=-2)

    def score(self, query, candidate):
        return -(query - candidate).square().sum(-1)


DECODERS.append(SquaredDistance(DIM))


def make_scorer(decoder, num_relations=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    relations = torch.randn(num_relations, decoder.relation_dim, generator=generator)
    return ModelScorer(TrainedModel(decoder, relations, False), DIM)


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda d: f"{type(d).__name__}-{getattr(d, 'norm', '')}")
@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([1e-20, 1e-3, 1.0, 1e4]),
    spread=st.sampled_from([0.0, 1e-7, 1e-3, 1.0]),
)
def test_band_holds_the_rounding(decoder, seed, scale, spread):
    generator = torch.Generator().manual_seed(seed)
    scorer = make_scorer(decoder)
    base = torch.randn(1, DIM, generator=generator)
    rows = scale * (base + spread * torch.randn(50, DIM, generator=generator))
    queries = scorer.queries(rows[:20], torch.arange(20) % 3, "tail")
    norms = torch.linalg.vector_norm(queries, dim=1, dtype=torch.float64)
    largest = float(torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).max())
    for dtype in (torch.float32, torch.float64):
        fast = scorer.scores(queries.to(dtype), rows.to(dtype)).double()
        for candidate in (0, 7, 49):
            exact = scorer.exact(queries, rows[candidate].expand(20, -1))
            low, high = scorer.band(exact, norms, largest, dtype)
            # A score equal to the true one must lie inside the band, however it was rounded.
            assert bool(((fast[:, candidate] >= low) & (fast[:, candidate] <= high)).all())


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda d: f"{type(d).__name__}-{getattr(d, 'norm', '')}")
def test_exact_scores_do_not_depend_on_company(decoder):
    scorer = make_scorer(decoder)
    generator = torch.Generator().manual_seed(1)
    queries, rows = (torch.randn(700, DIM, generator=generator) for _ in range(2))
    together = scorer.exact(queries, rows)
    order = torch.randperm(700, generator=generator)
    assert torch.equal(scorer.exact(queries[order], rows[order]), together[order])
    for i in (0, 3, 699):
        assert torch.equal(scorer.exact(queries[i : i + 1], rows[i : i + 1])[0], together[i])
    expected = decoder.score(queries.double(), rows.double())
    torch.testing.assert_close(together, expected, rtol=1e-12, atol=1e-12)


def test_queries_do_not_depend_on_company():
    scorer = make_scorer(ComplEx(DIM))
    rows, relations = torch.randn(600, DIM), torch.arange(600) % 3
    together = scorer.queries(rows, relations, "head")
    assert torch.equal(scorer.queries(rows[300:301], relations[300:301], "head"), together[300:301])
    assert scorer.queries(rows[:0], relations[:0], "head").shape == (0, DIM)


class Single(Dot):
    """Has a float32 parameter of its own; `together` threads are inside `compare` before any goes on."""

    similarity = None

    def __init__(self, dim, together=1):
        super().__init__(dim)
        self.barrier = threading.Barrier(together)

    def compare(self, query, candidates):
        if query.dtype == torch.float64:
            self.barrier.wait(20)
        weight = torch.ones(1, query.shape[-1], 1)
        return (query.unsqueeze(2) * candidates.unsqueeze(1)) @ weight.squeeze(0).squeeze(-1)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_decoder_that_knows_float32_only(threads):
    """Also where several threads find it out at once."""
    scorer = make_scorer(Single(DIM, threads))
    rows = torch.randn(5, DIM)
    with ThreadPoolExecutor(threads) as pool:
        found = [one.result() for one in [pool.submit(scorer.exact, rows, rows) for _ in range(threads)]]
    assert all(one.dtype == torch.float64 for one in found)
    torch.testing.assert_close(scorer.exact(rows, rows), rows.square().sum(1).double(), rtol=1e-6, atol=0)


def test_memory_that_runs_out_is_not_taken_for_a_decoder_of_float32(monkeypatch):
    """Else a true score in float64 would be compared with scores in float32."""
    decoder, rows = TransE(DIM, "l1"), torch.randn(5, DIM)
    scorer = make_scorer(decoder)
    before, compare = scorer.exact(rows, rows.flip(0)), decoder.compare

    def full(query, candidates):
        if query.dtype == torch.float64:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return compare(query, candidates)

    monkeypatch.setattr(decoder, "compare", full)
    for asked in (scorer.exact, lambda *pair: in_float64(scorer.scores, *pair)):
        with pytest.raises(RuntimeError, match="out of memory"):
            asked(rows, rows.flip(0))
    monkeypatch.undo()
    assert torch.equal(scorer.exact(rows, rows.flip(0)), before)


@pytest.mark.parametrize("width", [1, 2, 3, 7, 256])
def test_ordered_sum(width):
    terms = torch.from_numpy(np.random.default_rng(0).integers(-9, 9, (5, width))).double()
    torch.testing.assert_close(ordered_sum(terms.clone()), terms.sum(1))


def test_make_decoder_takes_own_arguments():
    decoder = make_decoder({"_target_": "transe", "norm": "l1"}, 8)
    assert isinstance(decoder, TransE)
    assert decoder.norm == "l1"
    assert isinstance(make_decoder("marius_py.nn.decoders.ComplEx", 8), ComplEx)


def test_a_subclass_is_ranked_by_its_own_comparison():
    assert similarity_of(TransE(DIM)) == "l2"
    assert similarity_of(SquaredDistance(DIM)) is None
    scorer = make_scorer(SquaredDistance(DIM))
    generator = torch.Generator().manual_seed(2)
    queries, rows = (torch.randn(30, DIM, generator=generator) for _ in range(2))
    wanted = -(queries.double() - rows.double()).square().sum(1)
    torch.testing.assert_close(scorer.exact(queries, rows), wanted)


class First(Decoder):
    """Ranks by a node's first coordinate alone, whatever is asked: one view of the rows for all queries."""

    def query(self, node, relation, side):
        return node * relation

    def compare(self, query, candidates):
        return candidates[..., 0].unsqueeze(1).expand(-1, query.shape[1], -1)


class Turned(First):
    """Scores that lie in memory by candidates."""

    def compare(self, query, candidates):
        return torch.matmul(candidates, query.transpose(1, 2)).transpose(1, 2)


class Wide(First):
    """Makes a float of every query, candidate and coordinate; remembers how many at most."""

    similarity = "l2"  # a word of its own, of no meaning here
    most = 0

    def compare(self, query, candidates):
        apart = (query.unsqueeze(2) - candidates.unsqueeze(1)).abs()
        self.most = max(self.most, apart.numel())
        return -apart.sum(-1)


@pytest.mark.parametrize("dim", [1, DIM])
@pytest.mark.parametrize("kind", [First, Turned, Wide])
def test_scores_are_in_memory_of_their_own(kind, dim):
    scorer = ModelScorer(TrainedModel(kind(dim), torch.ones(3, dim), False), dim)
    rows = torch.randn(9, dim, generator=torch.Generator().manual_seed(3))
    queries, candidates = rows[:4].clone(), rows.clone()
    expected = kind(dim).compare(queries.unsqueeze(0), candidates.unsqueeze(0))[0].clone()
    scores = scorer.scores(queries, candidates)
    assert torch.equal(scores, expected)
    assert scores.is_contiguous()
    scores[0] = -torch.inf
    assert torch.equal(scores[1:], expected[1:])
    assert torch.equal(candidates, rows)
    assert scorer.scores(queries[:0], candidates).shape == (0, 9)


def test_a_comparison_that_broadcasts_is_asked_for_few_queries_at_once(monkeypatch):
    monkeypatch.setitem(scorer_module._BROADCAST_FLOATS, "cpu", 30 * DIM)
    decoder = Wide(DIM)
    assert similarity_of(decoder) is None
    scorer = ModelScorer(TrainedModel(decoder, torch.ones(3, DIM), False), DIM)
    rows = torch.randn(9, DIM)
    torch.testing.assert_close(scorer.scores(rows[:7], rows), -torch.cdist(rows[:7], rows, p=1))
    assert decoder.most == 27 * DIM


def test_scores_of_a_room_are_float32_whatever_torch_makes_by_default() -> None:
    scorer = ModelScorer(TrainedModel(ComplEx(8), torch.ones(3, 8), False), 8)
    queries, rows = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    torch.set_default_dtype(torch.float64)
    try:
        room = room_for(scorer, 100)
    finally:
        torch.set_default_dtype(torch.float32)
    assert room is not None
    assert room.dtype == torch.float32
    found = scored(scorer, queries, rows, room)
    assert found.data_ptr() == room.data_ptr()
    torch.testing.assert_close(found, scorer.scores(queries, rows))


def test_who_scores_in_a_way_of_its_own_gets_no_room() -> None:
    class Own(ModelScorer):
        def scores(self, queries: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
            return -super().scores(queries, candidates)

    scorer = Own(TrainedModel(ComplEx(8), torch.ones(3, 8), False), 8)
    assert room_for(scorer, 100) is None
    assert room_for(ModelScorer(TrainedModel(TransE(8), torch.ones(3, 8), False), 8), 100) is None
