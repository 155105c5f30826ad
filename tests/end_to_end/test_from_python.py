"""`marius_py.train` where a program of hydra's surrounds it, in threads, and given data in any form again."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.version import VersionBase

import marius_py
from marius_py import api
from marius_py.assembly.build import Watcher
from marius_py.config import hydra_values, load_config
from marius_py.errors import ConfigError, InterruptedRunError, MissingPathError
from marius_py.storage.hdf5_nodes import open_node_store

PARSER = "hydra.core.override_parser.overrides_parser.OverridesParser.create"

SMALL: dict[str, Any] = {
    "device": "cpu",
    "model": {"decoder": {"_target_": "transe", "norm": "l1"}, "dim": 4},
    "negatives.count": 4,
    "training": {"epochs": 1, "valid_every": 0},
    "pipeline": {"mode": "inline", "compute_threads": 1},
}
TRIPLES = [(f"a{i}", "r", f"a{(i * i + 3) % 40}") for i in range(60)]
OTHERS = [*TRIPLES[:-1], ("a59", "r", "elsewhere")]


@pytest.fixture
def outer(tmp_path: Path) -> Iterator[None]:
    """A program that has initialised hydra for itself."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "mine.yaml").write_text("mine: 3\n")
    hydra_values._composed_once.cache_clear()
    with initialize_config_dir(str(tmp_path / "conf"), version_base="1.2"):
        yield


@pytest.mark.usefixtures("outer")
def test_settings_compose_within_a_program_of_hydra() -> None:
    before, base = GlobalHydra.instance().hydra, VersionBase.instance().getbase()
    assert load_config(["model.dim=16"]).model.dim == 16
    with pytest.raises(ConfigError, match="dimm"):
        load_config(["model.dimm=16"])
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(["model.dim=[1"])
    assert GlobalHydra.instance().hydra is before
    assert VersionBase.instance().getbase() == base
    assert compose("mine").mine == 3


def test_training_within_a_program_of_hydra(graph: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import hydra\n"
        "import marius_py\n"
        '@hydra.main(version_base="1.3", config_path=None)\n'
        "def main(config):\n"
        '    small = {"model.dim": 4, "training.epochs": 1, "training.valid_every": 0, "device": "cpu"}\n'
        '    with marius_py.train(config.graph, config.output, small | {"negatives.count": 4}) as run:\n'
        '        print("trained", run.epochs)\n'
        "main()\n"
    )
    words = [f"+graph={graph}", f"+output={tmp_path / 'run'}", f"hydra.run.dir={tmp_path / 'hydra'}"]
    ended = subprocess.run(
        [sys.executable, str(program), *words], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr
    assert "trained 1" in ended.stdout


def test_settings_compose_in_threads() -> None:
    found: dict[int, list[int]] = {}
    failed: list[BaseException] = []
    start = threading.Barrier(4)

    def work(number: int) -> None:
        try:
            start.wait()
            found[number] = [load_config([f"model.dim={8 * (number + i + 1)}"]).model.dim for i in range(3)]
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert found == {number: [8 * (number + i + 1) for i in range(3)] for number in range(4)}
    assert not GlobalHydra.instance().is_initialized()


def test_two_runs_in_threads(graph: Path, tmp_path: Path) -> None:
    done: list[int] = []

    def work(name: str) -> None:
        with marius_py.train(graph, tmp_path / name, SMALL) as run:
            done.append(run.epochs)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [1, 1]


def test_settings_as_config_yaml_has_them(graph: Path, tmp_path: Path) -> None:
    with marius_py.train(graph, tmp_path / "run", SMALL) as run:
        assert run.settings["model.decoder"] == {"_target_": "transe", "norm": "l1"}
        assert run.dim == 4
    with pytest.raises(ConfigError, match=r"settings is list \['model.dim=16'\]; allowed: a mapping"):
        marius_py.train(graph, tmp_path / "other", ["model.dim=16"])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"model\.dimm"):
        marius_py.train(graph, tmp_path / "other", {"model": {"dimm": 16}})
    with pytest.raises(ConfigError, match="key 3 is int"):
        marius_py.train(graph, tmp_path / "other", {3: 16})  # type: ignore[dict-item]
    assert not (tmp_path / "other").exists()


def test_a_resumed_run_has_to_have_its_data(tmp_path: Path) -> None:
    run = tmp_path / "run"
    marius_py.train(TRIPLES, run, SMALL).close()
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(ConfigError, match=r"these data are not those that .*run-graph was prepared from"):
        marius_py.train(OTHERS, run, {"training.epochs": 2}, resume=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    left = tmp_path / ".run-graph.comparing-9-0"  # of a process that was killed while it compared
    (left / "graph").mkdir(parents=True)
    os.utime(left, (0, 0))
    with marius_py.train(TRIPLES, run, {"training.epochs": 2}, resume=True) as resumed:
        assert resumed.epochs == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    with marius_py.train(tmp_path / "run-graph", run, {"training.epochs": 3}, resume=True) as resumed:
        assert resumed.epochs == 3


def test_a_run_folder_is_named_once(graph: Path, tmp_path: Path) -> None:
    given = {**SMALL, "output": tmp_path / "null"}
    with marius_py.train(graph, settings=given) as run:
        assert run.path == tmp_path / "null"
    with marius_py.train(graph, tmp_path / "null", {**given, "graph": graph}, resume=True) as run:
        assert run.epochs == 1
    for other in ({"output": "b"}, {"graph": "b"}):
        name = next(iter(other))
        with pytest.raises(ConfigError, match=f"{name} is '.*' as the argument, but 'b' in settings"):
            marius_py.train(graph, tmp_path / "a", {**SMALL, **other})
    with pytest.raises(ConfigError, match=r"graph is '\(list\)' as the argument, but 'b' in settings"):
        marius_py.train(TRIPLES, tmp_path / "a", {**SMALL, "graph": "b"})
    with pytest.raises(ConfigError, match="says everything"):
        marius_py.train(load_config([f"graph={graph}"]), resume=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["null"]


@pytest.mark.parametrize(
    "settings",
    [{"training.batch_size": 129}, {"storage.partitions": 2}, {"model.decoder": "transe", "model.dim": 7}],
)
@pytest.mark.parametrize("prepared", [True, False])
def test_the_settings_of_the_demo_are_for_the_demo(
    settings: dict[str, Any], prepared: bool, graph: Path, tmp_path: Path
) -> None:
    base = {"device": "cpu", "model.dim": 4, "negatives.count": 4, "training.valid_every": 0}
    base |= {"training.epochs": 1, "pipeline.mode": "inline", "pipeline.compute_threads": 1, **settings}
    data = graph if prepared else TRIPLES
    marius_py.train(data, tmp_path / "run", base).close()
    with marius_py.train(data, tmp_path / "run", {**settings, "training.epochs": 2}, resume=True) as run:
        assert run.epochs == 2


@pytest.mark.parametrize(
    "wrong",
    [{"storage.capacity": 99}, {"model.decoder": "nowhere.Mine"}, {"model.dim": 0}, {"trackers": ["none"]}],
)
@pytest.mark.parametrize("output", [None, "run", "new/folder/run"])
def test_a_call_that_was_refused_leaves_nothing(
    wrong: dict[str, Any], output: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        marius_py.train(TRIPLES, output, {**SMALL, **wrong})
    assert [path.name for path in tmp_path.rglob("*")] in ([], ["runs"])


def test_a_graph_that_is_there_is_used_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    marius_py.graph_from(TRIPLES, tmp_path / "run-graph")
    with pytest.raises(ConfigError, match=r"storage\.capacity=99"):
        marius_py.train(TRIPLES, run, {**SMALL, "storage.capacity": 99})
    with marius_py.train(TRIPLES, run, SMALL) as opened:
        assert opened.epochs == 1
    shutil.rmtree(run)
    with pytest.raises(ConfigError, match=r"not those that .*run-graph was prepared .*or another output"):
        marius_py.train(OTHERS, run, SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["run-graph"]


def test_resume_among_the_settings(tmp_path: Path) -> None:
    run = tmp_path / "run"
    marius_py.train(TRIPLES, run, SMALL).close()
    with marius_py.train(TRIPLES, run, {"training.epochs": 2, "resume": True}) as resumed:
        assert resumed.epochs == 2
    saved = {"training.epochs": 3, "resume": False}  # as config.yaml has it
    with marius_py.train(TRIPLES, run, saved, resume=np.True_) as resumed:  # type: ignore[arg-type]
        assert resumed.epochs == 3


@pytest.mark.parametrize("resume", ["no", 1, 0, None, np.array([True])])
@pytest.mark.parametrize("graph", [TRIPLES, load_config(["model.dim=4"])], ids=["object", "config"])
def test_resume_is_true_or_false(resume: Any, graph: Any, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=rf"resume is {re.escape(repr(resume))}, \w+; allowed: True or False"
    ):
        marius_py.train(graph, tmp_path / "run", SMALL, resume=resume)
    assert not list(tmp_path.iterdir())


def test_runs_without_a_name_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [marius_py.train(TRIPLES, settings=SMALL) for _ in range(2)]
    for run in runs:
        run.close()
        assert run.graph.path == run.path.with_name(f"{run.path.name}-graph")
    with pytest.raises(ConfigError):
        marius_py.train([("a",)], settings=SMALL)
    names = {run.path.name for run in runs}
    assert {path.name for path in (tmp_path / "runs").iterdir()} == names | {f"{one}-graph" for one in names}
    assert len(names) == 2


def test_a_file_is_no_graph(tmp_path: Path) -> None:
    file = tmp_path / "edges.tsv"
    file.write_text("a\tr\tb\n")
    with pytest.raises(MissingPathError) as caught:
        marius_py.train(file, tmp_path / "run", SMALL)
    assert f"graph={file} is a file" in str(caught.value)
    assert f"marius-prepare input.train={file} output=graphs/NAME" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_working_directory_that_was_deleted_is_said(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(MissingPathError, match=r"^the working directory cannot be used .*: change to a fol"):
        marius_py.train(graph, tmp_path / "run", SMALL)
    assert not (tmp_path / "run").exists()


class Interrupting(Watcher):
    """Interrupts the program after some batches, as Ctrl-C or a notebook does."""

    def __init__(self, after: int, times: int = 1) -> None:
        self.after, self.times = after, times

    def on_progress(self, edges: int) -> None:
        self.after -= 1
        if self.after <= 0 and self.times > 0:
            self.times -= 1
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("watcher", [Watcher, print, 0, "progress"])
def test_what_is_no_watcher_is_refused(watcher: Any, graph: Path, tmp_path: Path) -> None:
    message = f"^watcher is {re.escape(repr(watcher))}; it must be an object of a class derived from "
    with pytest.raises(ConfigError, match=message):
        marius_py.train(graph, tmp_path / "run", SMALL, watcher=watcher)
    with pytest.raises(ConfigError, match=message):
        marius_py.evaluate(tmp_path / "run", watcher=watcher)
    assert not (tmp_path / "run").exists()


def test_a_watcher_may_change_the_lines_that_it_is_told(graph: Path, tmp_path: Path) -> None:
    class Table(Watcher):
        rows: ClassVar[list[Any]] = []

        def on_epoch(self, line: Any) -> None:
            line["mrr"] = line.pop("valid").pop("mrr")
            line["when"] = object()
            self.rows.append(line)

    settings = {**SMALL, "training": {"epochs": 2, "valid_every": 1, "patience": 2}}
    with marius_py.train(graph, tmp_path / "run", settings, watcher=Table()) as run:
        assert [line["valid"]["mrr"] for line in run.history] == [row["mrr"] for row in Table.rows]
        assert "when" not in run.history[0]


@pytest.mark.parametrize("mode", ["inline", "threaded"])
@pytest.mark.parametrize("method", ["on_start", "on_progress", "on_epoch", "on_stage"])
def test_what_a_watcher_raises_comes_as_it_is(
    method: str, mode: str, graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PrunedError(Exception):
        pass

    def prune(*arguments: Any) -> None:
        raise PrunedError("worse than the others")

    watcher = Watcher()
    monkeypatch.setattr(watcher, method, prune)
    with pytest.raises(PrunedError) as caught:
        marius_py.train(graph, tmp_path / "run", {**SMALL, "pipeline.mode": mode}, watcher=watcher)
    assert caught.value.__cause__ is None
    assert prune.__name__ in [one.name for one in caught.traceback]
    with marius_py.train(graph, tmp_path / "run", resume=True) as run:
        assert run.epochs == 1


def test_an_interrupt_commits_and_goes_on_with_resume(tmp_path: Path) -> None:
    settings = {**SMALL, "training.epochs": 3, "training.batch_size": 10, "negatives.chunks": 2}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt, match="resume=true") as caught:
            marius_py.train(TRIPLES, tmp_path / "run", settings, watcher=Interrupting(8))
        assert isinstance(caught.value.__cause__, InterruptedRunError)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with open_node_store(tmp_path / "run" / "checkpoint") as store:
            assert store.meta is not None
            assert store.meta["position"][0] == 1
            assert store.meta["position"] != [1, 0, 0]
        with marius_py.train(TRIPLES, tmp_path / "run", resume=True) as run:
            resumed = run.to_numpy()
        with marius_py.train(TRIPLES, tmp_path / "whole", settings) as run:
            np.testing.assert_array_equal(run.to_numpy(), resumed)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_handler_of_the_programs_own_is_called_instead(tmp_path: Path) -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        with marius_py.train(TRIPLES, tmp_path / "run", SMALL, watcher=Interrupting(1)) as run:
            assert run.epochs == 1
    finally:
        signal.signal(signal.SIGINT, before)
    assert came == [signal.SIGINT]


def test_a_graph_that_appears_while_it_is_prepared_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another thread that was given the same edges and output."""
    prepare = api.graph_from

    def late(graph: Any, output: Path) -> Any:
        if output.name == "run-graph":
            prepare(graph, output)
        return prepare(graph, output)

    monkeypatch.setattr(api, "graph_from", late)
    with marius_py.train(TRIPLES, tmp_path / "run", SMALL) as run:
        assert run.epochs == 1


@pytest.mark.parametrize("kind", [UnboundLocalError, ValueError, HydraException])
@pytest.mark.parametrize("where", ["hydra.compose", PARSER])
def test_what_hydra_makes_of_an_interrupt_is_one(
    where: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*words: Any, **named: Any) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise kind("instead")

    hydra_values._composed_once.cache_clear()
    monkeypatch.setattr(where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_config(["model.dim=8"])


def test_an_error_while_an_interrupt_is_handled_is_that_error() -> None:
    with pytest.raises(ConfigError, match="dimm"):  # noqa: PT012
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            load_config(["model.dimm=8"])
