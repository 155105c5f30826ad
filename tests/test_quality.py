"""The README's table of quality is what the recorded results give."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "benchmarks" / "quality.py"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, check=False)


def test_the_table_is_the_recorded_one() -> None:
    checked = run("table", "--check")
    assert checked.returncode == 0, checked.stderr + "run: python benchmarks/quality.py table"


def test_every_preset_of_the_table_is_recorded_with_where_it_ran() -> None:
    records = [json.loads(path.read_text()) for path in (ROOT / "benchmarks" / "quality").glob("*.json")]
    presets = {f"{path.parent.name}/{path.stem}" for path in (ROOT / "conf" / "experiment").glob("*/*.yaml")}
    assert records
    for record in records:
        assert record["preset"] in presets
        assert record["test"]["protocol"].startswith("filtered, all entities")
        assert {"processor", "cores", "commit"} <= set(record["machine"])


@pytest.mark.slow
def test_a_run_that_is_not_finished_is_not_recorded(tmp_path: Path) -> None:
    refused = run("record", str(tmp_path), "--preset", "fb15k_237/complex")
    assert refused.returncode == 1
    assert "no finished run" in refused.stderr
