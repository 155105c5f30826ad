"""What the site takes from the program is whole: every setting, group and command has its place."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import marius_py
from docs.documentation import BLOCK, COMMANDS, as_restructured_text, fill_blocks
from marius_py import config
from marius_py.config.fields import keys_of
from marius_py.config.groups import groups_of
from marius_py.config.known_keys import OPEN
from marius_py.errors import ConfigError
from marius_py.evaluation.metrics import Figures
from marius_py.run_files.results import memory_peaks, summarize
from marius_py.run_state import EpochMetrics
from tests.docs.pages import PAGES, ROOT, contents


def _page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["TrainConfig", "EvaluateConfig", "PrepareConfig"])
def test_every_setting_and_group_is_in_the_reference(kind: str) -> None:
    page = _page("configuration.md")
    for key, _, item in keys_of(getattr(config, kind)):
        lines = [line for line in page.splitlines() if line.startswith(f"| `{key}` |")]
        assert any(item.metadata["text"] in line and item.metadata["unit"] in line for line in lines), key
    for group in groups_of(getattr(config, kind)):
        assert f"| `{group}` |" in page


def test_every_command_has_its_help() -> None:
    page = _page("commands.md")
    for command in COMMANDS:
        assert f"\n## `{command}`\n" in page
        assert f"usage: {command} " in page


def test_pages_say_what_the_program_says() -> None:
    blocks = 0
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        blocks += len(BLOCK.findall(page))
        assert page.count(": written by docs/documentation.py -->") == len(BLOCK.findall(page)), path
        # Words alone: argparse breaks its usage lines elsewhere since Python 3.13.
        assert fill_blocks(page).split() == page.split(), f"python docs/documentation.py writes {path} anew"
    assert blocks == len(COMMANDS) + 5


def test_a_block_is_written_anew() -> None:
    lines = "<!-- groups {0}: written by docs/documentation.py -->\n{1}<!-- groups {0}: end -->\nafter"
    filled = fill_blocks(lines.format("PrepareConfig", "old\n"))
    assert filled.startswith("<!-- groups PrepareConfig: written by docs/documentation.py -->\n\n| group |")
    assert filled.endswith("|\n\n<!-- groups PrepareConfig: end -->\nafter")
    assert "old" not in filled
    assert fill_blocks(filled) == filled
    for what, name in (("settings", "NoConfig"), ("help", "no-command"), ("groups", "main"), ("other", "x")):
        with pytest.raises(ConfigError, match="is called"):
            fill_blocks(lines.replace("groups", what).format(name, ""))


def test_docstrings_are_taken_as_they_are_meant() -> None:
    lines = [
        "Rows (*, D) of `node_ids`, |x| long, in ``state_``; see state_.",
        "",
        ">>> 2 * 3",
        "6",
        "An example:",
        "",
        "    a * b",
        "",
        "after * it",
        "num_nodes: N.",
        "N.",
    ]
    as_restructured_text(lines)
    assert lines[0] == r"Rows (\*, D) of ``node_ids``, \|x\| long, in ``state_``; see state\_."
    assert lines[2] == ">>> 2 * 3"
    assert lines[4:] == ["An example::", "", "    a * b", "", r"after \* it", r"num_nodes: N\.", r"N\."]


def test_each_error_of_a_docstring_has_one_line() -> None:
    lines = [
        "Raises:",
        "    ConfigError: an unknown name, or an index beside",
        "    `among`. FormatError,",
        "    StorageError:",
        "        no file.",
        "    MissingPathError (a StorageError): no folder: gone",
        "    KeyboardInterrupt: Ctrl-C.",
        "",
        "What follows: is",
        "left alone.",
    ]
    as_restructured_text(lines)
    assert lines[:5] == [
        "Raises:",
        "    ConfigError: an unknown name, or an index beside ``among``.",
        "    FormatError, StorageError: no file.",
        "    MissingPathError (a StorageError): no folder: gone",
        "    KeyboardInterrupt: Ctrl-C.",
    ]
    assert lines[5:] == ["", "What follows: is", "left alone."]
    for without in ([], ["One line."], ["Raises:"], ["Raises:", ""]):
        before = without.copy()
        as_restructured_text(without)
        assert without == before


def test_every_name_of_the_reference_can_be_imported() -> None:
    named = re.findall(r"^\.\. auto(\w+):: ([\w.]+)$", _page("reference.md"), re.MULTILINE)
    for kind, name in named:
        module, _, attribute = name.rpartition(".")
        assert kind == "module" or hasattr(importlib.import_module(module), attribute), name
    assert {"CrashServer", "CrashHarness"} <= {name.rpartition(".")[2] for _, name in named}


def test_what_the_package_offers_at_its_top_is_in_the_reference() -> None:
    page = _page("reference.md")
    for name in set(marius_py.__all__) - {"__version__"}:
        assert f":: marius_py.{name}\n" in page, name


def test_what_a_run_notes_of_itself_is_in_the_storage_format() -> None:
    page = _page("storage_format.md")
    names = {item.name for kind in (EpochMetrics, Figures) for item in fields(kind)} - {"hits"}
    for name in names | set(summarize([], memory_peaks())):
        assert f"`{name}`" in page, name


def test_calls_in_running_text_need_no_other_import() -> None:
    for path in PAGES:
        for name in re.findall(r"`marius_py\.([\w.]+)\(", path.read_text(encoding="utf-8")):
            assert name in marius_py.__all__, f"{path}: marius_py.{name}(…) fails after import marius_py"


def test_keys_in_running_text_are_settings() -> None:
    kinds = (config.TrainConfig, config.EvaluateConfig, config.PrepareConfig)
    known = {key for kind in kinds for key, _, _ in keys_of(kind)}
    sections = {key.partition(".")[0] for key in known if "." in key}
    seen = 0
    for path in PAGES:
        for key in _keys(path, sections):
            seen += 1
            assert key in known or key.startswith(tuple(f"{name}." for name in OPEN)), f"{path}: {key}"
    assert seen > 200


def _keys(path: Path, sections: set[str]) -> Iterator[str]:
    """Dotted names in backquotes that begin with a section's; of tables of other programs the last cells."""
    for line in BLOCK.sub("", path.read_text(encoding="utf-8")).splitlines():
        if path.name == "coming_from.md" and line.startswith("| "):
            line = line.split(" | ")[-1] if line.count(" | ") == 1 else ""
        for code in re.findall("`([^`]+)`", line):
            for match in re.finditer(r"(?<![^\s'])([a-z]+)(?:\.[a-z][a-z0-9_]*)+(?=[\s'=]|$)", code):
                if match[1] in sections and not match[0].endswith((".h5", ".py")):
                    yield match[0]


def test_every_page_is_in_the_table_of_contents() -> None:
    pages = [path.stem for path in PAGES if path.parent.name == "docs" and path.stem != "index"]
    assert sorted(contents()) == sorted(pages)
