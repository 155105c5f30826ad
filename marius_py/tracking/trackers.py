"""Trackers: a run's figures as they come, for programs that draw them (floor 5).

In: the settings, an epoch's line of metrics, the result. Out: whatever a `Tracker` makes of them.
metrics.jsonl is always written; these come on top. A tracker's library is imported when it is made, and is
no dependency.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import takewhile
from pathlib import Path
from typing import IO, Any

from marius_py.config import Component
from marius_py.config.registry import make
from marius_py.errors import ConfigError
from marius_py.run_files.names import CHECKPOINT_FOLDER, CSV_FILE, METRICS_FILE
from marius_py.storage.file_io import replace_file
from marius_py.storage.node_file import NODES_NAME, read_facts
from marius_py.storage.regular import read_regular

logger = logging.getLogger(__name__)

TENSORBOARD_FOLDER = "tensorboard"


class Tracker(ABC):
    """Takes a run's figures; a subclass of yours is named by its dotted path: trackers=[mypkg.MyTracker].

    A tracker is made without arguments, before any data is opened. What it raises later is logged and does
    not end the run; `finish` is called, if it was not that which failed, and nothing after it.
    """

    @abstractmethod
    def start(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Training begins or goes on.

        Args:
            folder: the run folder.
            settings: all settings, flat: "model.dim" → 64.
        """

    @abstractmethod
    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        """An epoch is done and committed.

        Args:
            epoch: epochs done, from 1.
            values: flat figures: "loss", "edges_per_second", "valid/mrr", "valid/head/hits@10", …; those of
                a sample of edges or candidates are called "valid_sampled/mrr", …
        """

    @abstractmethod
    def finish(self, epoch: int, values: Mapping[str, float], *, success: bool) -> None:
        """The run has ended, or this tracker has failed in `start` or `log`: close what is open.

        Args:
            epoch: epochs done, those before a resumption included.
            values: the test metrics, "test/mrr", …, or "test_sampled/mrr", … if they come from a sample of
                candidates; empty where there are no test edges, or if run or tracker failed.
            success: whether the run came to its end, and the tracker was told all of it.
        """


class CsvTracker(Tracker):
    """RUN/metrics.csv: a line an epoch, and one with the test figures. A resumed run goes on with the file.

    A line is appended. Where it brings a figure for which there is no column, the file is replaced by one
    that has it, empty in the lines before. Epochs of metrics.jsonl that come after its last one are added
    when a run goes on: the one before ended between their commit and their lines here.
    """

    def __init__(self) -> None:
        self._path = Path(CSV_FILE)
        self._columns = ["epoch"]
        self._rows: list[dict[str, str]] = []
        self._taken: set[tuple[str, bool]] = set()
        self._appends = False

    def start(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Read what a run that is resumed has written, and write what it has not."""
        self._path = folder / CSV_FILE
        if self._path.exists():
            self._read(read_regular(self._path).decode())
        history = folder / METRICS_FILE
        if not history.exists():
            return
        lines = map(json.loads, reversed(read_regular(history).decode().splitlines()))
        told = {epoch for epoch, _ in self._taken}
        missed = list(takewhile(lambda line: str(line["epoch"] + 1) not in told, lines))
        for line in reversed(missed):
            self._write(*_told(line))

    def _read(self, text: str) -> None:
        """Take the lines that are there, but for a last one that a full disk or a kill has cut short."""
        whole = text[: text.rfind("\n") + 1]
        lines = csv.DictReader(io.StringIO(whole, newline=""), restval="")
        self._columns = list(dict.fromkeys(["epoch", *(lines.fieldnames or ())]))
        self._rows = [{name: row[name] for name in self._columns if name in row} for row in lines]
        self._taken = {_line_of(row) for row in self._rows}

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        """Write the epoch's line."""
        self._write(epoch, values)

    def finish(self, epoch: int, values: Mapping[str, float], *, success: bool) -> None:
        """The test metrics at the last epoch, in a line of their own."""
        if values:
            self._write(epoch, values)

    def _write(self, epoch: int, values: Mapping[str, float]) -> None:
        """Append a line, or replace the file: for a new column, a line written again, and the first time."""
        row = {"epoch": str(epoch)} | {name: str(one) for name, one in values.items() if name != "epoch"}
        new = [name for name in row if name not in self._columns]
        line = _line_of(row)
        if line in self._taken:
            self._rows = [other for other in self._rows if _line_of(other) != line]
            self._appends = False
        self._columns += new
        self._rows.append(row)
        self._taken.add(line)
        if self._appends and not new:
            with self._path.open("a", encoding="utf-8", newline="") as file:
                self._writer(file).writerow(row)
            return
        text = io.StringIO(newline="")
        writer = self._writer(text)
        writer.writeheader()
        writer.writerows(self._rows)
        replace_file(self._path, text.getvalue().encode())
        self._appends = True

    def _writer(self, file: IO[str]) -> csv.DictWriter[str]:
        return csv.DictWriter(file, self._columns, restval="", lineterminator="\n")


def _line_of(row: Mapping[str, str]) -> tuple[str, bool]:
    """Which line of metrics.csv a row is: its epoch, and whether it holds that epoch's test figures."""
    return row.get("epoch", ""), any(name.startswith("test") and value for name, value in row.items())


class TensorBoardTracker(Tracker):
    """RUN/tensorboard, for `tensorboard --logdir`; needs the package tensorboard, through torch."""

    def __init__(self) -> None:
        self._writer: Any = None
        _library("tensorboard", "tensorboard")

    def start(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Open a log and note the settings."""
        writers = importlib.import_module("torch.utils.tensorboard")
        self._writer = writers.SummaryWriter(str(folder / TENSORBOARD_FOLDER))
        text = "\n".join(f"    {key}: {value}" for key, value in settings.items())
        self._writer.add_text("settings", text)

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        """One point a figure."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, epoch)
        self._writer.flush()

    def finish(self, epoch: int, values: Mapping[str, float], *, success: bool) -> None:
        """The test metrics at the last epoch."""
        if self._writer is not None:
            try:
                self.log(epoch, values)
            finally:
                self._writer.close()


class MlflowTracker(Tracker):
    """A run of MLflow, where MLFLOW_TRACKING_URI says; needs the package mlflow."""

    def __init__(self) -> None:
        self._mlflow = _library("mlflow", "mlflow")
        self._begun = False

    def start(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Begin a run named like the folder, with the settings as parameters."""
        self._mlflow.start_run(run_name=folder.name)
        self._begun = True
        self._mlflow.log_params({key: str(value)[:500] for key, value in settings.items()})

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        """MLflow's names cannot hold "@"."""
        self._mlflow.log_metrics({name.replace("@", "_at_"): v for name, v in values.items()}, step=epoch)

    def finish(self, epoch: int, values: Mapping[str, float], *, success: bool) -> None:
        """The test metrics, and the end of the run, if it is one that this tracker began."""
        if self._begun:
            try:
                self.log(epoch, values)
            finally:
                self._mlflow.end_run("FINISHED" if success else "FAILED")


class WandbTracker(Tracker):
    """A run of Weights & Biases; needs the package wandb. A resumed run goes on with the same one."""

    def __init__(self) -> None:
        self._wandb = _library("wandb", "wandb")
        self._run: Any = None

    def start(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Begin or go on; the identity is that of the run's store, drawn when the run began."""
        name = read_facts(folder / CHECKPOINT_FOLDER / NODES_NAME).store_id
        self._run = self._wandb.init(id=name, name=folder.name, resume="allow", config=dict(settings))

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        """One point a figure."""
        self._run.log(dict(values), step=epoch)

    def finish(self, epoch: int, values: Mapping[str, float], *, success: bool) -> None:
        """The test metrics as the run's summary."""
        if self._run is not None:
            try:
                self._run.summary.update(dict(values))
            finally:
                self._run.finish(exit_code=0 if success else 1)


TRACKERS: dict[str, type[Tracker]] = {
    "csv": CsvTracker,
    "tensorboard": TensorBoardTracker,
    "mlflow": MlflowTracker,
    "wandb": WandbTracker,
}


class Trackers:
    """Several trackers; what one of them raises is logged once, and that one is ended and left out."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = list(trackers)
        self._epoch = 0

    def start(self, folder: Path, settings: Mapping[str, Any], epochs_done: int = 0) -> None:
        """See `Tracker.start`; settings may be nested. A resumed run has done epochs already."""
        self._epoch = epochs_done
        self._each("start", folder, flat(settings, "."))

    def log(self, line: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl, whose epoch counts from 0; of a sample it is "valid_sampled/mrr", …"""
        self._epoch, values = _told(line)
        self._each("log", self._epoch, values)

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """The content of result.json, or None if the run failed."""
        test = (result or {}).get("test") or {}
        name = "test_sampled" if test.get("sampled") else "test"
        values = _numbers(flat({name: test}, "/"))
        self._each("finish", self._epoch, values, success=result is not None)

    def _each(self, method: str, *arguments: Any, **named: Any) -> None:
        for tracker in list(self._trackers):
            try:
                getattr(tracker, method)(*deepcopy(arguments), **named)  # to change, and keep, as it likes
            except Exception as error:
                self._trackers.remove(tracker)
                logger.warning(
                    "the tracker %s failed and is left out from here on: %s: %s",
                    type(tracker).__name__, type(error).__name__, error,
                )  # fmt: skip
                if method != "finish":
                    self._end(tracker)

    def _end(self, tracker: Tracker) -> None:
        """Have a tracker that failed close what it has open; whether it can is of no concern to the run."""
        try:
            tracker.finish(self._epoch, {}, success=False)
        except Exception as error:
            name = type(tracker).__name__
            logger.debug("ending the tracker %s: %s: %s", name, type(error).__name__, error)


def make_trackers(names: Sequence[str]) -> Trackers:
    """Make trackers by registered name or dotted path.

    Raises:
        ConfigError: an unknown name, a class that is no Tracker or cannot be made, a library is missing, or
        one is there twice.
    """
    made: dict[type[Tracker], Tracker] = {}
    for name in names:
        tracker: Tracker = make(Component(name), Tracker, TRACKERS, "trackers", {})
        if type(tracker) in made:
            raise ConfigError(
                f"trackers=[{','.join(names)}] names {name} twice, and both would be told the same: name it "
                "once"
            )
        made[type(tracker)] = tracker
    return Trackers(list(made.values()))


def _library(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"trackers: {module} is not installed: pip install {package}") from error


def flat(values: Mapping[str, Any], separator: str, prefix: str = "") -> dict[str, Any]:
    """Nested values under joined keys.

    >>> flat({"valid": {"mrr": 0.5}, "loss": 1}, "/")
    {'valid/mrr': 0.5, 'loss': 1}
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found.update(flat(value, separator, f"{prefix}{key}{separator}"))
        else:
            found[f"{prefix}{key}"] = value
    return found


def _told(line: Mapping[str, Any]) -> tuple[int, dict[str, float]]:
    """The epochs done and the figures of a line of metrics.jsonl, as trackers are told them."""
    if (line.get("valid") or {}).get("sampled"):
        line = {("valid_sampled" if name == "valid" else name): value for name, value in line.items()}
    values = {name: value for name, value in _numbers(flat(line, "/")).items() if name != "epoch"}
    return int(line["epoch"]) + 1, values


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
