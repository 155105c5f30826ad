"""Decoders: the formulas of the papers, both sides, closed-form query gradients, refused settings."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marius_py.errors import ConfigError
from marius_py.nn import RESCAL, ClosedFormDecoder, ComplEx, Decoder, DistMult, Dot, RotatE, TransE
from marius_py.nn.initializers import XavierNormal
from marius_py.nn.registry import DECODERS
from marius_py.types import Side

ALL: list[Decoder] = [
    Dot(6),
    DistMult(6),
    ComplEx(6),
    TransE(6),
    TransE(6, norm="l1"),
    RotatE(6),
    RotatE(6, norm="moduli", phase_scale=1.7),
    RESCAL(6),
    RESCAL(6, block=2),
]
BOTH: tuple[Side, ...] = ("head", "tail")


def rows(decoder: Decoder, count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    head, tail = torch.randn(2, count, decoder.dim, generator=generator)
    return head, torch.randn(count, decoder.relation_dim, generator=generator), tail


def as_complex(values: torch.Tensor) -> torch.Tensor:
    return torch.complex(*values.double().chunk(2, -1))


def formula(decoder: Decoder, h: torch.Tensor, r: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Scores by the definition, in double precision."""
    if isinstance(decoder, Dot):
        return (h.double() * t).sum(-1)
    if isinstance(decoder, DistMult):
        return (h.double() * r * t).sum(-1)
    if isinstance(decoder, ComplEx):
        return (as_complex(h) * as_complex(r) * as_complex(t).conj()).real.sum(-1)
    if isinstance(decoder, RESCAL):
        pieces = (one.double().view(-1, 6 // decoder.block, decoder.block) for one in (h, t))
        matrices = r.double().view(-1, 6 // decoder.block, decoder.block, decoder.block)
        return torch.einsum("nbi,nbj,nbij->n", *pieces, matrices)
    if isinstance(decoder, TransE):
        return -torch.linalg.vector_norm(h.double() + r - t, ord=2 if decoder.norm == "l2" else 1, dim=-1)
    assert isinstance(decoder, RotatE)
    turned = as_complex(h) * torch.exp(1j * r.double() * decoder.phase_scale)
    moduli = (turned - as_complex(t)).abs()
    return -(moduli.square().sum(-1).sqrt() if decoder.norm == "l2" else moduli.sum(-1))


def test_every_registered_decoder_is_tested() -> None:
    assert {type(decoder) for decoder in ALL} == set(DECODERS.values())


@pytest.mark.parametrize("decoder", ALL, ids=lambda d: f"{type(d).__name__}-{getattr(d, 'norm', '')}")
def test_both_sides_score_the_formula(decoder: Decoder) -> None:
    head, relation, tail = rows(decoder, 12)
    expected = formula(decoder, head, relation, tail)
    for side, known, answer in (("tail", head, tail), ("head", tail, head)):
        query = decoder.query(known, relation, side)  # type: ignore[arg-type]
        torch.testing.assert_close(decoder.score(query, answer).double(), expected, rtol=1e-5, atol=1e-5)
        crossed = decoder.compare(query.view(3, 4, -1), answer.view(3, 4, -1))  # (C, P, K)
        assert crossed.shape == (3, 4, 4)
        own = crossed.diagonal(dim1=1, dim2=2).reshape(-1)
        torch.testing.assert_close(own.double(), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(Decoder.score(decoder, query, answer), own, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("decoder", ALL, ids=lambda d: f"{type(d).__name__}-{getattr(d, 'norm', '')}")
@pytest.mark.parametrize("side", BOTH)
def test_query_gradients_in_closed_form(decoder: Decoder, side: Side) -> None:
    assert isinstance(decoder, ClosedFormDecoder)
    node, relation, gradient = rows(decoder, 9, seed=1)
    node.requires_grad_()
    relation.requires_grad_()
    query = decoder.query(node, relation, side)
    inputs = (node, relation) if decoder.relation_dim else (node,)
    expected = torch.autograd.grad(query, inputs, gradient)
    out = torch.full_like(query, torch.nan)
    with torch.no_grad():
        decoder.query_into(node, relation, side, out)
        d_node, d_relation = torch.ones_like(node), torch.ones_like(relation)
        decoder.query_backward(node, relation, side, gradient, d_node, d_relation)
    torch.testing.assert_close(out, query.detach())
    for ours, reference in zip((d_node, d_relation), expected, strict=False):
        torch.testing.assert_close(ours - 1, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_of_sums_over_coordinates(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from marius_py.nn.kernels import distance

    if not compiled:
        monkeypatch.setattr(distance, "compiled_distance", lambda: None)
    query = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    candidates = torch.randn(2, 7, 6, dtype=torch.float64, requires_grad=True)
    monkeypatch.setattr(distance, "_BLOCK_FLOATS", 60)
    assert torch.autograd.gradcheck(distance.pairwise_moduli, (query, candidates))
    assert torch.autograd.gradcheck(distance.pairwise_l1, (query, candidates))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ComplEx(7), ["model.dim", "7", "even"]),
        (lambda: RotatE(3), ["model.dim", "3", "even"]),
        (lambda: DistMult(0), ["model.dim", "0"]),
        (lambda: DistMult(2.5), ["model.dim", "2.5"]),  # type: ignore[arg-type]
        (lambda: TransE(4, norm="l3"), ["model.decoder.norm", "l3", "l1", "l2"]),  # type: ignore[arg-type]
        (lambda: RotatE(4, norm="l1"), ["model.decoder.norm", "l1", "moduli"]),  # type: ignore[arg-type]
        (lambda: RotatE(4, phase_scale=0.0), ["model.decoder.phase_scale", "0.0"]),
        (lambda: RotatE(4, phase_scale=1e-40), ["model.decoder.phase_scale", "1e-40", "half a turn"]),
    ],
)
def test_refused_settings(make: object, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        make()  # type: ignore[operator]
    for word in words:
        assert word in str(caught.value)


def test_phases_start_all_around_the_circle() -> None:
    decoder = RotatE(40, phase_scale=4.0)
    phases = np.empty((50, 20), np.float32)
    decoder.init_relations(phases, np.random.default_rng(0), XavierNormal())
    assert np.abs(phases * 4).max() <= np.pi + 1e-5
    assert np.histogram(phases * 4, bins=4, range=(-np.pi, np.pi))[0].min() > 150


def test_matrices_start_at_the_scale_of_their_rows() -> None:
    decoder = RESCAL(30)
    matrices = np.empty((20, 900), np.float32)
    decoder.init_relations(matrices, np.random.default_rng(0), XavierNormal())
    assert matrices.std() == pytest.approx(30**-0.5, rel=0.05)


def test_blocks_go_from_distmult_to_rescal() -> None:
    head, relation, _ = rows(DistMult(6), 5)
    for side in BOTH:
        torch.testing.assert_close(
            RESCAL(6, block=1).query(head, relation, side), DistMult(6).query(head, relation, side)
        )
    complex_one, two = ComplEx(2), RESCAL(2, block=2)
    h, r, t = rows(complex_one, 5)
    turned = torch.stack((r[:, 0], r[:, 1], -r[:, 1], r[:, 0]), 1)
    for side, node in (("tail", h), ("head", t)):
        torch.testing.assert_close(two.query(node, turned, side), complex_one.query(node, r, side))  # type: ignore[arg-type]
    for wrong in (0, 4, 2.0, True):
        with pytest.raises(ConfigError, match=r"model\.decoder\.block"):
            RESCAL(6, block=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [DistMult, ComplEx])
def test_one_coordinate_of_products_begins_high_if_asked(kind: type[DistMult | ComplEx]) -> None:
    def initial(decoder: DistMult | ComplEx) -> tuple[np.ndarray, np.ndarray]:
        nodes, relations = np.empty((50, 6), np.float32), np.empty((3, 6), np.float32)
        decoder.init_rows(nodes, np.random.default_rng(0), XavierNormal())
        decoder.init_relations(relations, np.random.default_rng(1), XavierNormal())
        return nodes, relations

    for high, published in zip(initial(kind(6, popularity=1)), initial(kind(6)), strict=True):
        np.testing.assert_array_equal(high[:, 1:], published[:, 1:])
        np.testing.assert_allclose(high[:, 0], published[:, 0] + 1)
    for number in (np.int64(1), np.float32(1)):
        assert kind(6, popularity=number).popularity == 1  # type: ignore[arg-type]
    for wrong in (float("nan"), float("inf"), "high", True):
        with pytest.raises(ConfigError, match=r"model\.decoder\.popularity"):
            kind(6, popularity=wrong)  # type: ignore[arg-type]
