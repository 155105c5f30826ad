"""What a run needs on a machine (floor 5): sizes and measured rates in; partitions, bytes and times out.

An epoch is played through the ordering's own simulation with the rates that were measured, for every number
of partitions that comes into question; the fastest that fits in memory is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from marius_py.config import check_buffer
from marius_py.data.rounds import FEWEST, EpochOrder
from marius_py.errors import ConfigError, ScheduleError
from marius_py.memory import with_unit
from marius_py.ordering import build_schedule, simulate
from marius_py.partitioning import Partitioning
from marius_py.planning.moved import edge_bytes, indexed_edges, partition_bytes
from marius_py.storage.protocols import NodeTable
from marius_py.types import Schedule

CANDIDATES = (4, 8, 16, 32, 64)
"""Numbers of partitions that are compared, besides the graph's own."""

_KEEP = 1.05
"""The graph's own number is kept if another gains less than this factor: its edges are sorted already."""
_GIB = 1 << 30
_LONG_TEST_S = 600
"""Seconds of ranking, longer than an epoch, above which a plan says how to have fewer."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What was found and measured.

    Attributes:
        memory_bytes: that the buffer may take.
        disk_free_bytes: on the file system of the run; None: it says nothing of its size.
        cores: that this process may use.
        gpu: name of the accelerator that will compute, or None.
        read_rate: bytes a second of reading partitions.
        write_rate: bytes a second of writing partitions.
        edge_rate: edges a second of training with everything in memory.
        index_rate: known edges a second that a core indexes.
        swap_s: seconds that a swap adds to a step beside what it indexes; the disk may work meanwhile.
        commit_s: seconds of a commit beside those of writing partitions.
    """

    memory_bytes: int
    disk_free_bytes: int | None
    cores: int
    gpu: str | None
    read_rate: float
    write_rate: float
    edge_rate: float
    index_rate: float = math.inf
    swap_s: float = 0.0
    commit_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A number of partitions and a capacity, and what an epoch then costs.

    Attributes:
        partitions: p.
        capacity: c; = p: everything in memory.
        batch_size: edges a batch.
        order: what an epoch follows, and how often.
        partition_bytes: that reading or writing a partition with its optimizer state moves, at most.
        buffer_bytes: memory of the slots, c and those to spare (c if everything is in memory).
        disk_bytes: the run's node file, every slot twice, and its checkpoint, of which two are there while
            one replaces the other.
        loads: partitions read an epoch.
        bytes_read: an epoch, of partitions and edges.
        bytes_written: of partitions an epoch, those of its commit included.
        compute_s: seconds of training an epoch, with indexing known edges beside it.
        exposed_s: seconds an epoch waits for the disk, its commit included, and what swaps add else.
        epoch_s: their sum.
        tested: test edges that are ranked after training.
        test_s: seconds that this takes, roughly.
    """

    partitions: int
    capacity: int
    batch_size: int
    order: EpochOrder
    partition_bytes: int
    buffer_bytes: int
    disk_bytes: int
    loads: int
    bytes_read: int
    bytes_written: int
    compute_s: float
    exposed_s: float
    epoch_s: float
    tested: int = 0
    test_s: float = 0.0

    @property
    def io_hidden(self) -> bool:
        """Whether swaps hide behind training: less than a tenth of an epoch is waiting."""
        return self.exposed_s < 0.1 * self.epoch_s


def _fewest_loads(table: NodeTable, capacity: int) -> EpochOrder:
    return EpochOrder(FEWEST, 1)


def plan_epoch(
    table: NodeTable,
    capacity: int,
    num_edges: int,
    machine: Machine,
    *,
    batch_size: int,
    order: Callable[[NodeTable, int], EpochOrder] = _fewest_loads,
    reads_known: bool = False,
    weighted: bool = False,
    relation_bytes: int = 0,
) -> Plan:
    """What an epoch costs with given partitions and capacity; an epoch between others, not the first.

    Args:
        table: shape of the node table; its partitioning says p.
        capacity: c.
        num_edges: train edges.
        machine: rates.
        batch_size: edges a batch.
        order: (table, capacity) → what an epoch follows.
        reads_known: whether all edges between the residents are read too (`BatchSettings.reads_known`).
        weighted: whether edges have weights.
        relation_bytes: of the relations and their optimizer state, which every commit writes.
    """
    p = table.partitioning.num_partitions
    sizes = partition_bytes(table)
    loads = read = written = 0
    edges_read = edge_bytes(table, num_edges, None, reads_known, weighted=weighted)
    committed: Sequence[int] = range(p)
    compute_s, exposed_s = num_edges / machine.edge_rate, 0.0
    chosen = order(table, capacity)
    if capacity < p:
        schedule = build_schedule(p, capacity, order=chosen.name, seed=0, rounds=chosen.rounds)
        loads, committed = schedule.swaps, schedule.final
        if reads_known:
            compute_s += index_seconds(machine, num_edges, schedule)
        read = sum(sizes[part] for step in schedule.steps for part in step.admit)
        edges_read = edge_bytes(table, num_edges, schedule, reads_known, weighted=weighted)
        epoch = simulate(
            schedule,
            compute_rate=p * p / compute_s if compute_s else 1.0,
            partition_bytes=sizes,
            read_rate=machine.read_rate * read / (read + edges_read),  # one thread reads both
            write_rate=machine.write_rate,
            cold=False,
        )
        written = int(epoch.bytes_written)
        following = [*schedule.steps[1:], None]
        for step, timing in zip(following, epoch.steps, strict=True):
            swap_s = machine.swap_s * len(step.admit) if step is not None else 0.0
            exposed_s += max(timing.io_s - timing.compute_s, swap_s)
    commit = sum(sizes[part] for part in committed)
    exposed_s += machine.commit_s + (commit + relation_bytes) / machine.write_rate
    slot = table.slot_bytes
    return Plan(
        partitions=p,
        capacity=capacity,
        batch_size=batch_size,
        order=chosen,
        partition_bytes=max(sizes),
        buffer_bytes=table.num_slots(capacity) * slot,
        disk_bytes=2 * (p * slot + relation_bytes),
        loads=loads,
        bytes_read=read + edges_read,
        bytes_written=written + commit,
        compute_s=compute_s,
        exposed_s=exposed_s,
        epoch_s=compute_s + exposed_s,
    )


def index_seconds(machine: Machine, num_edges: int, schedule: Schedule) -> float:
    """Seconds that indexing known edges adds to an epoch; beside a GPU the cores have time for it."""
    if machine.gpu is not None:
        return 0.0
    return indexed_edges(num_edges, schedule) / machine.index_rate / machine.cores


def choose_plan(
    num_nodes: int,
    row_floats: tuple[int, int],
    num_edges: int,
    machine: Machine,
    *,
    batch_size: int,
    own_partitions: int,
    partitions: int | None = None,
    capacity: int | None = None,
    order: Callable[[NodeTable, int], EpochOrder] = _fewest_loads,
    reads_known: bool = False,
    weighted: bool = False,
    relation_bytes: int = 0,
) -> Plan:
    """The fastest plan that fits in memory.

    Args:
        num_nodes: N.
        row_floats: D and S, floats of embedding and optimizer state a node.
        num_edges: train edges.
        machine: limits and rates.
        batch_size: edges a batch.
        own_partitions: the graph's p, kept unless another gains 5 %.
        partitions: p if it is given.
        capacity: c if it is given.
        order: (table, capacity) → what an epoch follows.
        reads_known, weighted, relation_bytes: as for `plan_epoch`.

    Raises:
        ConfigError: a given number is out of range, no order exists for the numbers that come into question,
        or not even two partitions and a spare slot fit in memory with the most of them.
    """
    candidates = candidate_partitions(num_nodes, own_partitions, partitions, capacity)
    check_fitting(num_nodes, row_floats, candidates, capacity, machine.memory_bytes)
    plans, refused = [], None
    for p in candidates:
        table = NodeTable(Partitioning(num_nodes, p), *row_floats)
        chosen = fitting_capacity(table, machine.memory_bytes) if capacity is None else capacity
        if chosen is None:
            continue
        try:
            plans.append(
                plan_epoch(
                    table,
                    chosen,
                    num_edges,
                    machine,
                    batch_size=batch_size,
                    order=order,
                    reads_known=reads_known,
                    weighted=weighted,
                    relation_bytes=relation_bytes,
                )
            )
        except ScheduleError as error:
            refused = error
    if not plans:
        raise ConfigError(
            f"no order for storage.partitions={', '.join(map(str, candidates))}: {refused}; "
            "set another ordering.name, storage.partitions or storage.capacity"
        ) from refused
    best = min(plans, key=lambda plan: plan.epoch_s)
    for plan in plans:
        if plan.partitions == own_partitions and plan.epoch_s <= _KEEP * best.epoch_s:
            return plan
    return best


def check_fitting(
    num_nodes: int,
    row_floats: tuple[int, int],
    candidates: Sequence[int],
    capacity: int | None,
    memory_bytes: int,
) -> None:
    """Refuse rows of which memory does not even hold three of the smallest partitions.

    Args:
        num_nodes, row_floats, capacity: as for `choose_plan`.
        candidates: numbers of partitions that come into question, ascending.
        memory_bytes: for the buffer.

    Raises:
        ConfigError: names `model.dim` and `storage.partitions`.
    """
    tables = [NodeTable(Partitioning(num_nodes, p), *row_floats) for p in candidates]
    if capacity is None and all(fitting_capacity(table, memory_bytes) is None for table in tables):
        raise ConfigError(
            f"the buffer needs {3 * tables[-1].slot_bytes / _GIB:.1f} GiB for two partitions and a spare "
            f"one, and may take {memory_bytes / _GIB:.1f} GiB: set a smaller model.dim, or more "
            "storage.partitions"
        )


def candidate_partitions(
    num_nodes: int, own_partitions: int, partitions: int | None, capacity: int | None
) -> list[int]:
    """Numbers of partitions, ascending, that come into question; arguments as for `choose_plan`.

    Raises:
        ConfigError: no such partitions, or no buffer of that capacity for them.
    """
    wanted = {own_partitions, *CANDIDATES} if partitions is None else {partitions}
    if partitions is not None:
        Partitioning(num_nodes, partitions)
    possible = sorted(p for p in wanted if p <= num_nodes)
    if capacity is None:
        return possible
    fitting = [p for p in possible if capacity == p or 2 <= capacity < p]
    if not fitting:
        check_buffer(own_partitions if capacity < 2 and partitions is None else possible[-1], capacity)
    return fitting


def fitting_capacity(table: NodeTable, memory_bytes: int) -> int | None:
    """All partitions if the bytes hold them, else as many as fit with spare slots; None: not even two."""
    p, slots = table.partitioning.num_partitions, memory_bytes // table.slot_bytes
    return next((c for c in range(p, min(p, 2) - 1, -1) if table.num_slots(c) <= slots), None)


def plan_lines(plan: Plan, machine: Machine) -> list[tuple[str, str]]:
    """The plan as rows (what, value)."""
    in_memory = plan.capacity == plan.partitions
    hidden = "nothing is swapped" if in_memory else "hidden behind training" if plan.io_hidden else "exposed"
    free = "unknown how much is free"
    if machine.disk_free_bytes is not None:
        enough = "" if plan.disk_bytes <= machine.disk_free_bytes else " NOT ENOUGH"
        free = f"{with_unit(machine.disk_free_bytes)} free{enough}"
    test = f"about {plan.test_s:,.0f} s after training to rank {plan.tested:,} edges"
    if plan.test_s > max(_LONG_TEST_S, plan.epoch_s):
        test += "; evaluation.max_edges ranks a sample"
    rows = [
        ("partitions p", str(plan.partitions)),
        ("capacity c", f"{plan.capacity}{' (everything in memory)' if in_memory else ''}"),
        ("batch", f"{plan.batch_size} edges"),
        ("partition", f"{with_unit(plan.partition_bytes)} with optimizer state"),
        (
            "buffer",
            f"{with_unit(plan.buffer_bytes)} of memory; {with_unit(machine.memory_bytes)} may be taken",
        ),
        ("disk", f"{with_unit(plan.disk_bytes)}; {free}"),
        (
            "disk rates",
            f"read {with_unit(machine.read_rate)}/s, write {with_unit(machine.write_rate)}/s, measured",
        ),
        ("training rate", f"{machine.edge_rate:,.0f} edges/s, measured in memory; {machine.cores} cores"),
        ("accelerator", machine.gpu or "none"),
        ("loads an epoch", f"{plan.loads} partitions{_described(plan.order)}"),
        ("bytes an epoch", f"{with_unit(plan.bytes_read)} read, {with_unit(plan.bytes_written)} written"),
        ("swaps", hidden),
        (
            "epoch",
            f"{plan.epoch_s:,.1f} s: {plan.compute_s:,.1f} s training, {plan.exposed_s:,.1f} s waiting",
        ),
    ]
    return [*rows, ("test", test)] if plan.tested else rows


def plan_text(plan: Plan, machine: Machine, graph: Path | str) -> str:
    """The plan as a file of the `experiment` group: settings, under a table in comments."""
    rows = plan_lines(plan, machine)
    width = max(len(what) for what, _ in rows)
    return (
        "# @package _global_\n"
        + f"# a run on {graph}\n#\n"
        + "".join(f"# {what.ljust(width)}  {value}\n" for what, value in rows)
        + f"\ntraining: {{batch_size: {plan.batch_size}}}\n"
        + f"storage: {{partitions: {plan.partitions}, capacity: {plan.capacity}}}\n"
    )


def _described(order: EpochOrder) -> str:
    name = "" if order.name == FEWEST else f", order {order.name}"
    return name + (f" in {order.rounds} rounds" if order.rounds > 1 else "")
