"""Commands killed at random moments recover whole: a seeded subset here, more of them marked slow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from marius_py.testing.crash_harness import CrashHarness
from marius_py.testing.crashes import CrashServer


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashHarness]:
    with CrashHarness(tmp_path_factory.mktemp("inline")) as harness:
        yield harness


def test_killed_commands_end_as_if_nothing_had_happened(inline: CrashHarness) -> None:
    seed = 1000
    before = inline.report.total
    seen = set()
    while inline.report.total < before + 8 or "train" not in seen:
        seen.add(inline.trial(seed))
        seed += 1


KILLED_AT_ITS_REPORT = """
import os, pathlib, signal
def write_text(path, text):
    path.open("w").close()
    os.kill(os.getpid(), signal.SIGKILL)
pathlib.Path.write_text = write_text
"""


def test_a_command_killed_while_it_reports_is_one_that_was_killed(tmp_path: Path) -> None:
    with CrashServer(tmp_path) as server:
        ended = server.run(["verify", "nowhere"], setup=KILLED_AT_ITS_REPORT)
    assert (ended.code, ended.calls) == (-9, None)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", ["inline", "threaded"])
def test_many_kills(mode: str, tmp_path: Path) -> None:
    with CrashHarness(tmp_path, mode) as harness:
        seed = 2000
        while harness.report.total < 30:
            harness.trial(seed)
            seed += 1
        assert set(harness.report.kills) == {"prepare", "train", "evaluate", "export"}
        assert any((step, batch) != (0, 0) for _, step, batch in harness.report.resumed_from)
