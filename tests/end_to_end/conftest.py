"""One small graph for all, and training it in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marius_py.assembly.build import train
from marius_py.config import load_config
from marius_py.prepare import prepare
from marius_py.storage.reader import open_node_reader

NODES, RELATIONS, EDGES = 160, 3, 1500
SMALL = (
    "storage.partitions=4",
    "storage.capacity=2",
    "model.dim=4",
    "negatives.count=8",
    "negatives.chunks=2",
    "training.epochs=2",
    "training.batch_size=128",
    "training.valid_every=1",
    "training.regularizer.n3=0.1",  # by default it depends on the number of epochs
    "pipeline.mode=inline",
    "pipeline.compute_threads=1",
    "device=cpu",
)

Train = Callable[..., dict[str, Any]]


def write_edges(path: Path, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    head, relation = rng.integers(0, NODES, EDGES), rng.integers(0, RELATIONS, EDGES)
    tail = (head * (relation + 2) + rng.integers(0, 3, EDGES)) % NODES
    path.write_text("".join(f"n{h}\tr{r}\tn{t}\n" for h, r, t in zip(head, relation, tail, strict=True)))
    return path


@pytest.fixture(scope="session")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    prepare(write_edges(folder / "edges.tsv"), folder / "graph", partitions=4, header=False)
    return folder / "graph"


@pytest.fixture
def run_train(graph: Path, tmp_path: Path) -> Train:
    """Train into tmp_path/run with SMALL and further overrides; "resume" goes on with it as it was."""

    def call(
        *overrides: str, output: str = "run", resume: bool = False, watcher: Any = None
    ) -> dict[str, Any]:
        place = f"output={tmp_path / output}"
        words = [place, "resume=true"] if resume else [f"graph={graph}", place, *SMALL]
        return train(load_config([*words, *overrides]), watcher)

    return call


def embeddings(run: Path) -> Any:
    with open_node_reader(run / "checkpoint") as reader:
        return reader.read_rows(0, reader.table.partitioning.num_nodes)
