"""Settings drawn at random on graphs of odd shapes: a run ends well or is refused, also after kills.

A few in the default tests, more of them marked slow; `python -m tests.end_to_end.test_random_settings FIRST
LAST` tries seeds beyond those and names the ones that fail.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marius_py.prepare import prepare
from marius_py.storage.reader import open_node_reader
from marius_py.testing.crashes import CrashServer, Ended
from marius_py.verify import is_sound, verify

PARTITIONS = 8
HANGS_S = 120.0
"""Runs take a second or two; one that is not through by then hangs."""

CHOICES: dict[str, tuple[Any, ...]] = {
    "model.decoder": ("complex", "complex", "distmult", "dot", "transe", "rotate", "rescal"),
    "model.dim": (2, 8, 8, 20, 64),
    "model.reciprocal": (True, False),
    "model.node_dropout": (0, 0.3),
    "model.relation_dropout": (0, 0.2),
    "model.init": ("xavier_normal", "normal", "uniform", "xavier_uniform"),
    "loss": ("softmax", "softmax", "logistic", "margin"),
    "loss.smoothing": (0.1,),
    "negatives.count": (1, 7, 32, 200),
    "negatives.count_head": (3, 40),
    "negatives.count_tail": (5,),
    "negatives.chunks": (1, 2, 4),
    "negatives.degree_fraction": (0, 0.5, 1),
    "negatives.sampler": ("degree", "uniform", "all"),
    "negatives.mask_known": (True, False),
    "negatives.weigh": (True, False),
    "negatives.per_question": (True, False),
    "optimizer.name": ("adagrad", "adagrad_row", "adam", "sgd"),
    "optimizer.lr": (0.01,),
    "optimizer.schedule.name": ("constant", "linear", "cosine", "plateau"),
    "optimizer.schedule.warmup": (0, 0.5),
    "training.epochs": (1, 2, 3),
    "training.batch_size": (4, 60, 64, 256, 4096),
    "training.valid_every": (0, 1, 2),
    "training.patience": (1, 2),
    "training.clip_norm": (0.1, 10),
    "training.regularizer.n3": (0, 0.01),
    "training.regularizer.l2": (0, 0.01),
    "training.regularizer.weighted": (True, False),
    "storage.partitions": (1, 2, PARTITIONS, 16),
    "storage.capacity": (2, 3, 4, PARTITIONS),
    "ordering.name": ("auto", "beta", "random", "hilbert", "sequential", "cyclic", "comet", "optimal"),
    "ordering.policy": ("spread", "deadline", "eager", "random"),
    "ordering.rounds": (1, 2, "auto"),
    "pipeline.mode": ("threaded", "threaded", "inline"),
    "pipeline.max_in_flight": (1, 1, 2, 5),
    "pipeline.compute_threads": (1, 2, 3, 8),
    "pipeline.compute_workers": (1, 2, 4),
    "pipeline.trace": (True, False),
    "pipeline.precision": ("float32", "tf32", "bfloat16"),
    "checkpoint.every_steps": (1, 3),
    "checkpoint.keep": (0, 2),
    "checkpoint.best": (True, False),
    "evaluation.mode": ("full", "sampled"),
    "evaluation.candidates": (10, 1000),
    "evaluation.valid.mode": ("auto", "full", "edges", "candidates"),
    "evaluation.valid.gap": (True, False),
    "evaluation.memory_bytes": (1 << 20,),
}

SHARE = 0.3
"""Of the keys, on average, are given; the others keep their defaults."""

ALWAYS = (
    "training.epochs=3",
    "training.batch_size=128",
    "model.dim=16",
    "negatives.count=20",
    "optimizer.lr=0.1",
    "device=cpu",
)
"""Ahead of what is drawn: the defaults would take minutes, and sgd's of 10 diverges on batches of 4 edges."""


def drawn(rng: np.random.Generator) -> dict[str, Any]:
    """Settings drawn from `rng`."""
    found = {}
    for key, values in CHOICES.items():
        if rng.random() < SHARE:
            found[key] = values[rng.integers(len(values))]
    return found


def words_of(rng: np.random.Generator) -> list[str]:
    """Settings drawn from `rng`, as words of a command."""
    words = [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in drawn(rng).items()
    ]
    return [*ALWAYS, *words]


def graphs(folder: Path) -> list[Path]:
    """Small graphs: of knowledge, without relations, a star, six edges, rare relations, loops, weights."""
    rng = np.random.default_rng(3)
    head, relation = rng.integers(0, 150, 1500), rng.integers(0, 4, 1500)
    tail = (head * (relation + 2) + rng.integers(0, 3, 1500)) % 150
    plain = {
        "knowledge": [f"n{h}\tr{r}\tn{t}" for h, r, t in zip(head, relation, tail, strict=True)],
        "star": [f"hub\tr{i % 2}\tn{i}" for i in range(400)],
        "six": [f"{a}\tr\t{b}" for a, b in ("ab", "bc", "cd", "de", "ef", "fa")],
        "rare": [f"n{h}\tr{i % 300}\tn{t}" for i, (h, t) in enumerate(zip(head, tail, strict=True))],
        "loops": [f"n{h}\tr{r}\tn{h if h % 2 else t}" for h, r, t in zip(head, relation, tail, strict=True)],
        "none": [f"n{h}\tn{t}" for h, t in zip(head, tail, strict=True)],
    }
    weights = [f"{line}\t{rng.exponential():.3f}" for line in dict.fromkeys(plain["knowledge"])]
    found = []
    for name, lines in {**plain, "weighted": weights}.items():
        path = folder / f"{name}.tsv"
        path.write_text("".join(f"{line}\n" for line in dict.fromkeys(lines)))
        share = 0.0 if name == "six" else 0.05
        weight = 3 if name == "weighted" else None
        prepare(path, folder / name, header=False, weight=weight, split=(1 - 2 * share, share, share))
        found.append(folder / name)
    return found


@dataclass
class Trials:
    """Runs of one folder's graphs.

    Attributes:
        server: trains. graphs: on which. folder: where the runs are.
        trained, refused, killed: how many ended how; killed ones were resumed to their end.
    """

    server: CrashServer
    graphs: list[Path]
    folder: Path
    trained: int = 0
    refused: int = 0
    killed: int = 0

    def trial(self, seed: int) -> None:
        """Train with settings drawn from `seed`, and perhaps once more, killed on the way and resumed."""
        rng = np.random.default_rng([41, seed])
        graph = self.graphs[rng.integers(len(self.graphs))]
        words, run = words_of(rng), self.folder / f"run-{seed}"
        told = f"seed {seed}: train graph={graph} output={run} {' '.join(words)}"
        ended = self.server.run(["train", f"graph={graph}", f"output={run}", *words], kill_after_s=HANGS_S)
        assert not ended.killed, f"{told}\nhangs:\n{ended.output}"
        assert "Traceback" not in ended.output, f"{told}\n{ended.output}"
        if ended.code:
            errors = [line for line in ended.output.splitlines() if line.startswith("error: ")]
            assert (ended.code, len(errors)) == (2, 1), f"{told}\nended with {ended.code}:\n{ended.output}"
            self.refused += 1
            return
        self.trained += 1
        self._check(run, told)
        if rng.random() < 0.6:
            again = self.folder / f"again-{seed}"
            if self._kill_and_resume([f"graph={graph}", f"output={again}", *words], ended, rng, told):
                self.killed += 1
            self._check(again, told)
            if "pipeline.max_in_flight=1" in words or "pipeline.mode=inline" in words:
                for one, other in zip(_arrays(run), _arrays(again), strict=True):
                    assert np.array_equal(one, other), f"{told}\nkilled and resumed, it has other embeddings"
            shutil.rmtree(again)
        shutil.rmtree(run)

    def _check(self, run: Path, told: str) -> None:
        problems = verify(run)
        assert is_sound(problems), f"{told}\n{problems}"
        result = json.loads((run / "result.json").read_text())
        assert math.isfinite(result["train"]["loss"]), f"{told}\n{result['train']}"

    def _kill_and_resume(self, words: list[str], plain: Ended, rng: np.random.Generator, told: str) -> bool:
        """Kill a run up to three times, before random calls of storage, and let it end; whether it was."""
        killed, resume = False, []
        for _ in range(int(rng.integers(1, 4))):
            call = int(rng.integers(1, (plain.calls or 1) + 1))
            ended = self.server.run(["train", *words, *resume], kill_at_call=call)
            resume = ["resume=true"]
            if not ended.killed:
                assert ended.code == 0, f"{told}\nended with {ended.code} on the way:\n{ended.output}"
                break
            killed = True
        ended = self.server.run(["train", *words, *resume], kill_after_s=HANGS_S)
        assert ended.code == 0, f"{told}\nresumed, it ended with {ended.code}:\n{ended.output}"
        return killed


def _arrays(run: Path) -> list[np.ndarray]:
    """The rows of all nodes and the relations' arrays."""
    with open_node_reader(run / "checkpoint") as reader:
        nodes = reader.read_rows(0, reader.table.partitioning.num_nodes)
        relations = reader.checkpoint().arrays
        return [nodes, *(relations[name] for name in sorted(relations))]


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    folder = tmp_path_factory.mktemp("random")
    with CrashServer(folder / "server") as server:
        yield Trials(server, graphs(folder), folder)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(one, marks=pytest.mark.slow) for one in (2, 3, 4, 5))])
def test_a_run_ends_well_or_is_refused(seed: int, trials: Trials) -> None:
    trials.trial(seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", [100, 140])
def test_many_runs(first: int, trials: Trials) -> None:
    own = Trials(trials.server, trials.graphs, trials.folder)
    for seed in range(first, first + 40):
        own.trial(seed)
    assert min(own.trained, own.refused, own.killed) > 5


def _main(first: int, last: int) -> None:
    with tempfile.TemporaryDirectory() as name, CrashServer(Path(name, "server")) as server:
        trials = Trials(server, graphs(Path(name)), Path(name))
        for seed in range(first, last):
            try:
                trials.trial(seed)
            except AssertionError as error:
                sys.stdout.write(f"{error}\n")
        sys.stdout.write(f"{trials}\n")


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
