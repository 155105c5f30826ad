"""Kill commands at any moment and see what they leave (floor 6).

In: words of a command. Out: how it ended. A server process imports everything once and forks a child a
command, so that a kill costs the command's own time and not two seconds of imports:

    with CrashServer(Path("scratch")) as server:
        done = server.run(["train", "graph=g", "output=r"], kill_at_call=40)
        assert done.killed
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_POLL_S = 0.001


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended.

    Attributes:
        code: its exit code; −9 if it was killed.
        seconds: how long it ran.
        calls: system calls that storage made; None if it was killed.
        output: what it wrote to stdout and stderr.
    """

    code: int
    seconds: float
    calls: int | None
    output: str

    @property
    def killed(self) -> bool:
        """Whether it was killed before it ended by itself."""
        return self.code == -signal.SIGKILL


class CrashServer:
    """Runs commands of this package in forked children, killed on demand. One command at a time.

    Args:
        scratch: folder for the children's output; made if missing.
    """

    def __init__(self, scratch: Path) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self._log = scratch / "output.txt"
        self._report = scratch / "calls.txt"
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._server = subprocess.Popen(
            [sys.executable, "-m", "marius_py.testing.crashes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(
        self,
        words: Sequence[str],
        *,
        kill_after_s: float | None = None,
        kill_at_call: int | None = None,
        fail_at_call: tuple[int, int] | None = None,
        setup: str | None = None,
    ) -> Ended:
        """Run `python -m marius_py` with these words to its end, or until it is killed.

        Args:
            words: the command's short name and its arguments.
            kill_after_s: SIGKILL after so many seconds.
            kill_at_call: SIGKILL before the n-th system call that storage makes on a file, from 1.
            fail_at_call: (n, errno): the n-th such call fails instead.
            setup: Python statements that the child runs first.
        """
        request = {
            "words": list(words),
            "kill_after_s": kill_after_s,
            "kill_at_call": kill_at_call,
            "fail_at_call": fail_at_call,
            "setup": setup,
            "log": str(self._log),
            "report": str(self._report),
        }
        self._report.unlink(missing_ok=True)
        if self._server.stdin is None or self._server.stdout is None:
            raise RuntimeError("the crash server has no pipes")
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        if not answer:
            raise RuntimeError(f"the crash server has died with code {self._server.wait()}")
        code, seconds = json.loads(answer)
        report = self._report.read_text() if self._report.exists() else ""
        calls = int(report) if report else None  # empty: killed between opening and writing it
        return Ended(code, seconds, calls, self._log.read_text(errors="replace"))

    def close(self) -> None:
        """End the server. May be called twice."""
        if self._server.stdin is not None:
            self._server.stdin.close()
        self._server.wait(30)
        if self._server.stdout is not None:
            self._server.stdout.close()


def _serve() -> None:
    """Fork a child for every line of stdin; answer with a line of [exit code, seconds]."""
    import marius_py.assembly.build
    import marius_py.commands.watch
    import marius_py.export
    import marius_py.prepare
    import marius_py.verify  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _run_child(request)
        code = _wait(pid, started, request["kill_after_s"])
        sys.stdout.write(json.dumps([code, time.monotonic() - started]) + "\n")
        sys.stdout.flush()


def _wait(pid: int, started: float, kill_after_s: float | None) -> int:
    while kill_after_s is not None and time.monotonic() - started < kill_after_s:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_POLL_S)
    if kill_after_s is not None:
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _run_child(request: dict[str, Any]) -> None:
    code = 70
    try:
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for stream in (1, 2):
            os.dup2(log, stream)
        sys.stdin.close()
        code = _run_words(request)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run_words(request: dict[str, Any]) -> int:
    from marius_py.cli import main
    from marius_py.testing.system_calls import SystemCallFaults

    if request["setup"]:
        exec(compile(request["setup"], "<setup>", "exec"), {})
    number, error = request["fail_at_call"] or (request["kill_at_call"], 0)

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    action = kill if request["kill_at_call"] else None
    with SystemCallFaults(number, error, action=action) as faults:
        code = main(request["words"])
    Path(request["report"]).write_text(str(len(faults.calls)))
    return code


if __name__ == "__main__":
    _serve()
