"""A report is one file that needs no network, whole or not there, for finished and unfinished runs."""

import base64
import errno
import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

import marius_py
from marius_py import cli
from marius_py.errors import ConfigError, StorageError
from marius_py.report import write_report
from marius_py.report.figures import _apart, map_figure
from marius_py.report.map import principal_components, umap_points
from marius_py.report.timeline import (
    _stage_colors,
    busy_seconds,
    stage_rows,
    timeline_figure,
    utilization_figure,
)
from tests.small_runs import write_run

pytest.importorskip("matplotlib", reason="reports need matplotlib")


PICTURES = (
    "bytes",
    "degree_rank",
    "degrees",
    "loss",
    "map",
    "metrics",
    "ranks",
    "speed",
    "timeline",
    "utilization",
)


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.titles, self.images, self.cells, self._tag = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self._tag = tag
        if tag == "img":
            self.images.append(dict(attributes)["src"])

    def handle_data(self, data):
        if self._tag == "h2" and data.strip():
            self.titles.append(data)
        if self._tag == "td" and data.strip():
            self.cells.append(data)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(0)
    names = ["<b>&", "$x_1$", *(f"node {i}" for i in range(38))]
    edges = [(names[rng.integers(40)], f"r{rng.integers(3)}", names[rng.integers(40)]) for _ in range(400)]
    settings = {
        "model.dim": 8,
        "training.epochs": 2,
        "training.valid_every": 1,
        "negatives.count": 5,
        "pipeline.trace": True,
    }
    marius_py.train(edges, folder / "run", settings).close()
    return folder / "run"


def test_everything(trained, tmp_path, capsys):
    figures = tmp_path / "figures"
    words = [str(trained), "--output", str(tmp_path / "r.html"), "--figures", str(figures)]
    assert cli.main(["report", *words]) == 0
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.titles == ["Test", "Training", "Throughput", "Pipeline", "Ranks", "Relations", "Embeddings"]
    assert {"r0", "r1", "r2", "complex"} <= set(page.cells)
    assert {"compute", "validate", "commit", "read edges"} <= set(page.cells)
    assert not re.search(r"https?://", re.sub(r'src="data:[^"]*"', "", text))
    assert len(page.images) == 10
    for source in page.images:
        kind, _, data = source.partition(",")
        assert kind == "data:image/svg+xml;base64"
        ElementTree.fromstring(base64.b64decode(data))
    pictures = sorted(path.name for path in figures.iterdir())
    assert pictures == [f"{name}.png" for name in PICTURES]
    assert all((figures / name).read_bytes()[:4] == b"\x89PNG" for name in pictures)
    assert capsys.readouterr().out.splitlines()[0] == str(tmp_path / "r.html")
    assert cli.main(["report", *words]) == 2
    assert "exists" in capsys.readouterr().err
    assert cli.main(["report", *words, "--overwrite"]) == 0
    (figures / "loss.png").write_text("mine")
    other = [str(trained), "--output", str(tmp_path / "other.html"), "--figures", str(figures)]
    assert cli.main(["report", *other]) == 2
    assert f"figures={figures}/loss.png exists" in capsys.readouterr().err
    assert (figures / "loss.png").read_text() == "mine"
    assert not (tmp_path / "other.html").exists()


def test_an_output_that_may_not_be_replaced_is_refused_first(trained, tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    refused = {
        tmp_path / "fifo": "is a folder or a device",
        tmp_path / "folder": "is a folder or a device",
        f"{tmp_path}/new/": "ends in a slash, as a folder does; give the name of a file",
        trained / "config.yaml": f"is a file of the run {trained}",
    }
    with marius_py.load(trained) as run:
        monkeypatch.setattr(run, "evaluate", lambda **named: pytest.fail("ranked"))
        for target, why in refused.items():
            with pytest.raises(ConfigError, match=f"output={target} {why}"):
                write_report(run, target, figures=tmp_path / "figures", overwrite=True)
    assert (tmp_path / "fifo").is_fifo()
    assert not (tmp_path / "figures").exists()


@pytest.mark.slow
def test_pictures_lie_beside_the_page(trained, tmp_path, capsys):
    page = tmp_path / "r.html"
    assert cli.report([str(trained), "--output", str(page)]) == 0
    written = capsys.readouterr().out.splitlines()
    assert written[0] == str(page)
    assert sorted(written[1:]) == [str(tmp_path / "r_figures" / f"{name}.png") for name in PICTURES]
    assert cli.report([str(trained), "--output", str(tmp_path / "s.html"), "--no-figures"]) == 0
    assert not (tmp_path / "s_figures").exists()
    assert cli.report([str(trained), "--no-figures", "--figures", str(tmp_path)]) == 2
    assert "leave one of them out" in capsys.readouterr().err


class FakeUmap:
    """Stands in for umap-learn: remembers how it was called."""

    def __init__(self, **arguments):
        FakeUmap.arguments = arguments

    def fit_transform(self, rows):
        return rows[:, :2]


def test_a_map_by_umap(trained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=FakeUmap))
    with marius_py.load(trained) as run:
        write_report(run, tmp_path / "r.html", map="umap", seed=3)
    assert "by UMAP (cosine)" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert FakeUmap.arguments["n_neighbors"] == 15
    assert FakeUmap.arguments["random_state"] == 3
    assert FakeUmap.arguments["init"] == "random"
    monkeypatch.setitem(sys.modules, "umap", None)
    with marius_py.load(trained) as run:
        with pytest.raises(ConfigError, match=r"pip install 'marius_py\[umap\]'"):
            write_report(run, tmp_path / "s.html", map="umap")
        with pytest.raises(ConfigError, match="map is 'tsne'; allowed: pca, umap"):
            write_report(run, tmp_path / "s.html", map="tsne")


@pytest.mark.slow
def test_umap_keeps_groups_together():
    pytest.importorskip("umap", reason="umap-learn is not installed")
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(3, 8))
    kinds = np.repeat(np.arange(3), 40)
    rows = (centers[kinds] + 0.05 * rng.normal(size=(120, 8))).astype(np.float32)
    points = umap_points(rows, 0)
    assert points.shape == (120, 2)
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    same = kinds[:, None] == kinds
    assert np.median(distances[same]) < 0.3 * np.median(distances[~same])


@pytest.mark.parametrize("bad", [1, 9, 10])
def test_rows_that_are_not_finite_are_left_out_of_the_map(bad, tmp_path):
    folder, graph, _, _ = write_run(tmp_path, diverged=bad)
    with marius_py.load(folder) as run:
        write_report(run, tmp_path / "r.html", figures=tmp_path / "figures")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    left = graph.num_nodes - bad
    assert f" {bad} more are left out: their embeddings are not finite." in text
    assert (f"{left} of {graph.num_nodes} nodes on the first" in text) == (left >= 3)
    assert (f"No map of {left} nodes." in text) == (left < 3)
    assert (tmp_path / "figures" / "map.png").exists() == (left >= 3)


def test_names_may_hold_control_characters(tmp_path):
    names = ["a\x0bb", "c\x1bd", "e\ufffef", *(f"node {i}" for i in range(5))]
    folder = write_run(tmp_path, names=names, relations=("likes\x01", "knows"))[0]
    with marius_py.load(folder) as run:
        write_report(run, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    page = Page(text)
    pictures = [base64.b64decode(source.partition(",")[2]).decode() for source in page.images]
    for picture in pictures:
        ElementTree.fromstring(picture)
    assert all(name in pictures[-1] for name in ("a\ufffdb", "c\ufffdd", "e\ufffdf"))
    assert "likes\ufffd" in page.cells


def test_settings_of_parts_are_shown(tmp_path):
    folder = write_run(tmp_path, decoder="transe")[0]
    with marius_py.load(folder) as run:
        settings = run.settings
        settings["model.decoder"] = {"_target_": "transe", "norm": "l1", "gamma": 3.0}
        settings["model.init"] = {"_target_": "xavier_normal"}
        run._checkpoint.meta["settings"] = settings
        write_report(run, tmp_path / "r.html")
    cells = Page((tmp_path / "r.html").read_text(encoding="utf-8")).cells
    assert {"transe, norm l1, gamma 3.0", "xavier_normal"} <= set(cells)


def test_an_unfinished_run_without_loss(tmp_path):
    folder = write_run(tmp_path)[0]
    with marius_py.load(folder) as run:
        write_report(run, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "has not finished" in text
    assert Page(text).titles == ["Ranks", "Relations", "Embeddings"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"max_nodes": -3}, "max_nodes is -3; allowed: a whole number from 1"),
        ({"max_nodes": 2.5}, r"max_nodes is 2\.5; allowed: a whole number from 1"),
        ({"max_edges": 0}, "max_edges is 0; allowed: a whole number from 1"),
        ({"seed": -1}, "seed is -1; allowed: a whole number from 0"),
    ],
)
def test_numbers_out_of_range_are_refused_first(wrong, said, tmp_path):
    with marius_py.load(write_run(tmp_path)[0]) as run, pytest.raises(ConfigError, match=said):
        write_report(run, tmp_path / "r.html", figures=tmp_path / "figures", **wrong)
    assert not (tmp_path / "r.html").exists()
    assert not (tmp_path / "figures").exists()


def test_a_map_of_two_nodes_is_said_to_be_none(tmp_path):
    with marius_py.load(write_run(tmp_path)[0]) as run:
        write_report(run, tmp_path / "r.html", max_edges=1, max_nodes=2)
    assert "No map of 2 nodes." in (tmp_path / "r.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "events",
    [
        pytest.param('[{"ph": "X"}]', id="no time"),
        pytest.param('[{"ph": "X", "name": "a", "ts": "a", "dur": 1}]', id="letters", marks=pytest.mark.slow),
        pytest.param('[{"ph": "X", "name": "a", "ts": 1%s, "dur": 1}]' % ("0" * 400), id="late"),
        pytest.param("[1, 2]", id="numbers", marks=pytest.mark.slow),
        pytest.param("5", id="number", marks=pytest.mark.slow),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param('[{"ph": "M"}]', id="no spans"),
        pytest.param("[]", id="empty"),
    ],
)
def test_a_trace_of_another_shape_is_left_out(events, tmp_path, caplog):
    folder = write_run(tmp_path)[0]
    (folder / "trace.json").write_text(f'{{"traceEvents": {events}}}')
    with marius_py.load(folder) as run:
        write_report(run, tmp_path / "r.html", max_edges=1, max_nodes=1)
    assert "Pipeline" not in Page((tmp_path / "r.html").read_text(encoding="utf-8")).titles
    said = f"{folder / 'trace.json'} cannot be read"
    assert (said in caplog.text) == (events not in ("[]", '[{"ph": "M"}]'))


def test_a_run_without_validation_is_not_said_to_have_it(tmp_path):
    line = {"epoch": 0, "loss": 1.0, "seconds": 1.0, "edges_per_second": 9.0, "wait_disk_s": 0.0}
    with marius_py.load(write_run(tmp_path)[0]) as run:
        run._checkpoint.meta["history"] = [line | {"bytes_read": 0, "bytes_written": 8}]
        write_report(run, tmp_path / "r.html", max_edges=1, max_nodes=1)
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<figcaption>Loss by epoch</figcaption>" in text
    assert "validation" not in text


def test_a_snapshot_is_not_called_unfinished(tmp_path, monkeypatch):
    monkeypatch.setattr("marius_py.run_files.reader.is_snapshot", lambda folder: True)
    with marius_py.load(write_run(tmp_path)[0]) as run:
        write_report(run, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "finished" not in text
    assert "3" in Page(text).cells


@pytest.mark.parametrize("is_new", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_full_disk_leaves_what_was_there(is_new, trained, tmp_path, monkeypatch):
    output, figures, written = tmp_path / "r.html", tmp_path / "figures", []
    output.write_text("before")
    if not is_new:
        figures.mkdir()
    write = Path.write_bytes

    def full(path, content):
        written.append(path)
        if len(written) > 3:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with (
        marius_py.load(trained) as run,
        pytest.raises(StorageError, match=r"No space left.*nothing was replaced"),
    ):
        write_report(run, output, figures=figures, overwrite=True)
    assert len(written) == 4
    assert output.read_text() == "before"
    assert sorted(tmp_path.rglob("*")) == ([output] if is_new else [figures, output])


def test_a_folder_for_figures_that_cannot_be_made_is_said_at_once(trained, tmp_path):
    (tmp_path / "file").write_text("")
    with marius_py.load(trained) as run, pytest.raises(ConfigError, match=r"^figures=.*file is a file; give"):
        write_report(run, tmp_path / "r.html", figures=tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_matplotlib(trained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with marius_py.load(trained) as run, pytest.raises(ConfigError, match=r"marius_py\[plot\]"):
        write_report(run, tmp_path / "r.html")
    assert not list(tmp_path.iterdir())


def test_labels_of_a_map_lie_apart():
    points = np.repeat(np.array([[0.0, 0.0], [5.0, 5.0], [9.0, 1.0]]), 50, axis=0)
    points += np.random.default_rng(0).uniform(0, 0.05, points.shape)
    kept = _apart(points, ["a name"] * len(points), np.arange(len(points))[::-1])
    assert [place // 50 for place in kept] == [2, 1, 0]
    assert kept[0] == 149


@pytest.mark.parametrize("name", ["n", "a_name_of_many_letters_that_is_cut"])
def test_names_on_a_map_hide_neither_one_another_nor_their_dots(name):
    rng = np.random.default_rng(0)
    figure = map_figure(rng.normal(size=(200, 2)), [name] * 200, rng.integers(1, 300, 200), ("x", "y"))
    figure.draw_without_rendering()
    axes, bar = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) > 5
    for number, (text, box) in enumerate(zip(axes.texts, boxes, strict=True)):
        assert box.x0 > axes.transData.transform(text.xy)[0]
        assert not any(box.overlaps(other) for other in boxes[:number])
    assert bar.get_ylabel() == "train degree + 1"
    assert {"10", "100"} <= {label.get_text() for label in bar.get_yticklabels()}


def test_names_of_wide_letters_take_twice_the_room():
    points = np.array([[0.0, 0.0], [0.4, 0.0], [1.0, 1.0]])
    assert _apart(points, ["a" * 20, "b", "c"], np.arange(3)) == [0, 1, 2]
    assert _apart(points, ["\u672c" * 20, "b", "c"], np.arange(3)) == [0, 2]
    assert _apart(points, ["e\u0301" * 20, "b", "c"], np.arange(3)) == [0, 1, 2]


def test_a_timeline_that_is_cut_says_so(monkeypatch):
    spans = [{"name": "load", "tid": "a", "ts": time, "dur": 1} for time in range(1200)]
    assert timeline_figure(spans).axes[0].get_xlabel() == "seconds"
    monkeypatch.setattr("marius_py.report.timeline._SHOWN", 1000)
    assert timeline_figure(spans).axes[0].get_xlabel() == "seconds (the first 1,000 of 1,200 spans)"


def test_what_each_thread_did_adds_up():
    load, swap, read, wait = (
        {"name": name, "tid": thread, "ts": 1e6 * start, "dur": 1e6 * (stop - start)}
        for name, thread, start, stop in (
            ("load", "marius-load", 0, 6),
            ("swap", "marius-load", 1, 5),
            ("wait for the disk", "marius-load", 2, 4),
            ("read", "marius-io", 0, 4),
        )
    )
    again = load | {"ts": 8e6, "dur": 2e6}
    spans = [read, again, wait, swap, load]
    assert busy_seconds(spans) == {
        "marius-load": {"load": 4.0, "swap": 2.0, "wait for the disk": 2.0},
        "marius-io": {"read": 4.0},
    }
    bars = utilization_figure(spans).axes[0]
    assert bars.get_xlim() == (0, 100)
    widths = {(round(bar.get_x()), round(bar.get_width())) for bar in bars.patches if bar.get_width()}
    assert widths == {(0, 40), (40, 20), (60, 20)}
    assert stage_rows(spans) == [
        ("load", "2", "4.00", "40.0", "1"),
        ("read", "1", "4.00", "40.0", "1"),
        ("swap", "1", "2.00", "20.0", "1"),
        ("wait for the disk", "1", "2.00", "20.0", "1"),
    ]
    at_once = utilization_figure([{"name": "load", "tid": "a", "ts": 5, "dur": 0}])
    assert at_once.axes[0].get_xlim() == (0, 100)


def test_waiting_is_gray():
    colors = _stage_colors([{"name": name} for name in ("load", "wait for load", "compute", "wait for disk")])
    assert all(0 < float(colors[name]) < 1 for name in ("wait for load", "wait for disk"))
    assert len(set(colors.values())) == 4
    assert {colors["load"], colors["compute"]} == {"C0", "C1"}


def test_principal_components():
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(200, 2)) * [5, 1]) @ rng.normal(size=(2, 6))
    points, shares = principal_components(rows.astype(np.float32))
    assert shares.sum() == pytest.approx(1, abs=1e-6)
    assert shares[0] > shares[1]
    centered = rows - rows.mean(0)
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), np.linalg.norm(centered, axis=1), rtol=1e-4)
