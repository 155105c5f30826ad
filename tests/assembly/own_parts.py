"""Decoders and optimizers as users write them, most with a fault."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from marius_py.nn import Adagrad, Decoder, Initializer, Loss, SparseOptimizer


class Plain(Decoder):
    """DistMult; the base of the others."""

    def query(self, node: Tensor, relation: Tensor, side: str) -> Tensor:
        return node * relation

    def compare(self, query: Tensor, candidates: Tensor) -> Tensor:
        return torch.matmul(query, candidates.transpose(1, 2))


class Parameter(Plain):
    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.weight = nn.Parameter(torch.ones(dim))


class Linear(Plain):
    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.layers = {"first": [nn.Sequential(nn.Linear(dim, dim))]}


class Module(Plain, nn.Module):
    def __init__(self, dim: int) -> None:
        nn.Module.__init__(self)
        Plain.__init__(self, dim)
        self.first = nn.Linear(dim, dim)


class Random(Plain):
    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.scale = torch.rand(dim)


class RandomArray(Plain):
    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.scale = (np.random.default_rng().random(dim),)


class Fixed(Plain, nn.Module):
    """Tensors that are the same each time, frozen parameters among them."""

    def __init__(self, dim: int) -> None:
        nn.Module.__init__(self)
        Plain.__init__(self, dim)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, dim))
        self.frozen = nn.Parameter(torch.full((dim,), torch.nan), requires_grad=False)
        self.drawn = torch.rand(dim, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
        self.itself = [self]


class InFloat64(Plain):
    def compare(self, query: Tensor, candidates: Tensor) -> Tensor:
        return super().compare(query.double(), candidates.double())


class Transposed(Plain):
    def compare(self, query: Tensor, candidates: Tensor) -> Tensor:
        return super().compare(query, candidates).transpose(1, 2)


class Narrow(Plain):
    def query(self, node: Tensor, relation: Tensor, side: str) -> Tensor:
        return (node * relation)[:, 1:]


class NoTensor(Plain):
    def compare(self, query: Tensor, candidates: Tensor) -> Any:
        return None


class Failing(Plain):
    def compare(self, query: Tensor, candidates: Tensor) -> Tensor:
        raise ValueError("dim must be 512")


class Leaving(Plain):
    def query(self, *_: Any) -> Tensor:
        raise SystemExit(0)


class DetachedNodes(Plain):
    def query(self, node: Tensor, relation: Tensor, side: str) -> Tensor:
        return super().query(node.detach(), relation, side)


class DetachedAnswers(Plain):
    def compare(self, query: Tensor, candidates: Tensor) -> Tensor:
        return super().compare(query, candidates.detach())


class Sparse(Plain):
    def query(self, node: Tensor, relation: Tensor, side: str) -> Tensor:
        return super().query(node, relation, side).to_sparse()


class AnArray(Plain):
    def query(self, node: Tensor, relation: Tensor, side: str) -> Any:
        return super().query(node, relation, side).detach().numpy()


class TwoLines(Plain):
    def compare(self, query: Tensor, candidates: Tensor) -> Tensor:
        raise ValueError("one line,\nand another")


class Noisy(Plain):
    def query(self, node: Tensor, relation: Tensor, side: str) -> Tensor:
        return super().query(node, relation, side) + torch.rand_like(node)


class Centered(Plain):
    """By the mean of the batch."""

    def query(self, node: Tensor, relation: Tensor, side: str) -> Tensor:
        found = super().query(node, relation, side)
        return found - found.mean(0)


class Probabilities(Plain):
    """That of a true answer, which is asked for alone, is 1."""

    def compare(self, query: Tensor, candidates: Tensor) -> Tensor:
        return super().compare(query, candidates).softmax(2)


class WritesToWhatItGets(Plain):
    """To its copy of the rows, which is allowed."""

    def query(self, node: Tensor, relation: Tensor, side: str) -> Tensor:
        return node.mul_(relation)


class LaterInFloat64(Plain):
    """One that its trial does not find out: it is another one for chunks of more than its few edges."""

    def compare(self, query: Tensor, candidates: Tensor) -> Tensor:
        scores = super().compare(query, candidates)
        return scores.double() if query.shape[1] > 8 else scores


class LaterWhole(Plain):
    def query(self, node: Tensor, relation: Tensor, side: str) -> Tensor:
        found = super().query(node, relation, side)
        return found.long() if len(node) > 16 else found


class LaterNarrow(Plain):
    def compare(self, query: Tensor, candidates: Tensor) -> Tensor:
        scores = super().compare(query, candidates)
        return scores[:, :, :1] if query.shape[1] > 8 else scores


class HalfRelations(Plain):
    @property
    def relation_dim(self) -> Any:
        return 1.5


class FailingRows(Plain):
    def init_rows(self, out: np.ndarray, rng: np.random.Generator, initializer: Any) -> None:
        raise ValueError("no rows today")


class FailingRelations(Plain):
    def init_relations(self, out: np.ndarray, rng: np.random.Generator, initializer: Any) -> None:
        raise ValueError("no relations today")


class FailingWidth(SparseOptimizer):
    """An optimizer that cannot say how wide its state is."""

    def state_dim(self, dim: int) -> int:
        raise KeyError("width")

    def delta(self, rows: Tensor, state: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return -self.lr * gradient, torch.zeros_like(state)


class FailingState(FailingWidth):
    """An optimizer that cannot begin its state."""

    def state_dim(self, dim: int) -> int:
        return 1

    def init_state(self, out: np.ndarray) -> None:
        raise ValueError("no state today")


class HalfState(FailingWidth):
    """An optimizer that begins half of its state."""

    def state_dim(self, dim: int) -> int:
        return 2

    def init_state(self, out: np.ndarray) -> None:
        out[:, 0] = 1


class Stateful(SparseOptimizer):
    """An optimizer whose state has half a float."""

    def state_dim(self, dim: int) -> Any:
        return 1.5

    def delta(self, rows: Tensor, state: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return -self.lr * gradient, torch.zeros_like(state)


class Steps(SparseOptimizer):
    """SGD; the base of the others."""

    def state_dim(self, dim: int) -> int:
        return 1

    def delta(self, rows: Tensor, state: Tensor, gradient: Tensor) -> Any:
        return -self.lr * gradient, torch.zeros_like(state)


class NoStateOfAdagrad(Adagrad):
    def delta(self, rows: Tensor, state: Tensor, gradient: Tensor) -> Any:
        return -self.lr * gradient, None


class WideAdagrad(Adagrad):
    def state_dim(self, dim: int) -> int:
        return dim + 3


class RowsAlone(Steps):
    def delta(self, rows: Tensor, state: Tensor, gradient: Tensor) -> Any:
        return -self.lr * gradient


class NarrowState(Steps):
    def delta(self, rows: Tensor, state: Tensor, gradient: Tensor) -> Any:
        return -self.lr * gradient, torch.zeros(3, 2)


class FailingStep(Steps):
    def delta(self, rows: Tensor, state: Tensor, gradient: Tensor) -> Any:
        raise ValueError("no step today")


class Locked(Steps):
    """Has what cannot be copied, and no state."""

    def __init__(self, lr: float) -> None:
        super().__init__(lr)
        self.lock = threading.Lock()

    def state_dim(self, dim: int) -> int:
        return 0

    def delta(self, rows: Tensor, state: Tensor, gradient: Tensor) -> Any:
        with self.lock:
            return -self.lr * gradient, None


class OwnStep(Steps):
    def delta(self, rows: Tensor, state: Tensor, gradient: Tensor) -> Any:
        raise NotImplementedError

    def step(self, rows: Tensor, state: Tensor, index: Tensor, gradient: Tensor, rate: float = 1.0) -> None:
        rows.index_add_(0, index, gradient, alpha=-self.lr * rate)


class NoNumbers(Steps):
    """Of a gradient that does not vary."""

    def delta(self, rows: Tensor, state: Tensor, gradient: Tensor) -> Any:
        spread = gradient[:, :1] - gradient[:, :1]
        return gradient * spread / spread, torch.zeros_like(state)


class Hinge(Loss):
    """One of a user's own that is as it must be; the base of the others."""

    def __call__(self, positive: Tensor, negative: Tensor, keep: Tensor | None) -> Any:
        gaps = torch.relu(1 - positive.unsqueeze(1) + negative)
        return (gaps if keep is None else gaps * keep).mean()


class InFloat64Hinge(Hinge):
    def __call__(self, positive: Tensor, negative: Tensor, keep: Tensor | None) -> Any:
        return super().__call__(positive.double(), negative.double(), keep)

    def weighted(self, positive: Tensor, negative: Tensor, keep: Tensor | None, weight: Tensor) -> Any:
        raise NotImplementedError  # which is not asked for with everything in memory


class WithoutWeights(Hinge):
    def weighted(self, positive: Tensor, negative: Tensor, keep: Tensor | None, weight: Tensor) -> Any:
        raise NotImplementedError("everything is to be in memory")


class OwnWeights(Hinge):
    """Forgets the mean where negatives are weighed."""

    def weighted(self, positive: Tensor, negative: Tensor, keep: Tensor | None, weight: Tensor) -> Any:
        return positive + (negative * weight).mean(1)


class NoWeights(Hinge):
    def weighted(self, positive: Tensor, negative: Tensor, keep: Tensor | None) -> Any:  # type: ignore[override]
        return self(positive, negative, keep)


class ByPlace(Hinge):
    """Of as many negatives as the run draws; its parameters have names of their own."""

    def __call__(self, right: Tensor, wrong: Tensor, mask: Tensor | None, /) -> Any:
        return super().__call__(right, wrong.topk(4, 1).values, None).unsqueeze(0)


class Table(Initializer):
    """Hands out the rows of a table one after another."""

    def __init__(self) -> None:
        self.given = 0

    def fill(self, out: np.ndarray, rng: np.random.Generator) -> None:
        out[...] = np.arange(self.given, self.given + len(out))[:, None] / 1000
        self.given += len(out) if out.size else 0


class EachEdge(Hinge):
    def __call__(self, positive: Tensor, negative: Tensor, keep: Tensor | None) -> Any:
        return super().__call__(positive, negative, keep) * torch.ones_like(positive)


class OneNumber(Hinge):
    def __call__(self, positive: Tensor, negative: Tensor, keep: Tensor | None) -> Any:
        return super().__call__(positive, negative, keep).item()


class Detached(Hinge):
    def __call__(self, positive: Tensor, negative: Tensor, keep: Tensor | None) -> Any:
        return super().__call__(positive, negative, keep).detach()


class WithoutMasks(Hinge):
    def __call__(self, positive: Tensor, negative: Tensor, keep: Tensor | None) -> Any:
        if keep is not None:
            raise ValueError("no masks today")
        return super().__call__(positive, negative, keep)


class FailingInit(Initializer):
    def fill(self, out: np.ndarray, rng: np.random.Generator) -> None:
        raise ValueError("no values today")


class InfiniteInit(Initializer):
    def fill(self, out: np.ndarray, rng: np.random.Generator) -> None:
        out[...] = np.inf


class ReturnedInit(Initializer):
    """Returns values, as functions of NumPy do, instead of writing them."""

    def fill(self, out: np.ndarray, rng: np.random.Generator) -> Any:
        return rng.standard_normal(out.shape)


class NewLeaf(Loss):
    """One float with a gradient, which leads to no score."""

    def __call__(self, positive: Tensor, negative: Tensor, keep: Tensor | None) -> Tensor:
        return torch.tensor((negative.detach().mean() - positive.detach().mean()).item(), requires_grad=True)


class InPlaceState(SparseOptimizer):
    """Its sums of squares are lost."""

    def state_dim(self, dim: int) -> int:
        return dim

    def delta(self, rows: Tensor, state: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        state += gradient**2
        return -self.lr * gradient / state.sqrt(), torch.zeros_like(state)
