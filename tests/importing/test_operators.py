"""The decoder of imported models keeps the contract of every decoder, and can be trained."""

import itertools

import numpy as np
import pytest
import torch

from marius_py.errors import ConfigError
from marius_py.importing.operators import OperatorDecoder

CASES = list(
    itertools.product(
        ("none", "diagonal", "translation", "complex_diagonal", "linear", "affine"),
        ("dot", "cos", "l2", "squared_l2"),
        (False, True),
    )
)


def rows(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


@pytest.mark.parametrize(("operator", "comparator", "bias"), CASES)
def test_shapes_sides_and_gradients(operator, comparator, bias):
    decoder = OperatorDecoder(6, operator, comparator, bias)
    head, tail = rows(5, 6, seed=1), rows(5, 6, seed=2)
    relation = rows(5, decoder.relation_dim, seed=3).requires_grad_()
    query = decoder.query(head, relation, "tail")
    assert query.shape == (5, 6)
    scores = decoder.compare(query[None], tail[None])
    assert scores.shape == (1, 5, 5)
    if decoder.needs_reciprocal:
        with pytest.raises(ConfigError, match=r"set model\.reciprocal=true"):
            decoder.query(tail, relation, "head")
    else:
        other = decoder.compare(decoder.query(tail, relation, "head")[None], head[None])
        assert torch.allclose(torch.diagonal(scores[0]), torch.diagonal(other[0]))
    if operator != "none":
        scores.sum().backward()
        assert torch.isfinite(relation.grad).all()
        assert relation.grad.abs().max() > 0


def test_a_zero_row_has_cosine_zero():
    decoder = OperatorDecoder(4, "none", "cos")
    query = decoder.query(torch.zeros(1, 4), torch.zeros(1, 0), "tail")
    assert decoder.compare(query[None], rows(1, 3, 4).float()).tolist() == [[[0.0, 0.0, 0.0]]]


def test_wrong_arguments():
    with pytest.raises(ConfigError, match="operator is 'rotate'; allowed: none, diagonal"):
        OperatorDecoder(4, "rotate")
    with pytest.raises(ConfigError, match="comparator is 'l1'"):
        OperatorDecoder(4, "none", "l1")
    with pytest.raises(ConfigError, match="even"):
        OperatorDecoder(5, "complex_diagonal")
    with pytest.raises(ConfigError, match="at least 2"):
        OperatorDecoder(1, bias=True)
