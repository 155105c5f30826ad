"""A team does all its work, side by side, and hands on what went wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from marius_py.team import ALONE, Team, Teams


@pytest.mark.parametrize(("size", "count"), [(1, 0), (1, 4), (2, 0), (2, 1), (2, 2), (5, 3), (4, 4)])
def test_results_come_in_order(size: int, count: int) -> None:
    with Team(size) as team:
        assert team.run([lambda number=number: number**2 for number in range(count)]) == [0, 1, 4, 9][:count]


def test_members_work_at_the_same_time_and_the_caller_is_one() -> None:
    together = threading.Barrier(3)

    def work() -> threading.Thread:
        together.wait(60)  # nobody passes unless as many are here
        return threading.current_thread()

    before = threading.active_count()
    with Team(3) as team:
        for _ in range(5):
            threads = team.run([work] * 3)
            assert len(set(threads)) == 3
            assert threads[0] is threading.current_thread()
    assert threading.active_count() == before


def test_each_work_has_a_member_of_its_own_however_soon_it_ends() -> None:
    with Team(4) as team:
        for _ in range(200):
            assert len({thread.name for thread in team.run([threading.current_thread] * 4)}) == 4


def test_alone_starts_no_thread() -> None:
    threads = ALONE.run([threading.current_thread] * 3)
    assert set(threads) == {threading.current_thread()}


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_is_raised_once_all_have_ended(failing: int) -> None:
    ended = set()

    def work(number: int) -> None:
        if number == failing:
            raise KeyError(number)
        ended.add(number)

    with Team(3) as team:
        for _ in range(3):
            ended.clear()
            with pytest.raises(KeyError, match=str(failing)):
                team.run([lambda number=number: work(number) for number in range(3)])
            assert ended == {0, 1, 2} - {failing}
        assert team.run([lambda: 1, lambda: 2]) == [1, 2]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 4095, 4096, 10_001])
def test_rows_are_shared_out_once_each_and_few_are_not(size: int, count: int) -> None:
    done, parts = np.zeros(count, int), []

    def work(rows: slice) -> None:
        done[rows] += 1
        parts.append(rows)

    with Team(size) as team:
        team.share(count, work)
    assert (done == 1).all()
    assert len(parts) == max(1, min(size, count // 2048))


def test_one_that_hangs_does_not_keep_the_rest_once_the_work_has_failed() -> None:
    hanging, started = threading.Event(), time.perf_counter()

    def fail() -> None:
        with Team(2) as team:
            team._queues[0].put((hanging.wait, Future(), ""))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert time.perf_counter() - started < 30
    hanging.set()


def test_what_the_others_do_is_noted_under_its_name() -> None:
    noted: list[tuple[str, str]] = []

    @contextmanager
    def span(name: str) -> Iterator[None]:
        noted.append((name, threading.current_thread().name))
        yield

    with Team(2, span) as team:
        team.run([lambda: None] * 2, "compute")
        team.run([lambda: None] * 2)
    assert noted == [("compute", "marius-team-1")]


def test_each_thread_has_a_team_of_its_own() -> None:
    before = threading.active_count()
    asked = threading.Barrier(2)

    def members(teams: Teams) -> set[str]:
        asked.wait(60)
        assert teams.mine() is teams.mine()
        return {thread.name for thread in teams.mine().run([threading.current_thread] * 3)}

    with Teams(3) as teams, ThreadPoolExecutor(2) as pool:
        first, second = pool.map(members, [teams] * 2)
        assert len(first | second) == 6
        assert threading.active_count() == before + 2 + 4
    assert threading.active_count() == before


def test_teams_of_one_are_nobody_else() -> None:
    with Teams(1) as teams:
        assert teams.mine() is ALONE


def test_teams_end_with_the_work_that_failed() -> None:
    hanging, started = threading.Event(), time.perf_counter()

    def fail() -> None:
        with Teams(2) as teams:
            teams.mine()._queues[0].put((hanging.wait, Future(), ""))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert time.perf_counter() - started < 30
    hanging.set()
