"""Rows of relations: which a batch takes, and the optimizer's step of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marius_py.nn import SGD, Adagrad, AdagradRow, Adam, SparseOptimizer
from marius_py.nn.relation_rows import RelationRows
from marius_py.types import SIDES

WIDTH = 6


def make(
    optimizer: SparseOptimizer, rows: int, num_relations: int, *, takes_all: bool = False
) -> RelationRows:
    rng = np.random.default_rng(0)
    state = rng.random((rows, optimizer.state_dim(WIDTH)), np.float32)
    values = rng.standard_normal((rows, WIDTH), np.float32)
    device = torch.device("cpu")
    return RelationRows(
        values, state, optimizer, num_relations=num_relations, device=device, takes_all=takes_all
    )


@pytest.mark.parametrize("reciprocal", [False, True])
@pytest.mark.parametrize("num_relations", [3, 50, 100_000])
def test_rows_of_a_batch_are_distinct_and_ascend(num_relations: int, reciprocal: bool) -> None:
    """Few of them are found in a table, many by sorting."""
    relations = make(SGD(), num_relations * (2 if reciprocal else 1), num_relations)
    asked = torch.randint(num_relations, (200,), generator=torch.Generator().manual_seed(0))
    index, taken = relations.index(asked, SIDES)
    assert isinstance(taken, torch.Tensor)
    assert (taken[1:] > taken[:-1]).all()
    for side in SIDES:
        offset = num_relations if reciprocal and side == "head" else 0
        assert torch.equal(taken[index[side]], asked + offset)
    assert set(torch.cat([index[side] for side in SIDES]).tolist()) == set(range(len(taken)))


@pytest.mark.parametrize("optimizer", [SGD(0.1), Adagrad(0.1), AdagradRow(0.1), Adam(0.1)])
def test_rows_looked_up_are_stepped_as_all_are(optimizer: SparseOptimizer) -> None:
    asked = torch.tensor([4, 1, 4, 0, 9])
    found = []
    for takes_all in (False, True):
        relations = make(optimizer, 20, 10, takes_all=takes_all)
        before = relations.arrays()
        for number in range(3):
            index, taken = relations.index(asked, SIDES)
            rng = torch.Generator().manual_seed(number)
            gradient = torch.zeros(20, WIDTH)
            used = torch.cat([asked + 10, asked]).unique()
            gradient[used] = torch.randn(len(used), WIDTH, generator=rng)
            relations.update(taken, gradient[taken], 0.5, index)
        found.append(relations.arrays())
        others = np.setdiff1d(np.arange(20), used.numpy())
        for name, array in found[-1].items():
            np.testing.assert_array_equal(array[others], before[name][others])
            assert not array.size or (array[used.numpy()] != before[name][used.numpy()]).any()
    for name in found[0]:
        np.testing.assert_allclose(found[0][name], found[1][name], rtol=1e-6)


def test_a_checkpoint_holds_copies() -> None:
    relations = make(Adagrad(0.1), 4, 4)
    kept = relations.arrays()
    index, taken = relations.index(torch.tensor([2]), SIDES)
    relations.update(taken, torch.ones(1, WIDTH), 1.0, index)
    assert (relations.arrays()["relations"][2] != kept["relations"][2]).all()
    relations.load(kept)
    for name, array in relations.arrays().items():
        np.testing.assert_array_equal(array, kept[name])
