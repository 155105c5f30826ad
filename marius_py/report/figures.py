"""Figures of a report (floor 4): plain numbers in, matplotlib figures out; matplotlib is imported on use."""

from __future__ import annotations

import io
import re
import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from marius_py.errors import ConfigError
from marius_py.memory import unit_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = ("#2563eb", "#ea580c", "#059669", "#9333ea", "#64748b")
_EPOCHS = 300
"""A figure shows so many epochs one by one; of a longer run it shows as many groups of them, or fewer."""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LABELED = 25
_CANDIDATES = 400
_LETTER_SIZE = np.array([0.013, 0.025])
"""Width and height of a letter of a name, as shares of a map's."""


def new_figure(width: float = 7.0, height: float = 3.2) -> tuple[Figure, Any]:
    """An empty figure with one pair of axes, inches.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "a report needs matplotlib: pip install 'marius_py[plot]', or pip install matplotlib"
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return figure, axes


def save_figure(figure: Figure, kind: Literal["svg", "png"]) -> bytes:
    """A figure as SVG, whose texts the reader's fonts draw, or as PNG of 150 dots an inch."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}), warnings.catch_warnings():
        # Names may be in any script; matplotlib's own font lacks some, a reader's browser does not.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        facts = {"Date": None} if kind == "svg" else None
        figure.savefig(buffer, format=kind, dpi=150, metadata=facts)
    return legal(buffer.getvalue().decode()).encode() if kind == "svg" else buffer.getvalue()


def legal(text: str) -> str:
    """A text with the replacement character where XML 1.0 allows none of its characters, as of `\\x0b`."""
    return _NOT_XML.sub("\ufffd", text)


def _group_size(history: Sequence[Mapping[str, Any]]) -> int:
    """How many epochs in a row a figure shows as one."""
    return -(-(int(history[-1]["epoch"]) - int(history[0]["epoch"]) + 1) // _EPOCHS)


def _group_starts(epochs: NDArray[np.int64], size: int) -> NDArray[np.intp]:
    """Places (groups,) in ascending epochs (n,) where a group of `size` epochs begins."""
    return np.concatenate(([0], np.flatnonzero(np.diff((epochs - epochs[0]) // size)) + 1))


def _curve(axes: Any, points: Sequence[tuple[int, float]], size: int, **look: Any) -> None:
    """Draw (epoch, value) points: all, or the first, the last and each group's lowest and highest value."""
    epochs = np.array([epoch for epoch, _ in points], dtype=np.int64)
    values = np.array([value for _, value in points], dtype=np.float64)
    kept = {0, len(points) - 1}
    for group in np.split(np.arange(len(points)), _group_starts(epochs, size)[1:]):
        kept.update((int(group[values[group].argmin()]), int(group[values[group].argmax()])))
    shown = sorted(kept)
    if len(points) > _EPOCHS:  # and not what is shown, so that all curves of a figure look alike
        look |= {"marker": None, "linewidth": 0.8}
    axes.plot(epochs[shown], values[shown], **{"marker": "o", "markersize": 3} | look)


def _steps(axes: Any, epochs: NDArray[np.int64], values: NDArray[np.float64], size: int, **look: Any) -> None:
    """Draw the mean of values (n,) by group of `size` epochs as steps, which are one shape, however many."""
    starts = _group_starts(epochs, size)
    means = np.add.reduceat(values, starts) / np.diff(starts, append=len(epochs))
    axes.stairs(means, np.append(epochs[starts], epochs[-1] + 1) - 0.5, **look)


def _epoch_axis(axes: Any, size: int, shown: Literal["extremes", "means"]) -> None:
    """Name the axis of epochs, and say there what is shown of a group of them."""
    axes.set_xlabel(f"epoch ({shown} of every {size})" if size > 1 else "epoch")
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def _legend_above(axes: Any) -> None:
    """A legend over the axes, where it hides nothing; a search for room within takes long in a long run."""
    axes.legend(frameon=False, ncols=9, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)


def loss_figure(history: Sequence[Mapping[str, Any]]) -> Figure:
    """Loss by epoch, and validation MRR on the right where there is one."""
    figure, axes = new_figure()
    size = _group_size(history)
    _curve(axes, [(int(line["epoch"]) + 1, line["loss"]) for line in history], size, color=COLORS[0])
    _epoch_axis(axes, size, "extremes")
    axes.set_ylabel("loss an edge", color=COLORS[0])
    valid = [(int(line["epoch"]) + 1, line["valid"]["mrr"]) for line in history if line.get("valid")]
    if valid:
        right = axes.twinx()
        right.spines["top"].set_visible(False)
        _curve(right, valid, size, color=COLORS[1], marker="s")
        sampled = any((line.get("valid") or {}).get("sampled") for line in history)
        right.set_ylabel("validation MRR (sampled)" if sampled else "validation MRR", color=COLORS[1])
    return figure


def speed_figure(history: Sequence[Mapping[str, Any]]) -> Figure:
    """Edges a second by epoch, and the shares of time spent waiting."""
    figure, axes = new_figure()
    size = _group_size(history)
    epochs = np.array([int(line["epoch"]) + 1 for line in history])
    speeds = np.array([line["edges_per_second"] for line in history])
    shares = np.array([100 * line["wait_disk_s"] / max(line["seconds"], 1e-9) for line in history])
    right = axes.twinx()
    if size > 1:
        _steps(axes, epochs, speeds, size, color=COLORS[0], alpha=0.6, fill=True)
        _steps(right, epochs, shares, size, color=COLORS[1], baseline=None)
    else:
        axes.bar(epochs, speeds, color=COLORS[0], alpha=0.6)
        right.plot(epochs, shares, color=COLORS[1], marker="o", markersize=3)
    _epoch_axis(axes, size, "means")
    axes.set_ylabel("edges a second", color=COLORS[0])
    right.spines["top"].set_visible(False)
    right.set_ylim(bottom=0)
    right.set_ylabel("% of the time waiting on disk", color=COLORS[1])
    return figure


def bytes_figure(history: Sequence[Mapping[str, Any]]) -> Figure:
    """Bytes read and written by epoch."""
    figure, axes = new_figure()
    size = _group_size(history)
    unit, unit_name = unit_of(max(max(line["bytes_read"], line["bytes_written"]) for line in history))
    epochs = np.array([int(line["epoch"]) + 1 for line in history])
    for shift, key, color in ((-0.2, "bytes_read", COLORS[0]), (0.2, "bytes_written", COLORS[1])):
        values = np.array([line[key] / unit for line in history])
        label = key.removeprefix("bytes_")
        if size > 1:
            # An area and a line, so that both are seen where they are equal.
            area = {"fill": True, "alpha": 0.6} if shift < 0 else {"baseline": None}
            _steps(axes, epochs, values, size, color=color, label=label, **area)
        else:
            axes.bar(epochs + shift, values, width=0.4, color=color, label=label)
    _epoch_axis(axes, size, "means")
    axes.set_ylabel(f"{unit_name} an epoch" if size > 1 else unit_name)
    _legend_above(axes)
    return figure


def ranks_figure(ranks: NDArray[np.float64]) -> Figure:
    """Histogram of the ranks (E, 2) of heads and tails, on a logarithmic axis."""
    figure, axes = new_figure()
    bins = np.geomspace(1, max(float(np.nanmax(ranks)) + 1, 2), 30)
    axes.hist([ranks[:, 1], ranks[:, 0]], bins=bins, color=COLORS[:2], label=["tails", "heads"])
    axes.set_xscale("log")
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("rank of the true answer")
    axes.set_ylabel("edges")
    axes.legend(frameon=False)
    return figure


def bands_figure(bands: Sequence[tuple[int, float, int]]) -> Figure:
    """MRR by the answer's train degree: (lower bound, MRR, answers)."""
    figure, axes = new_figure()
    places = range(len(bands))
    axes.bar(places, [mrr for _, mrr, _ in bands], color=COLORS[2], alpha=0.8)
    axes.set_xticks(places, [f"{bound}\n({count})" for bound, _, count in bands], fontsize=7)
    axes.set_xlabel("train degree of the answer, from a bar's to below its double (answers)")
    axes.set_ylabel("MRR")
    return figure


def _log_ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """Places and labels of ticks of a logarithmic axis, at numbers of one digit or else at its ends.

    >>> _log_ticks(1, 40)
    ([1, 2, 5, 10, 20], ['1', '2', '5', '10', '20'])
    """
    places = range(int(np.log10(high) + 1e-9) + 1)
    ticks: list[float] = []
    for leading in ((1,), (1, 2, 5), range(1, 10)):
        numbers = [digit * 10**place for place in places for digit in leading]
        ticks = [number for number in numbers if low * (1 - 1e-9) <= number <= high * (1 + 1e-9)]
        if len(ticks) > 2:
            break
    ticks = ticks or sorted({low, high})
    return ticks, [f"{tick:,.10g}" for tick in ticks]


def degree_rank_figure(degrees: NDArray[np.int64], ranks: NDArray[np.float64]) -> Figure:
    """Rank of each answer (n,) against its train degree (n,), both logarithmic; the line is the median."""
    figure, axes = new_figure(height=3.6)
    shown = np.isfinite(ranks)
    x, y = np.log10(degrees[shown] + 1.0), np.log10(ranks[shown])
    bins = axes.hexbin(x, y, gridsize=(36, 18), bins="log", cmap="Blues", vmin=0.3, mincnt=1, linewidths=0.1)
    most = max(2.0, float(bins.get_array().max()))
    bins.set_clim(0.3, most)
    bar = figure.colorbar(bins, ax=axes, label="answers")
    bar.ax.set_ylim(1, most)
    ticks, labels = _log_ticks(1, most)
    bar.set_ticks(ticks, labels=labels)
    bar.minorticks_off()
    edges = np.linspace(x.min(), x.max() + 1e-9, 13) if x.size else np.zeros(1)
    band = np.digitize(x, edges)
    middle = [(float(np.mean(x[band == i])), float(np.median(y[band == i]))) for i in np.unique(band)]
    axes.plot(*zip(*middle, strict=True), color=COLORS[1], marker="o", markersize=3, label="median")
    for axis, values in ((axes.xaxis, x), (axes.yaxis, y)):
        ticks, labels = _log_ticks(10 ** values.min(), 10 ** values.max())
        axis.set_ticks(np.log10(ticks), labels)
    axes.set_xlabel("train degree of the answer + 1")
    axes.set_ylabel("rank of the answer")
    _legend_above(axes)
    return figure


def metrics_figure(history: Sequence[Mapping[str, Any]]) -> Figure:
    """Validation MRR and Hits@k by epoch; `history` needs a line with `valid`."""
    figure, axes = new_figure()
    size = _group_size(history)
    valid = [(int(line["epoch"]) + 1, line["valid"]) for line in history if line.get("valid")]
    # A run that went on may have been given other ks.
    found = dict.fromkeys(name for _, line in valid for name in line)
    names = [name for name in found if name == "mrr" or name.startswith("hits@")]
    for number, name in enumerate(names):
        values = [(epoch, line[name]) for epoch, line in valid if isinstance(line.get(name), (int, float))]
        label = "MRR" if name == "mrr" else name.replace("hits", "Hits")
        _curve(axes, values, size, color=COLORS[number % len(COLORS)], label=label)
    _epoch_axis(axes, size, "extremes")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("on validation edges")
    _legend_above(axes)
    return figure


def map_figure(
    points: NDArray[np.float64],
    names: Sequence[str],
    degrees: NDArray[np.int64],
    labels: tuple[str, str],
) -> Figure:
    """Embeddings on two axes (n, 2), called by `labels`; the nodes with most edges carry their names."""
    figure, axes = new_figure(height=5.5)
    color = np.log10(degrees + 1.0)
    size = 6 if len(points) > 500 else 16
    dots = axes.scatter(points[:, 0], points[:, 1], c=color, s=size, cmap="viridis", alpha=0.7, linewidths=0)
    bar = figure.colorbar(dots, ax=axes, label="train degree + 1")
    ticks, labels_of_bar = _log_ticks(10 ** color.min(), 10 ** color.max())
    bar.set_ticks(np.log10(ticks).tolist(), labels=labels_of_bar)
    shown = [name if len(name) <= 24 else name[:23] + "…" for name in names]
    for place in _apart(points, shown, np.argsort(-degrees, kind="stable"))[:_LABELED]:
        text = shown[place].replace("$", r"\$")  # it would begin mathematics
        beside = {"xytext": (2, 1), "textcoords": "offset points"}  # else the dot hides the first letter
        axes.annotate(text, points[place], fontsize=6, alpha=0.9, **beside)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    return figure


def _apart(points: NDArray[np.float64], texts: Sequence[str], order: NDArray[np.integer]) -> list[int]:
    """Places in `order` whose labels would not lie on an earlier one; looks at the first few hundred."""
    span = np.ptp(points, axis=0)
    left = (points - points.min(axis=0)) / np.where(span > 0, span, 1)
    right = left + [_LETTER_SIZE * (_letters(text), 1) for text in texts]
    kept: list[int] = []
    for place in order[:_CANDIDATES].tolist():
        away = (left[kept] > right[place]) | (left[place] > right[kept])
        if away.any(axis=1).all():
            kept.append(place)
    return kept


def _letters(text: str) -> int:
    """Width of a text in letters: those of East Asia take two, and what stands over another none."""
    return sum(
        0 if unicodedata.combining(letter) else 1 + (unicodedata.east_asian_width(letter) in "WF")
        for letter in text
    )
