"""Every benchmark runs at a tiny size and reports figures that fit together."""

import importlib
import json
import math
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
SCRIPTS = (
    "throughput",
    "pipeline",
    "large",
    "scale",
    "evaluate",
    "prepare",
    "memory",
    "overlap",
    "commits",
    "gpu",
)
"""Scripts that measure speed and memory; all take --json."""


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


def main(monkeypatch, name, *words):
    """Call a script's main function."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, words)])
    return importlib.import_module(name).main()


def report(monkeypatch, tmp_path, name, *words):
    """Run a script with its temporary folder here; what it wrote as JSON."""
    file = tmp_path / "report.json"
    (tmp_path / "work").mkdir()
    given = ["--json", file, "--folder", tmp_path / "work", "--threads", 1, "--repeats", 1]
    assert main(monkeypatch, name, *given, *words) == 0
    assert not list((tmp_path / "work").iterdir())
    found = json.loads(file.read_text())
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["commit"]
    assert found["peak_rss_bytes"] > 1 << 20
    return found


@pytest.mark.parametrize("name", SCRIPTS)
def test_help(name, monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        main(monkeypatch, name, "--help")
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert f"python benchmarks/{name}.py" in text
    assert "--json" in text


def test_every_script_is_explained():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [name for name in SCRIPTS if f"`{name}.py`" not in text] == []
    assert all((FOLDER / f"{name}.py").is_file() for name in SCRIPTS)


def test_gpu_runs_without_one(monkeypatch, tmp_path, capsys):
    words = [
        "--device",
        "cpu",
        "--edges",
        300,
        "--batch-size",
        100,
        "--chunks",
        2,
        "--negatives",
        8,
        "--dim",
        8,
    ]
    found = report(monkeypatch, tmp_path, "gpu", *words, "--partitions", 2)
    for one in found["training"]:
        assert one["edges_per_second"]["median"] > 0
        assert one["roofline"]["products"] == pytest.approx(16 * 8 * 8 / found["limits"]["tf32"])
        assert one["share_of_roofline"] == pytest.approx(
            one["edges_per_second"]["median"] / one["roofline"]["edges_per_second"]
        )
    assert [one["buffer"] for one in found["training"]] == ["device", "ram"]


def test_throughput(monkeypatch, tmp_path, capsys):
    peer = tmp_path / "peer.py"
    peer.write_text(
        "import json, sys, pathlib, numpy\n"
        "job = json.load(open(sys.argv[1]))\n"
        "edges = numpy.load(pathlib.Path(sys.argv[1]).parent / job['edges'])\n"
        "print('warming up')\n"
        "print(json.dumps({'edges_per_second': len(edges) * job['batch_size'], 'note': job['decoder']}))\n",
        encoding="utf-8",
    )
    words = ["--edges", 300, "--batch-size", 100, 50, "--chunks", 2, "--negatives", 8, "--dim", 8]
    words += ["--partitions", 2, "--limit-seconds", 0.01, "--peer", f"other={sys.executable} {peer}"]
    found = report(monkeypatch, tmp_path, "throughput", *words, "pipeline.mode=inline")
    assert [one["batch_size"] for one in found["settings"]] == [100, 50]
    for one in found["settings"]:
        assert one["flop_per_edge"] == 2 * 3 * 2 * 8 * 8
        rate = one["edges_per_second"]["median"]
        assert rate == pytest.approx(300 / one["epoch_seconds"]["median"], rel=0.01)
        assert 0 < one["share_of_sgemm"]["median"] < 1
        assert one["stage_seconds"]["compute"] > 0
        assert one["peers"] == [
            {"name": "other", "edges_per_second": 300 * one["batch_size"], "note": "complex"}
        ]
    assert "other: 30,000 edges/s" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="edges_per_second"):
        main(monkeypatch, "throughput", *words[:-1], f"broken={sys.executable} -c pass")


def test_pipeline(monkeypatch, tmp_path):
    words = ["--nodes", 400, "--edges", 600, "--dim", 8, "--negatives", 8, "--batch-size", 100]
    found = report(monkeypatch, tmp_path, "pipeline", *words, "--disk-mib", 2)
    assert found["swaps"] > 0
    assert set(found["seconds"]) == {"in memory", "on disk", "slowed"}
    assert found["overlap_efficiency"] > 0
    assert found["disk"]["bytes"] == 2 << 20
    assert 0 <= found["disk"]["cached_share"] <= 1
    assert all(rate["median"] > 0 for rate in found["disk"]["rates"].values())


def test_evaluate(monkeypatch, tmp_path):
    words = ["--nodes", 200, "--edges", 800, "--test", 50, "--dim", 8, "--limit-seconds", 0.01]
    found = report(monkeypatch, tmp_path, "evaluate", *words)
    assert (found["queries"], found["nodes"]) == (100, 200)
    assert found["queries_per_second"] == pytest.approx(100 / found["seconds"]["median"])
    assert 0 < found["share_of_sgemm"]["median"] < 1
    assert 0 < found["mrr"] < 1


@pytest.mark.slow
def test_scale(monkeypatch, tmp_path):
    words = ["--axis", "edges", "--edges", 400, "--dim", 4, "--batch-size", 100, "--negatives", 4]
    found = report(monkeypatch, tmp_path, "scale", *words)
    sizes = found["axes"]["edges"]["sizes"]
    assert [one["edges"] for one in sizes] == [400, 800, 1600, 3200]
    assert [one["nodes"] for one in sizes] == [40, 80, 160, 320]
    assert math.isfinite(found["axes"]["edges"]["slopes"]["cpu_s"])


def test_prepare(monkeypatch, tmp_path):
    found = report(monkeypatch, tmp_path, "prepare", "--nodes", 50, "--edges", 200, "--formats", "npy")
    assert found["formats"]["npy"]["edges_per_second"] > 0
    assert found["formats"]["npy"]["limit_s"] < found["formats"]["npy"]["seconds"]["median"]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [[], ["--capacity", "64"]])
def test_large(settings, monkeypatch, tmp_path):
    words = ["--nodes", 2000, "--edges", 20_000, "--dim", 8, "--test-edges", 20, "--bound-gib", 2]
    file = tmp_path / "report.json"
    main(monkeypatch, "large", "--json", file, "--threads", 1, *words, *settings)
    found = json.loads(file.read_text())
    assert set(found["commands"]) == {"prepare", "train", "evaluate"}
    assert found["result"]["test"]["count"] == 40
    assert all(one["peak_rss_bytes"] < found["bound_bytes"] for one in found["commands"].values())
    assert found["ratios"]["by_cpu"] > 0


def test_slope_and_disk(monkeypatch, tmp_path):
    common = importlib.import_module("common")
    assert common.slope([1, 10, 100], [2, 20, 200]) == pytest.approx(1)
    assert common.slope([1, 4], [3, 6]) == pytest.approx(0.5)
    rates = common.disk_rates(tmp_path, 1 << 20, kept=3 << 18, block=1 << 18)
    assert rates.read > 0
    assert rates.read_kept > 0
    assert rates.write > 0
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    assert common.cached_bytes(tmp_path / "file") >= 100_000


def test_commits_are_left_out_for_comparison(monkeypatch, tmp_path, capsys):
    words = "--nodes 2000 --edges 8000 --dim 8 --negatives 5 --pairs 1 --epochs 1 --batch-size 1000"
    assert main(monkeypatch, "commits", *words.split(), "--folder", tmp_path) in (
        0,
        1,
    )  # 1: slower than allowed
    assert "none: " in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
