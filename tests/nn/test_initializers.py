"""Initial rows: scale, and independence of how ids are split."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from marius_py.nn import SGD, DistMult, Initializer, LinkPredictionModel, SoftmaxLoss
from marius_py.nn.initializers import Normal, Uniform, XavierNormal, XavierUniform
from marius_py.nn.model import INIT_BLOCK
from marius_py.nn.registry import INITIALIZERS


@pytest.mark.parametrize("name", INITIALIZERS)
def test_initial_rows_follow_from_ids_alone(name: str) -> None:
    model = LinkPredictionModel(DistMult(2), SoftmaxLoss(), SGD(1.0), initializer=INITIALIZERS[name]())
    count = 2 * INIT_BLOCK + 700
    whole = np.empty((count, 2), np.float32)
    model.init_nodes(whole, 0, seed=5)
    bounds = [0, 3, INIT_BLOCK - 1, INIT_BLOCK, INIT_BLOCK + 5, 2 * INIT_BLOCK + 1, count]
    for start, stop in itertools.pairwise(bounds):
        part = np.empty((stop - start, 2), np.float32)
        model.init_nodes(part, start, seed=5)
        np.testing.assert_array_equal(part, whole[start:stop])
    other = np.empty_like(whole)
    model.init_nodes(other, 0, seed=6)
    assert not np.allclose(other, whole)
    assert not np.allclose(whole[:INIT_BLOCK], whole[INIT_BLOCK : 2 * INIT_BLOCK])


@pytest.mark.parametrize(
    ("initializer", "deviation"),
    [
        (Uniform(0.3), 0.3 / 3**0.5),
        (Normal(0.3), 0.3),
        (XavierUniform(), 1 / 8),
        (XavierNormal(2.0), 2 / 8),
    ],
)
def test_scale_of_initial_rows(initializer: Initializer, deviation: float) -> None:
    rows = np.empty((2000, 64), np.float32)
    initializer.fill(rows, np.random.default_rng(0))
    assert rows.std() == pytest.approx(deviation, rel=0.02)
    assert abs(rows.mean()) < 0.02 * deviation
