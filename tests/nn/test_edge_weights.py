"""Losses of edges that count differently, and K-vs-all made of them."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from marius_py.nn import (
    Batch,
    ComplEx,
    Corruption,
    Decoder,
    DistMult,
    LogisticLoss,
    Loss,
    SoftmaxLoss,
    TransE,
)
from marius_py.nn.known_edges import KnownEdges
from marius_py.types import SIDES, Side
from tests.nn.batches import gradients, make_model, random_batch

LOSSES: list[Loss] = [SoftmaxLoss(), SoftmaxLoss(smoothing=0.1), LogisticLoss(margin=1.0)]


def part_of(batch: Batch, edge: int, weight: bool) -> Batch:
    """One edge of a batch of one chunk; with `weight` its losses count what they do in the batch."""
    inside = slice(edge, edge + 1)
    negatives = {
        side: one.part(slice(0, 1), inside, len(batch.head)) for side, one in batch.negatives.items()
    }
    if not weight:
        negatives = {side: replace(one, edge_weight=None) for side, one in negatives.items()}
    return replace(
        batch,
        head=batch.head[inside],
        relation=batch.relation[inside],
        tail=batch.tail[inside],
        negatives=negatives,
    )


@pytest.mark.parametrize("decoder", [DistMult(6), ComplEx(6), TransE(6)], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("loss", LOSSES, ids=["softmax", "smoothed", "logistic"])
@pytest.mark.parametrize("fused", [False, True])
def test_an_edge_counts_what_it_weighs(decoder: Decoder, loss: Loss, fused: bool) -> None:
    for drop, groups, reciprocal in itertools.product((False, True), (0, 2), (False, True)):
        whole = random_batch(
            6, chunks=1, chunk_edges=7, drop=drop, groups=groups, weighted=True, sides=["tail"]
        )
        model = lambda: make_model(decoder, loss, reciprocal=reciprocal, fused=fused)  # noqa: B023, E731
        d_rows, d_relations, value = gradients(model(), whole)
        weight = whole.negatives["tail"].edge_weight
        assert weight is not None
        parts = [gradients(model(), part_of(whole, edge, weight=False)) for edge in range(7)]
        for found, index in ((d_rows, 0), (d_relations, 1)):
            expected = sum(float(w) * part[index] for w, part in zip(weight, parts, strict=True)) / 7
            np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
        assert value == pytest.approx(np.mean([part[2] for part in parts]), rel=1e-5)
        alone = gradients(model(), part_of(whole, 3, weight=True))[0]
        np.testing.assert_allclose(alone, float(weight[3]) * parts[3][0], atol=1e-6)


@pytest.mark.parametrize("dropout", [False, True])
def test_both_paths_and_parts_agree_on_weighted_edges(dropout: bool) -> None:
    batch = random_batch(8, drop=True, groups=3, weighted=True)
    models = [make_model(ComplEx(8), SoftmaxLoss(), dropout=dropout, fused=fused) for fused in (False, True)]
    in_parts = make_model(ComplEx(8), SoftmaxLoss(), dropout=dropout)
    in_parts._parts = 5
    plain, *others = [gradients(model, batch) for model in (*models, in_parts)]
    for ours, reference in ((other[i], plain[i]) for other in others for i in range(3)):
        assert np.abs(np.subtract(ours, reference)).max() <= 1e-5 * np.abs(reference).max()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("few", [False, True])
def test_questions_count_alike(compiled: bool, few: bool) -> None:
    rng = np.random.default_rng(0)
    edges = np.stack([rng.integers(0, size, 20_000) for size in (90, 4, 90)], 1)
    asking = edges[:50]
    known = KnownEdges(edges, compiled, asking=asking if few else None)
    for side in SIDES:
        end = 0 if side == "tail" else 2
        counts = np.array([((edges[:, [end, 1]] == edge[[end, 1]]).all(1)).sum() for edge in asking])
        # Of some questions the large ones are asked more often: a mean over those asked would be too large.
        mean = 1 / (1 / counts).mean() if few else len(edges) / len(np.unique(edges[:, [end, 1]], axis=0))
        np.testing.assert_allclose(known.question_weights(asking, side), mean / counts, rtol=1e-6)
        assert known.question_weights(asking if few else edges, side).mean() == pytest.approx(1, rel=1e-5)
        if not few:
            strange = known.question_weights(np.array([[500, 1, 500], [1, 9, 1]]), side)
            np.testing.assert_allclose(strange, mean, rtol=1e-6)
    assert KnownEdges(edges[:0]).question_weights(asking, "head").tolist() == [1] * 50


@pytest.mark.parametrize("few", [False, True])
def test_answers_elsewhere_are_estimated(few: bool) -> None:
    rng = np.random.default_rng(0)
    sizes = np.repeat([1, 5, 50, 500], [2000, 400, 40, 4])
    heads = np.repeat(np.arange(len(sizes)), sizes)
    edges = np.stack([heads, np.zeros_like(heads), rng.integers(0, 1 << 30, len(heads))], 1)
    part = rng.integers(0, 16, len(edges))
    totals = np.zeros(len(sizes))
    for own in range(16):  # each edge counts once, with four of sixteen parts at hand
        at_hand = np.isin(part, (own + np.arange(4)) % 16)
        mine = edges[part == own]
        known = KnownEdges(edges[at_hand], asking=mine if few else None, share=4 / 16)
        weights = known.question_weights(mine, "tail")
        np.add.at(totals, mine[:, 0], weights)
        if few:
            assert weights.mean() == pytest.approx(1, rel=1e-5)
        else:
            assert known.question_weights(edges[at_hand], "tail").mean() == pytest.approx(1, rel=1e-5)
    one, several, many, most = (totals[sizes == size].mean() for size in (1, 5, 50, 500))
    assert 1 < several / one < 2.6
    assert many / one == pytest.approx(1.1, abs=0.1)
    assert most / one == pytest.approx(1, abs=0.05)


def test_what_questions_of_few_answers_count_is_what_the_readme_says() -> None:
    """Each answer of n counts as the mean over how many of the n − 1 others are at hand: c of p, if any."""
    share, most = 0.2, 20
    edges = np.stack([np.zeros(most), np.zeros(most), np.arange(most)], 1).astype(np.int64)
    counted = []  # what an answer of a question with so many at hand counts, but for a common factor
    for at_hand in range(1, most + 1):
        known = KnownEdges(edges[:at_hand], share=share)
        counted.append(float(known.question_weights(edges[:1], "tail")[0]) / known._mean_answers["tail"])
    totals = np.zeros(most + 1)
    for answers in range(1, most + 1):
        for others in range(answers):
            chance = math.comb(answers - 1, others) * share**others * (1 - share) ** (answers - 1 - others)
            totals[answers] += answers * chance * counted[others]
    assert totals[1] == pytest.approx(1)
    assert totals[2:].min() == pytest.approx(1.5, abs=0.05)
    assert totals[2:].max() == pytest.approx(2.5, abs=0.05)


def test_k_vs_all_of_a_whole_graph() -> None:
    """Edges by their weights are the mean, over questions, of cross-entropy with all answers of one."""
    nodes, relations = 9, 3
    rng = np.random.default_rng(1)
    edges = np.unique(np.stack([rng.integers(0, size, 60) for size in (nodes, relations, nodes)], 1), axis=0)
    known = KnownEdges(edges)
    head, relation, tail = (torch.from_numpy(column.copy()) for column in edges.T)
    rows = torch.from_numpy(rng.standard_normal((nodes, 6)).astype(np.float32))
    negatives: dict[Side, Corruption] = {}
    for side, own in (("head", head), ("tail", tail)):
        everything = torch.arange(nodes)[None]
        weight = torch.from_numpy(known.question_weights(edges, side))
        dropped = torch.arange(len(own)) * nodes + own
        negatives[side] = Corruption(everything, dropped=dropped, edge_weight=weight)
    batch = Batch(rows, head, relation, tail, negatives, seed=0)
    for fused in (False, True):
        model = make_model(ComplEx(6), SoftmaxLoss(), reciprocal=True, fused=fused)
        relation_rows = torch.from_numpy(model.state_arrays()["relations"]).clone()
        table = rows.clone().requires_grad_()
        total = torch.zeros(())
        for side, known_end, answer in (("tail", 0, 2), ("head", 2, 0)):
            first = 0 if side == "tail" else relations
            questions = {(edge[known_end], edge[1]) for edge in edges.tolist()}
            for question in questions:
                answers = [e[answer] for e in edges.tolist() if (e[known_end], e[1]) == question]
                query = model.decoder.query(table[question[0]], relation_rows[first + question[1]], "tail")
                target = torch.zeros(nodes).index_fill_(0, torch.tensor(answers), 1 / len(answers))
                total = total - (target * torch.log_softmax(table @ query, 0)).sum() / len(questions)
        total.backward()
        assert table.grad is not None
        np.testing.assert_allclose(gradients(model, batch)[0], table.grad.numpy(), atol=1e-5)
