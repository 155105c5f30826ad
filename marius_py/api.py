"""Training and testing from Python (floor 5): a graph in whatever form and settings in, an open `Run` out."""

from __future__ import annotations

import inspect
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from marius_py.assembly import build
from marius_py.assembly.folder import named, run_folder
from marius_py.assembly.interrupts import Interrupts
from marius_py.assembly.joint import Passing
from marius_py.config import EvaluateConfig, TrainConfig, compose, load_config, words_of
from marius_py.convert import graph_from, is_graph_data
from marius_py.errors import ConfigError, InterruptedRunError, PipelineError
from marius_py.evaluating import evaluate as evaluate_runs
from marius_py.given import check_flags
from marius_py.graph import Graph, open_graph
from marius_py.graph.manifest import GRAPH_FILE
from marius_py.run import Run, load
from marius_py.run_files.results import write_output
from marius_py.storage.file_io import os_errors_as_storage
from marius_py.storage.folders import locked_folder, remove_left, temporary_prefix
from marius_py.tracking import training
from marius_py.training.trainer import Trainer

GRAPH_SUFFIX = "-graph"

_LEFT_S = 60.0
"""Seconds after which a graph that was prepared to be compared, and that no process holds, is left over."""


def train(
    graph: Any = None,
    output: Path | str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    resume: bool = False,
    watcher: build.Watcher | None = None,
) -> Run:
    """Train, test, and open the run for use.

    Args:
        graph: the folder of a prepared graph, an open `Graph`, or what `graph_from` takes: a frame, an array
            or list of edges, a NetworkX graph, a PyG graph, which is prepared in OUTPUT-graph beside the run,
            or found there if it was before; None: the built-in demo graph. Or a `TrainConfig`, which says
            everything. For other arguments of `graph_from` than its defaults (valid, test, undirected, …)
            prepare with it and give its `Graph`.
        output: the run folder; None: runs/ and the time.
        settings: any settings of `marius-train` by their keys, {"model.dim": 64}, or nested as config.yaml
            has them, {"model": {"dim": 64}}; see its --help. Groups too, {"experiment": "fb15k_237/complex"}.
        resume: go on with the run in `output`, whatever `settings` say; False leaves it to them. An object
            must be the one that the run's graph was made from, its rows in the same order: it is prepared
            once more, beside the run, to compare them.
        watcher: told of the progress. What it raises ends the run and is raised here as it is.

    Returns:
        The run; `run.result` holds its metrics. Close it, or use it in a `with` block.

    Raises:
        ConfigError: an unknown key, a wrong value, an object that is no graph or not the one in
        OUTPUT-graph, an argument that `settings` contradict, a watcher that is none, or with `resume` no run
        and no graph.
        StorageError, FormatError, PipelineError: the run failed; its last commit is intact.
        InterruptedRunError: the watcher had its trainer interrupted; the state is committed.
        KeyboardInterrupt: Ctrl-C, or a notebook's interrupt, in the main thread. The state is committed
        before, and `resume` goes on with it; a second one does not wait for that. Where the program has a
        handler of its own for SIGINT, that is called instead.

    >>> import tempfile
    >>> edges = [(f"node {i}", f"node {(i * i + 1) % 20}") for i in range(60)]
    >>> small = {"model.decoder": "dot", "model.dim": 8, "training.epochs": 2, "training.valid_every": 0}
    >>> with tempfile.TemporaryDirectory() as folder, train(edges, f"{folder}/run", small) as run:
    ...     run.epochs, run.embedding("node 3").shape
    (2, (8,))
    """
    check_flags(resume=resume)
    _check_watcher(watcher)
    if isinstance(graph, TrainConfig):
        if output is not None or settings or resume:
            raise ConfigError("a TrainConfig says everything: change output, settings and resume in it")
        return _trained(graph, watcher)
    prepares = is_graph_data(graph)
    # The demo's settings are for no other graph, also where that has no folder yet.
    place = f"({type(graph).__name__})" if prepares else _place_of(graph)
    words = _words(TrainConfig, settings, graph=place, output=output)
    config = load_config([*words, "resume=true"] if resume else words)
    if not prepares:
        return _trained(config, watcher)
    build.check(config)
    with named(config) as config, _prepared(graph, run_folder(config)) as place:
        return _trained(replace(config, graph=str(place)), watcher)


def _trained(config: TrainConfig, watcher: build.Watcher | None) -> Run:
    """The run that a configuration makes, opened; an interrupt commits its state first."""
    heeding = _Heeding(watcher or build.Watcher())
    try:
        return load(training.train(config, heeding)["output"])
    except InterruptedRunError as error:
        if not heeding.interrupts.came:
            raise
        raise KeyboardInterrupt(str(error)) from error
    except PipelineError as error:
        if heeding.raised is None or error.__cause__ is not heeding.raised:
            raise
        raise heeding.raised from None
    finally:
        heeding.interrupts.end()


class _Heeding(Passing):
    """Passes everything on, and turns the interrupts that Python knows into a commit.

    Attributes:
        raised: what the other watcher raised within a stage, whose error the pipeline makes of it.
    """

    raised: BaseException | None = None

    def __init__(self, inner: build.Watcher) -> None:
        super().__init__(inner)
        is_own = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        self.interrupts = Interrupts([] if is_own else [signal.SIGINT])

    def on_start(self, trainer: Trainer, num_edges: int, epochs_done: int) -> None:
        """Take over the signal once there is something to commit."""
        super().on_start(trainer, num_edges, epochs_done)
        self.interrupts.begin(trainer)

    def on_epoch(self, line: Mapping[str, Any]) -> None:
        """Pass on a copy: the line itself is committed, and later epochs are compared with it."""
        super().on_epoch(deepcopy(line))

    def on_progress(self, edges: int) -> None:
        """Pass on, and note what is raised."""
        with self._noting():
            super().on_progress(edges)

    def on_stage(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """Stop where a signal came while the epoch before was committed."""
        with self._noting():
            super().on_stage(stage, done, total, unit)
        self.interrupts.check()

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.raised = error
            raise


def evaluate(
    run: Path | str | Run | EvaluateConfig,
    settings: Mapping[str, Any] | None = None,
    *,
    watcher: build.Watcher | None = None,
) -> dict[str, Any]:
    """Rank edges with the last commit of a run, as `marius-evaluate` does.

    Args:
        run: the run folder, or an open `Run`. Or an `EvaluateConfig`, which says everything.
        settings: any settings of `marius-evaluate` by their keys, {"split": "valid", "ks": [1, 5]}; see its
            --help.
        watcher: told of the progress.

    Returns:
        The metrics: "mrr", "hits@1", …, and likewise under "head" and "tail". With `compare` also "runs",
        "same_graph" and "note".

    Raises:
        ConfigError: an unknown key, a wrong value, a folder that is no run's, a watcher that is none, or no
        edges to rank.
        StorageError, FormatError: a file is missing or damaged, or cannot be written.

    >>> import tempfile
    >>> edges = [(f"node {i}", "links_to", f"node {(i * i + 1) % 20}") for i in range(60)]
    >>> small = {"model.dim": 8, "training.epochs": 2, "training.valid_every": 0}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     train(edges, f"{folder}/run", small).close()
    ...     [name for name in evaluate(f"{folder}/run", {"split": "train", "ks": [1, 5]}) if "@" in name]
    ['hits@1', 'hits@5']
    """
    _check_watcher(watcher)
    if isinstance(run, EvaluateConfig):
        if settings:
            raise ConfigError("an EvaluateConfig says everything: change settings in it")
        config = run
    else:
        opened = {"run": run.path, "graph": run.graph.path} if isinstance(run, Run) else {"run": run}
        config = compose(EvaluateConfig, _words(EvaluateConfig, settings, **opened))
    result = evaluate_runs(config, None if watcher is None else watcher.on_stage)
    if config.output is not None:
        write_output(Path(config.output), result)
    return result


def _check_watcher(watcher: object) -> None:
    """Refuse what cannot be told of progress, a class in place of its object too."""
    if watcher is not None and not isinstance(watcher, build.Watcher):
        raise ConfigError(
            f"watcher is {watcher!r}; it must be an object of a class derived from "
            "marius_py.assembly.Watcher, or None"
        )


def _words(kind: type[Any], settings: Mapping[str, Any] | None, **arguments: Any) -> list[str]:
    """Settings as words, with those arguments for settings of the same name that are not None."""
    settings = {} if settings is None else settings
    words = words_of(settings, kind)
    for name, value in arguments.items():
        other = settings.get(name)
        if value is None or other is None:
            continue
        mine, theirs = (os.fsdecode(one) if isinstance(one, PathLike) else str(one) for one in (value, other))
        if Path(mine).absolute() != Path(theirs).absolute():
            raise ConfigError(
                f"{name} is {mine!r} as the argument, but {theirs!r} in settings: give one of them"
            )
    return words + words_of({name: one for name, one in arguments.items() if one is not None}, kind)


def _place_of(graph: Any) -> Path | None:
    """The folder of a prepared graph.

    Raises:
        ConfigError: it is no graph.
    """
    if graph is None:
        return None
    if isinstance(graph, Graph):
        return graph.path
    if isinstance(graph, (str, PathLike)):
        return Path(graph)
    raise ConfigError(
        f"graph is {type(graph).__name__}; allowed: a prepared graph's folder, a Graph, a frame, an "
        "array or list of edges, a NetworkX graph, a PyG Data or HeteroData"
    )


@contextmanager
def _prepared(graph: Any, folder: Path) -> Iterator[Path]:
    """The folder of the graph prepared from an object, beside the run: one that is there, or a new one.

    A new one goes again where no run comes of it, with the folders that were made for it.

    Raises:
        ConfigError: another graph lies there.
    """
    beside = folder.with_name(folder.name + GRAPH_SUFFIX)
    if (beside / GRAPH_FILE).exists():
        _check_same(graph, beside)
        yield beside
        return
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        graph_from(graph, beside)
    except ConfigError as error:
        if not (beside / GRAPH_FILE).exists():  # by another thread or process since it was looked for
            said = str(error)
            asked = [name for name in inspect.signature(graph_from).parameters if f" {name}=" in said]
            if asked:
                where = f"{asked[0]}= is an argument of graph_from, whose Graph train takes"
                raise ConfigError(f"{said}; {where}") from error
            raise
        _check_same(graph, beside)
        yield beside
        return
    try:
        yield beside
    finally:
        if not folder.exists() or not any(folder.iterdir()):
            shutil.rmtree(beside, ignore_errors=True)
            for one in made:
                with suppress(OSError):  # something else lies there
                    one.rmdir()


def _check_same(graph: Any, prepared: Path) -> None:
    """Refuse an object from which another graph would come than the one that was prepared before."""
    known = open_graph(prepared).fingerprint
    prefix = temporary_prefix(prepared, "comparing")
    with ExitStack() as held:
        with os_errors_as_storage("write beside", prepared):
            remove_left(prepared.parent, prefix, older_s=_LEFT_S)
            place = held.enter_context(locked_folder(prepared.parent, prefix, f"comparing {prepared}"))
        found = graph_from(graph, place / "graph").fingerprint
    if found != known:
        raise ConfigError(
            f"graph: these data are not those that {prepared} was prepared from (fingerprints {found} and "
            f"{known}; names, edges and their order count): give the same data, graph={str(prepared)!r} to "
            "train on that graph, or another output for a run on these"
        )
