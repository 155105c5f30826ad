"""The console commands (floor 6): words in, an exit code out.

Commands that define a run are configured by hydra; those that query a finished run take flags. What a
command needs is imported when it is needed, so that `--help` and a bad key answer at once. Each begins by
opening the standard streams that it was started without.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec

from marius_py.commands.console import USAGE, Parser, flagged, guarded, say, write
from marius_py.commands.hydra_command import HydraCommand, configured
from marius_py.commands.progress import Bars
from marius_py.commands.streams import escape_unknown, open_missing, tell, write_whole
from marius_py.errors import MariusError, StorageError
from marius_py.types import EXPORT_FORMATS

P = ParamSpec("P")


def _with_streams(command: Callable[P, int]) -> Callable[P, int]:
    """`command`, with standard streams that take whatever it prints."""

    @functools.wraps(command)
    def opened(*given: P.args, **named: P.kwargs) -> int:
        open_missing()
        write_whole()
        escape_unknown()
        return command(*given, **named)

    return opened


@_with_streams
def train(argv: Sequence[str] | None = None) -> int:
    """`marius-train`: train, validate, test; writes a run folder."""
    return configured(_TRAIN, argv)


@_with_streams
def evaluate(argv: Sequence[str] | None = None) -> int:
    """`marius-evaluate`: link-prediction metrics of a run."""
    return configured(_EVALUATE, argv)


@_with_streams
def prepare(argv: Sequence[str] | None = None) -> int:
    """`marius-prepare`: an edge list becomes a prepared graph."""
    return configured(_PREPARE, argv)


@_with_streams
def export(argv: Sequence[str] | None = None) -> int:
    """`marius-export`: embeddings with node names, in a format that other programs read."""
    parser = Parser(
        prog="marius-export",
        description="Write the embeddings of a run with their node names, block by block.",
        epilog="Exit codes: 0 done, 1 failed, 2 bad usage, 130 interrupted.",
    )
    parser.add_argument("run", metavar="RUN", help="folder that marius-train wrote")
    parser.add_argument("--format", required=True, choices=EXPORT_FORMATS, help="format of the file")
    parser.add_argument(
        "--output", required=True, metavar="FILE", help="file to write; a folder for pbg and projector"
    )
    parser.add_argument("--graph", metavar="DIR", help="the prepared graph, if it has moved since training")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")
    parser.add_argument(
        "--no-relations",
        dest="relations",
        action="store_false",
        help="leave out the file of relations",
    )
    return flagged(parser, _run_export, argv)


@_with_streams
def verify(argv: Sequence[str] | None = None) -> int:
    """`marius-verify`: check every file of a run or a graph."""
    parser = Parser(
        prog="marius-verify",
        description="Check every file of a run or a prepared graph: what is damaged, what can be recovered.",
        epilog="Exit codes: 0 nothing is lost, 1 something is damaged or missing, 2 bad usage.",
    )
    parser.add_argument("path", metavar="RUN_OR_GRAPH", help="folder of a run or of a prepared graph")
    parser.add_argument(
        "--repair",
        action="store_true",
        help="write config.yaml, metrics.jsonl and result.json of a run again from its checkpoint",
    )
    return flagged(parser, _run_verify, argv)


@_with_streams
def plan(argv: Sequence[str] | None = None) -> int:
    """`marius-plan`: what a run would need, and settings that fit this machine."""
    return configured(_PLAN, argv)


@_with_streams
def extend(argv: Sequence[str] | None = None) -> int:
    """`marius-extend`: more nodes and edges for a prepared graph, and for a run on it."""
    return _from_module("extend", argv)


@_with_streams
def import_(argv: Sequence[str] | None = None) -> int:
    """`marius-import`: data and checkpoints of other systems."""
    return _from_module("import", argv, module="importing")


@_with_streams
def report(argv: Sequence[str] | None = None) -> int:
    """`marius-report`: a run as one HTML page."""
    return _from_module("report", argv)


@_with_streams
def predict(argv: Sequence[str] | None = None) -> int:
    """`marius-predict`: ranked completions of edges by name."""
    return _from_module("predict", argv)


@_with_streams
def neighbors(argv: Sequence[str] | None = None) -> int:
    """`marius-neighbors`: the most similar nodes, by name."""
    return _from_module("neighbors", argv)


@_with_streams
def main(argv: Sequence[str] | None = None) -> int:
    """`python -m marius_py COMMAND …`: any of the commands by its short name."""
    words = list(sys.argv[1:] if argv is None else argv)
    commands = {
        "prepare": prepare,
        "train": train,
        "evaluate": evaluate,
        "export": export,
        "plan": plan,
        "extend": extend,
        "import": import_,
        "predict": predict,
        "report": report,
        "neighbors": neighbors,
    }
    commands["verify"] = verify
    if words and words[0] in commands:
        if argv is not None:
            return commands[words[0]](words[1:])
        del sys.argv[1]  # which then is as the command's own script has it
        return commands[words[0]]()
    text = f"usage: python -m marius_py {{{','.join(commands)}}} …"
    if words and words[0] in ("-h", "--help"):
        return guarded(lambda: say(text), leaves=argv is None)
    tell(text)
    return USAGE


# ---------------------------------------------------------------------- what the commands do


def _run_train(config: Any) -> float | None:
    from marius_py.commands.evaluate import print_metrics
    from marius_py.commands.watch import CommandWatcher
    from marius_py.tracking.training import train as run

    with Bars() as bars, CommandWatcher(bars, config.training.epochs) as watcher:
        result = run(config, watcher)
    if result.get("valid"):
        print_metrics(result["valid"], "valid")
        gap = result["valid"]["gap"]
        say(f"the sample's MRR was off by {gap['difference']['mrr']:+.4f} ({gap['sampled']['protocol']})")
    print_metrics(result.get("test"), "test")
    say(f"run: {result['output']}")
    mrr = (result.get("test") or {}).get("mrr")
    return None if mrr is None else float(mrr)


def _run_evaluate(config: Any) -> float | None:
    from marius_py.commands.evaluate import run

    return run(config)


def _run_prepare(config: Any) -> float | None:
    from marius_py.prepare import prepare as run
    from marius_py.prepare.folder import check_output

    source = config.input
    check_output(Path(config.output), config.overwrite)  # before anything is fetched
    with Bars() as bars:
        if config.dataset.name is not None:
            source = _fetch(config.dataset, source, bars)
        run(
            source.train,
            config.output,
            valid=source.valid,
            test=source.test,
            split=source.split,
            undirected=source.undirected,
            mirror=source.mirror,
            partitions=config.partitions,
            seed=config.seed,
            overwrite=config.overwrite,
            progress=bars,
            **source.reading,
        )
    say(f"graph: {config.output}")
    return None


def _run_plan(config: Any) -> float | None:
    from marius_py.assembly.planned import plan as run
    from marius_py.planning.plan import plan_text

    found, machine = run(config)
    write(plan_text(found, machine, config.graph))
    return None


def _fetch(dataset: Any, source: Any, bars: Bars) -> Any:
    """The input settings with the files of a public data set filled in."""
    from marius_py.datasets import Dataset, fetch

    splits = ("train", "valid", "test")
    paths = fetch(
        Dataset(
            name=dataset.name,
            url=dataset.url,
            archive=dataset.archive,
            folder=Path(dataset.folder),
            members={split: getattr(dataset, split) for split in splits},
            sha256=dict(zip(splits, dataset.sha256, strict=True)),
        ),
        lambda done, total: bars("fetch", done, total, "B"),
    )
    return replace(source, format="tsv", **{split: str(path) for split, path in paths.items()})


def _run_export(options: argparse.Namespace) -> None:
    from marius_py.commands.common import check_named, say_if_unfinished
    from marius_py.export import export as run
    from marius_py.run import load

    check_named(options.output)
    with load(options.run, graph=options.graph) as opened, Bars() as bars:
        say_if_unfinished(opened)
        paths = run(
            opened,
            options.output,
            options.format,
            overwrite=options.overwrite,
            relations=options.relations,
            progress=bars,
        )
    for path in paths:
        say(str(path))


_TRAIN = HydraCommand(
    "marius-train",
    "TrainConfig",
    "Train embeddings of a prepared graph, validate, test; writes the run folder that output names.",
    (
        "marius-train                                   (the built-in demo graph)",
        "marius-train graph=graphs/mine output=runs/mine model.decoder=distmult model.dim=64",
        "marius-train graph=graphs/mine output=runs/mine resume=true training.epochs=40",
        "marius-train graph=graphs/mine loss=mypkg.MyLoss loss.alpha=0.5",
        "marius-train -m graph=graphs/mine model.dim=64,128 optimizer.lr=0.05,0.1",
    ),
    _run_train,
    places=("output",),
)
_PLAN = HydraCommand(
    "marius-plan",
    "TrainConfig",
    "Measure this machine for a few seconds and plan a run: partitions, memory, disk, bytes and time of an "
    "epoch, as a table and as settings that marius-train takes. Takes the settings of marius-train, and "
    "needs graph=DIR.",
    (
        "marius-plan graph=graphs/mine model.dim=128",
        "marius-plan graph=graphs/mine model.dim=128 > my/experiment/plan.yaml",
        "marius-train --config-dir my experiment=plan graph=graphs/mine model.dim=128",
    ),
    _run_plan,
)
_EVALUATE = HydraCommand(
    "marius-evaluate",
    "EvaluateConfig",
    "Rank the edges of a split with the embeddings of a run: MRR, Hits@k, mean rank, both sides.",
    (
        "marius-evaluate run=runs/mine",
        "marius-evaluate run=runs/mine split=valid mode=sampled candidates=500",
        "marius-evaluate run=runs/mine 'ks=[1,5,20]' output=metrics.json",
        "marius-evaluate run=runs/mine details=true ranks=ranks.csv",
        "marius-evaluate run=runs/mine edges=more.tsv",
        "marius-evaluate run=runs/mine among=movies.txt",
        "marius-evaluate run=runs/mine 'compare=[runs/other,runs/third]' max_edges=2000",
    ),
    _run_evaluate,
    sweep_output="${hydra:runtime.output_dir}/metrics.json",
    places=("output", "ranks"),
)
_PREPARE = HydraCommand(
    "marius-prepare",
    "PrepareConfig",
    "Turn an edge list (TSV, CSV, Parquet, NumPy; gzip, zstd) into a graph partitioned for training.",
    (
        "marius-prepare input.train=edges.tsv output=graphs/mine",
        "marius-prepare input.train=a.tsv.gz input.valid=b.tsv.gz input.test=c.tsv.gz output=graphs/mine",
        "marius-prepare input.train=e.csv 'input.columns=[from,kind,to]' output=graphs/mine",
        "marius-prepare dataset=fb15k_237 output=graphs/fb15k_237",
    ),
    _run_prepare,
    places=("output",),
)


def _run_verify(options: argparse.Namespace) -> None:
    from marius_py.verify import is_sound, repair
    from marius_py.verify import verify as run

    path = Path(options.path)
    findings = run(path)
    failure: MariusError | None = None
    if options.repair and findings and (path / "checkpoint").is_dir():
        try:
            for file in repair(path):
                say(f"written again: {file}")
            findings = run(path)
        except MariusError as error:
            failure = error
    for finding in findings:
        say(f"{finding.label}: {finding.problem}\n  -> {finding.remedy}")
    if failure is not None:
        raise StorageError(f"{path}: --repair failed: {failure}") from failure
    damaged = sum(not finding.harmless for finding in findings)
    if not is_sound(findings):
        raise StorageError(f"{path}: {damaged} of the checks failed; see above for each file")
    say(f"{path}: every file is whole")


# ---------------------------------------------------------------------- running a command


def _from_module(name: str, argv: Sequence[str] | None, *, module: str | None = None) -> int:
    """A command whose flags and work stand in `marius_py.commands`, in a module of its name or `module`."""
    command = importlib.import_module(f"marius_py.commands.{module or name}")
    parser = Parser(
        prog=f"marius-{name}",
        description=command.PURPOSE,
        epilog=f"{command.EXAMPLES}\n\nExit codes: 0 done, 1 failed, 2 bad usage, 130 interrupted.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_flags(parser)
    return flagged(parser, command.run, argv)
