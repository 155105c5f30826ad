"""A report of thousands of epochs is a small page, made soon, that shows the extremes of its curves."""

import time
import warnings

import numpy as np
import pytest

import marius_py
from marius_py.report import write_report
from marius_py.report.figures import (
    bands_figure,
    bytes_figure,
    degree_rank_figure,
    loss_figure,
    metrics_figure,
    ranks_figure,
    save_figure,
    speed_figure,
)
from tests.small_runs import write_run

pytest.importorskip("matplotlib", reason="reports need matplotlib")

FIGURES = (loss_figure, metrics_figure, speed_figure, bytes_figure)


def make_history(epochs, valid_every=1):
    rng = np.random.default_rng(0)
    noise = rng.uniform(size=(epochs, 4)).tolist()
    return [
        {
            "epoch": epoch,
            "loss": 2 + a,
            "seconds": 1.0,
            "edges_per_second": 1000 * (1 + b),
            "bytes_read": int(c * 2**30),
            "bytes_written": 2**30,
            "wait_disk_s": d,
            "valid": {"mrr": a / 2, "hits@1": b / 2, "hits@10": c}
            if (epoch + 1) % valid_every == 0
            else None,
        }
        for epoch, (a, b, c, d) in enumerate(noise)
    ]


def test_a_long_run_is_a_small_page(tmp_path):
    with marius_py.load(write_run(tmp_path)[0]) as run, warnings.catch_warnings():
        warnings.simplefilter("error")
        run._checkpoint.meta["history"] = make_history(5000)
        start = time.process_time()
        write_report(run, tmp_path / "r.html", figures=tmp_path / "figures")
        assert time.process_time() - start < 15
    assert (tmp_path / "r.html").stat().st_size < 1_000_000


def test_curves_keep_their_extremes_and_ends():
    history = make_history(5000)
    history[1234]["loss"], history[4321]["loss"] = 99.0, -7.0
    history[2345]["valid"]["mrr"] = 1.0
    left, right = (axes.lines[0].get_xydata() for axes in loss_figure(history).axes)
    assert {(1235, 99.0), (4322, -7.0), (1, history[0]["loss"]), (5000, history[-1]["loss"])} <= set(
        map(tuple, left.tolist())
    )
    assert [2346, 1.0] in right.tolist()
    assert [2346, 1.0] in metrics_figure(history).axes[0].lines[0].get_xydata().tolist()
    assert all(np.all(np.diff(points[:, 0]) > 0) and len(points) <= 602 for points in (left, right))


def test_every_group_shows_its_lowest_and_highest_loss():
    losses = np.array([line["loss"] for line in make_history(5000)])
    drawn = loss_figure(make_history(5000)).axes[0].lines[0].get_ydata()
    for start in range(0, 5000, 17):
        group = losses[start : start + 17]
        assert {group.min(), group.max()} <= set(drawn)


def test_curves_of_one_figure_look_alike():
    """Of a curve that hardly changes fewer points are shown than of one that does."""
    history = make_history(350)
    for line in history:
        line["valid"]["hits@10"] = 0.5
    lines = metrics_figure(history).axes[0].lines
    assert len({len(line.get_xdata()) > 300 for line in lines}) == 2
    assert len({(line.get_marker(), line.get_linewidth()) for line in lines}) == 1


def test_hits_of_a_run_that_went_on_with_other_ks_are_shown():
    history = make_history(4)
    for line in history[2:]:
        line["valid"] = {"mrr": 0.1, "hits@1": 0.2, "hits@50": 0.6}
    axes = metrics_figure(history).axes[0]
    shown = {line.get_label(): line.get_xdata().tolist() for line in axes.lines}
    assert shown == {"MRR": [1, 2, 3, 4], "Hits@1": [1, 2, 3, 4], "Hits@10": [1, 2], "Hits@50": [3, 4]}


def test_throughput_of_a_long_run_is_a_mean_by_group():
    history = make_history(5000)
    groups = range(0, 5000, 17)
    figure = bytes_figure(history)
    read, written = (patch.get_data() for patch in figure.axes[0].patches)
    means = [
        np.mean([line["bytes_read"] / 2**30 for line in history[start : start + 17]]) for start in groups
    ]
    np.testing.assert_allclose(read.values, means)
    np.testing.assert_allclose(written.values, 1)
    assert read.edges.tolist() == [*(start + 0.5 for start in groups), 5000.5]
    assert figure.axes[0].get_xlabel() == "epoch (means of every 17)"
    speeds, waits = (axes.patches[0].get_data().values for axes in speed_figure(history).axes)
    assert speeds[-1] == pytest.approx(np.mean([line["edges_per_second"] for line in history[4998:]]))
    assert waits[0] == pytest.approx(100 * np.mean([line["wait_disk_s"] for line in history[:17]]))


def test_rare_validation_is_drawn_point_by_point():
    line = loss_figure(make_history(5000, valid_every=100)).axes[1].lines[0]
    assert line.get_xdata().tolist() == list(range(100, 5001, 100))
    assert line.get_marker() == "s"


@pytest.mark.parametrize("epochs", [1, 300])
def test_a_short_run_is_drawn_epoch_by_epoch(epochs):
    history = make_history(epochs)
    loss, _, speed, amounts = (figure(history) for figure in FIGURES)
    assert loss.axes[0].lines[0].get_ydata().tolist() == [line["loss"] for line in history]
    assert loss.axes[0].lines[0].get_marker() == "o"
    assert len(speed.axes[0].patches) == epochs
    assert len(amounts.axes[0].patches) == 2 * epochs
    assert all(figure.axes[0].get_xlabel() == "epoch" for figure in (loss, speed, amounts))


def test_a_legend_lies_above_its_axes():
    histories = make_history(400), make_history(4)
    figures = [make(history) for make in (metrics_figure, bytes_figure) for history in histories]
    for figure in (*figures, degree_rank_figure(np.arange(9), np.arange(1.0, 10))):
        save_figure(figure, "svg")
        axes = figure.axes[0]
        assert axes.get_legend().get_window_extent().y0 >= axes.get_window_extent().y1 - 1


@pytest.mark.parametrize(("most", "unit", "height"), [(0, "B", 0), (3 << 10, "KiB", 3), (5 << 30, "GiB", 5)])
def test_bytes_have_the_unit_that_suits_the_most(most, unit, height):
    history = [line | {"bytes_read": most // 2, "bytes_written": most} for line in make_history(3)]
    axes = bytes_figure(history).axes[0]
    assert axes.get_ylabel() == unit
    assert [patch.get_height() for patch in axes.patches] == [height / 2] * 3 + [height] * 3


def test_bands_of_degree_do_not_read_as_open_ended():
    axes = bands_figure([(0, 0.1, 16), (4, 0.2, 31)]).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0\n(16)", "4\n(31)"]
    assert "below its double" in axes.get_xlabel()


@pytest.mark.parametrize(
    ("degrees", "ranks"),
    [([1, 1, 1], [20, 24.5, 30]), ([11], [24.5]), ([0, 3, 11], [1, 2, 3]), ([0, 2000] * 5, [1, 14541] * 5)],
)
def test_ticks_of_counts_and_ranks_say_what_they_are_at(degrees, ranks):
    """Also of a few answers: within a decade six ticks read 2, and a number of answers 2 × 10^0."""
    figure = degree_rank_figure(np.array(degrees), np.array(ranks, dtype=float))
    save_figure(figure, "svg")
    axes, bar = figure.axes
    for axis, power in ((axes.xaxis, True), (axes.yaxis, True), (bar.yaxis, False)):
        ticks = [10**tick if power else tick for tick in axis.get_ticklocs()]
        assert [float(label.get_text().replace(",", "")) for label in axis.get_ticklabels()] == pytest.approx(
            ticks
        )
        assert ticks
        assert not axis.get_minorticklocs().size


def test_edges_of_a_histogram_are_whole():
    axes = ranks_figure(np.array([[20.0, 28.0], [23.0, 28.0]])).axes[0]
    assert all(float(tick).is_integer() for tick in axes.get_yticks())


@pytest.mark.parametrize("epochs", [1, 2, 5])
@pytest.mark.parametrize("figure", FIGURES)
def test_no_epoch_is_a_fraction(figure, epochs):
    """Of one epoch the axis had ticks at 0.96 to 1.04."""
    axes = figure(make_history(epochs)).axes[0]
    ticks = [tick for tick in axes.get_xticks() if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]]
    assert ticks
    assert all(float(tick).is_integer() for tick in ticks)
