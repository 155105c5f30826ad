"""The console commands (floor 6): words in, an exit code out.

Commands that define a run are configured by hydra; those that query a finished run take flags. What a
command needs is imported when it is needed, so that `--help` and a bad key answer at once.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from marius_py import __version__
from marius_py.errors import ConfigError, InterruptedRunError, MariusError, StalledError, StorageError
from marius_py.progress import Bars

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

log = logging.getLogger("marius_py")


@dataclass(frozen=True, slots=True)
class _Flags:
    """What precedes or stands between the settings."""

    overrides: tuple[str, ...] = ()
    hydra: tuple[str, ...] = ()
    sweep: bool = False
    config_dir: str | None = None


@dataclass(frozen=True, slots=True)
class _Command:
    """A command that hydra configures."""

    name: str
    kind: str
    purpose: str
    examples: tuple[str, ...]
    run: Callable[[Any], float | None]


def train(argv: Sequence[str] | None = None) -> int:
    """`marius-train`: train, validate, test; writes a run folder."""
    return _configured(_TRAIN, argv)


def evaluate(argv: Sequence[str] | None = None) -> int:
    """`marius-evaluate`: link-prediction metrics of a run."""
    return _configured(_EVALUATE, argv)


def prepare(argv: Sequence[str] | None = None) -> int:
    """`marius-prepare`: an edge list becomes a prepared graph."""
    return _configured(_PREPARE, argv)


def export(argv: Sequence[str] | None = None) -> int:
    """`marius-export`: embeddings with node names, in a format that other programs read."""
    parser = _Parser(
        prog="marius-export",
        description="Write the embeddings of a run with their node names, block by block.",
        epilog="Exit codes: 0 done, 1 failed, 2 bad usage, 130 interrupted.",
    )
    parser.add_argument("run", metavar="RUN", help="folder that marius-train wrote")
    parser.add_argument("--format", required=True, choices=EXPORT_FORMATS, help="format of the file")
    parser.add_argument(
        "--output", required=True, metavar="FILE", help="file to write; a folder for pbg and projector"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")
    parser.add_argument(
        "--no-relations",
        dest="relations",
        action="store_false",
        help="leave out the file of relations",
    )
    return _flagged(parser, _run_export, argv)


def verify(argv: Sequence[str] | None = None) -> int:
    """`marius-verify`: check every file of a run or a graph."""
    parser = _Parser(
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
    return _flagged(parser, _run_verify, argv)


def plan(argv: Sequence[str] | None = None) -> int:
    """`marius-plan`: what a run would need, and settings that fit this machine."""
    return _configured(_PLAN, argv)


def extend(argv: Sequence[str] | None = None) -> int:
    """`marius-extend`: more nodes and edges for a prepared graph, and for a run on it."""
    return _from_module("extend", argv)


def import_(argv: Sequence[str] | None = None) -> int:
    """`marius-import`: data and checkpoints of other systems."""
    return _from_module("import", argv, module="importing")


def report(argv: Sequence[str] | None = None) -> int:
    """`marius-report`: a run as one HTML page."""
    return _from_module("report", argv)


def predict(argv: Sequence[str] | None = None) -> int:
    """`marius-predict`: ranked completions of edges by name."""
    return _from_module("predict", argv)


def neighbors(argv: Sequence[str] | None = None) -> int:
    """`marius-neighbors`: the most similar nodes, by name."""
    return _from_module("neighbors", argv)


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
        return commands[words[0]](words[1:])
    text = f"usage: python -m marius_py {{{','.join(commands)}}} …\n"
    asked = bool(words) and words[0] in ("-h", "--help")
    (sys.stdout if asked else sys.stderr).write(text)
    return OK if asked else USAGE


EXPORT_FORMATS = ("npy", "parquet", "tsv", "word2vec", "safetensors", "pbg", "projector")


# ---------------------------------------------------------------------- what the commands do


def _run_train(config: Any) -> float | None:
    from marius_py.commands.evaluate import print_metrics
    from marius_py.tracking import train as run
    from marius_py.watch import CommandWatcher

    with Bars() as bars, CommandWatcher(bars, config.training.epochs) as watcher:
        result = run(config, watcher)
    if result.get("valid"):
        print_metrics(result["valid"], "valid")
        gap = result["valid"]["gap"]
        _say(f"the sample's MRR was off by {gap['difference']['mrr']:+.4f} ({gap['sampled']['protocol']})")
    print_metrics(result.get("test"), "test")
    _say(f"run: {result['output']}")
    mrr = (result.get("test") or {}).get("mrr")
    return None if mrr is None else float(mrr)


def _run_evaluate(config: Any) -> float | None:
    from marius_py.commands.evaluate import run

    return run(config)


def _run_prepare(config: Any) -> float | None:
    from marius_py.prepare import prepare as run

    source = config.input
    with Bars() as bars:
        if config.dataset.name is not None:
            source = _fetch(config.dataset, source, bars)
        run(
            source.train,
            config.output,
            valid=source.valid,
            test=source.test,
            format=source.format,
            columns=_columns(source.columns),
            header="auto" if source.header is None else source.header,
            quoting=source.quoting,
            delimiter=source.delimiter,
            split=source.split,
            partitions=config.partitions,
            seed=config.seed,
            overwrite=config.overwrite,
            progress=bars,
        )
    _say(f"graph: {config.output}")
    return None


def _run_plan(config: Any) -> float | None:
    from marius_py.plan import plan_text
    from marius_py.planning import plan as run

    found, machine = run(config)
    sys.stdout.write(plan_text(found, machine, config.graph))
    return None


def _columns(columns: Sequence[str] | None) -> list[int | str] | None:
    """Column numbers as integers, names as they stand."""
    return None if columns is None else [int(one) if one.isdecimal() else one for one in columns]


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
    from marius_py.commands.common import say_if_unfinished
    from marius_py.export import export as run
    from marius_py.run import load

    with load(options.run) as opened, Bars() as bars:
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
        _say(str(path))


_TRAIN = _Command(
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
)
_PLAN = _Command(
    "marius-plan",
    "TrainConfig",
    "Measure this machine for a few seconds and plan a run: partitions, memory, disk, bytes and time of an "
    "epoch, as a table and as settings that marius-train takes. Takes the settings of marius-train.",
    (
        "marius-plan graph=graphs/mine model.dim=128",
        "marius-plan graph=graphs/mine model.dim=128 > my/experiment/plan.yaml",
        "marius-train --config-dir my experiment=plan graph=graphs/mine model.dim=128",
    ),
    _run_plan,
)
_EVALUATE = _Command(
    "marius-evaluate",
    "EvaluateConfig",
    "Rank the edges of a split with the embeddings of a run: MRR, Hits@k, mean rank, both sides.",
    (
        "marius-evaluate run=runs/mine",
        "marius-evaluate run=runs/mine split=valid mode=sampled candidates=500",
        "marius-evaluate run=runs/mine 'ks=[1,5,20]' output=metrics.json",
        "marius-evaluate run=runs/mine details=true ranks=ranks.csv",
        "marius-evaluate run=runs/mine edges=more.tsv",
        "marius-evaluate run=runs/mine 'compare=[runs/other,runs/third]' max_edges=2000",
    ),
    _run_evaluate,
)
_PREPARE = _Command(
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
)


def _run_verify(options: argparse.Namespace) -> None:
    from marius_py.verify import is_sound, repair
    from marius_py.verify import verify as run

    path = Path(options.path)
    findings = run(path)
    if options.repair and (path / "checkpoint").is_dir():
        for file in repair(path):
            _say(f"written again: {file}")
        findings = run(path)
    for finding in findings:
        _say(f"{'note' if finding.harmless else 'DAMAGED'}: {finding.problem}\n  -> {finding.remedy}")
    damaged = sum(not finding.harmless for finding in findings)
    if not is_sound(findings):
        raise StorageError(f"{path}: {damaged} of the checks failed; see above for each file")
    _say(f"{path}: every file is whole")


# ---------------------------------------------------------------------- running a command


class _Parser(argparse.ArgumentParser):
    """argparse, whose errors are `ConfigError` like all others."""

    def error(self, message: str) -> Any:
        """Raise instead of exiting, so that every command reports alike."""
        raise ConfigError(f"{message} ({self.prog} --help lists the flags)")


def _configured(command: _Command, argv: Sequence[str] | None) -> int:
    from marius_py import config as configs

    words = list(sys.argv[1:] if argv is None else argv)
    kind = getattr(configs, command.kind)
    if "-h" in words or "--help" in words:
        from marius_py.config.help import help_text

        sys.stdout.write(help_text(kind, command.name, command.purpose, command.examples))
        return OK
    if "--version" in words:
        sys.stdout.write(f"{command.name} {__version__}\n")
        return OK

    def run() -> None:
        flags = _parse_flags(words, command.name)
        if flags.hydra or flags.sweep:
            _through_hydra(command, kind, flags)
        else:
            command.run(configs.compose(kind, flags.overrides, config_dir=flags.config_dir))

    return _guarded(run)


def _from_module(name: str, argv: Sequence[str] | None, *, module: str | None = None) -> int:
    """A command whose flags and work stand in `marius_py.commands`, in a module of its name or `module`."""
    command = importlib.import_module(f"marius_py.commands.{module or name}")
    parser = _Parser(
        prog=f"marius-{name}",
        description=command.PURPOSE,
        epilog=f"{command.EXAMPLES}\n\nExit codes: 0 done, 1 failed, 2 bad usage, 130 interrupted.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_flags(parser)
    return _flagged(parser, command.run, argv)


def _flagged(parser: _Parser, run: Callable[[argparse.Namespace], None], argv: Sequence[str] | None) -> int:
    parser.add_argument("--version", action="version", version=f"{parser.prog} {__version__}")
    parser.add_argument(
        "--log-level", default=None, choices=_LEVELS, help="debug also prints tracebacks (default: info)"
    )

    def go() -> None:
        options = parser.parse_args(argv)
        _set_log_level(options.log_level)
        run(options)

    try:
        return _guarded(go)
    except SystemExit as leave:  # argparse has printed its help or the version
        return leave.code if isinstance(leave.code, int) else OK


def _guarded(run: Callable[[], None]) -> int:
    """Run, and turn whatever happens into one message on stderr and an exit code."""
    _start_logging()
    try:
        with _sigterm_interrupts():
            run()
    except ConfigError as error:
        return _report(error, USAGE)
    except (InterruptedRunError, KeyboardInterrupt) as error:
        return _report(error, INTERRUPTED, "interrupted")
    except StalledError as error:
        # The thread that hangs may hold locks which an orderly end would wait for.
        code = _report(error, FAILED)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    except MariusError as error:
        return _report(error, FAILED)
    except MemoryError as error:
        return _report(error, FAILED, "out of memory")
    except BrokenPipeError as error:
        # Whoever read the output has left; a second write on closing must not add a traceback.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _report(error, FAILED, "the output was closed")
    except Exception as error:
        return _report(error, FAILED, f"unexpected {type(error).__name__}: {error}")
    return OK


def _report(error: BaseException, code: int, text: str | None = None) -> int:
    message = str(error) if isinstance(error, MariusError) and str(error) else text or repr(error)
    debug = log.isEnabledFor(logging.DEBUG)
    if debug:
        log.debug("traceback", exc_info=error)
    elif text is not None and code == FAILED:
        message += " (MARIUS_DEBUG=1 prints the traceback)"
    sys.stderr.write(f"error: {message}\n")
    return code


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does; while a run trains, `CommandWatcher` handles both."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        previous = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread: whoever started it handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


_LEVELS = ("debug", "info", "warning", "error")


def _start_logging() -> None:
    """INFO lines on stderr; another level by MARIUS_LOG, everything with MARIUS_DEBUG=1."""
    for handler in [one for one in log.handlers if isinstance(one, _StderrHandler)]:
        log.removeHandler(handler)
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(message)s", "%H:%M:%S"))
    log.addHandler(handler)
    log.propagate = False
    debug = os.environ.get("MARIUS_DEBUG", "") not in ("", "0")
    log.setLevel("DEBUG" if debug else os.environ.get("MARIUS_LOG", "INFO").upper())


def _set_log_level(level: str | None) -> None:
    if level is not None:
        log.setLevel(level.upper())


class _StderrHandler(logging.Handler):
    """Writes above a progress bar instead of through it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line to the stderr of this moment."""
        try:
            Bars.write(self.format(record))
        except Exception:
            self.handleError(record)


def _parse_flags(words: Sequence[str], command: str) -> _Flags:
    """Sort words into settings and flags; flags of hydra that are not ours go to it as they stand."""
    parser = _Parser(prog=command, add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--log-level", choices=_LEVELS)
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("--package", "-p")
    parser.add_argument("--info", "-i", nargs="?", const="all")
    parser.add_argument("--hydra-help", action="store_true")
    parser.add_argument("--shell-completion", "-sc", action="store_true")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_intermixed_args(list(words))
    _set_log_level(options.log_level)
    hydra: list[str] = []
    for flag, value in (("--cfg", options.cfg), ("--package", options.package), ("--info", options.info)):
        hydra += [flag, value] if value is not None else []
    for name in ("resolve", "hydra_help", "shell_completion"):
        hydra += [f"--{name.replace('_', '-')}"] if getattr(options, name) else []
    return _Flags(tuple(options.overrides), tuple(hydra), options.multirun, options.config_dir)


def _through_hydra(command: _Command, kind: type[Any], flags: _Flags) -> None:
    """Sweeps and hydra's own questions: hydra's main composes and calls back once a job."""
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from marius_py.config.compose import NAMES, conf_dir, config_from, explain, prepare_overrides

    overrides = prepare_overrides(kind, flags.overrides, sweep=flags.sweep, config_dir=flags.config_dir)
    if flags.sweep and not any(word.startswith("output=") for word in flags.overrides):
        overrides.append("output=${hydra:runtime.output_dir}")

    failures: list[BaseException] = []
    parent = os.getpid()

    def job(composed: Any) -> float | None:
        if failures:
            return None
        try:
            if flags.sweep:
                log.info("job %s: %s", HydraConfig.get().job.num, " ".join(HydraConfig.get().overrides.task))
            return command.run(config_from(kind, composed))
        except BaseException as error:
            if os.getpid() != parent:  # a launcher that forks: only hydra can carry the error over
                raise
            # hydra would print a message of its own besides ours.
            failures.append(error)
            return None

    words = [command.name, *flags.hydra, *(["-m"] if flags.sweep else []), *overrides]
    words += ["--config-dir", flags.config_dir] if flags.config_dir is not None else []
    before, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    # Otherwise hydra prints and leaves with code 1; here the caller makes one message and a code of it.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv = words
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=NAMES[kind])(job)()
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error)) from error
    except SystemExit as leave:
        if leave.code not in (None, 0):
            raise ConfigError("hydra refused the command line; its message is above") from leave
    finally:
        sys.argv = before
        if full_error is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error
    if failures:
        raise failures[0]


# ---------------------------------------------------------------------- printing


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
