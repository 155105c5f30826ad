"""A run as one page (floor 4): a run folder in, an HTML file that opens without a network out, and PNGs.

Figures are embedded as SVG. What a run lacks (validation, a trace, test edges, relations) is left out.
"""

from __future__ import annotations

import base64
import html
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from marius_py import __version__
from marius_py.errors import ConfigError, StorageError
from marius_py.report_figures import (
    bands_figure,
    bytes_figure,
    loss_figure,
    map_figure,
    new_figure,
    principal_components,
    ranks_figure,
    save_figure,
    speed_figure,
    timeline_figure,
)
from marius_py.results import TRACE_FILE
from marius_py.run import Run
from marius_py.streams import Purpose, stream

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int | None, str], None]

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
body { color: #1e293b; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .8rem .2rem 0; text-align: right; border-bottom: 1px solid #e2e8f0; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; height: auto; } .note { color: #64748b; }
"""
_MAX_RELATIONS = 40


class _Page:
    """Collects sections; figures also become PNGs where a folder is given."""

    def __init__(self, figures: Path | None) -> None:
        self._parts: list[str] = []
        self._figures = figures
        self.files: list[Path] = []

    def title(self, text: str) -> None:
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def note(self, text: str) -> None:
        self._parts.append(f'<p class="note">{html.escape(text)}</p>')

    def table(self, heading: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in heading)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows
        )
        self._parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>")

    def figure(self, name: str, text: str, figure: Figure) -> None:
        content = save_figure(figure, "svg")
        # As an image of its own, so that the names inside one figure do not meet those of another.
        data = base64.b64encode(content).decode("ascii")
        self._parts.append(f'<img alt="{html.escape(text)}" src="data:image/svg+xml;base64,{data}">')
        if self._figures is not None:
            path = self._figures / f"{name}.png"
            path.write_bytes(save_figure(figure, "png"))
            self.files.append(path)

    def render(self, heading: str) -> str:
        title = html.escape(heading)
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
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Path]:
    """Write a run's report.

    Args:
        run: an open run.
        output: HTML file.
        figures: folder for the same figures as PNGs, made if missing.
        overwrite: replace `output` if it exists.
        max_edges: test edges that are ranked for the rank figures, a random sample.
        max_nodes: nodes on the map, a random sample.
        seed: of the samples.
        progress: called with ("rank", edges done, edges, "edges").

    Returns:
        The files written, `output` first.

    Raises:
        ConfigError: matplotlib is missing, or `output` exists. StorageError: reading or writing failed.
    """
    new_figure()  # says that matplotlib is missing before anything is read
    target = Path(output)
    if target.exists() and not overwrite:
        raise ConfigError(f"output: {target} exists; choose another name, or replace it with --overwrite")
    if not target.parent.is_dir():
        raise ConfigError(f"output={target}: there is no folder {target.parent}; create it first")
    folder = None if figures is None else Path(figures)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        page = _Page(folder)
        _summary(page, run)
        _training(page, run)
        _timeline(page, run)
        _ranking(page, run, max_edges, seed, progress)
        _map(page, run, max_nodes, seed)
        temporary.write_text(page.render(f"Run {run.path.name}"), encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"writing {error.filename or target} failed: {error.strerror}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return [target, *page.files]


def _summary(page: _Page, run: Run) -> None:
    graph = run.graph
    result = run.result
    settings = run.settings
    decoder = settings.get("model.decoder")
    rows = [
        ("nodes", f"{graph.num_nodes:,}"),
        ("relations", f"{graph.num_relations:,}" if graph.has_relations else "none"),
        ("edges", ", ".join(f"{count:,} {split}" for split, count in graph.num_edges.items())),
        ("decoder", str(decoder.get("_target_") if isinstance(decoder, Mapping) else decoder)),
        ("dim", str(run.dim)),
        ("epochs", f"{run.epochs}{'' if result else ' (not finished)'}"),
        *((key, str(value)) for key, value in settings.items() if key not in ("model.decoder", "model.dim")),
        ("marius_py", __version__),
    ]
    page.table(("", ""), rows)
    if not result:
        page.note(f"The run has not finished; this is its last commit, after {run.epochs} epochs.")
        return
    test = result.get("test")
    if test:
        names = [name for name in test if name == "mrr" or name.startswith("hits@") or name == "mean_rank"]
        page.title("Test")
        page.note(str(test.get("protocol", "")))
        sides = [("both", test), ("head", test.get("head", {})), ("tail", test.get("tail", {}))]
        page.table(
            ("", *names), [(side, *(_number(part.get(name)) for name in names)) for side, part in sides]
        )


def _number(value: Any) -> str:
    if not isinstance(value, (int, float)):
        return ""
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.4f}"


def _training(page: _Page, run: Run) -> None:
    history = run.history
    if not history or "loss" not in history[0]:
        return
    page.title("Training")
    page.figure("loss", "Loss and validation MRR by epoch", loss_figure(history))
    page.title("Throughput")
    page.figure("speed", "Edges a second and waiting by epoch", speed_figure(history))
    page.figure("bytes", "GiB read and written by epoch", bytes_figure(history))


def _timeline(page: _Page, run: Run) -> None:
    path = run.path / TRACE_FILE
    try:
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s cannot be read (%s); the timeline is left out", path, error)
        return
    if events:
        page.title("Pipeline")
        page.figure("timeline", "What each thread did", timeline_figure(events))


def _ranking(page: _Page, run: Run, max_edges: int, seed: int, progress: Progress | None) -> None:
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
    page.note(f"{len(metrics.edges):,} of {count:,} test edges, {metrics.protocol}")
    page.figure("ranks", "Ranks of the true answers", ranks_figure(metrics.ranks))
    bands = [(bound, part.mrr, part.count) for bound, part in metrics.bands.items()]
    if bands:
        page.figure("degrees", "MRR by degree of the answer", bands_figure(bands))
    if not run.graph.has_relations:
        return
    names = run.relation_names
    ordered = sorted(metrics.relations.items(), key=lambda one: (-one[1].count, one[0]))
    page.title("Relations")
    if len(ordered) > _MAX_RELATIONS:
        page.note(f"The {_MAX_RELATIONS} of {len(ordered)} relations with most of these edges.")
    page.table(
        ("relation", "ranks", "MRR", "mean rank"),
        [
            (names[number], f"{part.count:,}", f"{part.mrr:.4f}", f"{part.mean_rank:,.1f}")
            for number, part in ordered[:_MAX_RELATIONS]
        ],
    )


def _map(page: _Page, run: Run, max_nodes: int, seed: int) -> None:
    from marius_py.predict.answers import names_of

    count = min(max_nodes, run.num_nodes)
    if count < 3:
        return
    ids = np.sort(stream(seed, Purpose.EVALUATE, 3).choice(run.num_nodes, count, replace=False))
    points, shares = principal_components(run.embeddings(ids))
    names = names_of(run, ids)
    with run.graph.edges() as store:
        step = 1 << 20
        degrees = np.concatenate(
            [
                store.degrees(start, min(start + step, run.num_nodes))[
                    ids[(ids >= start) & (ids < start + step)] - start
                ]
                for start in range(0, run.num_nodes, step)
            ]
        )
    page.title("Embeddings")
    page.note(
        f"{count:,} of {run.num_nodes:,} nodes on the first two principal components, which hold "
        f"{100 * shares[0]:.1f} and {100 * shares[1]:.1f} % of the variance; color: train degree, "
        "names: the nodes of highest degree."
    )
    page.figure("map", "Map of the embeddings", map_figure(points, [names[i] for i in ids.tolist()], degrees))
