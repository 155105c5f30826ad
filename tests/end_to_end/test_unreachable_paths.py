"""Paths that the system refuses: names longer than any can be, and folders that may not be entered."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from marius_py import cli, load
from marius_py.errors import MissingPathError, StorageError
from marius_py.importing import dglke_graph
from marius_py.predict import open_index
from marius_py.predict.query_files import read_names
from marius_py.prepare import prepare
from marius_py.report import write_report
from tests.small_runs import write_run

NAME = "x" * 256

TOO_LONG = {
    "prepare": ("prepare", f"input.train={NAME}", "output=g"),
    "import": ("import", "from=dglke", f"input.train={NAME}", "graph=g"),
    "import graph": ("import", "from=dglke", "input.train=e.tsv", f"graph={NAME}"),
    "checkpoint": ("import", "from=dglke", f"checkpoint={NAME}", "graph=g", "output=r"),
    "evaluate": ("evaluate", f"run={NAME}"),
    "predict": ("predict", "run", "--queries", NAME),
    "neighbors": ("neighbors", "run", "--node", "NA", "--among", NAME),
    "verify": ("verify", NAME),
    "plan": ("plan", f"graph={NAME}"),
    "config-dir": ("train", "--config-dir", NAME),
}


@pytest.mark.parametrize("words", TOO_LONG.values(), ids=TOO_LONG)
def test_a_name_that_is_too_long_is_bad_usage(
    words: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    assert "File name too long" in capsys.readouterr().err


def test_folders_of_a_run_whose_name_is_too_long(tmp_path: Path) -> None:
    with load(write_run(tmp_path)[0]) as run:
        with pytest.raises(MissingPathError, match=r"^figures=.*x leads nowhere: File name too long$"):
            write_report(run, tmp_path / "r.html", figures=tmp_path / NAME)
        with pytest.raises(MissingPathError, match=r"the index cannot be written to \(File name too long\)"):
            open_index(run, folder=tmp_path / NAME)


@pytest.mark.parametrize("closed", ["stat", "open"])
def test_a_path_that_may_not_be_read_is_told_with_its_key(
    closed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may read everything, so the system's refusal is made here."""
    file = tmp_path / "e.tsv"
    file.write_text("a\tr\tb\n")

    plain = getattr(Path, closed)

    def refuse(path: Path, *given: Any, **named: Any) -> Any:
        if path != file:
            return plain(path, *given, **named)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, closed, refuse)
    reads: list[tuple[str, Callable[[], object]]] = [
        ("input.train", lambda: prepare(file, "g")),
        ("input.train", lambda: dglke_graph(file, "g")),
        ("--among", lambda: read_names(file, "--among ")),
    ]
    for key, read in reads:
        with pytest.raises(
            StorageError, match=rf"^(cannot read )?{key}[= ]{file}( cannot be read)?: Permission"
        ):
            read()
