"""What the simulated device does wrong on purpose: collected by test_simulated.py, on the device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.simulated.streams import ORDER, synchronize

DEVICE = torch.device("cuda", 0)
late = pytest.mark.skipif(ORDER != "late", reason="only a device that is always late is sure to show it")


def pinned(*values: float) -> Tensor:
    return torch.empty(len(values), pin_memory=True).copy_(torch.tensor(values))


@late
def test_a_copy_nobody_waits_for_has_not_come() -> None:
    host = torch.zeros(2, pin_memory=True)
    host.copy_(torch.ones(2, device=DEVICE), non_blocking=True)
    assert host.tolist() == [0, 0]
    synchronize()
    assert host.tolist() == [1, 1]


def test_what_is_changed_in_place_by_a_mask_is_whole() -> None:
    values = torch.zeros(3, device=DEVICE)
    values[torch.tensor([True, False, True], device=DEVICE)] = 5.0
    synchronize()
    assert values.tolist() == [5, 0, 5]


@late
def test_a_stream_that_does_not_wait_reads_what_is_not_there() -> None:
    inward, host = torch.cuda.Stream(), pinned(1, 2)
    with torch.cuda.stream(inward):
        there = host.to(DEVICE, non_blocking=True)
    assert there.mul(2).isnan().all()
    event = inward.record_event()
    torch.cuda.current_stream().wait_event(event)
    assert there.mul(2).tolist() == [2, 4]


@late
def test_pinned_memory_is_read_when_the_copy_is_done_and_other_memory_at_once() -> None:
    for host, wanted in ((pinned(1, 2), [7, 7]), (torch.tensor([1.0, 2.0]), [1, 2])):
        there = host.to(DEVICE, non_blocking=True)
        host.fill_(7)
        assert there.tolist() == wanted


@late
def test_memory_that_is_free_is_written_to_by_others() -> None:
    side, host = torch.cuda.Stream(), torch.zeros(2, pin_memory=True)
    for told in (True, False):
        there = torch.ones(2, device=DEVICE)
        synchronize()
        with torch.cuda.stream(side):
            host.copy_(there, non_blocking=True)
            if told:
                there.record_stream(side)
        del there
        torch.cuda.current_stream().synchronize()
        side.synchronize()
        assert host.isnan().all() == (not told)


def test_tensors_of_host_and_device_do_not_mix() -> None:
    there = torch.ones(3, device=DEVICE)
    assert (there * torch.tensor(2.0)).tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="same device"):
        there * torch.ones(3)
    with pytest.raises(RuntimeError, match="same device"):
        there.index_select(0, torch.tensor([0]))


def test_waiting_is_refused_where_it_must_not_be() -> None:
    there, graph = torch.ones(3, device=DEVICE), torch.cuda.CUDAGraph()
    for read in (lambda: there.sum().item(), lambda: there[there > 0], there.cpu, there.nonzero):
        with pytest.raises(RuntimeError, match="capturing"), torch.cuda.graph(graph):
            read()
        torch.cuda.set_sync_debug_mode("error")
        try:
            with pytest.raises(RuntimeError, match="synchronizing"):
                read()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        read()


def test_a_graph_does_when_it_is_replayed_what_it_was_recorded_to() -> None:
    given, sums = torch.ones(3, device=DEVICE), torch.zeros((), device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = given * 2
        sums.add_(result.sum())
    assert sums.item() == 0
    for number in (1, 2):
        given.fill_(number)
        graph.replay()
        assert result.tolist() == [2 * number] * 3
    assert sums.item() == 6 + 12
