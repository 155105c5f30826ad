"""Works that threads take from one queue, also after the main thread has ended."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from marius_py.workers import Workers


def test_results_come_in_order_and_threads_end() -> None:
    before = threading.active_count()
    with Workers(3, "some", begin=lambda: setattr(threading.current_thread(), "began", True)) as workers:
        assert workers.map(divmod, range(100), [7] * 100) == [divmod(number, 7) for number in range(100)]
        assert workers.submit(lambda: vars(threading.current_thread())["began"]).result()
        assert workers.submit(lambda: threading.current_thread().name).result().startswith("some_")
    assert threading.active_count() == before
    workers.shutdown()
    with pytest.raises(RuntimeError, match="'some' were shut down"):
        workers.submit(int)


def test_no_more_threads_are_started_than_work_at_once() -> None:
    with Workers(3, "some") as workers:
        for _ in range(5):
            workers.submit(int).result()
            workers._free.acquire()  # it waits for the next one
            workers._free.release()
        assert len(workers._threads) == 1
        together = threading.Barrier(3)
        workers.map(lambda _: together.wait(20), range(3))
        workers.map(int, range(20))
        assert len(workers._threads) == 3


def test_an_error_is_raised_and_what_waits_is_dropped() -> None:
    begun, may_end, done = threading.Event(), threading.Event(), list[int]()

    def fail() -> None:
        begun.set()
        may_end.wait(20)
        raise OSError("broken work")

    workers = Workers(1, "some")
    failing = workers.submit(fail)
    waiting = [workers.submit(done.append, number) for number in range(3)]
    begun.wait(20)
    threading.Timer(0.05, may_end.set).start()
    workers.shutdown(drop=True)
    with pytest.raises(OSError, match="broken work"):
        failing.result()
    assert all(one.cancelled() for one in waiting)
    assert done == []


def test_works_are_done_after_the_main_thread_has_ended() -> None:
    program = (
        "import threading\n"
        "from marius_py.workers import Workers\n"
        "def go():\n"
        "    with Workers(2, 'some') as workers:\n"
        "        workers.map(int, range(9))\n"
        "        threading.main_thread().join()\n"
        "        print(sum(workers.map(int, range(9))))\n"
        "    with Workers(2, 'others') as workers:\n"
        "        print(sum(workers.map(int, range(9))))\n"
        "threading.Thread(target=go).start()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.stdout.split(), ended.stderr) == (["36", "36"], "")
