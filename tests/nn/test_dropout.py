"""Dropout masks: rate, scale, and independence of how rows are split."""

from __future__ import annotations

import pytest
import torch

from marius_py.nn.dropout import RowMasks
from marius_py.nn.kernels.workspace import Workspace


def masks(rate: float, seed: int = 1, width: int = 10) -> RowMasks:
    return RowMasks((seed, 0), "mask", 4000, width, rate, Workspace(torch.device("cpu")))


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
def test_masks_drop_at_their_rate_and_keep_the_mean(rate: float) -> None:
    mask = masks(rate).take(4000)
    assert mask is not None
    assert float((mask == 0).float().mean()) == pytest.approx(rate, abs=0.01)
    assert float(mask.mean()) == pytest.approx(1, abs=0.06)
    assert mask.unique().numel() == 2


def test_masks_depend_on_the_seed_and_not_on_the_split() -> None:
    whole = masks(0.4).take(4000)
    assert whole is not None
    source = masks(0.4)
    for start in (0, 7, 14):
        part = source.take(7)
        assert part is not None
        assert torch.equal(part, whole[start : start + 7])
    again, other = masks(0.4).take(4000), masks(0.4, seed=2).take(4000)
    assert again is not None
    assert other is not None
    assert torch.equal(again, whole)
    assert not torch.equal(other, whole)
    assert masks(0.0).take(3) is None
