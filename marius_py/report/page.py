"""A run as one page (floor 4): a run folder in, an HTML file that opens without a network out, and PNGs.

Figures are embedded as SVG. What a run lacks (validation, a trace, test edges, relations) is left out.
"""

from __future__ import annotations

import base64
import html
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from marius_py.errors import ConfigError, StorageError
from marius_py.evaluation.metrics import check_whole
from marius_py.given import as_path, check_flags
from marius_py.report.figures import (
    bands_figure,
    bytes_figure,
    degree_rank_figure,
    legal,
    loss_figure,
    map_figure,
    metrics_figure,
    new_figure,
    ranks_figure,
    save_figure,
    speed_figure,
)
from marius_py.report.map import Method, check_method, map_rows
from marius_py.report.timeline import stage_rows, timeline_figure, utilization_figure
from marius_py.run import Run
from marius_py.run_files.names import TRACE_FILE
from marius_py.run_files.outputs import check_output
from marius_py.run_files.reader import check_open
from marius_py.storage.files import made_folders
from marius_py.storage.regular import read_regular
from marius_py.storage.replacing import Replacing
from marius_py.storage.targets import reaching
from marius_py.streams import Purpose, stream
from marius_py.types import StageProgress
from marius_py.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
body { color: #1e293b; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .8rem .2rem 0; text-align: right; border-bottom: 1px solid #e2e8f0; }
th { vertical-align: bottom; } td { vertical-align: top; white-space: nowrap; }
th:first-child, td:first-child, .facts td { text-align: left; }
td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 4em; }
.facts td:first-child, .short td:first-child { white-space: nowrap; }
.facts td:last-child { white-space: normal; overflow-wrap: anywhere; }
.wide, .short { overflow-x: auto; } .note, figcaption { color: #64748b; }
figure { margin: 1.2rem 0; } img { width: 100%; max-width: 50rem; height: auto; }
"""
_MAX_RELATIONS = 40


def _escape(text: str) -> str:
    return html.escape(legal(text))


class _Page:
    """Collects sections; figures also become PNGs where a folder is given."""

    def __init__(self, figures: Path | None) -> None:
        self._parts: list[str] = []
        self._figures = figures
        self.pictures: dict[Path, bytes] = {}

    def title(self, text: str) -> None:
        self._parts.append(f"<h2>{_escape(text)}</h2>")

    def note(self, text: str) -> None:
        self._parts.append(f'<p class="note">{_escape(text)}</p>')

    def table(self, heading: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "wide") -> None:
        """A table; "facts" are one without a heading, a name and a value a row, "short" has no long names."""
        head = "".join(f"<th>{_escape(cell)}</th>" for cell in heading)
        head = f"<thead><tr>{head}</tr></thead>" if heading else ""
        body = "".join(
            "<tr>" + "".join(f"<td>{_escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows
        )
        self._parts.append(f'<div class="{kind}"><table>{head}<tbody>\n{body}</tbody></table></div>')

    def figure(self, name: str, text: str, figure: Figure) -> None:
        content = save_figure(figure, "svg")
        # As an image of its own, so that the names inside one figure do not meet those of another.
        data = base64.b64encode(content).decode("ascii")
        caption = _escape(text)
        self._parts.append(
            f'<figure><img alt="{caption}" src="data:image/svg+xml;base64,{data}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )
        if self._figures is not None:
            figure.set_layout_engine("none")  # the places found for the SVG serve the PNG
            self.pictures[self._figures / f"{name}.png"] = save_figure(figure, "png")

    def render(self, heading: str) -> str:
        title = _escape(heading)
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
            f'<meta name="viewport" content="width=device-width">\n<style>{_STYLE}</style></head>\n'
            f"<body><h1>{title}</h1>\n" + "\n".join(self._parts) + "\n</body></html>\n"
        )


def write_report(
    run: Run,
    output: Path | str,
    *,
    figures: Path | str | None = None,
    overwrite: bool = False,
    max_edges: int = 2000,
    max_nodes: int = 2000,
    map: Method = "pca",
    seed: int = 0,
    progress: StageProgress | None = None,
) -> list[Path]:
    """Write a run's report.

    Args:
        run: an open run.
        output: HTML file.
        figures: folder for the same figures as PNGs, made if missing.
        overwrite: replace `output` and figures of the same names in `figures` if they exist.
        max_edges: test edges that are ranked for the rank figures, a random sample, from 1.
        max_nodes: nodes on the map, a random sample, from 1; there is no map of fewer than three.
        map: "pca", principal components, or "umap", if umap-learn is installed.
        seed: of the samples.
        progress: called with ("rank", edges done, edges, "edges").

    Returns:
        The files written, `output` first.

    Raises:
        ConfigError: `run` is no open run, matplotlib or umap-learn is missing, `output` or a figure exists,
        `output` is a folder, a device, or a file of the run or its graph, or a number is out of range.
        StorageError: reading or writing failed.
    """
    check_open(run)
    check_flags(overwrite=overwrite)
    target = as_path(output, "output", "the HTML file to write")
    folder = None if figures is None else as_path(figures, "figures", "a folder for figures")
    new_figure()  # says that matplotlib is missing before anything is read
    check_method(map)
    check_whole("max_edges", max_edges, 1)
    check_whole("max_nodes", max_nodes, 1)
    check_whole("seed", seed)
    check_output(run, output, f"output={output}", overwrite=overwrite)
    with _made(folder):
        page = _Page(folder)
        _summary(page, run)
        _training(page, run)
        _timeline(page, run)
        _ranking(page, run, max_edges, seed, progress)
        _map(page, run, max_nodes, map, seed)
        for picture in page.pictures:
            check_output(run, picture, f"figures={picture}", overwrite=overwrite)
        files = {target: page.render(f"Run {run.path.name}").encode(), **page.pictures}
        with Replacing([*files]) as temporary:
            for path, content in files.items():
                temporary[path].write_bytes(content)
    return [*files]


@contextmanager
def _made(folder: Path | None) -> Iterator[None]:
    """Make a folder before anything else is done; a new one goes again if nothing comes into it."""
    if folder is not None:
        with reaching(f"figures={folder}"):
            if folder.exists() and not folder.is_dir():
                raise ConfigError(f"figures={folder} is a file; give the name of a folder")
    with ExitStack() as held:
        try:
            if folder is not None:
                held.enter_context(made_folders(folder))
        except OSError as error:
            raise StorageError(f"figures={folder}: the folder cannot be made: {error.strerror}") from error
        yield


def _summary(page: _Page, run: Run) -> None:
    graph = run.graph
    settings = run.settings
    rows = [
        ("nodes", f"{graph.num_nodes:,}"),
        ("relations", f"{graph.num_relations:,}" if graph.has_relations else "none"),
        ("edges", ", ".join(f"{count:,} {split}" for split, count in graph.num_edges.items())),
        ("decoder", _described(settings.get("model.decoder"))),
        ("dim", str(run.dim)),
        ("epochs", f"{run.epochs}{'' if run.unfinished is None else ' (not finished)'}"),
        *(
            (key, json.dumps(value) if isinstance(value, bool) else _described(value))
            for key, value in settings.items()
            if key not in ("model.decoder", "model.dim")
        ),
        ("marius_py", __version__),
    ]
    page.table((), rows, "facts")
    if run.unfinished is not None:
        page.note(f"The run has not finished; this is its last commit, after {run.epochs} epochs.")
    test = (run.result or {}).get("test")
    if test:
        names = [name for name in test if name == "mrr" or name.startswith("hits@") or name == "mean_rank"]
        page.title("Test")
        page.note(str(test.get("protocol", "")))
        sides = [("both", test), ("head", test.get("head", {})), ("tail", test.get("tail", {}))]
        page.table(
            ("", *names), [(side, *(_number(part.get(name)) for name in names)) for side, part in sides]
        )


def _described(description: Any) -> str:
    """A part's name and its own settings; of anything else the text."""
    if not isinstance(description, Mapping):
        return str(description)
    own = ", ".join(f"{key} {value}" for key, value in description.items() if key != "_target_")
    return f"{description.get('_target_')}{', ' if own else ''}{own}"


def _number(value: Any) -> str:
    if not isinstance(value, (int, float)):
        return ""
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.4f}"


def _training(page: _Page, run: Run) -> None:
    history = run.history
    if not history or "loss" not in history[0]:
        return
    page.title("Training")
    validated = any(line.get("valid") for line in history)
    page.figure("loss", f"Loss{' and validation MRR' * validated} by epoch", loss_figure(history))
    if validated:
        page.figure("metrics", "Validation metrics by epoch", metrics_figure(history))
    page.title("Throughput")
    page.figure("speed", "Edges a second and waiting by epoch", speed_figure(history))
    page.figure("bytes", "Bytes read and written by epoch", bytes_figure(history))


def _timeline(page: _Page, run: Run) -> None:
    path = run.path / TRACE_FILE
    try:
        events = json.loads(read_regular(path))["traceEvents"]
        spans = [event for event in events if event.get("ph") == "X"]
        if not spans:
            return
        timeline, utilization = timeline_figure(spans), utilization_figure(spans)
        rows = stage_rows(spans)
    except FileNotFoundError:
        return
    except (
        OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError,
    ) as error:  # fmt: skip
        reason = f"{type(error).__name__}: {error}"
        logger.warning("%s cannot be read (%s); the timeline is left out", path, reason)
        return
    page.title("Pipeline")
    page.figure("timeline", "When each thread did what", timeline)
    page.figure("utilization", "How long each thread did it, of all spans", utilization)
    page.table(("stage or wait", "times", "seconds", "% of the time", "threads"), rows, "short")


def _ranking(page: _Page, run: Run, max_edges: int, seed: int, progress: StageProgress | None) -> None:
    count = run.graph.num_edges.get("test", 0)
    if not count:
        return
    metrics = run.evaluate(
        max_edges=max_edges,
        details=True,
        seed=seed,
        progress=None if progress is None else lambda done, total: progress("rank", done, total, "edges"),
    )
    page.title("Ranks")
    page.note(metrics.protocol if metrics.sampled else f"All {count:,} test edges, {metrics.protocol}")
    page.figure("ranks", "Ranks of the true answers", ranks_figure(metrics.ranks))
    bands = [(bound, part.mrr, part.count) for bound, part in metrics.bands.items()]
    if bands:
        page.figure("degrees", "MRR by degree of the answer", bands_figure(bands))
    answers = np.concatenate((metrics.edges[:, 0], metrics.edges[:, 2])).astype(np.int64)
    ranks = metrics.ranks.T.reshape(-1)
    if answers.size:
        figure = degree_rank_figure(_degrees(run, answers), ranks)
        page.figure("degree_rank", "Rank against degree of the answer", figure)
    if not run.graph.has_relations:
        return
    names = run.relation_names
    ordered = sorted(metrics.relations.items(), key=lambda one: (-one[1].count, one[0]))
    page.title("Relations")
    if len(ordered) > _MAX_RELATIONS:
        page.note(f"The {_MAX_RELATIONS} of {len(ordered)} relations with most of these edges.")
    page.table(
        ("relation", "kind", "ranks", "MRR", "MRR heads", "MRR tails", "Hits@10", "mean rank"),
        [
            (
                names[number],
                metrics.category_of.get(number, ""),
                f"{part.count:,}",
                _number(part.mrr),
                _number(None if part.head is None else part.head.mrr),
                _number(None if part.tail is None else part.tail.mrr),
                _number(part.hits.get(10)),
                f"{part.mean_rank:,.1f}",
            )
            for number, part in ordered[:_MAX_RELATIONS]
        ],
    )


def _degrees(run: Run, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Train degrees (n,) of node ids (n,)."""
    from marius_py.evaluation.evaluator import degrees_of

    with run.graph.edges() as store:
        return degrees_of(ids, store, run.num_nodes)


def _map(page: _Page, run: Run, max_nodes: int, method: Method, seed: int) -> None:
    from marius_py.predict.queries import names_of

    count = min(max_nodes, run.num_nodes)
    ids = np.sort(stream(seed, Purpose.EVALUATE, 3).choice(run.num_nodes, count, replace=False))
    rows = run.embeddings(ids)
    finite = np.isfinite(rows).all(axis=1)
    ids, rows = ids[finite], rows[finite]
    odd = (
        f" {count - len(ids):,} more are left out: their embeddings are not finite."
        if len(ids) < count
        else ""
    )
    page.title("Embeddings")
    if len(ids) < 3:
        page.note(f"No map of {len(ids)} nodes.{odd}")
        return
    placed = map_rows(rows, method, seed)
    names = names_of(run, ids)
    page.note(
        f"{len(ids):,} of {run.num_nodes:,} nodes {placed.note}; color: train degree, names: the nodes of "
        f"highest degree.{odd}"
    )
    figure = map_figure(placed.points, [names[i] for i in ids.tolist()], _degrees(run, ids), placed.axes)
    page.figure("map", "Map of the embeddings", figure)
