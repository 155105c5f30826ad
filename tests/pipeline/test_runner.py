"""Inline and threaded runners: order, bound, errors by stage, no thread and no item left behind."""

from __future__ import annotations

import json
import logging
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from marius_py.errors import PipelineError, StorageError
from marius_py.pipeline.lanes import run_lanes
from marius_py.pipeline.rounds import run_rounds
from marius_py.pipeline.runner import AHEAD_THREADS, Stage, run_inline, run_threaded
from marius_py.pipeline.trace import Trace
from marius_py.team import Team


def numbers(count: int) -> Iterator[int]:
    yield from range(count)


def in_rounds(*words: Any, **named: Any) -> None:
    """`run_rounds` with a team of three."""
    with Team(3) as team:
        run_rounds(*words, team=team, **named)


def collect(into: list[int]) -> Stage:
    return Stage("collect", into.append)


def test_runners_keep_the_order_of_inline_under_random_delays() -> None:
    """Lanes that of the first stage that is not `ahead`; items leave as they are ready."""
    rng = random.Random(3)

    def slow(item: int) -> int:
        time.sleep(rng.random() * 0.002)
        return item * 2

    runs = ("inline", "threaded", "rounds", "rounds ahead", "lanes", "ahead")
    entered: dict[str, list[int]] = {run: [] for run in runs}
    results: dict[str, list[int]] = {run: [] for run in runs}

    def stages(run: str) -> list[Stage]:
        def enter(item: int) -> int:
            entered[run].append(item)
            return item

        return [
            Stage("double", slow, ahead=True),
            Stage("enter", enter),
            Stage("double again", slow, in_caller=True),
            collect(results[run]),
        ]

    run_inline(numbers(60), stages("inline"), Trace())
    run_threaded(numbers(60), stages("threaded"), Trace(), max_in_flight=5)
    in_rounds(numbers(60), stages("rounds"), Trace())
    in_rounds(numbers(60), stages("rounds ahead"), Trace(), ahead=4)
    run_lanes(numbers(60), stages("lanes"), Trace(), lanes=3)
    run_lanes(numbers(60), stages("ahead"), Trace(), lanes=3, ahead=2)
    assert list(entered.values()) == [[2 * n for n in range(60)]] * 6
    for run in runs[:4]:
        assert results[run] == [4 * n for n in range(60)]
    assert sorted(results["lanes"]) == sorted(results["ahead"]) == results["inline"]


def test_an_item_in_a_lane_misses_fewer_results_than_there_are_lanes() -> None:
    """Others may overtake one that is slow, but no item enters before all `lanes` before it have left."""
    lanes, left, missed, overtaken = 3, set[int](), [0], [0]
    rng = random.Random(5)

    def enter(item: int) -> int:
        missed.append(item - len([n for n in left if n < item]))
        return item

    def work(item: int) -> int:
        time.sleep(0.004 if item % 5 == 0 else rng.random() * 0.001)
        return item

    def leave(item: int) -> None:
        overtaken.append(len([n for n in left if n > item]))
        left.add(item)

    stages = [Stage("enter", enter), Stage("work", work), Stage("leave", leave)]
    run_lanes(numbers(100), stages, Trace(), lanes=lanes)
    assert max(missed) == lanes - 1
    assert 0 < max(overtaken) < lanes
    assert len(left) == 100


@pytest.mark.parametrize("ahead", [AHEAD_THREADS, 7])
def test_stages_ahead_work_on_several_items_at_once_in_threads(ahead: int) -> None:
    through: list[int] = []
    together = threading.Barrier(ahead)

    def prepare(item: int) -> int:
        together.wait(60)  # nobody passes unless as many are here
        return item

    stages = [Stage("prepare", prepare, ahead=True), Stage("enter", lambda x: x), collect(through)]
    run_threaded(numbers(4 * ahead), stages, Trace(), max_in_flight=2, ahead=ahead)
    assert through == list(range(4 * ahead))


def test_a_stage_ahead_that_fails_ends_the_run_by_its_name() -> None:
    through: list[int] = []

    def prepare(item: int) -> int:
        if item == 5:
            raise ValueError("no such item")
        return item

    stages = [Stage("prepare", prepare, ahead=True), Stage("enter", lambda x: x), collect(through)]
    before = threading.active_count()
    with pytest.raises(PipelineError, match="stage 'prepare' failed: ValueError: no such item"):
        run_threaded(numbers(100), stages, Trace(), max_in_flight=2)
    assert through == list(range(len(through)))
    assert len(through) <= 5
    assert threading.active_count() == before


def test_stages_ahead_work_on_several_items_at_once_in_lanes() -> None:
    together = threading.Barrier(3)

    def prepare(item: int) -> int:
        if item < 3:
            together.wait(60)
        return item

    through: list[int] = []
    stages = [Stage("prepare", prepare, ahead=True), Stage("enter", lambda x: x), collect(through)]
    run_lanes(numbers(9), stages, Trace(), lanes=3)
    assert sorted(through) == list(range(9))


@pytest.mark.parametrize("ahead", [0, 4])
def test_a_round_draws_side_by_side_and_goes_on_one_by_one(ahead: int) -> None:
    together, inside, most = threading.Barrier(3), 0, 0

    def prepare(item: int) -> int:
        if not ahead and item < 3:
            together.wait(60)
        return item

    def enter(item: int) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        return item

    def leave(item: int) -> None:
        nonlocal inside
        inside -= 1
        through.append(item)

    through: list[int] = []
    stages = [Stage("prepare", prepare, ahead=True), Stage("enter", enter), Stage("leave", leave)]
    in_rounds(numbers(30), stages, Trace(), ahead=ahead)
    assert through == list(range(30))
    assert (most, inside) == (1, 0)


def test_a_round_does_not_wait_for_more_than_its_first_item() -> None:
    """The source may have no more until what it gave is done: a swap waits for batches to end."""
    done = threading.Semaphore(0)

    def source() -> Iterator[int]:
        yield 0
        for item in range(1, 20):
            assert done.acquire(timeout=60)
            yield item

    through: list[int] = []
    stages = [Stage("draw", lambda item: item, ahead=True), Stage("leave", through.append)]
    stages.append(Stage("end", lambda _: done.release()))
    in_rounds(source(), stages, Trace(), ahead=4)
    assert through == list(range(20))


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("runner", ["threaded", "lanes"])
def test_no_more_than_max_in_flight_between_first_and_last_stage(limit: int, runner: str) -> None:
    lock, inside, most = threading.Lock(), 0, 0

    def enter(item: int) -> int:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        return item

    def leave(item: int) -> int:
        nonlocal inside
        time.sleep(0.001)
        with lock:
            inside -= 1
        return item

    stages = [
        Stage("before", lambda x: x, ahead=True),
        Stage("enter", enter),
        Stage("work", lambda x: x, in_caller=True),
        Stage("leave", leave),
    ]
    if runner == "lanes":
        run_lanes(numbers(50), stages, Trace(), lanes=limit)
    else:
        run_threaded(numbers(50), stages, Trace(), max_in_flight=limit)
    assert most <= limit
    assert limit == 1 or most > 1
    assert inside == 0


@pytest.mark.parametrize("failing", ["load", "first", "second", "third"])
@pytest.mark.parametrize("runner", ["inline", "threaded", "rounds", "rounds ahead", "lanes", "ahead"])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("seven"), r"stage '{}' failed: KeyError: 'seven'$"),
        (SystemExit(), r"stage '{}' failed: SystemExit$"),
        (GeneratorExit("enough"), r"stage '{}' failed: GeneratorExit: enough$"),
        (KeyboardInterrupt("by hand"), ""),
    ],
)
def test_error_carries_the_stage_and_its_cause(
    failing: str, runner: str, error: BaseException, said: str
) -> None:
    def source() -> Iterator[int]:
        for n in range(30):
            if failing == "load" and n == 7:
                where.append(threading.current_thread())
                raise error
            yield n

    def stage(name: str) -> Stage:
        def work(item: int) -> int:
            if name == failing and item == 7:
                where.append(threading.current_thread())
                raise error
            return item

        return Stage(name, work, in_caller=name == "second", ahead=name == "first")

    woken: list[bool] = []
    where: list[threading.Thread] = []
    stages = [stage("first"), stage("second"), stage("third")]

    def run() -> None:
        if runner == "inline":
            run_inline(source(), stages, Trace())
        elif runner.startswith("rounds"):
            ahead = 3 if "ahead" in runner else 0
            in_rounds(source(), stages, Trace(), ahead=ahead, on_error=lambda: woken.append(True))
        elif runner in ("lanes", "ahead"):
            ahead = 3 if runner == "ahead" else 0
            run_lanes(source(), stages, Trace(), lanes=2, ahead=ahead, on_error=lambda: woken.append(True))
        else:
            run_threaded(source(), stages, Trace(), max_in_flight=2, on_error=lambda: woken.append(True))

    with pytest.raises(BaseException) as caught:
        run()
    leaves = isinstance(error, SystemExit) and where == [threading.main_thread()]
    if leaves or isinstance(error, KeyboardInterrupt):
        assert caught.value is error
    else:
        assert isinstance(caught.value, PipelineError)
        assert re.search(said.format(failing), str(caught.value))
        assert (caught.value.stage, caught.value.__cause__) == (failing, error)
    assert runner == "inline" or woken == [True]


@pytest.mark.parametrize(
    ("run", "room"),
    [
        (partial(run_threaded, max_in_flight=6), 0),
        (partial(run_threaded, max_in_flight=6), 2),
        (partial(run_threaded, max_in_flight=6), 4),
        (partial(run_lanes, lanes=3), 1),
        (partial(run_lanes, lanes=3, ahead=2), 2),
        (in_rounds, 1),
        (partial(in_rounds, ahead=1), 2),
    ],
)
def test_threads_that_cannot_be_started_end_those_that_were(
    run: Callable[..., None], room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, start, left = threading.active_count(), threading.Thread.start, [room]

    def started(thread: threading.Thread) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    stages = [Stage(name, lambda item: item, ahead=name == "draw") for name in ("draw", "work", "end")]
    with pytest.raises(PipelineError, match="can't start new thread"):
        run(iter(int, 1), stages, Trace())
    assert threading.active_count() == before


@pytest.mark.parametrize(
    "run", [partial(run_threaded, max_in_flight=2), partial(run_lanes, lanes=2)], ids=["threaded", "lanes"]
)
def test_threads_have_the_device_of_the_one_that_began_them(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: dict[int, int] = {}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda device: chosen.__setitem__(threading.get_ident(), device)
    )
    worked: set[int] = set()
    stages = [
        Stage(name, lambda item: (worked.add(threading.get_ident()), item)[1]) for name in ("work", "end")
    ]
    run(numbers(9), stages, Trace())
    assert worked - {threading.get_ident()} <= chosen.keys()
    assert chosen
    assert set(chosen.values()) == {1}


@pytest.mark.parametrize(
    "run",
    [
        partial(run_threaded, max_in_flight=2),
        partial(run_lanes, lanes=2),
        partial(run_lanes, lanes=2, ahead=1),
    ],
    ids=["threaded", "lanes", "ahead"],
)
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_interrupt_while_threads_are_waited_for_leaves_none_at_work(
    run: Callable[..., None], times: int
) -> None:
    """Unless it comes twice; by then the run stops, and what was left behind goes no further."""
    collected: list[int] = []
    main, begun = threading.get_ident(), threading.Barrier(2)
    working, ended = threading.Event(), threading.Event()

    def work(item: int) -> int:
        if threading.current_thread() is threading.main_thread():
            begun.wait(5)
            return item
        working.set()
        with suppress(threading.BrokenBarrierError):
            begun.wait(0.5)
        time.sleep(0.1)  # by then the main thread, which has no more items, waits for this one
        for _ in range(times):
            signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.3)
        time.sleep(1.2 * (times - 1))
        working.clear()
        ended.set()
        return item

    stages = [Stage("enter", int), Stage("work", work), Stage("collect", collected.append)]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(numbers(1 if run.func is run_threaded else 2), stages, Trace())  # type: ignore[attr-defined]
        assert working.is_set() == (times == 2)
        assert ended.wait(5)
    finally:
        signal.signal(signal.SIGINT, before)
    time.sleep(0.05)
    assert len(collected) == (run.func is run_lanes)  # type: ignore[attr-defined]


def test_own_errors_keep_their_class() -> None:
    def fail(item: int) -> int:
        raise StorageError("disk full")

    with pytest.raises(StorageError, match="disk full"):
        run_threaded(numbers(5), [Stage("a", fail), Stage("b", lambda x: x)], Trace(), max_in_flight=2)


@pytest.mark.parametrize("runner", ["threaded", "rounds", "rounds ahead", "lanes", "ahead"])
def test_source_is_closed_when_a_stage_fails(runner: str) -> None:
    closed = threading.Event()

    def source() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    def fail(item: int) -> int:
        raise ValueError("no")

    ahead = 3 if "ahead" in runner else 0
    run: Callable[..., None] = partial(run_threaded, max_in_flight=1)
    if runner.startswith("rounds"):
        run = partial(in_rounds, ahead=ahead)
    elif runner != "threaded":
        run = partial(run_lanes, lanes=2, ahead=ahead)
    with pytest.raises(PipelineError):
        run(source(), [Stage("a", lambda item: item), Stage("b", fail)], Trace())
    assert closed.is_set()


def test_lanes_draw_no_more_items_than_they_carry() -> None:
    """Whoever draws takes its item along: nothing is drawn ahead, and no thread is spent on drawing."""
    drawn, through, threads, most = 0, 0, set(), 0
    together = threading.Barrier(3)

    def source() -> Iterator[int]:
        nonlocal drawn, most
        for item in range(40):
            drawn += 1
            most = max(most, drawn - through)
            threads.add(threading.current_thread())
            yield item

    def work(item: int) -> None:
        if item < 3:
            together.wait(60)

    def leave(item: int) -> None:
        nonlocal through
        through += 1

    stages = [Stage("enter", lambda x: x), Stage("work", work), Stage("leave", leave)]
    run_lanes(source(), stages, Trace(), lanes=3)
    assert most == len(threads) == 3
    assert threading.current_thread() in threads


def test_trace_counts_and_writes_every_span(tmp_path: Path) -> None:
    trace = Trace(keep_events=True)
    run_threaded(numbers(4), [Stage("only", lambda x: time.sleep(0.002))], trace, max_in_flight=1)
    trace.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["name"] == "only"]
    assert len(spans) == 4
    assert all(event["dur"] >= 2000 for event in spans)
    assert trace.seconds["only"] == pytest.approx(sum(e["dur"] for e in spans) / 1e6)


def test_a_trace_keeps_the_first_spans_and_says_how_many_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("marius_py"), "propagate", True)
    monkeypatch.setattr("marius_py.pipeline.trace.MOST_EVENTS", 3)
    trace = Trace(keep_events=True)
    for number in range(5):
        with trace.span(f"work {number}"):
            pass
    trace.write(tmp_path / "trace.json")
    written = json.loads((tmp_path / "trace.json").read_text())
    assert [event["name"] for event in written["traceEvents"]] == ["work 0", "work 1", "work 2"]
    assert written["otherData"] == {"spans_left_out": 2}
    assert "the first 3 spans of the run; 2 later ones are left out" in caplog.text
    assert len(trace.seconds) == 5
