"""The example programs run as a user would run them, on little data, and find what they say they find."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

EXAMPLES = ROOT / "examples"

PLOT = "needs matplotlib: pip install 'marius_py[plot]'"
SOCIAL = "example needs networkx and matplotlib: pip install 'marius_py[plot]' networkx"

drawing = pytest.mark.skipif(find_spec("matplotlib") is None, reason="the examples draw with matplotlib")


def _run(program: str, *words: str | Path, cwd: Path) -> str:
    """The example's stdout; its run goes to cwd/run."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / program, "--output", "run", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    ("program", "missing", "said"),
    [
        ("examples/knowledge_graph.py", "matplotlib", f"example {PLOT}"),
        ("examples/social_graph.py", "networkx", SOCIAL),
        ("examples/social_graph.py", "matplotlib", SOCIAL),
        ("examples/search.py", "optuna", "example needs optuna: pip install 'marius_py[optuna]'"),
        ("docs/images/ordering_figures.py", "matplotlib", f"script {PLOT}"),
    ],
)
def test_what_is_missing_is_said_in_one_line(program: str, missing: str, said: str) -> None:
    """An environment without the package, as `None` among the modules makes one."""
    code = f"import runpy, sys; sys.modules[{missing!r}] = None; runpy.run_path({str(ROOT / program)!r})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, done.stderr) == (1, f"this {said}\n")


@drawing
@pytest.mark.slow
def test_knowledge_graph_finds_what_was_kept_back(tmp_path: Path) -> None:
    output = _run("knowledge_graph.py", cwd=tmp_path)
    share = re.search(r"comes first for (\d+) ?%", output)
    assert share is not None
    assert int(share[1]) >= 80
    assert re.search(r"Norway: \w+", output)
    assert output.count("--on_continent--> ?") == 3
    assert (tmp_path / "run" / "map.png").read_bytes()[:4] == b"\x89PNG"


@drawing
@pytest.mark.slow
def test_knowledge_graph_of_my_own(tmp_path: Path) -> None:
    lines = [f"city {i}\tin\tcountry {i % 5}\n" for i in range(100)]
    lines += [f"city {i}\tnear\tcity {(i + 5) % 100}\n" for i in range(100)]
    (tmp_path / "mine.tsv").write_text("".join(lines))
    words = ("--edges", "mine.tsv", "--head", "city 7", "--relation", "in", "--epochs", "20")
    output = _run("knowledge_graph.py", *words, cwd=tmp_path)
    assert "city 7 --in--> ?\n  1. country 2 " in output


@drawing
@pytest.mark.slow
def test_social_graph_finds_communities(tmp_path: Path) -> None:
    networkx = pytest.importorskip("networkx", reason="the example's graph is networkx's")
    output = _run("social_graph.py", cwd=tmp_path)
    shares = re.search(r"(\d+) ?% of the three nearest are of the same community, by chance (\d+) ?%", output)
    assert shares is not None
    assert int(shares[1]) > 2 * int(shares[2])
    assert "nearest to Valjean:" in output
    new = re.findall(r"^  \d\. (\w+)  \(score ", output, re.MULTILINE)
    assert len(new) == 3
    assert not set(new) & set(networkx.les_miserables_graph()["Valjean"])
    assert (tmp_path / "run" / "map.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_search_ends_with_the_best_settings(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="the search needs optuna: pip install 'marius_py[optuna]'")
    output = _run("search.py", "--trials", "5", "--epochs", "6", cwd=tmp_path)
    found = [float(value) for value in re.findall(r"^ +\d+ +(0\.\d+)  \{", output, re.MULTILINE)]
    best = re.search(r"best validation MRR (0\.\d+):\n  marius-train (graph=\S+ model\.decoder=.*)", output)
    assert best is not None
    assert float(best[1]) == max(found)
    assert len(list((tmp_path / "run").glob("[0-9]"))) == 5
    train = [sys.executable, "-m", "marius_py", "train", *shlex.split(best[2]), "output=again"]
    subprocess.run(train, cwd=tmp_path, capture_output=True, timeout=280, check=True)
    lines = [json.loads(line) for line in (tmp_path / "again" / "metrics.jsonl").read_text().splitlines()]
    assert f"{max(line['valid']['mrr'] for line in lines if line.get('valid')):.4f}" == best[1]


def test_a_search_does_not_begin_among_the_runs_of_another(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="the search needs optuna: pip install 'marius_py[optuna]'")
    (tmp_path / "run" / "0").mkdir(parents=True)
    command = [sys.executable, str(EXAMPLES / "search.py"), "--output", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2
    assert "error: --output run holds runs of a search: give another folder" in done.stderr
    assert not (tmp_path / "run" / "graph").exists()
