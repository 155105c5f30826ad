"""Workers of one torch thread each; errors of theirs are raised, and torch has its threads back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from marius_py.evaluation.ranking.tiles import finish, tile_workers


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
