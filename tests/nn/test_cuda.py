"""The same numbers on a CUDA device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from marius_py.nn import SGD, Adagrad, Batch, ComplEx, Corruption, LinkPredictionModel, SoftmaxLoss, TransE
from marius_py.nn.decoders import Decoder
from tests.nn.batches import NUM_RELATIONS, random_batch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def moved(batch: Batch) -> Batch:
    names = ("rows", "state", "head", "relation", "tail")
    negatives = {
        side: Corruption(c.nodes.cuda(), None if c.keep is None else c.keep.cuda())
        for side, c in batch.negatives.items()
    }
    return replace(batch, negatives=negatives, **{name: getattr(batch, name).cuda() for name in names})


def model(decoder: Decoder, device: str, *, dropout: bool, fused: bool) -> LinkPredictionModel:
    return LinkPredictionModel(
        decoder,
        SoftmaxLoss(),
        SGD(1.0),
        num_relations=NUM_RELATIONS,
        reciprocal=True,
        node_dropout=0.3 * dropout,
        relation_dropout=0.2 * dropout,
        device=device,
        fused=fused,
    )


@pytest.mark.parametrize("decoder", [ComplEx(8), TransE(8)], ids=lambda d: type(d).__name__)
def test_equal_to_the_cpu(decoder: Decoder) -> None:
    batch = random_batch(8, keep=True)
    here = model(decoder, "cpu", dropout=False, fused=True).step(batch)
    there = model(decoder, "cuda", dropout=False, fused=True).step(moved(batch))
    assert there.d_rows.is_cuda
    torch.testing.assert_close(there.d_rows.cpu(), here.d_rows, rtol=1e-4, atol=1e-5)
    assert float(there.loss) == pytest.approx(float(here.loss), rel=1e-5)


@pytest.mark.parametrize("decoder", [ComplEx(8), TransE(8)], ids=lambda d: type(d).__name__)
def test_closed_form_equals_autograd(decoder: Decoder) -> None:
    batch = moved(random_batch(8, keep=True))
    fast = model(decoder, "cuda", dropout=True, fused=True).step(batch)
    plain = model(decoder, "cuda", dropout=True, fused=False).step(batch)
    torch.testing.assert_close(fast.d_rows, plain.d_rows, rtol=1e-4, atol=1e-5)


def test_state_arrays_are_host_copies() -> None:
    ours = LinkPredictionModel(ComplEx(8), SoftmaxLoss(), Adagrad(0.1), num_relations=3, device="cuda")
    ours.step(moved(random_batch(8, state_dim=8)))
    arrays = ours.state_arrays()
    other = LinkPredictionModel(ComplEx(8), SoftmaxLoss(), Adagrad(0.1), num_relations=3, device="cuda")
    other.load_state_arrays(arrays)
    np.testing.assert_array_equal(other.state_arrays()["relations"], arrays["relations"])
