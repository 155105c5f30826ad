"""Workers of one torch thread each; errors of theirs are raised, and torch has its threads back."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from marius_py.evaluation.ranking import tiles
from marius_py.evaluation.ranking.tiles import finish, tile_workers


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "available_cores", lambda: 4)


def test_torch_has_its_threads_back_and_errors_are_raised() -> None:
    torch.set_num_threads(2)

    def fail() -> None:
        raise OSError("broken tile")

    with tile_workers(torch.device("cpu")) as pool:
        assert pool.submit(torch.get_num_threads).result() == 1
        failing = [pool.submit(lambda: None), pool.submit(fail)]
        with pytest.raises(OSError, match="broken tile"):
            finish(failing)
    with ThreadPoolExecutor(1) as later:  # threads begun later take what was set last
        assert later.submit(torch.get_num_threads).result() == torch.get_num_threads() == 2


def test_torch_has_its_threads_back_from_those_who_rank_at_once() -> None:
    """One that begins under another takes that one's number for its own, and leaves after it."""
    torch.set_num_threads(2)
    begun, may_end = threading.Event(), threading.Event()
    found: list[int] = []

    def rank() -> None:
        with tile_workers(torch.device("cpu")) as pool:
            pool.submit(int).result()
            begun.set()
            may_end.wait(20)

    other = threading.Thread(target=rank)
    with tile_workers(torch.device("cpu")) as pool:
        pool.submit(int).result()  # its one thread set torch's number last
        other.start()
        begun.wait(20)
    may_end.set()
    other.join()
    later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert (found, torch.get_num_threads()) == ([2], 2)


@pytest.mark.parametrize(("given", "expected"), [(1, 1), (4, 4), (12, 4)])
def test_the_quota_of_a_container_bounds_the_workers(given: int, expected: int) -> None:
    before = torch.get_num_threads()
    together = threading.Barrier(expected)
    try:
        torch.set_num_threads(given)
        with tile_workers(torch.device("cpu")) as pool:
            assert torch.get_num_threads() == expected
            finish([pool.submit(lambda: together.wait(20) and None) for _ in range(expected)])
            assert len(pool._threads) == expected
            finish([pool.submit(lambda: None) for _ in range(20)])
            assert len(pool._threads) == expected
        assert torch.get_num_threads() == given
    finally:
        torch.set_num_threads(before)
