"""Plans follow from rates by arithmetic; the command's output is a file that marius-train takes."""

from dataclasses import replace

import numpy as np
import pytest
import yaml

from marius_py import cli, load_config
from marius_py.errors import ConfigError
from marius_py.ordering import build_schedule
from marius_py.partitioning import Partitioning
from marius_py.planning.plan import Machine, choose_plan, measure_disk, plan_epoch
from marius_py.prepare import prepare_arrays
from marius_py.storage.protocols import NodeTable

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


def test_everything_in_memory():
    shape = table(100_000, 8)
    plan = plan_epoch(shape, 8, 1_000_000, MACHINE, batch_size=100)
    assert (plan.loads, plan.bytes_read) == (0, 0)
    assert plan.buffer_bytes == plan.table_bytes == 8 * shape.slot_bytes
    assert plan.bytes_written == plan.table_bytes  # the commit
    assert plan.epoch_s == pytest.approx(10 + plan.table_bytes / 5e8)


@pytest.mark.parametrize(("rate", "hidden"), [(1e4, True), (1e8, False)])
def test_swaps(rate, hidden):
    shape = table(1_000_000, 16)
    plan = plan_epoch(shape, 4, 10_000_000, replace(MACHINE, edge_rate=rate), batch_size=100)
    loads = sum(len(step.admit) for step in build_schedule(16, 4, seed=0).steps)
    assert plan.loads == loads
    assert plan.bytes_read == loads * shape.slot_bytes
    assert plan.bytes_written == (loads + 4) * shape.slot_bytes
    assert plan.buffer_bytes == 5 * shape.slot_bytes
    assert plan.io_hidden is hidden
    assert plan.epoch_s >= max(1e7 / rate, loads * shape.slot_bytes * (1 / 1e9 + 1 / 5e8) * 0.9)


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


def test_the_disk_is_measured_and_left_clean(tmp_path):
    read, write = measure_disk(tmp_path, 1 << 20)
    assert read > 0
    assert write > 0
    assert not list(tmp_path.iterdir())


def test_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("marius_py.planning.configured._PROBE_S", 0.02)
    rng = np.random.default_rng(0)
    edges = np.stack(
        [rng.integers(500, size=4000), np.zeros(4000, int), rng.integers(500, size=4000)], axis=1
    )
    prepare_arrays(edges, tmp_path / "graph", partitions=4)
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
    assert cli.plan([]) == 2
    assert "graph is not set" in capsys.readouterr().err
