"""What a user with types writes: parts of their own, and what is public. Checked by mypy, never run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import marius_py
import marius_py.importing
from marius_py.assembly import Watcher
from marius_py.errors import ConfigError, PipelineError
from marius_py.evaluation.metrics import Metrics
from marius_py.nn import Decoder, Loss, NegativeSampler, ResidentNodes, SparseOptimizer
from marius_py.predict import Neighbor, NeighborIndex, Prediction, open_index
from marius_py.run import Run
from marius_py.tracking import Tracker
from marius_py.training.trainer import Trainer
from marius_py.types import Side


class Scaled(Decoder):
    def __init__(self, dim: int, temperature: float = 1.0) -> None:
        super().__init__(dim)
        self.temperature = temperature

    @property
    def relation_dim(self) -> int:
        return self.dim

    def query(self, node: torch.Tensor, relation: torch.Tensor, side: Side) -> torch.Tensor:
        return node * relation

    def compare(self, query: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        return torch.matmul(query, candidates.transpose(1, 2)) / self.temperature


class Squared(Loss):
    def __call__(
        self, positive: torch.Tensor, negative: torch.Tensor, keep: torch.Tensor | None
    ) -> torch.Tensor:
        wrong = negative**2 if keep is None else negative**2 * keep
        return ((positive - 1) ** 2 + wrong.mean(dim=1)).mean()


class FromTheBatch(NegativeSampler):
    holds_answers = True

    def __init__(self, count: int = 64) -> None:
        self.count = count

    def sample(
        self, edges: NDArray[np.int64], resident: ResidentNodes, side: Side, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        answers = rng.choice(edges[:, 0 if side == "head" else 2], self.count // 2)
        return np.concatenate([answers, resident.uniform(rng, self.count - self.count // 2)])[None]


class Momentum(SparseOptimizer):
    def __init__(self, lr: float, decay: float = 0.9) -> None:
        super().__init__(lr)
        self.decay = decay

    def state_dim(self, dim: int) -> int:
        return dim

    def delta(
        self, rows: torch.Tensor, state: torch.Tensor, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        velocity = self.decay * state + gradient
        return -self.lr * velocity, velocity - state


class Printer(Tracker):
    def start(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        self.loss = values["loss"]

    def finish(self, epoch: int, values: Mapping[str, float], *, success: bool) -> None:
        self.mrr = values.get("test/mrr")


class Progress(Watcher):
    def on_start(self, trainer: Trainer, num_edges: int, epochs_done: int) -> None:
        self.left = num_edges

    def on_progress(self, edges: int) -> None:
        self.left -= edges

    def on_epoch(self, line: Mapping[str, Any]) -> None:
        self.epoch: int = line["epoch"]

    def on_stage(self, stage: str, done: int, total: int | None, unit: str) -> None:
        self.stage = f"{stage} {done}/{total} {unit}"


def trained() -> float:
    """The program of the README, with a part of one's own and a watcher."""
    settings = {"model.decoder": Scaled, "model.dim": 64}
    with marius_py.train("graphs/mine", "runs/small", settings, watcher=Progress()) as run:
        mrr: float = run.result["test"]["mrr"]
        return mrr


def used(run: Run) -> list[object]:
    answers: list[Prediction] = run.predict(head="Norway", relation="borders", k=3)
    answers += run.predict(head=["Norway", "Sweden"], relation="borders")
    answers += run.predict(head=np.array(["Norway"]), relation=np.int64(7))
    near: list[Neighbor] = run.neighbors("Norway", k=4, metric="l2")
    index: NeighborIndex = open_index(run, "cosine")
    near += run.neighbors(["Norway"], index=index)
    scores = run.score([("Norway", "borders", "Sweden")]) + run.score(np.array([[0, 1, 2]]))
    row: NDArray[np.float32] = run.embedding("Norway")
    metrics: Metrics = run.evaluate("valid", ks=[1, 5], details=True)
    metrics = run.evaluate(edges=[("Norway", "borders", "Sweden")], among=["Sweden", "Finland"])
    files: list[Path] = run.to_parquet("embeddings.parquet")
    mrr: float = marius_py.evaluate(run, {"split": "valid"})["mrr"]
    seconds = None if run.result is None else run.result["train"]["seconds"]
    found = [near[0].neighbor, answers[0].tail, scores.sum(), row.shape, metrics.both.hits[1]]
    return [*found, files[0], mrr, seconds, run.history[-1]["loss"]]


def handled() -> str:
    graph = marius_py.graph_from([("a", "b", "c")], "graphs/x", split=(1, 0, 0))
    config: marius_py.TrainConfig = marius_py.load_config([f"graph={graph.path}", "model.dim=3"])
    try:
        with marius_py.train(config) as run, marius_py.load(run.path) as again:
            return f"{again.graph.num_nodes} {marius_py.open_graph(graph.path).relation_names()}"
    except PipelineError as error:
        return error.stage
    except ConfigError as error:
        return str(error)


def named() -> tuple[int, str]:
    """Modules are found after `import marius_py`."""
    try:
        return marius_py.ordering.beta(8, 4).loads, marius_py.verify.__name__
    except marius_py.errors.ScheduleError as error:
        return 0, str(error)


def misspelt() -> None:
    """What is no name of a package that imports its names on first use is found."""
    marius_py.laod("runs/mine")  # type: ignore[attr-defined]
    marius_py.importing.pbg_runs()  # type: ignore[attr-defined]
