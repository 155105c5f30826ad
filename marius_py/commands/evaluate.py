"""What `marius-evaluate` prints and writes (floor 6): metrics in, tables and a JSON file out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marius_py.commands.console import say
from marius_py.commands.progress import Bars
from marius_py.readable import readable

if TYPE_CHECKING:
    from marius_py.config import EvaluateConfig

_SHOWN_RELATIONS = 30
_NUMBER = 11
_LABEL = 8


def run(config: EvaluateConfig) -> float | None:
    """Rank, print, write what `config` asks for; returns the MRR.

    Raises:
        ConfigError, StorageError: `config.output` cannot be written; before anything is ranked. See also
        `evaluating.evaluate`.
    """
    from marius_py.evaluating import evaluate
    from marius_py.run_files.results import write_output

    with Bars() as bars:
        result = evaluate(config, bars)
    what = config.split if config.edges is None else config.edges
    if "runs" in result:
        _print_runs(result, what)
    else:
        print_metrics(result, what)
        _print_details(result)
    if config.ranks is not None:
        say(f"ranks: {config.ranks}")
    if config.output is not None:
        write_output(Path(config.output), result)
        say(f"metrics: {config.output}")
    return None if result.get("mrr") is None else float(result["mrr"])


def print_metrics(metrics: Mapping[str, Any] | None, split: str) -> None:
    """A table with a line for both sides, heads and tails; its title says how they were ranked."""
    if not metrics:
        say(f"no {split} metrics: the graph has no {split} edges")
        return
    say(f"{split}: {metrics.get('protocol', '')}")
    rows = (("both", metrics), ("head", metrics.get("head")), ("tail", metrics.get("tail")))
    _table(_names_of(metrics), [(label, values) for label, values in rows if isinstance(values, Mapping)])


def _print_details(metrics: Mapping[str, Any]) -> None:
    """Figures by category, degree of the answer and, if there are any, relation, most edges first."""
    if "categories" not in metrics:
        return
    names = _names_of(metrics)
    label = "sampled: " if metrics.get("sampled") else ""
    say(f"\n{label}by category of the relation (mean tails a head, heads a tail, from 1.5 on N)")
    _table(names, _with_sides((name, part) for name, part in metrics["categories"].items() if part["count"]))
    if metrics.get("degree_bands"):
        say(f"\n{label}by train degree of the answer, from that of the line to below the next band's")
        _table(names, _with_sides(metrics["degree_bands"].items()))
    if not metrics["has_relations"]:
        return
    ordered = sorted(metrics["relations"].items(), key=lambda one: (-one[1]["count"], one[0]))
    of_all = f", the {_SHOWN_RELATIONS} of {len(ordered)} with most edges; output=FILE.json has all"
    say(f"\n{label}by relation{of_all if len(ordered) > _SHOWN_RELATIONS else ''}")
    _table(
        names,
        [(f"{name} ({part['category'] or 'not in train'})", part) for name, part in ordered][
            :_SHOWN_RELATIONS
        ],
    )


def _with_sides(groups: Iterable[tuple[str, Mapping[str, Any]]]) -> list[tuple[str, Mapping[str, Any]]]:
    rows = []
    for name, part in groups:
        rows += [(name, part), (f"{name} head", part["head"]), (f"{name} tail", part["tail"])]
    return rows


def _print_runs(result: Mapping[str, Any], what: str) -> None:
    """A line a run, and the details of each run if there are any."""
    runs: Sequence[Mapping[str, Any]] = result["runs"]
    protocols = list(dict.fromkeys(str(one.get("protocol", "")) for one in runs))
    for protocol in protocols:
        say(f"{what}: {protocol}")
    _table(_names_of(runs[0]), [(str(one["run"]), one) for one in runs])
    say(str(result["note"]))
    for one in runs:
        if "categories" in one:
            say(f"\n{one['run']}")
            _print_details(one)


def _names_of(metrics: Mapping[str, Any]) -> list[str]:
    return [name for name in metrics if name in ("mrr", "mean_rank", "amri") or name.startswith("hits@")]


def _table(names: Sequence[str], rows: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    rows = [(readable(label), values) for label, values in rows]
    width = max([_LABEL, *(len(label) + 2 for label, _ in rows)])
    say(" " * width + "".join(f"{name:>{_NUMBER}}" for name in (*names, "count")))
    for label, values in rows:
        cells = "".join(f"{_cell(name, values.get(name)):>{_NUMBER}}" for name in names)
        say(f"{label:{width}}{cells}{values.get('count', 0):>{_NUMBER}}")


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if name == "mean_rank" else f"{value:.4f}"
