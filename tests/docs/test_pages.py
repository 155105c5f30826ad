"""Every command and every piece of Python in README.md and docs/ works as printed.

A page's blocks run in order, in a folder that looks like a checkout (examples/) and, for all pages but the
README, holds what the quick start's first commands make: graphs/mine and runs/mine.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, REASONS, ROOT, Block, blocks_of, contents, unfenced_commands
from tests.docs.shell import Shell

README, QUICKSTART = "README.md", "docs/quickstart.md"
FIRST = (README, QUICKSTART, "docs/python.md")
"""Pages that the default tests run; the slow ones run the others."""

MAKING = 2
"""So many blocks of the quick start make graphs/mine and runs/mine."""

NOT_RUN = {
    "README.md": Counter({"installs packages": 2, "needs a network": 1}),
    "docs/gpu.md": Counter({"needs a GPU": 1}),
    "docs/own_graph.md": Counter({"needs a network": 1}),
    "docs/quickstart.md": Counter({"installs packages": 1}),
    "docs/reliability.md": Counter({"takes hours": 1}),
}
"""Blocks that are left out, by page and reason. A new one has to be entered here, on purpose."""

TIMEOUT_S = 250
SLOW_TIMEOUT_S = 280

BLOCKS = {path.relative_to(ROOT).as_posix(): blocks_of(path) for path in PAGES}
RUNNABLE = [page for page, blocks in BLOCKS.items() if any(one.runs and not one.slow for one in blocks)]
SLOW = [page for page, blocks in BLOCKS.items() if any(one.runs and one.slow for one in blocks)]


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    # pytest's own folders are too deep for the name of a socket.
    with tempfile.TemporaryDirectory() as folder, Shell(Path(folder)) as shell:
        yield shell


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a user has who has cloned the repository, as far as pages name it."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def home(shell: Shell, checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same after the quick start's first commands."""
    folder = tmp_path_factory.mktemp("home") / "home"
    shutil.copytree(checkout, folder)
    for block in [one for one in BLOCKS[QUICKSTART] if one.runs][:MAKING]:
        _run(block, shell, folder, {})
    assert (folder / "runs" / "mine" / "result.json").is_file()
    return folder


@pytest.mark.parametrize(
    "page", [page if page in FIRST else pytest.param(page, marks=pytest.mark.slow) for page in RUNNABLE]
)
def test_page(page: str, shell: Shell, checkout: Path, home: Path, tmp_path: Path) -> None:
    _run_page(page, shell, checkout if page == README else home, tmp_path, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", SLOW)
def test_whole_page(page: str, shell: Shell, checkout: Path, home: Path, tmp_path: Path) -> None:
    _run_page(page, shell, checkout if page == README else home, tmp_path, slow=True)


def test_the_quick_start_shows_the_table_that_is_printed(shell: Shell, home: Path) -> None:
    code, output = shell.run("marius-evaluate run=runs/mine", home, TIMEOUT_S)
    shown = (ROOT / QUICKSTART).read_text(encoding="utf-8").splitlines()
    assert code == 0
    assert {line for line in output.splitlines() if "mean_rank" in line} <= set(shown)
    assert "mean_rank" in output


@pytest.mark.slow
def test_pages_can_be_followed_one_after_another(shell: Shell, checkout: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    shutil.copytree(checkout, work)
    for page in (f"docs/{name}.md" for name in contents()):
        _run_blocks([one for one in BLOCKS.get(page, []) if one.runs], shell, work)


@pytest.mark.parametrize("page", BLOCKS)
def test_what_is_not_run_is_said(page: str) -> None:
    left_out = Counter(block.reason for block in BLOCKS[page] if block.reason is not None)
    assert set(left_out) <= set(REASONS), f"allowed reasons: {', '.join(REASONS)}"
    assert left_out == NOT_RUN.get(page, Counter())
    for block in BLOCKS[page]:
        assert block.note in ("", "slow") or block.reason is not None, f"{page}:{block.line}: {block.note}"
    assert unfenced_commands(ROOT / page) == [], f"fence the commands of {page} as ```sh"


def test_blocks_are_found(tmp_path: Path) -> None:
    assert sum(len(blocks) for blocks in BLOCKS.values()) > 60
    block = BLOCKS["docs/own_parts.md"][0]
    assert block.file_name == "scaled.py"
    assert block.runs
    assert BLOCKS["docs/quickstart.md"][0].reason == "installs packages"


def test_a_failing_command_fails_its_block(shell: Shell, tmp_path: Path) -> None:
    bad = Block("page.md", 1, "sh", "marius-train no.such=key\necho on\n", "")
    with pytest.raises(pytest.fail.Exception, match=r"code 2[\s\S]*no.such"):
        _run(bad, shell, tmp_path, {})
    text = "$ echo a > made\nsome output\n$ python -c 'print(open(\"made\").read())'\n"
    session = Block("page.md", 1, "console", text, "")
    _run(session, shell, tmp_path, {})
    assert (tmp_path / "made").read_text() == "a\n"


def _run_page(page: str, shell: Shell, template: Path, folder: Path, *, slow: bool) -> None:
    """Run a page's blocks in a copy of a folder."""
    work = folder / "work"
    shutil.copytree(template, work)
    blocks = [block for block in BLOCKS[page] if block.runs][MAKING if page == QUICKSTART else 0 :]
    _run_blocks([block for block in blocks if slow or not block.slow], shell, work)


def _run_blocks(blocks: list[Block], shell: Shell, work: Path) -> None:
    """Run blocks of a page in a folder; those in Python share their names."""
    names: dict[str, object] = {"__name__": "__main__"}
    modules, path = set(sys.modules), list(sys.path)
    try:
        for block in blocks:
            _run(block, shell, work, names)
    finally:
        if isinstance(names.get("run"), _closable()):
            names["run"].close()  # type: ignore[attr-defined]
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if str(work) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


def _closable() -> type:
    from marius_py.run import Run

    return Run


def _run(block: Block, shell: Shell, folder: Path, names: dict[str, object]) -> None:
    where = f"{block.page}:{block.line}"
    if block.file_name is not None:
        target = folder / block.file_name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(block.text, encoding="utf-8")
    elif block.language == "python":
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.syspath_prepend(folder)
            exec(compile("\n" * block.line + block.text, ROOT / block.page, "exec"), names)
    else:
        code, output = shell.run(block.script, folder, SLOW_TIMEOUT_S if block.slow else TIMEOUT_S)
        if code:
            pytest.fail(f"{where}: code {code}\n{block.script}\n{output[-3000:]}", pytrace=False)
        if "has learnt nothing" in output:
            pytest.fail(f"{where}: a run that learns nothing\n{block.script}\n{output}", pytrace=False)
