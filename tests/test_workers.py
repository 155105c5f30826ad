"""Works that threads take from one queue, also after the main thread has ended."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from marius_py.errors import PipelineError
from marius_py.workers import Workers, made_ahead


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


def test_a_thread_that_an_interrupt_met_at_its_start_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    start, begun = threading.Thread.start, list[threading.Thread]()

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        begun.append(thread)
        raise KeyboardInterrupt

    workers = Workers(1, "some")
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        workers.submit(int)
    workers.shutdown()
    assert not begun[0].is_alive()


def test_a_thread_for_which_there_is_no_room_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Workers(1, "some") as workers:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            with pytest.raises(PipelineError, match="cannot be started"):
                workers.submit(int)
        assert workers.submit(int).result(20) == 0


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


def test_items_are_made_ahead_in_order_by_another_thread() -> None:
    made, makers, third = list[int](), set[str](), threading.Event()

    def numbers() -> Iterator[int]:
        for number in range(20):
            made.append(number)
            makers.add(threading.current_thread().name)
            if number == 2:
                third.set()
            yield number

    before = threading.active_count()
    items = made_ahead(numbers(), "some")
    assert made == []
    assert [next(items), next(items)] == [0, 1]
    assert third.wait(20)
    assert made == [0, 1, 2]
    assert list(items) == list(range(2, 20))
    assert makers == {"some_0"}
    assert list(made_ahead(iter(()), "some")) == []
    assert threading.active_count() == before


def test_an_error_of_what_is_made_ahead_comes_in_its_turn() -> None:
    def numbers() -> Iterator[int]:
        yield 1
        raise ValueError("no more")

    items = made_ahead(numbers(), "some")
    assert next(items) == 1
    with pytest.raises(ValueError, match="no more"):
        next(items)


def test_what_makes_items_ahead_ends_with_their_user() -> None:
    ended = []

    def numbers() -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            ended.append(threading.active_count())

    before = threading.active_count()
    items = made_ahead(numbers(), "some")
    assert next(items) == 0
    del items
    assert ended == [before]
