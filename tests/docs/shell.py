"""A real shell whose `python` and `marius-…` start at once.

The commands of a page run in bash, as printed. In front of its PATH stand small programs that hand their
arguments, folder, environment and open files to a server, which has imported everything already, and forks.
So a command costs its own time and not some seconds of imports.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Self

from docs.documentation import COMMANDS, function_of

ROOT = Path(__file__).resolve().parents[2]

_STUB = """#!{python} -IS
import json, os, socket, sys
words = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
request = json.dumps([words, os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(server, [len(request).to_bytes(4, "big")], [0, 1, 2])
server.sendall(request)
sys.exit(int(server.recv(8) or 70))
"""


class Shell:
    """Runs scripts; use as a context manager.

    Args:
        scratch: an empty folder for its own files; its path must be short (a socket lies in it).
    """

    def __init__(self, scratch: Path) -> None:
        self._bin = scratch / "bin"
        self._bin.mkdir(parents=True)
        address = str(scratch / "s")
        for name in ("python", "python3", *COMMANDS):
            stub = self._bin / name
            stub.write_text(_STUB.format(python=sys.executable, address=address))
            stub.chmod(0o755)
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.docs.shell", address],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        if self._server.stdout is None or self._server.stdout.readline() != "ready\n":
            self.close()
            raise RuntimeError("the server of commands did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the server."""
        self._server.terminate()
        self._server.wait(30)
        if self._server.stdout is not None:
            self._server.stdout.close()

    def run(self, script: str, folder: Path, timeout_s: float) -> tuple[int, str]:
        """Run a script in a folder; its exit code, and what it wrote to stdout and stderr."""
        done = subprocess.run(
            ["bash", "-euc", script],
            cwd=folder,
            env=os.environ | {"PATH": f"{self._bin}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return done.returncode, done.stdout


def _serve(address: str) -> None:
    """Fork a child for every connection, until SIGTERM."""
    import matplotlib.figure  # noqa: F401

    import marius_py.assembly.build
    import marius_py.commands.watch
    import marius_py.export
    import marius_py.predict
    import marius_py.prepare
    import marius_py.report
    import marius_py.tracking.training  # noqa: F401

    # One core: commands then use one thread, which costs the same on a busy machine as on a quiet one.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        connection = listener.accept()[0]
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            _answer(connection)
        connection.close()


def _answer(connection: socket.socket) -> None:
    """Be the command that was asked for, and end with its code."""
    code = 70
    try:
        head, files, _, _ = socket.recv_fds(connection, 4, 3)
        words, folder, environment = json.loads(_exactly(connection, int.from_bytes(head, "big")))
        for wanted, file in enumerate(files):
            os.dup2(file, wanted)
            os.close(file)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        code = _run(words)
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
        if isinstance(leave.code, str):
            sys.stderr.write(f"{leave.code}\n")
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(str(code).encode())
        os._exit(code)


def _exactly(connection: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        block = connection.recv(size - len(content))
        if not block:
            raise EOFError("the caller has left")
        content += block
    return content


def _run(words: list[str]) -> int:
    """What the interpreter would do with these words."""
    name, *arguments = words
    if name in COMMANDS:
        sys.argv, sys.path[0] = words, str(ROOT / "bin")
        return function_of(name)(None)
    if arguments[:1] == ["-m"]:
        sys.path[0], sys.argv = os.getcwd(), arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[:1] == ["-c"]:
        sys.path[0], sys.argv = os.getcwd(), ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path[0], sys.argv = str(Path(arguments[0]).resolve().parent), arguments
        runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    _serve(sys.argv[1])
