"""Dropout masks: rate, scale, and independence of how rows are split."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marius_py.errors import ConfigError
from marius_py.nn.dropout import BatchMasks, RowMasks, check_rate
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


@pytest.mark.parametrize(
    ("rate", "dropped", "of"),
    [
        (0.1, 26, 256),
        (0.5, 128, 256),
        (0.99, 64_881, 65_536),
        (0.01, 655, 65_536),
        (1 - 1e-9, 65_535, 65_536),
    ],
)
def test_rates_are_rounded_by_less_than_a_fiftieth(rate: float, dropped: int, of: int) -> None:
    mask = masks(rate, width=100).take(4000)
    assert mask is not None
    assert float(mask.max()) == pytest.approx(of / (of - dropped))
    share = dropped / of
    deviation = (share * (1 - share) / 4e5) ** 0.5
    assert float((mask == 0).float().mean()) == pytest.approx(share, abs=5 * deviation)


def test_rates_of_all_or_less_than_nothing_are_refused() -> None:
    assert check_rate("model.node_dropout", 0) == 0.0
    for rate in (-0.1, 1.0, float("nan")):
        with pytest.raises(ConfigError, match=r"model\.node_dropout"):
            check_rate("model.node_dropout", rate)


def test_masks_depend_on_the_seed_and_not_on_the_split() -> None:
    whole = masks(0.4).take(4000)
    assert whole is not None
    source = masks(0.4)
    for start in (0, 7, 14):
        part = source.take(7)
        assert part is not None
        assert torch.equal(part, whole[start : start + 7])
    for skipped in (0, 5, 3000):
        source = masks(0.4, width=7)
        source.skip(skipped)
        part, all_rows = source.take(3), masks(0.4, width=7).take(4000)
        assert part is not None
        assert all_rows is not None
        assert torch.equal(part, all_rows[skipped : skipped + 3])
    again, other = masks(0.4).take(4000), masks(0.4, seed=2).take(4000)
    assert again is not None
    assert other is not None
    assert torch.equal(again, whole)
    assert not torch.equal(other, whole)
    assert masks(0.0).take(3) is None
    assert masks(0.5, width=0).take(3) is None


@pytest.mark.parametrize("rates", [(0.5, 0.5), (0.0, 0.5), (0.5, 0.0), (0.0, 0.0)])
def test_every_use_has_a_mask_of_its_own(rates: tuple[float, float]) -> None:
    taken = []
    for seed in (3, 4):  # and so has every batch
        batch = BatchMasks(seed, 64, {"head": 64, "tail": 64}, (8, 8), rates, Workspace(torch.device("cpu")))
        for side in batch.sides.values():
            assert side.two_queries == (rates != (0.0, 0.0))
            uses = (side.node, side.relation, side.positive_node, side.positive_relation, side.answer)
            taken += [one.take(64) for one in (*uses, side.candidates)]
    found = [mask for mask in taken if mask is not None]
    assert len(found) == 16 * (rates[0] > 0) + 8 * (rates[1] > 0)
    for number, mask in enumerate(found):
        for other in found[:number]:
            assert float((mask == other).float().mean()) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("rate", [0.3, 0.01])  # a byte a coordinate, and two
def test_what_is_kept_is_what_masks_multiply_by_more_than_zero(rate: float) -> None:
    some, same = masks(rate), masks(rate)
    for count in (7, 1, 40):
        kept, mask = some.kept(count), same.take(count)
        assert mask is not None
        np.testing.assert_array_equal(np.float32(kept[:, :10] * some.scale), mask.numpy())
    assert masks(0.0).kept(5).shape == (0, 0)
