"""Quality of the presets: keep what runs reached, and write the README's table from it.

    marius-train graph=graphs/fb15k_237 output=runs/a experiment=fb15k_237/complex
    python benchmarks/quality.py record runs/a --preset fb15k_237/complex
    python benchmarks/quality.py table

`record` copies a finished run's figures, with the settings that differ from the preset's, commit and hardware
into a file of benchmarks/quality/; `table` writes the rows of all files between the README's markers. With
--check it writes nothing and fails if the README says anything else, as a test does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from common import machine

from marius_py.config import load_config, plain

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "quality"
README = ROOT / "README.md"
BEGIN = "<!-- quality: written by benchmarks/quality.py table -->"
END = "<!-- quality: end -->"
GRAPHS = {"fb15k_237": "FB15k-237", "wn18rr": "WN18RR", "hackage": "hackage"}
MODELS = {
    "complex": "ComplEx",
    "distmult": "DistMult",
    "rotate": "RotatE",
    "transe": "TransE",
    "rescal": "RESCAL",
}
# What a run may set as it likes without another result: where it lies and on how many threads.
FREE = ("graph", "output", "resume", "device", "trackers", "training.seed", "pipeline.compute_threads")
METRICS = ("mrr", "hits@1", "hits@3", "hits@10")


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted key.

    >>> flat({"a": {"b": 1}, "c": None})
    {'a.b': 1, 'c': None}
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def changed(settings: Mapping[str, Any], preset: str) -> dict[str, Any]:
    """Settings of a run that are not the preset's, by dotted key."""
    wanted = flat(plain(load_config(["graph=g", f"experiment={preset}"])))
    return {
        key: value
        for key, value in flat(settings).items()
        if not key.startswith(FREE) and value != wanted.get(key)
    }


def record(run: Path, preset: str, commit: str | None) -> dict[str, Any]:
    """What is kept of a finished run; `commit` is the code's that ran it, None: the present one.

    Raises:
        SystemExit: the run has no result yet.
    """
    try:
        result = json.loads((run / "result.json").read_text())
        settings = yaml.safe_load((run / "config.yaml").read_text())
    except OSError as error:
        raise SystemExit(f"{run} is no finished run: {error}") from error
    storage = settings["storage"]
    keys = ("epochs", "seconds", "edges_per_second", "bytes_read", "peak_rss_bytes", "peak_cuda_bytes")
    return {
        "preset": preset,
        "changed": changed(settings, preset),
        "seed": settings["training"]["seed"],
        "dim": settings["model"]["dim"],
        "partitions": storage["partitions"],
        "capacity": storage["capacity"],
        "compute_threads": settings["pipeline"]["compute_threads"],
        "test": {name: result["test"][name] for name in (*METRICS, "mean_rank", "amri", "count", "protocol")},
        "train": {key: result["train"][key] for key in keys if key in result["train"]},
        "versions": result["versions"],
        "machine": machine() | ({} if commit is None else {"commit": commit}),
    }


def read_results(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """All recorded runs, by file name."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def place(run: Mapping[str, Any]) -> str:
    """Where a run's partitions were."""
    p, c = run["partitions"], run["capacity"]
    return "in memory" if p == c else f"on disk, p = {p}, c = {c}"


def _decimals(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def _spread(values: Sequence[float]) -> str:
    mean = f"{statistics.fmean(values):.4f}".removeprefix("0")
    if len(values) == 1:
        return mean
    low, high = (f"{value:.4f}".removeprefix("0") for value in (min(values), max(values)))
    return f"{mean} ({low}–{high}, {len(values)} seeds)"


def table(runs: Iterable[Mapping[str, Any]]) -> str:
    """Markdown rows, one for each preset and place: means of the seeds, and the quickest one's time."""
    groups: dict[tuple[str, bool, str], list[Mapping[str, Any]]] = defaultdict(list)
    for run in runs:
        groups[run["preset"], run["partitions"] != run["capacity"], place(run)].append(run)
    lines = [
        "| graph | model | embeddings | epochs | time | peak memory | test MRR | Hits@1 | Hits@3 | Hits@10 |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (preset, _, where), group in sorted(groups.items()):
        graph, model = preset.split("/")
        seconds = min(run["train"]["seconds"] for run in group)
        time = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
        memory = max(run["train"]["peak_rss_bytes"] for run in group) / 2**30
        hits = " | ".join(
            _decimals(statistics.fmean(run["test"][name] for run in group)) for name in METRICS[1:]
        )
        mrr = _spread([run["test"]["mrr"] for run in group])
        lines.append(
            f"| {GRAPHS.get(graph, graph)} | {MODELS.get(model, model)}, dim {group[0]['dim']} | {where} "
            f"| {group[0]['train']['epochs']} | {time} | {memory:.1f} GiB | {mrr} | {hits} |"
        )
    return "\n".join(lines)


def with_table(readme: str, rows: str) -> str:
    """The README with `rows` between its markers.

    Raises:
        SystemExit: it has no markers.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the README has no line {BEGIN!r} followed by {END!r}")
    return f"{before}{BEGIN}\n{rows}\n{END}{after}"


def main(words: Sequence[str] | None = None) -> int:
    """Record a run, or write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="keep a finished run's figures")
    recording.add_argument("run", type=Path, help="folder of the run")
    recording.add_argument("--preset", required=True, help="its experiment=, fb15k_237/complex say")
    recording.add_argument("--commit", help="commit that ran it, if not the present one")
    writing = commands.add_parser("table", help="write the README's table")
    writing.add_argument("--check", action="store_true", help="write nothing; fail if the README differs")
    options = parser.parse_args(words)
    if options.command == "record":
        found = record(options.run, options.preset, options.commit)
        where = "memory" if found["partitions"] == found["capacity"] else "disk"
        name = f"{options.preset.replace('/', '-')}-{where}-{found['seed']}.json"
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / name).write_text(json.dumps(found, indent=1) + "\n")
        print(RESULTS / name)
        return 0
    readme = README.read_text()
    wanted = with_table(readme, table(read_results()))
    if options.check:
        return int(readme != wanted)
    README.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
