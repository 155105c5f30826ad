"""The floors: modules import only downward, storage and nn not each other, and the light ones stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import marius_py

ROOT = Path(marius_py.__file__).resolve().parent

FLOORS: dict[str, int] = {
    "errors": 0,
    "given": 0,
    "types": 0,
    "streams": 0,
    "memory": 0,
    "machine": 0,
    "arrays": 0,
    "readable": 0,
    "whole": 0,
    "pool": 0,
    "team": 0,
    "threads": 0,
    "workers": 0,
    "compiling": 0,
    "prefetch": 0,
    "version": 0,
    "ordering": 0,
    "partitioning": 1,
    "graph": 1,
    "run_state": 1,
    "storage": 1,
    "nn": 1,
    "buffer": 2,
    "data": 2,
    "pipeline": 3,
    "training": 4,
    "evaluation": 4,
    "predict": 4,
    "prepare": 4,
    "datasets": 4,
    "export": 4,
    "generate": 4,
    "report": 4,
    "run_files": 4,
    "run": 4,
    "convert": 4,
    "config": 5,
    "parts": 5,
    "api": 5,
    "resuming": 5,
    "verify": 5,
    "assembly": 5,
    "evaluating": 5,
    "validation": 5,
    "tracking": 5,
    "importing": 5,
    "planning": 5,
    "commands": 6,
    "cli": 6,
    "testing": 6,
    "__main__": 6,
}
"""First name below marius_py → floor. A new module gets a line here; nothing is on a floor by default."""

SEPARATE = frozenset({"storage", "nn"})
"""Parts of one floor that must not know of each other."""


def _modules() -> dict[str, Path]:
    found = {}
    for file in sorted(ROOT.rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        if parts == ("__init__",) or parts[0] == "conf":
            continue
        found[".".join(part for part in parts if part != "__init__")] = file
    return found


MODULES = _modules()


@cache
def _read(module: str) -> tuple[str | None, list[ast.Import | ast.ImportFrom]]:
    """A module's docstring and its imports, wherever in the file they stand."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    return ast.get_docstring(tree), found


def _imported(module: str) -> set[str]:
    """Names below marius_py that a module imports."""
    names = set()
    for node in _read(module)[1]:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        else:
            assert node.level == 0, f"{module}: relative import in line {node.lineno}; write the whole name"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("marius_py.") for name in names if name.startswith("marius_py.")}


def _module_of(name: str) -> str:
    """The module that a name below marius_py stands in, or is."""
    found = name
    while found not in MODULES:
        found = found.rpartition(".")[0]
        assert found, f"there is no module for marius_py.{name}"
    return found


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_downward(module: str) -> None:
    part = module.split(".")[0]
    assert part in FLOORS, f"give marius_py/{part} a floor in tests/test_layout.py"
    for name in _imported(module):
        other = name.split(".")[0]
        assert FLOORS[other] <= FLOORS[part], (
            f"{module} (floor {FLOORS[part]}) imports {name} (floor {FLOORS[other]})"
        )
        assert {part, other} != SEPARATE, f"{module} imports {name}: storage and nn do not know of each other"


def test_parts_do_not_import_each_other_in_a_ring() -> None:
    """Of one floor too: what a part is made of can be told without it."""
    below = {part: set[str]() for part in FLOORS}
    for module in MODULES:
        part = module.split(".")[0]
        below[part] |= {name.split(".")[0] for name in _imported(module)} - {part}
    _expect_no_ring(below)


def test_files_do_not_import_each_other_in_a_ring() -> None:
    """For the type checker alone counts too: a type that both need stands below both."""
    below = {module: {_module_of(name) for name in _imported(module)} - {module} for module in MODULES}
    _expect_no_ring(below)


def _expect_no_ring(below: dict[str, set[str]]) -> None:
    try:
        tuple(TopologicalSorter(below).static_order())
    except CycleError as error:
        pytest.fail(f"each imports the next: {' <- '.join(error.args[1])}")


def test_no_floor_is_left_of_a_module_that_is_gone() -> None:
    assert {module.split(".")[0] for module in MODULES} == set(FLOORS)


@pytest.mark.parametrize(
    "module", [name for name, file in MODULES.items() if FLOORS.get(name.split(".")[0], 9) < 5]
)
def test_hydra_stays_above_floor_four(module: str) -> None:
    for node in _read(module)[1]:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        assert not [name for name in names if name.split(".")[0] in ("hydra", "omegaconf")], module


@pytest.mark.parametrize("module", MODULES)
def test_no_thread_ends_with_the_main_thread(module: str) -> None:
    """As those of the library's pool do, under a thread of the program that trains on; see `Workers`."""
    names = [alias.name for node in _read(module)[1] for alias in node.names]
    assert "ThreadPoolExecutor" not in names


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_it_is(module: str) -> None:
    assert _read(module)[0], module


def _loaded(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import marius_py", {"torch", "h5py", "numpy", "hydra", "omegaconf", "pyarrow"}),
        ("import marius_py.ordering", {"torch", "h5py", "hydra", "omegaconf", "pyarrow"}),
        ("import marius_py.cli", {"torch", "h5py", "hydra", "omegaconf", "pyarrow"}),
        ("import marius_py.config", {"torch", "h5py", "hydra", "omegaconf", "pyarrow"}),
        ("import marius_py.storage.hdf5_nodes", {"torch", "hydra", "omegaconf"}),
    ],
)
def test_light_modules_stay_light(statement: str, heavy: set[str]) -> None:
    assert not _loaded(statement) & heavy


def test_lazy_names_are_found() -> None:
    for name in marius_py.__all__:
        assert getattr(marius_py, name) is not None
    assert set(marius_py.__all__) <= set(dir(marius_py))
    with pytest.raises(AttributeError, match="nonsense"):
        marius_py.nonsense  # noqa: B018


def test_modules_are_found_without_an_import_of_their_own() -> None:
    for use in ("errors.ConfigError", "assembly.Watcher", "nn.Decoder"):
        _loaded(f"import marius_py; marius_py.{use}")
    reference = (ROOT.parent / "docs" / "reference.md").read_text(encoding="utf-8")
    source = (ROOT / "__init__.py").read_text(encoding="utf-8")
    for name in marius_py._MODULES:
        assert getattr(marius_py, name).__name__ == f"marius_py.{name}"
        assert name in dir(marius_py)
        assert f":: marius_py.{name}" in reference
        assert f"    from marius_py import {name} as {name}\n" in source  # for those who check types
    assert not _loaded("import marius_py; marius_py.ordering.beta") & {"torch", "h5py", "numpy", "hydra"}


def test_ordering_works_without_torch_and_h5py() -> None:
    code = """
import sys
for name in ("torch", "h5py", "hydra", "omegaconf", "pyarrow"):
    sys.modules[name] = None
from marius_py.ordering import beta, build_schedule, lower_bound, simulate
schedule = build_schedule(8, 4, order="auto", seed=0)
assert sum(len(step.buckets) for step in schedule.steps) == 64
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
