"""A batch in parts has the gradients of the whole; a model that runs out of memory goes on in parts."""

from __future__ import annotations

import errno
import logging
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import marius_py.nn.model as model_module
from marius_py.nn import ComplEx, LogisticLoss, SoftmaxLoss, TransE
from marius_py.nn.micro_batches import is_out_of_memory, most_shares, split
from marius_py.nn.regularizers import N3
from marius_py.team import ALONE, Team
from tests.nn.batches import gradients, make_model, random_batch

DEVICE_ERROR = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
HOST_ERROR = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate")


@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 60))
def test_parts_cover_a_batch_in_order(chunks: int, chunk_edges: int, parts: int) -> None:
    edges = []
    for part in split(chunks * chunk_edges, chunks, parts):
        assert part.edges.stop > part.edges.start
        whole_chunks = part.inside == slice(0, chunk_edges)
        assert whole_chunks or part.chunks.stop - part.chunks.start == 1
        edges += range(part.edges.start, part.edges.stop)
    assert edges == list(range(chunks * chunk_edges))


def limited(monkeypatch: pytest.MonkeyPatch, most_edges: int, error: Exception) -> list[int]:
    """Gradients of more edges than `most_edges` fail; returns the edges of each attempt."""
    seen: list[int] = []
    for name, place in (("fused_gradients", 2), ("compiled_gradients", 2), ("autograd_gradients", 3)):
        original = getattr(model_module, name)

        def attempt(*words: Any, original: Any = original, place: int = place) -> Any:
            seen.append(len(words[place].batch.head))
            if seen[-1] > most_edges:
                raise error
            return original(*words)

        monkeypatch.setattr(model_module, name, attempt)
    return seen


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("reciprocal", [True, False])
@pytest.mark.parametrize("chunks", [1, 3, 4])
@pytest.mark.parametrize("most_edges", [1, 5, 12])
def test_in_parts_as_at_once(
    most_edges: int,
    chunks: int,
    reciprocal: bool,
    fused: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    options: dict[str, Any] = {
        "dropout": True,
        "reciprocal": reciprocal,
        "fused": fused,
        "regularizers": [N3(0.3), N3(0.2, weighted=False)],
    }
    batch = random_batch(6, chunks=chunks, chunk_edges=24 // chunks, drop=True, groups=3)
    wanted = gradients(make_model(ComplEx(6), SoftmaxLoss(), **options), batch)
    seen = limited(monkeypatch, most_edges, DEVICE_ERROR if chunks == 1 else HOST_ERROR)
    model = make_model(ComplEx(6), SoftmaxLoss(), **options)
    with caplog.at_level(logging.INFO, "marius_py.nn.model"):
        found = gradients(model, batch)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)
    assert max(seen[-1:]) <= most_edges
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    caplog.clear()
    attempts = len(seen)
    gradients(model, batch)  # the next batch does not try at once again
    assert max(seen[attempts:]) <= most_edges
    assert not caplog.records


@pytest.mark.parametrize(("decoder", "loss"), [(TransE(5), LogisticLoss()), (TransE(5), SoftmaxLoss())])
def test_other_decoders_and_losses(decoder: Any, loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = random_batch(5, chunks=2, chunk_edges=8)
    wanted = gradients(make_model(decoder, loss, dropout=True), batch)
    limited(monkeypatch, 3, DEVICE_ERROR)
    found = gradients(make_model(decoder, loss, dropout=True), batch)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("reciprocal", [True, False])
@pytest.mark.parametrize("dropout", [True, False])
@pytest.mark.parametrize(("chunks", "size"), [(1, 2), (3, 2), (4, 3), (6, 5)])
def test_a_team_finds_the_gradients_of_the_whole(
    chunks: int, size: int, dropout: bool, reciprocal: bool, fused: bool
) -> None:
    options: dict[str, Any] = {
        "dropout": dropout,
        "reciprocal": reciprocal,
        "fused": fused,
        "regularizers": [N3(0.3), N3(0.2, weighted=False)],
        "clip_norm": 0.05,
    }
    batch = random_batch(6, chunks=chunks, chunk_edges=60 // chunks, drop=True, groups=3)

    def found(team: Team) -> list[np.ndarray]:
        it = make_model(ComplEx(6), SoftmaxLoss(), **options).gradients(batch, team)
        return [one.numpy().copy() for one in (it.rows, it.relations, it.loss)]

    with Team(size) as team:
        first, again = found(team), found(team)
    for one, other, third in zip(first, found(ALONE), again, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)
        np.testing.assert_array_equal(one, third)


def test_few_scores_are_cut_into_few_parts() -> None:
    """Each part has gradients of all rows; with many threads and few negatives they would be most of it."""
    small, large = random_batch(6, chunks=2, chunk_edges=4), random_batch(6, chunks=2, chunk_edges=400)
    assert 1 <= most_shares(small) < most_shares(large)


def test_a_member_that_fails_fails_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, 0, RuntimeError("size mismatch"))
    with Team(2) as team, pytest.raises(RuntimeError, match="size mismatch"):
        make_model(ComplEx(6), SoftmaxLoss()).gradients(random_batch(6, chunks=4, chunk_edges=9), team)


def test_what_no_part_fits_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, 0, DEVICE_ERROR)
    model = make_model(ComplEx(6), SoftmaxLoss())
    before = model.state_arrays()
    with pytest.raises(torch.OutOfMemoryError):
        model.gradients(random_batch(6))
    for name, array in model.state_arrays().items():
        np.testing.assert_array_equal(array, before[name])


def test_other_errors_are_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = limited(monkeypatch, 0, RuntimeError("size mismatch"))
    with pytest.raises(RuntimeError, match="size mismatch"):
        make_model(ComplEx(6), SoftmaxLoss()).gradients(random_batch(6))
    assert len(seen) == 1


def test_what_counts_as_out_of_memory() -> None:
    full = OSError(errno.ENOMEM, "Cannot allocate memory")
    for error in (MemoryError(), DEVICE_ERROR, HOST_ERROR, full, RuntimeError("CUDA error: out of memory")):
        assert is_out_of_memory(error)
    full = OSError(errno.ENOSPC, "No space left on device")
    for other in (ValueError("out of memory"), full, RuntimeError("shape"), KeyError("x")):
        assert not is_out_of_memory(other)
