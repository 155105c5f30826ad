"""Look for good settings with Optuna: examples/search.py --graph graphs/mine --trials 20.

Optuna proposes settings from what it has seen so far; each trial is a run; its validation MRR is what counts.
Validations on the way are reported too, and a trial that is behind the others' median is ended early.
Needs `pip install 'marius_py[optuna]'`. Without --graph a generated graph is prepared.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

try:
    import optuna
except ModuleNotFoundError:
    raise SystemExit("this example needs optuna: pip install 'marius_py[optuna]'") from None

import marius_py
from marius_py.assembly import Watcher
from marius_py.errors import InterruptedRunError
from marius_py.generate import planted_graph

DECODERS = ("complex", "distmult", "transe")


def proposal(trial: optuna.Trial) -> dict[str, Any]:
    """The settings to try, by the keys of the command line."""
    settings: dict[str, Any] = {
        "model.decoder": trial.suggest_categorical("model.decoder", DECODERS),
        "model.dim": trial.suggest_categorical("model.dim", [32, 64]),
        "optimizer.lr": trial.suggest_float("optimizer.lr", 0.02, 0.5, log=True),
        "model.node_dropout": trial.suggest_float("model.node_dropout", 0.0, 0.5),
        "negatives.count": trial.suggest_int("negatives.count", 50, 400, log=True),
    }
    return settings


class Pruner(Watcher):
    """Reports every validation to Optuna and interrupts the run when Optuna gives the trial up."""

    def __init__(self, trial: optuna.Trial) -> None:
        self._trial = trial
        self._trainer: Any = None

    def on_start(self, trainer: Any, num_edges: int, epochs_done: int) -> None:
        """Remember whom to interrupt."""
        self._trainer = trainer

    def on_epoch(self, line: Mapping[str, Any]) -> None:
        """Report the epoch's validation, if it had one."""
        if line.get("valid"):
            self._trial.report(line["valid"]["mrr"], int(line["epoch"]))
            if self._trial.should_prune():
                self._trainer.interrupt()


def fixed_settings(epochs: int, seed: int = 0) -> dict[str, Any]:
    """What all trials have in common."""
    return {
        "training.epochs": epochs,
        "training.valid_every": max(1, epochs // 3),
        "training.batch_size": 128,
        "training.seed": seed,
        "pipeline.max_in_flight": 1,  # slower, but the same settings give the same result
    }


def search(graph: Path, output: Path, trials: int, fixed: Mapping[str, Any]) -> optuna.Study:
    """Run the trials, each in output/NUMBER."""

    def objective(trial: optuna.Trial) -> float:
        settings = {**fixed, **proposal(trial)}
        try:
            with marius_py.train(graph, output / str(trial.number), settings, watcher=Pruner(trial)) as run:
                return max(line["valid"]["mrr"] for line in run.history if line.get("valid"))
        except InterruptedRunError as stopped:
            raise optuna.TrialPruned from stopped

    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=fixed["training.seed"]),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=3),
    )
    study.optimize(objective, n_trials=trials)
    return study


def main() -> None:
    """Search, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", type=Path, help="a prepared graph (default: a generated one)")
    parser.add_argument("--output", type=Path, default=Path("runs/search"), help="folder of the runs")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=9, help="of each run")
    options = parser.parse_args()
    graph = options.graph
    if (options.output / "0").exists():
        parser.error(f"--output {options.output} holds runs of a search: give another folder, or remove it")
    if graph is None:
        graph = options.output / "graph"
        planted_graph(graph, num_nodes=500, num_relations=8, num_edges=6000, overwrite=True)
    fixed = fixed_settings(options.epochs)
    study = search(graph, options.output, options.trials, fixed)
    for trial in study.trials:
        value = "ended early" if trial.value is None or trial.state.name == "PRUNED" else f"{trial.value:.4f}"
        print(f"{trial.number:3} {value:>11}  {trial.params}")
    settings = {"graph": graph, **study.best_params, **fixed}
    words = shlex.join(f"{key}={value}" for key, value in settings.items())
    print(f"best validation MRR {study.best_value:.4f}:\n  marius-train {words}")


if __name__ == "__main__":
    main()
