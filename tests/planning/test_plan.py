"""Plans follow from rates by arithmetic; the command's output is a file that marius-train takes."""

import json
import logging
import os
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

from marius_py import cli, load_config
from marius_py.assembly.build import train
from marius_py.assembly.planned import plan as make_plan
from marius_py.assembly.probes import Sample, measure_swaps, measure_training
from marius_py.data.rounds import EpochOrder
from marius_py.errors import ConfigError
from marius_py.graph import open_graph
from marius_py.ordering import build_schedule
from marius_py.partitioning import Partitioning
from marius_py.planning.disk import measure_disk
from marius_py.planning.plan import Machine, choose_plan, plan_epoch, plan_lines
from marius_py.prepare import prepare_arrays
from marius_py.storage.hdf5_store import Hdf5PartitionStore
from marius_py.storage.protocols import NodeTable
from marius_py.training.trainer import Trainer

MACHINE = Machine(
    memory_bytes=1 << 30,
    disk_free_bytes=1 << 40,
    cores=4,
    gpu=None,
    read_rate=1e9,
    write_rate=5e8,
    edge_rate=1e5,
)


def table(num_nodes, p, dim=64, state=64):
    return NodeTable(Partitioning(num_nodes, p), dim, state)


def random_edges(num_nodes, count):
    rng = np.random.default_rng(0)
    return np.stack(
        [rng.integers(num_nodes, size=count), np.zeros(count, int), rng.integers(num_nodes, size=count)],
        axis=1,
    )


@pytest.mark.parametrize("num_edges", [1_000_000, 10_000_000])
def test_everything_in_memory(num_edges):
    """So are edges, if they are few."""
    shape = table(100_000, 8)
    plan = plan_epoch(shape, 8, num_edges, MACHINE, batch_size=100)
    assert (plan.loads, plan.bytes_read) == (0, 0 if num_edges == 1_000_000 else num_edges * 12)
    assert plan.buffer_bytes == 8 * shape.slot_bytes
    assert plan.partition_bytes == 2 * 782 * 4096 < shape.slot_bytes  # 12,500 rows of 256 bytes, twice
    assert plan.bytes_written == 8 * plan.partition_bytes  # the commit
    assert plan.epoch_s == pytest.approx(num_edges / 1e5 + plan.bytes_written / 5e8)


def test_relations_are_written_by_each_commit_and_stand_twice_on_disk():
    shape = table(100_000, 8)
    few, many = (
        plan_epoch(shape, 4, 1_000_000, MACHINE, batch_size=100, relation_bytes=size) for size in (0, 10**9)
    )
    assert many.disk_bytes - few.disk_bytes == 2 * 10**9
    assert many.exposed_s - few.exposed_s == pytest.approx(10**9 / MACHINE.write_rate)
    assert many.bytes_written == few.bytes_written  # as metrics.jsonl counts


@pytest.mark.parametrize(
    ("free", "said"),
    [(1 << 40, "1.0 TiB free"), (99, "99 B free NOT ENOUGH"), (None, "unknown how much is free")],
)
def test_what_is_free_is_compared_with_what_a_run_takes(free, said):
    machine = replace(MACHINE, disk_free_bytes=free)
    lines = dict(plan_lines(plan_epoch(table(100_000, 8), 4, 1_000_000, machine, batch_size=100), machine))
    assert lines["disk"].split("; ")[1] == said


@pytest.mark.parametrize(("seconds", "more"), [(601.0, True), (600.0, False), (5.0, False)])
def test_what_ranking_takes_is_said(seconds, more):
    plan = plan_epoch(table(100_000, 8), 8, 1_000_000, MACHINE, batch_size=100)
    assert plan.epoch_s < 600
    assert "test" not in dict(plan_lines(plan, MACHINE))
    line = dict(plan_lines(replace(plan, tested=1234, test_s=seconds), MACHINE))["test"]
    assert line.startswith(f"about {seconds:.0f} s after training to rank 1,234 edges")
    assert ("evaluation.max_edges" in line) == more
    longer = replace(plan, tested=1234, test_s=seconds, epoch_s=601.0)
    assert "evaluation.max_edges" not in dict(plan_lines(longer, MACHINE))["test"]


@pytest.mark.parametrize(("rate", "hidden"), [(1e4, True), (1e8, False)])
def test_swaps(rate, hidden):
    shape = table(1_000_000, 16)
    plan = plan_epoch(shape, 4, 10_000_000, replace(MACHINE, edge_rate=rate), batch_size=100)
    loads = sum(len(step.admit) for step in build_schedule(16, 4, seed=0).steps)
    size = 2 * 3907 * 4096  # 62,500 rows of 256 bytes, twice
    assert plan.loads == loads
    assert plan.bytes_read == loads * size + 10_000_000 * 12
    assert plan.bytes_written == (loads + 4) * size
    assert plan.buffer_bytes == 6 * shape.slot_bytes  # two to spare
    assert plan.io_hidden is hidden
    assert plan.epoch_s >= max(1e7 / rate, loads * size * (1 / 1e9 + 1 / 5e8) * 0.9)


def test_edges_share_the_time_of_the_disk():
    shape, fast = table(1_000_000, 16), replace(MACHINE, edge_rate=1e12)
    few, many, known = (
        plan_epoch(shape, 4, num_edges, fast, batch_size=100, reads_known=reads_known)
        for num_edges, reads_known in ((1, False), (10_000_000, False), (10_000_000, True))
    )
    for less, more in ((few, many), (many, known)):
        assert more.bytes_read > less.bytes_read
        assert more.exposed_s - less.exposed_s == pytest.approx(
            (more.bytes_read - less.bytes_read) / 1e9, rel=0.1
        )


def test_steps_index_the_known_edges_between_their_residents():
    """A quarter of all edges lies between half of the partitions; beside a GPU the cores have time."""
    shape, slow = table(1_000_000, 8), replace(MACHINE, index_rate=1e6)
    steps = len(build_schedule(8, 4, seed=0).steps)

    def compute_s(machine, capacity=4, reads_known=True, num_edges=4_000_000):
        return plan_epoch(
            shape, capacity, num_edges, machine, batch_size=100, reads_known=reads_known
        ).compute_s

    assert compute_s(MACHINE) == pytest.approx(40)
    assert compute_s(slow) == pytest.approx(40 + steps * 1.0 / MACHINE.cores)
    assert compute_s(slow, reads_known=False) == compute_s(slow, capacity=8) == pytest.approx(40)
    assert compute_s(replace(slow, gpu="a GPU")) == pytest.approx(40)
    assert compute_s(slow, num_edges=2_000_000) == pytest.approx(20)  # few: all are indexed once
    many = 100_000_000  # 25 million between the residents: a step knows its own edges alone
    assert compute_s(slow, num_edges=many) == pytest.approx(many / 1e5 + many / 1e6 / MACHINE.cores)


@pytest.mark.parametrize(
    ("rate", "swap_s", "added"),
    [(1e12, 0.01, 0.01), (1e9, 0.01, 0), (1e9, 0.25, 0.25 - 2 * 32e6 / 1e9 + 0.01)],
)
def test_swaps_take_time_while_the_disk_works(rate, swap_s, added):
    """A swap moves 32 MB each way, behind 10 ms of training: the longer of that and its own time counts."""
    shape = table(1_000_000, 16)
    machine = replace(MACHINE, read_rate=rate, write_rate=rate)
    for capacity in (4, 16):
        loads = len(build_schedule(16, 4, seed=0).steps) - 1 if capacity == 4 else 0
        machine = replace(machine, edge_rate=10**6 / (loads + 1) / 0.01)
        quick, dear = (
            plan_epoch(shape, capacity, 10**6, one, batch_size=100)
            for one in (machine, replace(machine, swap_s=swap_s))
        )
        assert quick.loads == loads
        assert dear.exposed_s - quick.exposed_s == pytest.approx(loads * added, rel=0.05, abs=1e-3)
        assert dear.compute_s == quick.compute_s


@pytest.mark.parametrize("capacity", [4, 16])
def test_an_epoch_ends_with_a_commit(capacity):
    shape, slow = table(1_000_000, 16), replace(MACHINE, commit_s=0.25)
    quick, dear = (plan_epoch(shape, capacity, 10**6, one, batch_size=100) for one in (MACHINE, slow))
    assert dear.exposed_s - quick.exposed_s == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("held", "capacity", "known"),
    [
        (0, 3, "true"),
        (20_000, 3, "false"),
        (20_000, 8, "true"),
        pytest.param(0, 3, "false", marks=pytest.mark.slow),
        pytest.param(0, 8, "true", marks=pytest.mark.slow),
        pytest.param(0, 8, "false", marks=pytest.mark.slow),
        pytest.param(20_000, 3, "true", marks=pytest.mark.slow),
        pytest.param(20_000, 8, "false", marks=pytest.mark.slow),
    ],
)
def test_an_epoch_moves_what_was_planned(held, capacity, known, tmp_path, monkeypatch):
    """Partitions of 101 and 100 rows: a tenth of their slots, in whole pages. Edges are many, or few."""
    for module in ("data.batches", "planning.moved"):
        monkeypatch.setattr(f"marius_py.{module}.HELD_EDGES", held)
    monkeypatch.setattr("marius_py.assembly.probes._PROBE_S", 0.02)
    prepare_arrays(random_edges(801, 20_000), tmp_path / "graph", partitions=8, split=(1.0, 0.0, 0.0))
    words = ["model.decoder=distmult", "model.dim=24", "negatives.count=8", f"negatives.mask_known={known}"]
    words += ["storage.partitions=8", f"storage.capacity={capacity}", "training.epochs=2", "device=cpu"]
    config = load_config([f"graph={tmp_path / 'graph'}", f"output={tmp_path / 'run'}", *words])
    planned, _ = make_plan(config)
    train(config)
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert planned.loads == line["loads"]
    assert planned.bytes_written == pytest.approx(line["bytes_written"], rel=0.01)
    assert planned.bytes_read == pytest.approx(line["bytes_read"], rel=0.01)


def test_the_choice_fits_and_is_the_fastest():
    options = {"batch_size": 100, "own_partitions": 8}
    plan = choose_plan(1_000_000, (64, 64), 10**7, MACHINE, **options)
    assert (plan.partitions, plan.capacity) == (8, 8)
    small = replace(MACHINE, memory_bytes=1 << 27, edge_rate=1e6)
    plan = choose_plan(1_000_000, (64, 64), 10**7, small, **options)
    assert plan.buffer_bytes <= small.memory_bytes
    assert 2 <= plan.capacity < plan.partitions
    for p in (8, 16, 32, 64):
        size = table(1_000_000, p).slot_bytes
        capacity = small.memory_bytes // size - 1
        if capacity >= 2:
            other = plan_epoch(table(1_000_000, p), capacity, 10**7, small, batch_size=100)
            assert plan.epoch_s <= 1.05 * other.epoch_s
    given = choose_plan(1_000_000, (64, 64), 10**7, small, **options, partitions=32, capacity=4)
    assert (given.partitions, given.capacity) == (32, 4)
    with pytest.raises(ConfigError, match=r"may take 0\.0 GiB"):
        choose_plan(1_000_000, (64, 64), 10**7, replace(MACHINE, memory_bytes=1 << 20), **options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"partitions": 600}, r"is 600; allowed: 1 to the number of nodes \(516\); .*storage\.partitions="),
        (
            {"capacity": 100},
            r"storage\.capacity=100 is out of range: it takes at most storage\.partitions=64",
        ),
        ({"capacity": 1}, r"storage\.capacity=1 is out of range: .* from 2 to storage\.partitions=8"),
        ({"partitions": 1, "capacity": 2}, r"storage\.capacity=2 .* at most storage\.partitions=1"),
        (
            {"partitions": 32, "capacity": 4},
            r"storage\.partitions=32: order is 'optimal'.* another ordering\.name",
        ),
    ],
)
def test_numbers_that_no_plan_takes_are_named(given, message):
    with pytest.raises(ConfigError, match=message):
        choose_plan(
            516,
            (16, 16),
            4000,
            MACHINE,
            batch_size=100,
            own_partitions=8,
            order=lambda table, capacity: EpochOrder("optimal", 1),
            **given,
        )


def test_partitions_that_an_order_does_not_exist_for_are_passed_over():
    plan = choose_plan(
        1_000_000,
        (64, 64),
        10**7,
        MACHINE,
        batch_size=100,
        own_partitions=8,
        capacity=4,
        order=lambda table, capacity: EpochOrder("optimal", 1),
    )
    assert plan.partitions in (4, 8, 16)
    assert (plan.capacity, plan.order.name) == (4, "optimal")


@pytest.mark.parametrize("partitions", [1, 8])
def test_everything_of_one_partition_may_stay(partitions):
    plan = choose_plan(
        516, (16, 16), 4000, MACHINE, batch_size=100, own_partitions=partitions, partitions=1, capacity=1
    )
    assert (plan.partitions, plan.capacity) == (1, 1)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_training_is_measured_with_the_buffer_where_the_run_has_it(device, tmp_path, monkeypatch):
    """The CPU takes the part of the device; the rest is as in the run."""
    used = []

    def trainer(*parts, **named):
        used.append(parts[6])
        return Trainer(*parts, **named)

    monkeypatch.setattr("marius_py.assembly.probes.Trainer", trainer)
    monkeypatch.setattr("marius_py.assembly.probes._PROBE_S", 0.01)
    prepare_arrays(random_edges(500, 4000), tmp_path / "graph", partitions=4)
    words = ["model.decoder=distmult", "model.dim=16", "negatives.count=8", "pipeline.compute_threads=1"]
    config = load_config([f"graph={tmp_path / 'graph'}", f"storage.device={device}", *words])
    sample = measure_training(config, open_graph(tmp_path / "graph"), torch.device("cpu"), 128, 1 << 30)
    assert sample.rate > 0
    assert used
    assert all(settings.device_buffer is (device == "cuda") for settings in used)
    assert all((settings.capacity, settings.threads) == (2, 1) for settings in used)


def note_epochs(monkeypatch):
    """A list that is told of each epoch of a probe: partitions of its table, and its line."""
    told = []

    class Noted(Trainer):
        def __init__(self, model, nodes, *parts, on_epoch, **named):
            def note(line):
                told.append((nodes.table.partitioning.num_partitions, line))
                on_epoch(line)

            super().__init__(model, nodes, *parts, on_epoch=note, **named)

    monkeypatch.setattr("marius_py.assembly.probes.Trainer", Noted)
    return told


@pytest.mark.parametrize(("partitions", "swapped"), [(8, 8), (64, 16)])
def test_what_swaps_add_is_measured_by_swapping(partitions, swapped, tmp_path, monkeypatch):
    """Against a sample that took no time at all, what is added is the whole epoch."""
    told = note_epochs(monkeypatch)
    prepare_arrays(random_edges(500, 4000), tmp_path / "graph", partitions=64)
    words = ["model.decoder=distmult", "model.dim=16", "negatives.count=8", "pipeline.compute_threads=1"]
    config, graph = load_config([f"graph={tmp_path / 'graph'}", *words]), open_graph(tmp_path / "graph")
    plan = choose_plan(
        500,
        (16, 16),
        4000,
        MACHINE,
        batch_size=100,
        own_partitions=64,
        partitions=partitions,
        capacity=partitions // 2,
    )

    def swap_s(seconds, machine=MACHINE, num_nodes=500):
        told.clear()
        return measure_swaps(
            config, graph, torch.device("cpu"), Sample(num_nodes, 3000, seconds), plan, machine
        )

    found = swap_s(0.0)
    assert {partitions for partitions, _ in told} == {swapped}
    lines = [line for _, line in told[1:]]
    assert min(line["loads"] for line in lines) > 0
    each = [line["seconds"] / line["loads"] for line in lines]
    assert min(each) <= found <= max(each)
    assert swap_s(1e3) == 0.0
    assert swap_s(0.0, num_nodes=swapped - 1) == 0.0
    assert not told
    for module in ("data.batches", "planning.moved"):
        monkeypatch.setattr(f"marius_py.{module}.HELD_EDGES", 0)  # each step has an index of its own
    assert swap_s(0.0, replace(MACHINE, index_rate=1.0)) == 0.0  # indexing takes all of it


def test_probes_leave_partitions_where_they_are(tmp_path, monkeypatch):
    """But in the first epoch, which fills the buffer: what the disk takes is measured by itself."""
    told = note_epochs(monkeypatch)
    prepare_arrays(random_edges(500, 4000), tmp_path / "graph", partitions=8)
    words = ["model.decoder=distmult", "model.dim=16", "negatives.count=8", "pipeline.compute_threads=1"]
    config, graph = load_config([f"graph={tmp_path / 'graph'}", *words]), open_graph(tmp_path / "graph")
    plan = plan_epoch(table(500, 8), 4, 4000, MACHINE, batch_size=100)
    measure_swaps(config, graph, torch.device("cpu"), Sample(500, 3000, 0.0), plan, MACHINE)
    first, *others = [line for _, line in told]
    assert min(first["bytes_read"], first["bytes_written"]) > 0
    assert min(line["loads"] for line in others) > 0
    assert {(line["bytes_read"], line["bytes_written"]) for line in others} == {(0, 0)}


def test_the_sample_of_a_large_graph_is_dealt_to_all_partitions(tmp_path, monkeypatch):
    """Edges from the middle of the file have their heads in few partitions."""
    counts = []

    class Noted(Trainer):
        def __init__(self, model, nodes, edges, *parts, **named):
            counts.append(edges.bucket_counts())
            super().__init__(model, nodes, edges, *parts, **named)

    monkeypatch.setattr("marius_py.assembly.probes.Trainer", Noted)
    prepare_arrays(random_edges(803, 40_000), tmp_path / "graph", partitions=8, split=(1.0, 0.0, 0.0))
    words = ["model.decoder=distmult", "model.dim=16", "negatives.count=8", "pipeline.compute_threads=1"]
    config, graph = load_config([f"graph={tmp_path / 'graph'}", *words]), open_graph(tmp_path / "graph")
    with graph.edges() as store:
        sample = store.read_unverified("train", 19_700, 20_300)
    assert len({head * 8 // 803 for head in sample[:, 0].tolist()}) <= 3
    plan = plan_epoch(table(803, 8), 4, 40_000, MACHINE, batch_size=100)
    measure_swaps(config, graph, torch.device("cpu"), Sample(803, 600, 0.0), plan, MACHINE)
    assert counts[0].sum() == 600
    assert np.count_nonzero(counts[0]) > 48


def test_a_measurement_reads_its_sample_of_a_bucket_and_no_more(tmp_path, monkeypatch):
    class Instant(Trainer):
        def train(self, epochs):
            pass

    probed, read = [], []

    def trainer(*parts, **named):
        probed.append(parts[2].num_edges("train"))
        return Instant(*parts, **named)

    def note(call, path, size):
        read.append(size * path.endswith("edges.h5"))
        return size

    monkeypatch.setattr("marius_py.assembly.probes.Trainer", trainer)
    monkeypatch.setattr("marius_py.assembly.probes._PROBE_S", 0.0)
    prepare_arrays(random_edges(500, 40_000), tmp_path / "graph", partitions=1)
    words = ["model.decoder=distmult", "model.dim=16", "training.batch_size=50"]
    config = load_config([f"graph={tmp_path / 'graph'}", *words])
    graph = open_graph(tmp_path / "graph")
    monkeypatch.setattr("marius_py.storage.files._hook", note)
    measure_training(config, graph, torch.device("cpu"), 128, 1 << 30)
    assert probed == [50]
    assert sum(read) == 50 * 12


def test_a_measurement_takes_no_more_memory_than_it_may(tmp_path, monkeypatch):
    monkeypatch.setattr("marius_py.assembly.probes._epoch", lambda *given: (1.0, 0))
    prepare_arrays(random_edges(500, 4000), tmp_path / "graph", partitions=1)
    graph = open_graph(tmp_path / "graph")
    config = load_config([f"graph={tmp_path / 'graph'}", "model.dim=16"])
    for memory, nodes in ((1 << 30, graph.num_nodes), (3 * 128 * 100, 100), (1, 2)):
        assert measure_training(config, graph, torch.device("cpu"), 128, memory).num_nodes == nodes


def test_measuring_is_quiet_and_leaves_the_log_of_other_runs(tmp_path, caplog, monkeypatch):
    class Beside(Trainer):
        def _run_epoch(self, *parts):
            super()._run_epoch(*parts)
            logging.getLogger("marius_py.training.trainer").info("of another run")

    monkeypatch.setattr("marius_py.assembly.probes.Trainer", Beside)
    monkeypatch.setattr("marius_py.assembly.probes._PROBE_S", 0.01)
    caplog.set_level(logging.INFO, "marius_py")
    prepare_arrays(random_edges(500, 4000), tmp_path / "graph", partitions=4)
    words = ["model.decoder=distmult", "model.dim=16", "negatives.count=8", "pipeline.compute_threads=1"]
    config = load_config([f"graph={tmp_path / 'graph'}", *words])
    measure_training(config, open_graph(tmp_path / "graph"), torch.device("cpu"), 128, 1 << 30)
    of_training = [one.message for one in caplog.records if one.name.startswith("marius_py.training")]
    assert set(of_training) == {"of another run"}


def test_a_buffer_on_a_device_that_is_not_there_is_not_planned_for(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    prepare_arrays(random_edges(500, 4000), tmp_path / "graph", partitions=4)
    for words, ways in (([], "storage.device=cpu"), (["device=cuda"], "storage.device=cpu and device=cpu")):
        assert cli.plan([f"graph={tmp_path / 'graph'}", "storage.device=cuda", *words]) == 2
        told = capsys.readouterr()
        assert f"storage.device=cuda, but this machine has no usable CUDA device: set {ways}\n" in told.err
        assert not told.out


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["model.decoder=rotate", "evaluation.precision=bfloat16"], "evaluation.precision"),
        (["training.patience=1"], "training.patience"),
    ],
)
def test_settings_of_which_no_run_can_be_made_are_not_planned_for(words, key, tmp_path, capsys):
    edges = np.stack([np.arange(50), np.zeros(50, int), (np.arange(50) + 1) % 50], axis=1)
    prepare_arrays(edges, tmp_path / "graph", partitions=2, split=(0.9, 0, 0.1))
    assert cli.plan([f"graph={tmp_path / 'graph'}", *words]) == 2
    told = capsys.readouterr()
    assert key in told.err
    assert not told.out


@pytest.mark.parametrize(
    "row_floats", [(100, 1), *(pytest.param(one, marks=pytest.mark.slow) for one in ((64, 64), (3, 0)))]
)
def test_the_disk_is_measured_and_left_clean(row_floats, tmp_path, monkeypatch):
    """Rates of whole partitions of the run's rows, a commit's own time not in them."""
    tables = []

    class Slow(Hdf5PartitionStore):
        def commit(self, checkpoint):
            tables.append(self.table)
            time.sleep(0.3)
            super().commit(checkpoint)

    monkeypatch.setattr("marius_py.storage.hdf5_nodes.Hdf5PartitionStore", Slow)
    read, write, commit_s = measure_disk(tmp_path, row_floats, 1 << 20)
    assert read > 0
    assert write > 2 * tables[0].slot_bytes / 0.25
    assert 0.3 <= commit_s < 0.6
    assert {(one.dim, one.state_dim) for one in tables} == {row_floats}
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_wide_rows_are_measured_in_as_little(tmp_path, monkeypatch):
    tables = []

    class Noting(Hdf5PartitionStore):
        def commit(self, checkpoint):
            tables.append(self.table)
            super().commit(checkpoint)

    monkeypatch.setattr("marius_py.storage.hdf5_nodes.Hdf5PartitionStore", Noting)
    measure_disk(tmp_path, (100_000, 100_000), 1 << 20)
    assert tables[0].partitioning.num_nodes == 2


def test_what_a_killed_measurement_has_left_is_removed_by_the_next(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    old, young = (tmp_path / f".plan-{dead.pid}-{number}" for number in "12")
    for folder in (old, young):
        folder.mkdir()
    os.utime(old, (0, 0))
    measure_disk(tmp_path, (4, 4), 1 << 20)
    assert list(tmp_path.iterdir()) == [young]  # which may not be locked yet


def test_batches_that_take_seconds_are_measured_once(tmp_path, monkeypatch):
    monkeypatch.setattr("marius_py.assembly.probes._MOST_S", 0.0)
    epochs = []
    real = Trainer.train

    def train(self, number):
        try:
            return real(self, number)
        finally:
            epochs.append(len(self.state.history))

    monkeypatch.setattr("marius_py.assembly.probes.Trainer.train", train)
    prepare_arrays(random_edges(500, 4000), tmp_path / "graph", partitions=1)
    words = ["model.decoder=distmult", "model.dim=16", "training.batch_size=5000"]
    config = load_config([f"graph={tmp_path / 'graph'}", *words])
    sample = measure_training(config, open_graph(tmp_path / "graph"), torch.device("cpu"), 128, 1 << 30)
    assert epochs == [1]
    assert sample.seconds > 0


def test_compiling_loops_is_no_part_of_the_rate(tmp_path, monkeypatch):
    class Compiling(Trainer):
        def _rates(self):
            if not self.state.history:
                time.sleep(0.5)
            return super()._rates()

    monkeypatch.setattr("marius_py.assembly.probes.Trainer", Compiling)
    monkeypatch.setattr("marius_py.assembly.probes._MOST_S", 0.1)
    monkeypatch.setattr("marius_py.parts.is_worth_compiling", lambda *given: True)
    prepare_arrays(random_edges(500, 4000), tmp_path / "graph", partitions=1)
    words = ["model.decoder=distmult", "model.dim=16", "negatives.count=8", "training.batch_size=5000"]
    config = load_config([f"graph={tmp_path / 'graph'}", *words])
    sample = measure_training(config, open_graph(tmp_path / "graph"), torch.device("cpu"), 128, 1 << 30)
    assert sample.seconds < 0.4


def test_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("marius_py.assembly.probes._PROBE_S", 0.02)
    prepare_arrays(random_edges(500, 4000), tmp_path / "graph", partitions=4)
    words = [f"graph={tmp_path / 'graph'}", "model.decoder=distmult", "model.dim=16"]
    assert cli.plan([*words, f"output={tmp_path / 'run'}"]) == 0
    text = capsys.readouterr().out
    assert "everything in memory" in text
    assert yaml.safe_load(text)["storage"] == {"partitions": 4, "capacity": 4}
    folder = tmp_path / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "plan.yaml").write_text(text, encoding="utf-8")
    config = load_config([*words, "experiment=plan"], config_dir=tmp_path / "conf")
    assert (config.storage.partitions, config.storage.capacity) == (4, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["conf", "graph"]
    monkeypatch.setattr("marius_py.assembly.planned.measure_disk", None)
    monkeypatch.setattr("marius_py.assembly.planned.available_memory", lambda device: 1 << 20)
    assert cli.plan([*words, "model.dim=100000"]) == 2
    assert "GiB: set a smaller model.dim, or more storage.partitions" in capsys.readouterr().err
    assert cli.plan([*words, "storage.capacity=1"]) == 2
    assert "storage.capacity=1 is out of range" in capsys.readouterr().err
    assert cli.plan([*words, f"output={tmp_path / 'graph' / 'graph.json' / 'run'}"]) == 2
    assert f"lies below {tmp_path / 'graph' / 'graph.json'}, which is a file" in capsys.readouterr().err
    assert cli.plan([]) == 2
    assert "graph is not set" in capsys.readouterr().err
