"""The model: a user's own parts, golden losses, initial rows, evaluation queries, state, threads, dropout."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor

from marius_py.errors import ConfigError
from marius_py.nn import (
    L2,
    SGD,
    Adagrad,
    Adam,
    ComplEx,
    Decoder,
    DistMult,
    Dot,
    LinkPredictionModel,
    Loss,
    NegativeSampler,
    Regularizer,
    ResidentNodes,
    SoftmaxLoss,
    SparseOptimizer,
)
from marius_py.nn.initializers import Normal, Uniform, XavierNormal, XavierUniform
from marius_py.nn.kernels.workspace import Workspace
from marius_py.types import SIDES, Side
from tests.nn.batches import NUM_RELATIONS, make_model, random_batch, step, untrained

# A user's own parts, as the documentation shows them.


class Bilinear(Decoder):
    """head · (relation ∘ flipped tail): not in the package."""

    def query(self, node: Tensor, relation: Tensor, side: Side) -> Tensor:
        return (node * relation).flip(-1) if side == "tail" else node.flip(-1) * relation

    def compare(self, query: Tensor, candidates: Tensor) -> Tensor:
        return query @ candidates.transpose(1, 2)


class Squared(Loss):
    def __call__(self, positive: Tensor, negative: Tensor, keep: Tensor | None) -> Tensor:
        return (1 - positive).square().mean() + negative.square().mean()


class SignDescent(SparseOptimizer):
    def state_dim(self, dim: int) -> int:
        return 1

    def delta(self, rows: Tensor, state: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return -self.lr * gradient.sign(), torch.ones_like(state)


class FirstNodes(NegativeSampler):
    def sample(
        self, edges: np.ndarray, resident: ResidentNodes, side: Side, rng: np.random.Generator
    ) -> np.ndarray:
        return np.arange(resident.starts[0], resident.starts[0] + 5)[None]


class Quartic(Regularizer):
    def penalty(self, rows: Tensor, complex_halves: bool) -> Tensor:
        return rows.pow(4).sum(1)


def test_a_users_own_parts_train() -> None:
    sampler = FirstNodes()
    nodes = ResidentNodes(np.array([0]), np.array([20]))
    drawn = sampler.sample(np.zeros((12, 3), np.int64), nodes, "tail", np.random.default_rng(0))
    batch = random_batch(6, chunks=1, chunk_edges=12, scale=0.1)
    batch.negatives["tail"].nodes.copy_(torch.from_numpy(drawn))
    model = make_model(Bilinear(6), Squared(), optimizer=SignDescent(5e-3), regularizers=[Quartic(0.1)])
    state = untrained(model, batch)
    losses = []
    for _ in range(60):
        update = step(model, batch, state)
        batch.rows.add_(update.d_rows)
        state.add_(update.d_state)
        losses.append(float(update.loss))
    assert losses[-1] < 0.8 * losses[0]
    assert (state == 60).all()
    query = model.queries(batch.rows[batch.head], batch.relation, "tail")
    assert model.compare(query[None], batch.rows[None]).shape == (1, 12, 20)


def test_loss_is_the_sum_of_both_sides() -> None:
    both = random_batch(8)
    halves = []
    for side in SIDES:
        half = random_batch(8)
        del half.negatives["head" if side == "tail" else "tail"]
        halves.append(float(make_model(ComplEx(8), SoftmaxLoss()).gradients(half).loss))
    assert float(make_model(ComplEx(8), SoftmaxLoss()).gradients(both).loss) == pytest.approx(
        sum(halves), rel=1e-5
    )


@pytest.mark.parametrize("fused", [True, False])
def test_step_leaves_the_batch_and_earlier_updates_alone(fused: bool) -> None:
    model = make_model(ComplEx(8), SoftmaxLoss(), optimizer=Adagrad(0.1), dropout=True, fused=fused)
    batch, state = random_batch(8, drop=True), torch.zeros(20, 8)
    copy = random_batch(8, drop=True)
    first = step(model, batch, state)
    kept = first.d_rows.clone(), first.d_state.clone(), first.loss.clone()
    step(model, random_batch(8, seed=5))
    assert all(
        torch.equal(a, b) for a, b in zip(kept, (first.d_rows, first.d_state, first.loss), strict=True)
    )
    assert torch.equal(batch.rows, copy.rows)
    assert not state.any()
    assert not first.d_rows.requires_grad


def test_a_loss_that_is_not_finite_is_returned() -> None:
    batch = random_batch(8)
    batch.rows[int(batch.head[0])] = torch.nan
    assert not torch.isfinite(make_model(ComplEx(8), SoftmaxLoss()).gradients(batch).loss)


@pytest.mark.parametrize("reciprocal", [False, True])
def test_queries_are_what_training_asks(reciprocal: bool) -> None:
    model = make_model(ComplEx(8), SoftmaxLoss(), reciprocal=reciprocal)
    relations = torch.from_numpy(model.state_arrays()["relations"])
    assert len(relations) == NUM_RELATIONS * (2 if reciprocal else 1)
    anchors, ids = torch.randn(4, 8), torch.tensor([0, 1, 2, 1])
    tails = model.decoder.query(anchors, relations[ids], "tail")
    torch.testing.assert_close(model.queries(anchors, ids, "tail"), tails)
    if reciprocal:
        heads = model.decoder.query(anchors, relations[ids + NUM_RELATIONS], "tail")
    else:
        heads = model.decoder.query(anchors, relations[ids], "head")
    torch.testing.assert_close(model.queries(anchors, ids, "head"), heads)


def test_state_arrays_are_copies_unless_asked_otherwise() -> None:
    model = LinkPredictionModel(DistMult(4), SoftmaxLoss(), Adagrad(0.1), num_relations=3, reciprocal=True)
    arrays, own = model.state_arrays(), model.state_arrays(copy=False)
    assert model.relation_bytes == sum(array.nbytes for array in arrays.values()) == 2 * 6 * 4 * 4
    for name, array in model.state_arrays(copy=False).items():
        assert np.shares_memory(array, own[name])
        assert not np.shares_memory(array, arrays[name])


def test_state_arrays_round_trip() -> None:
    model = make_model(ComplEx(8), SoftmaxLoss(), optimizer=Adam(0.1))
    model.gradients(random_batch(8))
    arrays = model.state_arrays()
    assert arrays["relations"].shape == (3, 8)
    assert arrays["relation_state"].shape == (3, 17)
    other = make_model(ComplEx(8), SoftmaxLoss(), optimizer=Adam(0.1))
    other.load_state_arrays(arrays)
    ours, theirs = (step(m, random_batch(8, seed=2)) for m in (model, other))
    assert torch.equal(ours.d_rows, theirs.d_rows)
    for key, array in model.state_arrays().items():
        np.testing.assert_array_equal(array, other.state_arrays()[key])


def test_state_arrays_of_another_model_are_refused() -> None:
    arrays = make_model(ComplEx(8), SoftmaxLoss()).state_arrays()
    with pytest.raises(ConfigError, match=r"'relations'.*\(3, 8\).*\(3, 6\)"):
        make_model(ComplEx(6), SoftmaxLoss()).load_state_arrays(arrays)
    del arrays["relation_state"]
    with pytest.raises(ConfigError, match="'relation_state'"):
        make_model(ComplEx(8), SoftmaxLoss()).load_state_arrays(arrays)


def test_threads_have_workspaces_of_their_own() -> None:
    """With a frozen relation (dot) concurrent steps equal sequential ones."""
    model = make_model(Dot(8), SoftmaxLoss(), dropout=True)
    batches = [random_batch(8, nodes=300, chunks=4, chunk_edges=50, count=80, seed=seed) for seed in range(8)]
    expected = [step(model, batch).d_rows for batch in batches]
    found: dict[int, Tensor] = {}

    def work(first: int) -> None:
        for _ in range(5):
            for number in range(first, 8, 2):
                found[number] = step(model, batches[number]).d_rows

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[number], expected[number]) for number in range(8))


@pytest.fixture
def _hasty() -> Iterator[None]:
    """Threads take turns as often as the interpreter lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def read_while(changes: Callable[[], object], read: Callable[[], int]) -> None:
    with ThreadPoolExecutor(1) as pool:
        changing = pool.submit(changes)
        while not changing.done():
            assert read() >= 0
        changing.result()


@pytest.mark.usefixtures("_hasty")
def test_scratch_is_summed_while_other_threads_take_more() -> None:
    workspace, model = Workspace(torch.device("cpu")), make_model(ComplEx(8), SoftmaxLoss())

    def grow() -> None:
        for number in range(3000):
            workspace.take(f"buffer {number}", 2)

    read_while(grow, lambda: workspace.size_bytes)
    assert workspace.size_bytes == 3000 * 2 * 4
    workspace.take("buffer 0", 5)
    assert workspace.size_bytes == 3000 * 2 * 4 + 3 * 4

    def enter() -> None:
        for _ in range(300):
            thread = threading.Thread(target=lambda: model._workspace().take("rows", 10))
            thread.start()
            thread.join()

    model._workspace().take("rows", 10)
    read_while(enter, lambda: model.workspace_bytes)
    assert model.workspace_bytes >= 40


def test_steps_in_steady_state_take_no_new_scratch() -> None:
    model = make_model(ComplEx(8), SoftmaxLoss(), dropout=True)
    batch = random_batch(8, nodes=300, chunks=4, chunk_edges=50, count=80)
    model.gradients(batch)
    size = model._workspace().size_bytes
    for _ in range(3):
        model.gradients(batch)
    assert model._workspace().size_bytes == size > 0


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"node_dropout": 1.0}, r"model\.node_dropout"),
        ({"relation_dropout": -0.1}, r"model\.relation_dropout"),
        ({"num_relations": 0}, "num_relations"),
        ({"clip_norm": 0.0}, r"training\.clip_norm"),
        ({"clip_norm": 1e39}, r"training\.clip_norm is 1e\+39"),
        ({"clip_norm": 1e-46}, r"training\.clip_norm is 1e-46"),
    ],
)
def test_refused_settings(settings: dict[str, float], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        LinkPredictionModel(DistMult(4), SoftmaxLoss(), SGD(1.0), **settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="weight"):
        L2(-1.0)
    for make, key in ((Normal, "scale"), (Uniform, "scale"), (XavierNormal, "gain"), (XavierUniform, "gain")):
        with pytest.raises(ConfigError, match=rf"model\.init\.{key} is inf"):
            make(float("inf"))
