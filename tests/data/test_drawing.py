"""What a sampler of a user's draws is checked, and cannot change the edges that are trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from marius_py.buffer.device import DeviceBuffer
from marius_py.data.batch_settings import BatchSettings
from marius_py.data.drawing import BatchDrawing, checked
from marius_py.data.leased_edges import LeasedEdges
from marius_py.errors import ConfigError
from marius_py.nn.negatives import NegativeSampler, ResidentNodes, UniformNegatives
from marius_py.types import Position, Side

RESIDENT = ResidentNodes(starts=np.array([0, 20]), sizes=np.array([5, 10]))  # 0 to 4, 20 to 29


class Given(NegativeSampler):
    """Draws what it was given."""

    def __init__(self, drawn: Any) -> None:
        self.drawn = drawn

    def sample(
        self, edges: np.ndarray, resident: ResidentNodes, side: Side, rng: np.random.Generator
    ) -> np.ndarray:
        return self.drawn


class Scrambling(NegativeSampler):
    """Draws the batch's own answers, shuffled where they lie."""

    def sample(
        self, edges: np.ndarray, resident: ResidentNodes, side: Side, rng: np.random.Generator
    ) -> np.ndarray:
        answers = edges[:, 2]
        rng.shuffle(answers)
        return answers[None]


def draw(sampler: NegativeSampler, buffer: Any = None, mask_known: bool = True) -> np.ndarray:
    """Negatives for the heads of a batch of four edges."""
    edges = np.array([[0, 0, 20], [1, 0, 21], [2, 0, 22], [3, 0, 23]])
    here, none = Position(0, 0, 0), np.zeros(0, np.int64)
    leased = LeasedEdges(edges, here, here, RESIDENT, None, none, None)  # type: ignore[arg-type]
    batches = BatchSettings(4, 1, seed=0, mask_known=mask_known)
    drawing = BatchDrawing(buffer, sampler, batches)  # the buffer is asked by other methods only
    found = drawing._negatives(edges, leased)[0]["head"]
    assert edges[:, 2].tolist() == [20, 21, 22, 23]
    return found


def test_a_sampler_cannot_write_to_the_edges() -> None:
    with pytest.raises(ValueError, match="read-only"):
        draw(Scrambling())


@pytest.mark.parametrize(
    "drawn",
    [
        np.array([[4, 20, 3]], np.int32),
        np.array([[4, 20, 3]], np.uint64),
        [[4, 20, 3]],
        torch.tensor([[4, 20, 3]]),
    ],
    ids=["int32", "uint64", "list", "tensor"],
)
def test_integers_of_any_kind_can_be_drawn(drawn: Any) -> None:
    found = draw(Given(drawn))
    assert found.dtype == np.int64
    assert found.tolist() == [[3, 4, 20]]


@pytest.mark.parametrize(
    ("drawn", "message"),
    [
        (np.array([[1.0, 2.0]]), r"float64 of shape \(1, 2\)"),
        (np.array([1, 2]), r"int64 of shape \(2,\)"),
        (None, "NoneType"),
        (np.zeros((1, 0), np.int64), r"shape \(1, 0\) for a batch of 4 edges"),
        (np.zeros((0, 3), np.int64), r"shape \(0, 3\) for a batch of 4 edges"),
        (np.zeros((3, 2), np.int64), r"shape \(3, 2\) for a batch of 4 edges"),
        (np.array([[1, -1]]), "node -1, which is not in memory"),
        (np.array([[5, 1]]), "node 5, which is not in memory"),
        (np.array([[19, 20]]), "node 19, which is not in memory"),
        (np.array([[29, 30]]), r"node 30, which .* \(15 of them, 0 to 29\)"),
        (np.array([[2**64 - 1]], np.uint64), "which is not in memory"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(drawn: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"negatives\.sampler draws .*{message}"):
        draw(Given(drawn))


def test_the_packages_own_samplers_are_taken_at_their_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marius_py.data.drawing.checked", None)
    found = draw(UniformNegatives(count=6, chunks=2))
    np.testing.assert_array_equal(found, checked(found, 4, RESIDENT))


def test_negatives_ascend_but_for_a_device_that_does_not_care() -> None:
    on_device = object.__new__(DeviceBuffer)
    sampler = UniformNegatives(count=12, chunks=2)
    whole = draw(sampler)
    assert (whole[:, 1:] >= whole[:, :-1]).all()
    np.testing.assert_array_equal(draw(sampler, on_device, mask_known=True), whole)
    found = draw(sampler, on_device, mask_known=False)
    assert not np.array_equal(found, whole)
    np.testing.assert_array_equal(np.sort(found, axis=1), whole)
    given = np.array([[4, 20, 3]])
    kept = draw(Given(given), on_device, mask_known=False)
    given[:] = 0  # its memory is the sampler's
    assert kept.tolist() == [[3, 4, 20]]
