"""The fenced blocks of the documentation, and what is said about running them.

An HTML comment right above a block says what is special: `<!-- not run: REASON -->` or `<!-- slow -->`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]

SHELLS = ("sh", "bash", "shell", "console")
REASONS = ("installs packages", "needs a network", "needs a GPU", "needs a server", "takes hours")
"""Why a block may be left out of the tests."""

_BLOCK = re.compile(
    r"^(?:<!-- (?P<note>[^>]*?) -->\n)?^(?P<fence>`{3,})(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"# (?P<name>[\w./-]+\.(?:py|ya?ml|tsv|csv|json))\n")
_INDENTED = re.compile(r"^(?: {4}|\t)(?P<line>(?:\$|marius-\w+|pip|python|pytest|import|from) .*)$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page.

    Attributes:
        page: path relative to the checkout.
        line: number of its opening fence, from 1.
        language: what stands behind the fence.
        text: content.
        note: text of the comment above it, or "".
    """

    page: str
    line: int
    language: str
    text: str
    note: str

    @property
    def reason(self) -> str | None:
        """Why it is not run, if it is not."""
        return self.note.removeprefix("not run: ") if self.note.startswith("not run") else None

    @property
    def slow(self) -> bool:
        """Whether it runs with the slow tests only."""
        return self.note == "slow"

    @property
    def file_name(self) -> str | None:
        """The file whose content it is: a first line `# name.py` says so."""
        match = _FILE.match(self.text)
        return match["name"] if match and self.language not in SHELLS else None

    @property
    def script(self) -> str:
        """What a shell is given; of a console session the lines behind the prompt."""
        if self.language != "console":
            return self.text
        return "".join(line[2:] for line in self.text.splitlines(keepends=True) if line.startswith("$ "))

    @property
    def runs(self) -> bool:
        """Whether it is something to run, or a file that others need, and may be."""
        known = self.language in (*SHELLS, "python") or self.file_name is not None
        return known and self.reason is None


def blocks_of(path: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = path.read_text(encoding="utf-8")
    page = path.relative_to(ROOT).as_posix()
    return [
        Block(page, text.count("\n", 0, m.start("fence")) + 1, m["language"], m["text"], m["note"] or "")
        for m in _BLOCK.finditer(text)
    ]


def contents() -> list[str]:
    """The pages that the table of contents lists, in order, without .md."""
    entries = re.findall(
        r"```\{toctree\}\n(.*?)```", (ROOT / "docs" / "index.md").read_text("utf-8"), re.DOTALL
    )
    return [line for entry in entries for line in entry.split("\n") if line and not line.startswith(":")]


def unfenced_commands(path: Path) -> list[str]:
    """Commands in blocks that are indented instead of fenced, and so would escape the tests."""
    text = _BLOCK.sub("", path.read_text(encoding="utf-8"))
    return [match["line"] for line in text.splitlines() if (match := _INDENTED.match(line))]
