"""A sampler of a user's own is tried on the graph before its run has a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marius_py.assembly.build import train
from marius_py.config import load_config
from marius_py.errors import ConfigError
from marius_py.graph import Graph
from marius_py.nn import NegativeSampler
from marius_py.prepare import prepare


class Own(NegativeSampler):
    """Draws as it should; the base of those that do not."""

    needs_degrees = True

    def __init__(self, count: int = 4) -> None:
        self.count = count

    def sample(self, edges: Any, resident: Any, side: str, rng: Any) -> Any:
        outside = ~np.isin(edges[:, ::2], resident.all())
        assert not outside.any()
        drawn = [resident.by_degree(rng, self.count), resident.uniform(rng, self.count)]
        return np.stack(drawn) if len(edges) % 2 == 0 else drawn[0][None]


class Flat(Own):
    def sample(self, edges: Any, resident: Any, side: str, rng: Any) -> Any:
        return resident.uniform(rng, self.count)


class Fails(Own):
    def sample(self, edges: Any, resident: Any, side: str, rng: Any) -> Any:
        return {}[side]


class Writes(Own):
    def sample(self, edges: Any, resident: Any, side: str, rng: Any) -> Any:
        edges[0] = 0
        return resident.uniform(rng, self.count)[None]


class Absent(Own):
    def sample(self, edges: Any, resident: Any, side: str, rng: Any) -> Any:
        return np.arange(40)[None]


class Undeclared(Own):
    needs_degrees = False


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    folder = tmp_path_factory.mktemp("graph")
    (folder / "e.tsv").write_text("".join(f"a{i % 40}\tr\ta{(i * i + 1) % 40}\n" for i in range(100)))
    return prepare(folder / "e.tsv", folder / "graph", header=False, partitions=8)


def run(graph: Graph, output: Path, kind: type[Own], *words: str) -> dict[str, Any]:
    small = ["device=cpu", "model.dim=4", "training.epochs=1", "training.valid_every=0"]
    small += ["pipeline.mode=inline", "pipeline.compute_threads=1", "training.batch_size=16"]
    sampler = f"negatives.sampler={__name__}.{kind.__name__}"
    return train(load_config([f"graph={graph.path}", f"output={output}", *small, sampler, *words]))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Flat, r"^negatives\.sampler draws int64 of shape \(500,\); allowed: \(C, K\) integers"),
        (Fails, r"^negatives\.sampler=.*\.Fails: sample of edges \(\d+, 3\), side 'head', fails: KeyE"),
        (Writes, r"^negatives\.sampler=.*\.Writes: sample .* fails: ValueError: assignment destination is"),
        (Absent, r"^negatives\.sampler draws node \d+, which is not in memory; .* \(10 of them, 0 to 9\)"),
        (Undeclared, r"^negatives\.sampler draws by_degree, but .* set needs_degrees = True"),
    ],
)
def test_a_sampler_that_cannot_draw_is_refused_before_a_run_is_begun(
    kind: type[Own], message: str, graph: Graph, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(graph, tmp_path / "run", kind, "storage.capacity=2", "ordering.rounds=1")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", [["storage.capacity=8"], ["storage.partitions=5", "storage.capacity=2"]])
def test_a_sampler_that_can_is_let_pass(words: list[str], graph: Graph, tmp_path: Path) -> None:
    result = run(graph, tmp_path / "run", Own, "negatives.chunks=2", *words)
    assert result["train"]["epochs"] == 1
