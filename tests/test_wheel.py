"""The wheel, installed beside its dependencies, works from an empty folder: conf/ travels in it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

slow = pytest.mark.slow


def _run(*words: str | Path, cwd: Path, code: int = 0) -> str:
    environment = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "MARIUS_DATA")
    }
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
        check=False,
    )
    assert done.returncode == code, (
        f"{words}: code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return done.stdout + done.stderr


def test_the_source_distribution_holds_what_its_tests_and_readers_need() -> None:
    """Without the root's conftest.py, pytest stops at the Triton kernels where there is no Triton."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = set(settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])
    assert not [name for name in included if not (ROOT / name[1:]).exists()]
    assert {f"/{path.name}" for pattern in ("*.py", "*.md") for path in ROOT.glob(pattern)} <= included


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _run(
        sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder
    )
    (built,) = folder.glob("marius_py-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin/ of a fresh environment with the wheel; the dependencies are those of this interpreter."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    target = folder / "target"
    _run(
        sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, wheel, cwd=folder
    )
    # The dependencies come after the wheel. This interpreter's own .pth files are not followed, so that an
    # editable checkout of the package stays out of the way.
    (site / "dependencies.pth").write_text(f"{target}\n{sysconfig.get_path('purelib')}\n")
    for script in (target / "bin").iterdir():
        lines = script.read_text().splitlines()
        command = folder / "bin" / script.name
        command.write_text("\n".join([f"#!{folder / 'bin' / 'python'}", *lines[1:]]) + "\n")
        command.chmod(0o755)
    return folder / "bin"


@slow
def test_wheel_holds_conf_and_types(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    files = {
        f"marius_py/conf/{file.relative_to(ROOT / 'conf').as_posix()}"
        for file in (ROOT / "conf").rglob("*.yaml")
    }
    assert files <= names
    assert {"marius_py/py.typed", "marius_py/ordering/orders/optimal_orders.json"} <= names
    assert not [name for name in names if name.startswith(("tests/", "conf/", "scripts/", "benchmarks/"))]


@slow
def test_installed_package_is_the_wheel(installed: Path, tmp_path: Path) -> None:
    where = _run(installed / "python", "-c", "import marius_py; print(marius_py.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)


@slow
def test_help_and_bad_keys(installed: Path, tmp_path: Path) -> None:
    assert "model.dim=128" in _run(installed / "marius-train", "--help", cwd=tmp_path)
    assert "did you mean model.dim?" in _run(installed / "marius-train", "model.dimm=3", cwd=tmp_path, code=2)
    assert "dim: 64" in _run(
        installed / "marius-train", "--cfg", "job", "graph=g", "model.dim=64", cwd=tmp_path
    )
    assert list(tmp_path.iterdir()) == []


@slow
def test_demo_evaluate_and_export_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    out = _run(installed / "marius-train", "output=run", "training.epochs=1", cwd=tmp_path)
    assert "mrr" in out
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    assert {"config.yaml", "metrics.jsonl", "result.json", "checkpoint"} <= {
        p.name for p in (tmp_path / "run").iterdir()
    }
    assert "mrr" in _run(installed / "marius-evaluate", "run=run", "split=valid", cwd=tmp_path)
    _run(installed / "marius-export", "run", "--format", "tsv", "--output", "nodes.tsv", cwd=tmp_path)
    assert (tmp_path / "nodes.tsv").stat().st_size > 0


@slow
def test_own_edge_list_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    rows = [f"person {i % 37}\tknows\tperson {(i * 7 + 3) % 41}\n" for i in range(1500)]
    (tmp_path / "edges of mine.tsv").write_text("".join(rows))
    _run(
        installed / "marius-prepare",
        "input.train=edges of mine.tsv",
        "output=g=1",
        "partitions=4",
        cwd=tmp_path,
    )
    words = ["graph=g=1", "output=run 1", "training.epochs=1", "training.batch_size=64", "negatives.count=16"]
    _run(installed / "marius-train", *words, "model.dim=8", "storage.capacity=2", cwd=tmp_path)
    _run(installed / "marius-train", "output=run 1", "resume=true", "training.epochs=2", cwd=tmp_path)
    assert len((tmp_path / "run 1" / "metrics.jsonl").read_text().splitlines()) == 2
