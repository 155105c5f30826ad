"""Memory that runs out in training or ranking: one warning, the work goes on with the same result."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import marius_py.nn.model
import marius_py.run_files.results
from marius_py.errors import PipelineError
from marius_py.evaluation.evaluator import Evaluator
from tests.end_to_end.conftest import Train, embeddings


@pytest.fixture(autouse=True)
def _heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("marius_py"), "propagate", True)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.message for one in caplog.records if one.levelname == "WARNING" and "memory" in one.message]


def test_training_goes_on_in_parts(
    run_train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    words = ("model.node_dropout=0.2", "training.valid_every=0")
    whole = run_train(*words, output="whole")
    original = marius_py.nn.model.fused_gradients

    def scarce(form: Any, regularizers: Any, given: Any, workspace: Any) -> Any:
        if len(given.batch.head) > 40:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(form, regularizers, given, workspace)

    monkeypatch.setattr(marius_py.nn.model, "fused_gradients", scarce)
    result = run_train(*words)
    assert len(warnings(caplog)) == 1
    np.testing.assert_allclose(
        embeddings(tmp_path / "run"), embeddings(tmp_path / "whole"), rtol=1e-3, atol=1e-4
    )
    assert result["train"]["loss"] == pytest.approx(whole["train"]["loss"], rel=1e-5)


def test_a_batch_that_never_fits_ends_the_run(run_train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    def scarce(*words: Any) -> Any:
        raise MemoryError("no memory at all")

    monkeypatch.setattr(marius_py.nn.model, "fused_gradients", scarce)
    with pytest.raises(PipelineError, match=r"stage 'compute' failed: MemoryError"):
        run_train()


def test_ranking_shrinks_its_blocks(
    run_train: Train, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    words = ("training.valid_every=0",)
    whole = run_train(*words, output="whole")
    original = Evaluator.evaluate
    budgets: list[int] = []

    def scarce(self: Any, *given: Any, **named: Any) -> Any:
        budgets.append(self._memory_bytes)
        if self._memory_bytes > 1 << 20:
            raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes")
        return original(self, *given, **named)

    monkeypatch.setattr(Evaluator, "evaluate", scarce)
    result = run_train(*words, "evaluation.memory_bytes=33554432")
    assert budgets == [32 << 20, 8 << 20, 2 << 20, 1 << 20]
    assert len(warnings(caplog)) == 3
    for name in ("mrr", "hits@10", "mean_rank"):
        assert result["test"][name] == whole["test"][name]


def test_ranking_leaves_the_device_last(
    run_train: Train, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A device that has no memory at all: the same metrics come from the host."""
    words = ("training.valid_every=0", "evaluation.memory_bytes=1048576")
    whole = run_train(*words, output="whole")
    original = marius_py.run_files.results.Evaluator

    class Scarce(original):  # type: ignore[misc, valid-type]
        def __init__(self, model: Any, *given: Any, **named: Any) -> None:
            super().__init__(model, *given, **named)
            self.on_device = isinstance(model, marius_py.nn.model.LinkPredictionModel)

        def evaluate(self, *given: Any, **named: Any) -> Any:
            if self.on_device:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().evaluate(*given, **named)

    monkeypatch.setattr(marius_py.run_files.results, "Evaluator", Scarce)
    monkeypatch.setattr(
        marius_py.run_files.results, "is_on_host", lambda model: model.__class__.__name__ == "TrainedModel"
    )
    result = run_train(*words)
    assert any("ranking on the CPU" in text for text in warnings(caplog))
    assert result["test"]["mrr"] == whole["test"]["mrr"]
