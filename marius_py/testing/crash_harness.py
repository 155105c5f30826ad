"""Kill prepare, train, evaluate and export at random moments; compare with what was never killed (floor 6).

In: a folder and a seed. Out: a report, or AssertionError with the trial's seed. Every trial kills one command
once or several times, gives it again as a user would (`resume=true`, `overwrite=true`) until it ends, and
holds the result to the undisturbed one: equal metrics, bit-equal embeddings, the same files and no others.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from marius_py.storage.reader import open_node_reader
from marius_py.testing.crashes import CrashServer, Ended
from marius_py.verify import is_sound, verify

NODES, RELATIONS, EDGES = 240, 3, 2400
SETTINGS = (
    "storage.partitions=8",
    "storage.capacity=3",
    "model.dim=8",
    "model.node_dropout=0.1",
    "negatives.count=16",
    "negatives.chunks=2",
    "training.epochs=3",
    "training.batch_size=64",
    "training.valid_every=1",
    "checkpoint.every_steps=2",
    "pipeline.compute_threads=1",
    "device=cpu",
)
WEIGHTS = {"prepare": 0.15, "train": 0.6, "evaluate": 0.1, "export": 0.15}
"""How often each command is the victim."""

MOST_KILLS = 3
"""Kills of one command in a row, before it is left to end."""


@dataclass(slots=True)
class CrashReport:
    """What was killed.

    Attributes:
        trials: how many. kills: by command. resumed_from: committed positions after kills of training.
    """

    trials: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    resumed_from: Counter[tuple[int, int, int]] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """Kills in all."""
        return self.kills.total()


class CrashHarness:
    """Trials over one small graph; use it in a `with` block.

    Args:
        folder: scratch space, made if missing.
        mode: pipeline.mode of the runs; threaded ones have one batch in flight, which equals inline.
    """

    def __init__(self, folder: Path, mode: str = "inline") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._settings = [*SETTINGS, f"pipeline.mode={mode}", "pipeline.max_in_flight=1"]
        self._server = CrashServer(folder / "server")
        self.report = CrashReport()
        self._plain: dict[str, Ended] = {}
        try:
            self._run_undisturbed()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server."""
        self._server.close()

    def trial(self, seed: int) -> str:
        """Kill one command drawn from `seed`; returns its name.

        Raises:
            AssertionError: something was lost, left behind or changed.
        """
        rng = np.random.default_rng([77, seed])
        names = list(WEIGHTS)
        name = str(rng.choice(names, p=[WEIGHTS[one] for one in names]))
        place = self.folder / f"trial-{seed}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        try:
            check: Callable[[Path, np.random.Generator], None] = getattr(self, f"_try_{name}")
            check(place, rng)
        except AssertionError as error:
            raise AssertionError(f"trial {seed} ({name}, files kept in {place}): {error}") from error
        shutil.rmtree(place)
        self.report.trials += 1
        return name

    # ------------------------------------------------------------------ the undisturbed run

    def _run_undisturbed(self) -> None:
        rng = np.random.default_rng(0)
        head, relation = rng.integers(0, NODES, EDGES), rng.integers(0, RELATIONS, EDGES)
        tail = (head * (relation + 2) + rng.integers(0, 3, EDGES)) % NODES
        lines = sorted({f"n{h}\tr{r}\tn{t}\n" for h, r, t in zip(head, relation, tail, strict=True)})
        (self.folder / "edges.tsv").write_text("".join(lines))
        self._graph, self._run = self.folder / "graph", self.folder / "run"
        for path in (self._graph, self._run):
            shutil.rmtree(path, ignore_errors=True)
        outputs = self.folder / "outputs"
        outputs.mkdir(exist_ok=True)
        for name, words in (
            ("prepare", self._prepare(self._graph)),
            ("train", self._train(self._run)),
            ("evaluate", self._evaluate(outputs)),
            ("export", self._export(outputs)),
        ):
            self._plain[name] = self._finish(words)
        self._files = {path: _tree(path) for path in (self._graph, self._run, outputs)}
        self._outputs = outputs
        self._embeddings = _embeddings(self._run)
        self._result = _json(self._run / "result.json")
        _expect(is_sound(verify(self._run)) and not verify(self._run), "the undisturbed run is not sound")

    def _prepare(self, output: Path) -> list[str]:
        train = self.folder / "edges.tsv"
        return ["prepare", f"input.train={train}", f"output={output}", "partitions=8", "input.header=false"]

    def _train(self, output: Path) -> list[str]:
        return ["train", f"graph={self._graph}", f"output={output}", *self._settings]

    def _evaluate(self, folder: Path) -> list[str]:
        return ["evaluate", f"run={self._run}", "compute_threads=1", f"output={folder / 'metrics.json'}"]

    def _export(self, folder: Path) -> list[str]:
        return [
            "export",
            str(self._run),
            "--format",
            "npy",
            "--output",
            str(folder / "nodes.npy"),
            "--overwrite",
        ]

    def _finish(self, words: list[str]) -> Ended:
        ended = self._server.run(words)
        _expect(ended.code == 0, f"{' '.join(words)} ended with {ended.code}:\n{ended.output}")
        return ended

    def _kill(self, name: str, words: list[str], rng: np.random.Generator) -> bool:
        """Run a command, kill it at a random moment of its time or its system calls; whether it died."""
        plain = self._plain[name]
        if plain.calls and rng.random() < 0.5:
            ended = self._server.run(words, kill_at_call=int(rng.integers(1, plain.calls + 1)))
        else:
            ended = self._server.run(words, kill_after_s=float(rng.random()) * plain.seconds)
        if ended.killed:
            self.report.kills[name] += 1
            return True
        _expect(ended.code == 0, f"{name} was not killed and ended with {ended.code}:\n{ended.output}")
        return False

    # ------------------------------------------------------------------ trials by command

    def _try_prepare(self, place: Path, rng: np.random.Generator) -> None:
        output, fingerprint = place / "graph", _json(self._graph / "graph.json")["fingerprint"]
        words = self._prepare(output)
        for _ in range(int(rng.integers(1, MOST_KILLS + 1))):
            self._kill("prepare", words, rng)
            if output.exists():  # renamed into place as a whole, or not there
                _expect(is_sound(verify(output)), f"a killed prepare left a damaged graph: {verify(output)}")
                words = [*self._prepare(output), "overwrite=true"]
        self._finish([*self._prepare(output), "overwrite=true"])
        _expect(_json(output / "graph.json")["fingerprint"] == fingerprint, "another fingerprint")
        _same_files(output, self._files[self._graph])
        _expect([one.name for one in place.iterdir()] == ["graph"], f"left behind: {list(place.iterdir())}")

    def _try_train(self, place: Path, rng: np.random.Generator) -> None:
        output = place / "run"
        words = self._train(output)
        reached = (0, 0, 0)
        for _ in range(int(rng.integers(1, MOST_KILLS + 1))):
            if not self._kill("train", words, rng):
                break
            words = [*self._train(output), "resume=true"]
            position = committed_position(output)
            _expect((position or (0, 0, 0)) >= reached, f"fell from {reached} back to {position}")
            if position is not None:
                reached = position
                self.report.resumed_from[position] += 1
                _expect(is_sound(verify(output)), f"a kill damaged the run: {verify(output)}")
        self._finish([*self._train(output), "resume=true"])
        _expect(not verify(output), f"the resumed run is not sound: {verify(output)}")
        _same_files(output, self._files[self._run])
        _expect(np.array_equal(_embeddings(output), self._embeddings), "the embeddings differ")
        test = _timeless(_json(output / "result.json")["test"])
        _expect(test == _timeless(self._result["test"]), f"the metrics differ: {test}")
        for line, wanted in zip(_lines(output), _lines(self._run), strict=True):
            _expect(
                _timeless(line["valid"]) == _timeless(wanted["valid"]),
                f"the validation of epoch {line['epoch']} differs",
            )
            _expect(line["edges"] == wanted["edges"], f"epoch {line['epoch']}: {line['edges']} edges trained")
            close = abs(line["loss"] - wanted["loss"]) <= 1e-9 * abs(wanted["loss"])
            _expect(close, f"the loss of epoch {line['epoch']} differs: {line['loss']}, {wanted['loss']}")

    def _try_evaluate(self, place: Path, rng: np.random.Generator) -> None:
        self._kill("evaluate", self._evaluate(place), rng)
        self._finish(self._evaluate(place))
        wanted = _timeless(_json(self._outputs / "metrics.json"))
        _expect(_timeless(_json(place / "metrics.json")) == wanted, "the metrics differ")
        _expect([one.name for one in place.iterdir()] == ["metrics.json"], "files left behind")
        _same_files(self._run, self._files[self._run])

    def _try_export(self, place: Path, rng: np.random.Generator) -> None:
        for _ in range(int(rng.integers(1, MOST_KILLS + 1))):
            self._kill("export", self._export(place), rng)
        self._finish(self._export(place))
        wanted = {name for name in self._files[self._outputs] if name != "metrics.json"}
        _expect(_tree(place) == wanted, f"files are {_tree(place)}, should be {wanted}")
        for name in wanted:
            same = (place / name).read_bytes() == (self._outputs / name).read_bytes()
            _expect(same, f"{name} differs")
        _same_files(self._run, self._files[self._run])


def committed_position(run: Path) -> tuple[int, int, int] | None:
    """Position (epoch, step, batch) of a run's last commit; None before the first."""
    from marius_py.storage.checkpoint_file import CHECKPOINT_NAME, read_checkpoint

    path = run / "checkpoint" / CHECKPOINT_NAME
    if not path.exists():
        return None
    manifest, checkpoint = read_checkpoint(path)
    if not manifest.generation:
        return None
    epoch, step, batch = checkpoint.meta["position"]
    return epoch, step, batch


def _embeddings(run: Path) -> Any:
    with open_node_reader(run / "checkpoint") as reader:
        return reader.read_rows(0, reader.table.partitioning.num_nodes)


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def _timeless(metrics: Any) -> Any:
    return {name: value for name, value in metrics.items() if name != "seconds"}


def _lines(run: Path) -> list[Any]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def _tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def _same_files(folder: Path, wanted: set[str]) -> None:
    found = _tree(folder)
    _expect(found == wanted, f"{folder} has other files: {sorted(found ^ wanted)}")


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
