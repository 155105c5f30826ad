"""What may be replayed is recorded once, the rest is done as it comes; a stand-in takes CUDA's place."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from marius_py.pipeline.recordings import LONG, MOST_SEEN, WARM_UPS, Recordings


class Graph:
    """Replays by doing the work again on the tensors that it was recorded with."""

    recorded: list[Graph] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.work: Any = None
        self.replays = 0
        Graph.recorded.append(self)

    def replay(self) -> None:
        self.replays += 1
        given, results, work = self.work
        for mine, one in zip(results, work(given), strict=True):
            mine.copy_(one)


class Stream(NamedTuple):
    device: torch.device


class Doubling:
    """Work that counts how often it is done, and notes what a graph needs to do it again."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls = 0
        self.capturing: Graph | None = None
        self.error = error
        self.at_end: Exception | None = None
        self.streams: list[Any] = []
        self.ended: list[Any] = []

    def __call__(self, given: Sequence[Tensor]) -> list[Tensor]:
        self.calls += 1
        results = [2 * one for one in given]
        if self.capturing is not None:
            if self.error is not None:
                raise self.error
            self.capturing.work = (given, results, lambda tensors: [2 * one for one in tensors])
        return results


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Doubling:
    made = Doubling()

    @contextmanager
    def capture(graph: Graph, **options: Any) -> Iterator[None]:
        assert options == {"pool": "pool", "stream": "its own", "capture_error_mode": "thread_local"}
        made.capturing = graph
        try:
            yield
        finally:
            made.capturing = None
            if made.at_end is not None:
                raise made.at_end

    Graph.recorded = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "Stream", lambda: "its own")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream(torch.device("cuda:1")))
    monkeypatch.setattr(torch.cuda, "set_stream", made.streams.append)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *of: made.ended.append(of), raising=False)
    return made


def doubled(recordings: Recordings, work: Doubling, *values: float, key: Any = None) -> list[float]:
    (found,) = recordings.do(work, [torch.tensor(values)], key)
    return found.tolist()  # type: ignore[no-any-return]


def test_work_of_a_shape_is_replayed_once_it_is_warm(work: Doubling) -> None:
    recordings = Recordings(may=lambda: True, keep=False, most=4)
    for number in range(WARM_UPS + 5):
        assert doubled(recordings, work, number, 1.0) == [2.0 * number, 2.0]
    assert work.calls == WARM_UPS + 1
    assert [graph.replays for graph in Graph.recorded] == [5]


def test_shapes_and_keys_have_recordings_of_their_own_up_to_the_most(work: Doubling) -> None:
    recordings = Recordings(may=lambda: True, keep=False, most=2)
    for number in range(WARM_UPS + 3):
        assert doubled(recordings, work, number) == [2.0 * number]
        assert doubled(recordings, work, number, key="other") == [2.0 * number]
        assert doubled(recordings, work, number, 3.0) == [2.0 * number, 6.0]
    assert [graph.replays for graph in Graph.recorded] == [3] * 2


def test_a_recording_that_is_never_replayed_gives_its_place_to_another(work: Doubling) -> None:
    recordings = Recordings(may=lambda: True, keep=False, most=2)
    for key in ("old", "used", "new"):
        for _ in range(WARM_UPS + 1):
            doubled(recordings, work, 0.0, key=key)
    old, used = Graph.recorded
    for number in range(LONG - WARM_UPS - 1):
        assert not recordings._recorded.keys() - {(key, (1,)) for key in ("old", "used")}
        doubled(recordings, work, number, key="used")
    for _ in range(2):
        assert doubled(recordings, work, 3.0, key="new") == [6.0]
        assert doubled(recordings, work, 4.0, key="used") == [8.0]
    _, _, new = Graph.recorded
    assert [graph.replays for graph in (old, used, new)] == [1, LONG - WARM_UPS + 2, 2]
    for _ in range(2 * WARM_UPS):  # both are in use: what lost its place waits for one
        assert doubled(recordings, work, 5.0, key="old") == [10.0]
    assert len(Graph.recorded) == 3


def test_shapes_that_do_not_return_are_forgotten(work: Doubling) -> None:
    recordings = Recordings(may=lambda: True, keep=False, most=1)
    for number in range(MOST_SEEN + 50):
        doubled(recordings, work, 0.0, key=number)
        if number % 200 == 0:
            doubled(recordings, work, 0.0, key="returns")
    assert len(recordings._seen) == MOST_SEEN
    for number in range(WARM_UPS):
        assert doubled(recordings, work, number, key="returns") == [2.0 * number]
    assert [graph.replays for graph in Graph.recorded] == [WARM_UPS - 2]


def test_closed_recordings_hold_nothing_of_the_device(work: Doubling) -> None:
    recordings = Recordings(may=lambda: True, keep=True, most=4)
    for _ in range(WARM_UPS + 2):
        doubled(recordings, work, 1.0)
    (graph,) = map(weakref.ref, Graph.recorded)
    Graph.recorded.clear()
    gc.disable()
    try:
        recordings.close()
        assert graph() is None
    finally:
        gc.enable()
    assert doubled(recordings, work, 2.0) == [4.0]
    assert recordings._pool is None


@pytest.mark.parametrize("keep", [False, True])
def test_results_are_kept_only_if_asked_for(work: Doubling, keep: bool) -> None:
    recordings = Recordings(may=lambda: True, keep=keep, most=4)
    for _ in range(WARM_UPS):
        doubled(recordings, work, 0.0)
    (first,) = recordings.do(work, [torch.tensor([1.0])])
    recordings.do(work, [torch.tensor([5.0])])
    assert first.tolist() == ([2.0] if keep else [10.0])


@pytest.mark.parametrize("keep", [False, True])
def test_what_is_not_replayed_is_kept_as_well(keep: bool) -> None:
    """Work may return scratch, which it fills anew the next time."""
    recordings, scratch = Recordings(may=lambda: False, keep=keep, most=0), torch.empty(1)

    def doubling(given: Sequence[Tensor]) -> list[Tensor]:
        return [torch.mul(given[0], 2, out=scratch)]

    (first,) = recordings.do(doubling, [torch.tensor([1.0])])
    recordings.do(doubling, [torch.tensor([5.0])])
    assert first.tolist() == ([2.0] if keep else [10.0])


def test_what_cannot_be_recorded_is_done_as_it_comes(
    work: Doubling, caplog: pytest.LogCaptureFixture
) -> None:
    work.error = RuntimeError("operation not permitted when stream is capturing")
    recordings = Recordings(may=lambda: True, keep=False, most=4)
    for number in range(WARM_UPS + 3):
        assert doubled(recordings, work, number) == [2.0 * number]
    assert work.calls == WARM_UPS + 3 + 1
    assert caplog.text.count("cannot be recorded: operation not permitted") == 1
    assert not any(graph.replays for graph in Graph.recorded)
    assert len(work.streams) == 1
    assert not work.ended


def test_a_recording_that_fails_lets_go_of_what_it_has_made(work: Doubling) -> None:
    """The same work follows at once, perhaps on a device without room for both."""
    recordings = Recordings(may=lambda: True, keep=False, most=4)
    made: list[weakref.ref[Tensor]] = []
    held: list[bool] = []

    def failing(given: Sequence[Tensor]) -> list[Tensor]:
        scores = torch.ones(3)
        if work.capturing is not None:
            made.append(weakref.ref(scores))
            raise torch.OutOfMemoryError("CUDA out of memory")
        held.extend(one() is not None for one in made)
        return [given[0] * scores]

    collects = gc.isenabled()
    gc.disable()
    try:
        for _ in range(WARM_UPS + 1):
            recordings.do(failing, [torch.ones(3)])
    finally:
        if collects:
            gc.enable()
    assert held == [False]


def test_a_recording_that_cannot_be_ended_leaves_stream_and_allocator_as_they_were(
    work: Doubling, caplog: pytest.LogCaptureFixture
) -> None:
    """Where work made the host wait, ending the recording fails too, and PyTorch stays on its stream."""
    work.error, work.at_end = RuntimeError("not permitted"), RuntimeError("capture was invalidated")
    recordings = Recordings(may=lambda: True, keep=False, most=4)
    for number in range(WARM_UPS + 3):
        assert doubled(recordings, work, number) == [2.0 * number]
    assert caplog.text.count("cannot be recorded: capture was invalidated") == 1
    assert work.streams == [Stream(torch.device("cuda:1"))]
    assert work.ended == [(1, "pool")]


def test_work_that_may_no_longer_be_recorded_is_done_as_it_comes(work: Doubling) -> None:
    """A batch that ran out of memory is computed in parts from there on."""
    allowed = [True] * (WARM_UPS - 1)
    recordings = Recordings(may=lambda: bool(allowed) and allowed.pop(), keep=False, most=4)
    for number in range(WARM_UPS + 3):
        assert doubled(recordings, work, number) == [2.0 * number]
    assert not Graph.recorded


def test_nothing_is_recorded_where_it_is_not_enabled(work: Doubling) -> None:
    recordings = Recordings(may=lambda: False, keep=True, most=4)
    for number in range(WARM_UPS + 3):
        doubled(recordings, work, number)
    assert work.calls == WARM_UPS + 3
    assert not Graph.recorded
