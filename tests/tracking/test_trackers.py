"""Trackers see every epoch and the result; one that fails does not end the run; names are checked first."""

import csv
import os
import re
import sys
from types import SimpleNamespace

import pytest

import marius_py
from marius_py.assembly import Watcher
from marius_py.convert import graph_from
from marius_py.errors import ConfigError
from marius_py.partitioning import Partitioning
from marius_py.storage.files import set_call_hook
from marius_py.storage.hdf5_nodes import create_node_store
from marius_py.storage.protocols import NodeTable
from marius_py.tracking.trackers import Tracker, Trackers, make_trackers

EDGES = [(f"n{i % 17}", f"n{(i + i // 17 + 1) % 17}") for i in range(119)]  # each once: copies share a split
SETTINGS = {
    "model.decoder": "dot",
    "model.dim": 4,
    "training.epochs": 2,
    "training.valid_every": 1,
    "negatives.count": 5,
}


class Recorder(Tracker):
    calls: list = []  # noqa: RUF012 - made by its path, so the test looks at the class

    def start(self, folder, settings):
        self.calls.append(("start", folder, settings))

    def log(self, epoch, values):
        self.calls.append(("log", epoch, values))

    def finish(self, epoch, values, *, success):
        self.calls.append(("finish", epoch, values, success))


class Failing(Recorder):
    calls: list = []  # noqa: RUF012 - as above

    def log(self, epoch, values):
        raise OSError("no space")

    def finish(self, epoch, values, *, success):
        super().finish(epoch, values, success=success)
        raise OSError("still no space")


class Greedy(Tracker):
    """Takes what it is told out of it."""

    def start(self, folder, settings):
        settings.clear()

    def log(self, epoch, values):
        values.pop("loss")

    def finish(self, epoch, values, *, success):
        values.clear()


class Unlucky(Recorder):
    def __init__(self):
        raise KeyError("WHERE_TO")


class Needy(Recorder):
    def __init__(self, where):
        self.where = where


def test_a_run(tmp_path, caplog):
    Recorder.calls.clear()
    Failing.calls.clear()
    names = [f"{__name__}.Greedy", f"{__name__}.Recorder", "csv", f"{__name__}.Failing"]
    with marius_py.train(EDGES, tmp_path / "run", {**SETTINGS, "trackers": names}) as run:
        history, result = run.history, run.result
    start, *logs, end = Recorder.calls
    assert start[1] == tmp_path / "run"
    assert start[2]["model.dim"] == 4
    assert [call[1] for call in logs] == [1, 2]
    assert logs[1][2]["valid/mrr"] == history[1]["valid"]["mrr"]
    assert (end[1], end[3]) == (2, True)
    assert end[2]["test/mrr"] == result["test"]["mrr"]
    assert "the tracker Failing failed and is left out" in caplog.text
    assert "still no space" not in caplog.text
    assert Failing.calls[1:] == [("finish", 1, {}, False)]  # and no more after it
    with open(tmp_path / "run" / "metrics.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2", "2"]
    assert [float(row["loss"]) for row in rows[:2]] == [line["loss"] for line in history]
    assert [float(row["test/mrr"] or -1) for row in rows] == [-1, -1, result["test"]["mrr"]]
    marius_py.train(EDGES, tmp_path / "run", {"training.epochs": 3}, resume=True).close()
    with open(tmp_path / "run" / "metrics.csv", encoding="utf-8", newline="") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["1", "2", "2", "3", "3"]


def test_a_run_without_test_edges_succeeds_and_a_resumed_one_keeps_its_epochs(tmp_path):
    Recorder.calls.clear()
    graph = graph_from(EDGES, tmp_path / "graph", split=(0.9, 0.1, 0))
    given = {**SETTINGS, "trackers": [f"{__name__}.Recorder"]}
    marius_py.train(graph, tmp_path / "run", given).close()
    assert Recorder.calls[-1] == ("finish", 2, {}, True)
    marius_py.train(graph, tmp_path / "run", resume=True).close()
    assert Recorder.calls[-1] == ("finish", 2, {}, True)
    assert [call[0] for call in Recorder.calls].count("log") == 2


def test_a_program_may_change_its_folder_while_it_trains(tmp_path, monkeypatch):
    class Leaving(Watcher):
        def on_start(self, trainer, num_edges, epochs_done):
            monkeypatch.chdir(tmp_path / "elsewhere")

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    marius_py.train(EDGES, "run", {**SETTINGS, "trackers": ["csv"]}, watcher=Leaving()).close()
    assert [row["epoch"] for row in _rows(tmp_path / "run")] == ["1", "2", "2"]
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_run_that_fails_says_so(tmp_path):
    Recorder.calls.clear()
    trackers = make_trackers([f"{__name__}.Recorder"])
    trackers.start(tmp_path, {}, 3)
    trackers.finish(None)
    assert Recorder.calls[-1] == ("finish", 3, {}, False)


def _rows(folder):
    with open(folder / "metrics.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_csv_file_has_every_figure_that_was_ever_logged(tmp_path):
    trackers = make_trackers(["csv"])
    trackers.start(tmp_path, {})
    trackers.log({"epoch": 0, "loss": 3.0})
    trackers.log({"epoch": 1, "loss": 2.0, "valid": {"mrr": 0.5}})
    trackers.log({"epoch": 2, "loss": 1.0})
    assert _rows(tmp_path) == [
        {"epoch": "1", "loss": "3.0", "valid/mrr": ""},
        {"epoch": "2", "loss": "2.0", "valid/mrr": "0.5"},
        {"epoch": "3", "loss": "1.0", "valid/mrr": ""},
    ]
    trackers.finish({"test": {"mrr": 0.25}})
    assert _rows(tmp_path)[-1] == {"epoch": "3", "loss": "", "valid/mrr": "", "test/mrr": "0.25"}
    again = make_trackers(["csv"])
    again.start(tmp_path, {})
    again.log({"epoch": 3, "loss": 0.5, "valid": {"mrr": 0.75, "hits@1": 0.125}})
    again.finish({"test": {"mrr": 0.375}})
    again.finish({"test": {"mrr": 0.5}})
    rows = _rows(tmp_path)
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "3", "4", "4"]
    assert [row["valid/mrr"] for row in rows] == ["", "0.5", "", "", "0.75", ""]
    assert [row["test/mrr"] for row in rows] == ["", "", "", "0.25", "", "0.5"]
    assert rows[4]["valid/hits@1"] == "0.125"
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


def test_a_failed_run_leaves_no_test_line(tmp_path):
    trackers = make_trackers(["csv"])
    trackers.start(tmp_path, {})
    trackers.log({"epoch": 0, "loss": 3.0})
    trackers.finish(None)
    assert _rows(tmp_path) == [{"epoch": "1", "loss": "3.0"}]


def test_a_csv_line_that_was_cut_short_is_left_out(tmp_path):
    (tmp_path / "metrics.csv").write_text("epoch,loss\n1,3.0\n2,2.")
    trackers = make_trackers(["csv"])
    trackers.start(tmp_path, {})
    trackers.log({"epoch": 2, "loss": 1.0})
    assert [row["epoch"] for row in _rows(tmp_path)] == ["1", "3"]


def test_a_pipe_in_place_of_the_csv_file_is_not_waited_for(tmp_path, caplog):
    os.mkfifo(tmp_path / "metrics.csv")
    make_trackers(["csv"]).start(tmp_path, {})
    assert "it is no file but a pipe" in caplog.text


@pytest.mark.parametrize("kept", [0, 1])
def test_an_epoch_whose_csv_line_a_kill_prevented_is_made_up_for(tmp_path, kept):
    given = {**SETTINGS, "trackers": ["csv"], "training.valid_every": 2}
    with marius_py.train(EDGES, tmp_path / "run", given) as run:
        history = run.history
    file = tmp_path / "run" / "metrics.csv"
    whole = file.read_text().splitlines(keepends=True)
    file.write_text("".join(whole[: kept + 1]))  # as if it had ended between a commit and the line
    marius_py.train(EDGES, tmp_path / "run", {"training.epochs": 3}, resume=True).close()
    rows = _rows(tmp_path / "run")
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "3"]
    assert [float(row["loss"]) for row in rows[:2]] == [line["loss"] for line in history]
    assert [row["valid/mrr"] for row in rows[:2]] == ["", str(history[1]["valid"]["mrr"])]


def test_the_csv_file_is_replaced_whole(tmp_path, monkeypatch, caplog):
    trackers = make_trackers(["csv"])
    trackers.start(tmp_path, {})
    trackers.log({"epoch": 0, "loss": 3.0})

    def full(call, path, size):
        if call == "pwritev":
            raise OSError(28, "No space left on device")
        return size

    before = set_call_hook(full)
    try:
        trackers.log({"epoch": 1, "loss": 2.0, "valid": {"mrr": 0.5}})
    finally:
        set_call_hook(before)
    assert "the tracker CsvTracker failed and is left out" in caplog.text
    assert _rows(tmp_path) == [{"epoch": "1", "loss": "3.0"}]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


def test_names_are_checked_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    for name, message in (
        ("excel", "trackers=excel is unknown: it takes one of csv"),
        ("mlflow", "pip install mlflow"),
        ("collections.OrderedDict", "no class derived from"),
        ("no_such_module.X", "no module named no_such_module"),
    ):
        with pytest.raises(ConfigError, match=message):
            marius_py.train(marius_py.TrainConfig(trackers=(name,), output=str(tmp_path / "run")))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [
        ("x = undefined", "own.Mine", "importing own failed: NameError: name 'undefined' is not defined"),
        ("def (", "own.Mine", "importing own failed: SyntaxError"),
        ("raise SystemExit(0)", "own.Mine", "importing own failed: SystemExit: 0"),
        ("", "own.Mine", "own has no Mine"),
        ("", "..Mine", "importing . failed"),
        (
            "from marius_py.trackers import Tracker",
            "own.Mine",
            "marius_py.trackers; it is marius_py.tracking",
        ),
        ("", "marius_py.trackers.CsvTracker", "trackers=[csv] beside resume=true"),
    ],
)
def test_classes_that_cannot_be_imported_are_refused(tmp_path, monkeypatch, module, name, message):
    (tmp_path / "own.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own", raising=False)
    with pytest.raises(ConfigError, match=f"^trackers={re.escape(name)}: .*{re.escape(message)}"):
        make_trackers([name])
    sys.modules.pop("own", None)


def test_classes_that_cannot_be_made_are_refused():
    with pytest.raises(ConfigError, match=r"Unlucky cannot be made: KeyError: 'WHERE_TO'"):
        make_trackers([f"{__name__}.Unlucky"])
    with pytest.raises(ConfigError, match=r"Needy cannot be made: missing a required argument: 'where'"):
        make_trackers([f"{__name__}.Needy"])


def test_a_class_is_named_with_a_dot_or_a_colon():
    for name in (f"{__name__}:Recorder", f"{__name__}.Recorder"):
        assert make_trackers([name])


@pytest.mark.parametrize("second", ["csv", "marius_py.tracking.trackers.CsvTracker"])
def test_a_tracker_is_given_once(tmp_path, second):
    config = marius_py.TrainConfig(trackers=("csv", second), output=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match=rf"^trackers=\[csv,{second}\] names {second} twice"):
        marius_py.train(config)
    assert not list(tmp_path.iterdir())


def _with_store(folder):
    """A run folder whose store has been created, as it is when trackers start."""
    create_node_store(folder / "checkpoint", NodeTable(Partitioning(2, 1), 1, 0), spare_slots=1).close()
    return folder


def test_mlflow_and_wandb_are_called_as_they_ask(tmp_path, monkeypatch):
    calls = []

    def note(name):
        return lambda *arguments, **named: calls.append((name, arguments, named))

    names = ("start_run", "log_params", "log_metrics", "end_run")
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(**{name: note(name) for name in names}))
    run = SimpleNamespace(log=note("log"), finish=note("finish"), summary={})
    monkeypatch.setitem(
        sys.modules, "wandb", SimpleNamespace(init=lambda **named: calls.append(named) or run)
    )
    trackers = make_trackers(["mlflow", "wandb"])
    trackers.start(_with_store(tmp_path / "run"), {"model": {"dim": 4}})
    trackers.log({"epoch": 0, "loss": 2, "valid": {"hits@1": 0.5}})
    trackers.finish({"test": {"mrr": 0.25}})
    assert ("log_params", ({"model.dim": "4"},), {}) in calls
    assert ("log_metrics", ({"loss": 2.0, "valid/hits_at_1": 0.5},), {"step": 1}) in calls
    assert ("log", ({"loss": 2.0, "valid/hits@1": 0.5},), {"step": 1}) in calls
    assert ("end_run", ("FINISHED",), {}) in calls
    assert ("finish", (), {"exit_code": 0}) in calls
    assert run.summary == {"test/mrr": 0.25}
    assert any(isinstance(call, dict) and call["resume"] == "allow" for call in calls)


def test_a_run_of_wandb_goes_on_with_its_run_wherever_that_lies(tmp_path, monkeypatch):
    ids = []
    run = SimpleNamespace(log=lambda values, step: None, finish=lambda exit_code: None, summary={})
    wandb = SimpleNamespace(init=lambda **named: ids.append(named["id"]) or run)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    given = {**SETTINGS, "trackers": ["wandb"]}
    marius_py.train(EDGES, tmp_path / "run", given).close()
    (tmp_path / "run").rename(tmp_path / "moved")
    marius_py.train(EDGES, tmp_path / "moved", {"training.epochs": 3}, resume=True).close()
    marius_py.train(EDGES, tmp_path / "run", given).close()  # a new one in its place
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize(("result", "status", "code"), [({"test": None}, "FINISHED", 0), (None, "FAILED", 1)])
def test_only_a_run_that_failed_is_reported_as_failed(tmp_path, monkeypatch, result, status, code):
    ends = []
    mlflow = SimpleNamespace(
        start_run=lambda run_name: None,
        log_params=lambda values: None,
        log_metrics=lambda values, step: None,
        end_run=ends.append,
    )
    run = SimpleNamespace(finish=lambda exit_code: ends.append(exit_code), summary={})
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **named: run))
    trackers = make_trackers(["mlflow", "wandb"])
    trackers.start(_with_store(tmp_path / "run"), {})
    trackers.finish(result)
    assert ends == [status, code]


@pytest.fixture
def mlflow(monkeypatch):
    """MLflow as far as it goes here: one active run, `ends` of those that were, calls in `broken` fail."""
    fake = SimpleNamespace(active=[], ends=[], broken=set())

    def call(name, *given):
        if name in fake.broken:
            raise ConnectionError("the server is gone")

    def start_run(run_name):
        if fake.active:
            raise RuntimeError(f"Run {fake.active[0]} is already active")
        fake.active.append(run_name)

    fake.start_run = start_run
    fake.log_params = lambda values: call("log_params")
    fake.log_metrics = lambda values, step: call("log_metrics")
    fake.end_run = lambda status: fake.ends.append((fake.active.pop(), status))
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    return fake


@pytest.mark.parametrize("broken", ["log_params", "log_metrics"])
def test_a_run_of_mlflow_that_failed_makes_way_for_the_next(tmp_path, mlflow, broken):
    for name, calls in (("a", {broken}), ("b", set())):
        mlflow.broken = calls
        trackers = make_trackers(["mlflow"])
        trackers.start(tmp_path / name, {})
        trackers.log({"epoch": 0, "loss": 2.0})
        trackers.finish({"test": {"mrr": 0.25}})
    assert mlflow.ends == [("a", "FAILED"), ("b", "FINISHED")]


def test_trackers_that_fail_at_the_end_are_closed(tmp_path, monkeypatch, mlflow):
    class Summary:
        def update(self, values):
            raise ConnectionError("the server is gone")

    codes = []
    run = SimpleNamespace(finish=lambda exit_code: codes.append(exit_code), summary=Summary())
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **named: run))
    trackers = make_trackers(["mlflow", "wandb"])
    trackers.start(_with_store(tmp_path / "run"), {})
    mlflow.broken = {"log_metrics"}
    trackers.finish({"test": {"mrr": 0.25}})
    assert mlflow.ends == [("run", "FINISHED")]
    assert codes == [0]


def test_a_run_of_mlflow_that_a_program_began_is_left_to_it(tmp_path, mlflow, caplog):
    mlflow.start_run("own")
    trackers = make_trackers(["mlflow"])
    trackers.start(tmp_path / "run", {})
    trackers.finish({"test": {"mrr": 0.25}})
    assert "Run own is already active" in caplog.text
    assert (mlflow.active, mlflow.ends) == (["own"], [])


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    trackers = make_trackers(["tensorboard"])
    trackers.start(tmp_path, {"model": {"dim": 4}})
    trackers.log({"epoch": 0, "loss": 2.0})
    trackers.finish({"test": {"mrr": 0.25}})
    assert list((tmp_path / "tensorboard").iterdir())


def test_none_is_fine():
    Trackers([]).log({"epoch": 0})
