"""The I/O thread: how it ends, no task after one that failed, and where the system has no room for it."""

from __future__ import annotations

import signal
import threading
import time
import weakref

import pytest

from marius_py.buffer import swap
from marius_py.buffer.swap import NAME, IOThread
from marius_py.errors import PipelineError


def test_nothing_runs_after_a_task_that_failed() -> None:
    io, ran, go = IOThread(), [], threading.Event()

    def fail() -> None:
        go.wait(5)
        raise OSError("disk is full")

    failed, behind = io.submit(fail), io.submit(ran.append, 1)
    go.set()
    assert str(failed.exception(5)) == str(behind.exception(5)) == "disk is full"
    assert not ran
    with pytest.raises(OSError, match="disk is full"):
        io.drain()
    io.shutdown()
    assert str(io.submit(ran.append, 2).exception(5)) == "disk is full"
    assert not ran


def test_shutdown_forgets_what_is_queued_and_leaves_nothing_noted() -> None:
    current: dict[str, tuple[float, str]] = {}
    io, ran, begun, go = IOThread(current), [], threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        go.wait(5)
        return "done"

    running, queued = io.submit(slow), io.submit(ran.append, 1)
    assert begun.wait(5)
    assert current[NAME][1] == "I/O: slow"
    ending = threading.Thread(target=io.shutdown)
    ending.start()
    while not io._ended:
        time.sleep(0.001)
    ending.join(0.05)
    assert ending.is_alive()
    go.set()
    ending.join(5)
    assert running.result(5) == "done"
    assert "shut down" in str(queued.exception(5))
    assert not ran
    assert not current


def test_what_it_does_is_noted_by_the_name_of_the_task() -> None:
    current: dict[str, tuple[float, str]] = {}
    io = IOThread(current)

    def _read_rows() -> str:
        return current[NAME][1]

    assert io.submit(_read_rows).result(5) == "I/O: read_rows"
    end = time.monotonic() + 5
    while current[NAME][1] != "idle":
        assert time.monotonic() < end
        time.sleep(0.001)
    io.shutdown()


def test_draining_waits_for_what_is_queued() -> None:
    io, ran = IOThread(), []
    io.submit(time.sleep, 0.05)
    io.submit(ran.append, 1)
    io.drain()
    assert ran
    io.shutdown()


def test_a_task_that_exits_has_failed() -> None:
    io = IOThread()

    def leave() -> None:
        raise SystemExit("enough")

    left, behind = io.submit(leave), io.submit(int)
    assert str(left.exception(5)) == str(behind.exception(5)) == "enough"
    io.shutdown()


def test_the_first_failure_stays_when_it_is_given_up() -> None:
    io = IOThread()

    def fail() -> None:
        raise OSError("disk is full")

    io.submit(fail).exception(5)
    io.abandon(TimeoutError("stalled"))
    with pytest.raises(OSError, match="disk is full"):
        io.raise_failure()
    io.shutdown()


def test_a_result_that_its_owner_drops_is_held_by_nothing_else() -> None:
    class Edges:
        pass

    io = IOThread()
    read = io.submit(Edges)
    edges = weakref.ref(read.result(5))
    del read
    end = time.monotonic() + 5
    while edges() is not None:
        assert time.monotonic() < end
        time.sleep(0.001)
    io.shutdown()


def test_a_task_given_up_may_end_later() -> None:
    """The first error stays, the thread goes on to its end, and nobody waits for it."""
    current: dict[str, tuple[float, str]] = {}
    io, begun, go = IOThread(current), threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        go.wait(5)
        raise OSError("too late")

    stuck = io.submit(hang)
    queued = io.submit(int)
    assert begun.wait(5)
    io.abandon(TimeoutError("stalled"))
    assert str(stuck.exception(0)) == str(queued.exception(0)) == "stalled"
    assert str(io.submit(int).exception(0)) == "stalled"
    io.shutdown()
    thread = io._thread
    assert thread is not None
    assert thread.is_alive()
    assert thread.daemon
    go.set()
    thread.join(5)
    assert not current
    with pytest.raises(TimeoutError, match="stalled"):
        io.raise_failure()


def _no_room(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_thread_that_cannot_be_started_is_said_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    io = IOThread()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", _no_room)
        for _ in range(2):
            with pytest.raises(PipelineError, match=r"'marius-io' cannot be started: .* limit of processes"):
                io.submit(int)
    assert not io._open
    assert io.submit(lambda: 7).result(5) == 7
    io.shutdown()


def test_what_never_had_a_thread_is_shut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", _no_room)
    io = IOThread()
    with pytest.raises(PipelineError):
        io.submit(int)
    io.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        io.submit(int).result(5)


@pytest.mark.parametrize(("times", "patience"), [(1, 10.0), (2, 10.0), (1, 0.05)])
def test_an_interrupt_of_shutdown_is_raised_once_the_task_has_ended(
    times: int, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may be closed then; another interrupt leaves the thread behind, and so does one that hangs."""
    monkeypatch.setattr(swap, "_LAST_S", patience)
    io, begun, ended = IOThread(), threading.Event(), threading.Event()
    main = threading.get_ident()

    def write() -> None:
        begun.set()
        for _ in range(times):
            time.sleep(0.2)
            signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.3)
        ended.set()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        io.submit(write)
        assert begun.wait(5)
        with pytest.raises(KeyboardInterrupt):
            io.shutdown()
        assert ended.is_set() == (times == 1 and patience > 1)
        assert ended.wait(5)
    finally:
        signal.signal(signal.SIGINT, before)
