"""Trains with trackers (floor 5): a configuration and a watcher in, the run's result out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marius_py.assembly import build
from marius_py.assembly.folder import named, run_folder
from marius_py.assembly.joint import Passing
from marius_py.config import TrainConfig, plain
from marius_py.tracking.trackers import Trackers, make_trackers
from marius_py.training.trainer import Trainer


def train(config: TrainConfig, watcher: build.Watcher | None = None) -> dict[str, Any]:
    """`build.train`, reported to the trackers of `config.trackers`.

    Raises:
        ConfigError: an unknown tracker, or its library is missing; before any data is opened.
    """
    watcher = watcher or build.Watcher()
    if not config.trackers:
        return build.train(config, watcher)
    trackers = make_trackers(config.trackers)
    with named(config) as config:
        tracked = _Tracked(watcher, trackers, config)
        result: dict[str, Any] | None = None
        try:
            result = build.train(config, tracked)
        finally:
            if tracked.started:
                trackers.finish(result)
        return result


class _Tracked(Passing):
    """Passes everything on, and epochs to the trackers too."""

    _trainer: Trainer

    def __init__(self, inner: build.Watcher, trackers: Trackers, config: TrainConfig) -> None:
        super().__init__(inner)
        self._trackers = trackers
        self._config = config
        self._folder = run_folder(config)  # now: a program may change its folder while the run is prepared
        self.started = False

    def on_start(self, trainer: Trainer, num_edges: int, epochs_done: int) -> None:
        """Start the trackers once the run folder is there."""
        super().on_start(trainer, num_edges, epochs_done)
        if not self.started:  # a run that ends an epoch of other settings first makes two trainers
            self.started = True
            with trainer.watched("trackers"):
                self._trackers.start(self._folder, plain(self._config), epochs_done)
        self._trainer = trainer

    def on_epoch(self, line: Mapping[str, Any]) -> None:
        """Pass on and log."""
        super().on_epoch(line)
        with self._trainer.watched("trackers"):
            self._trackers.log(line)
