"""What holds memory is noted by component and stands in result.json."""

import json

import numpy as np
import pytest

from marius_py import cli
from marius_py.data.edge_batch import EdgeBatch
from marius_py.memory import MemoryMeter, array_bytes, group_memory
from marius_py.nn.known_edges import KnownEdges
from marius_py.prepare import prepare_arrays
from marius_py.types import Position

NODES, EDGES, DIM, BATCH, NEGATIVES = 3000, 6000, 16, 300, 20


def test_peaks_outlive_what_is_held():
    meter = MemoryMeter()
    meter.put("buffer", 10)
    for size in (5, 7, -5, -7):
        meter.add("batches", size)
    meter.put("buffer", 4)
    assert meter.peaks == {"buffer": 10, "batches": 12}


NO_LIMIT = 0x7FFF_FFFF_FFFF_F000
NAMES = {
    2: ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    1: ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def make_group(root, version, path, limit, used, inactive=0):
    mount, *files, entry = NAMES[version]
    folder = root / mount / path.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    for file, value in zip(files, (limit, used), strict=True):
        (folder / file).write_text(f"{value}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{entry} {inactive}\nactive_file 9\n")


@pytest.fixture
def system(tmp_path):
    """A folder in the place of /; call it with the lines of /proc/self/cgroup."""

    def write(*lines):
        (tmp_path / "proc/self").mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc/self/cgroup").write_text("".join(f"{line}\n" for line in lines))
        return tmp_path

    return write


@pytest.mark.parametrize(("version", "line"), [(2, "0::/a/b"), (1, "7:cpu,memory:/a/b")])
def test_the_smallest_rest_of_all_groups_up_the_tree_counts(system, version, line):
    root = system("9:name=systemd:/else", line, "3:cpuset:/")
    assert group_memory(root) is None
    no_limit = "max" if version == 2 else NO_LIMIT
    make_group(root, version, "/", no_limit, 10_000)
    make_group(root, version, "/a", 5000, 1000)
    make_group(root, version, "/a/b", no_limit, 700)
    make_group(root, version, "/a/c", 10, 0)
    assert group_memory(root) == 4000
    make_group(root, version, "/a/b", 2000, 700)
    assert group_memory(root) == 1300
    make_group(root, version, "/a", 5000, 4900)
    assert group_memory(root) == 100
    make_group(root, version, "/a", 5000, 5100)
    assert group_memory(root) == 0


@pytest.mark.parametrize(("version", "line"), [(2, "0::/"), (1, "7:memory:/docker/1234")])
def test_pages_of_files_that_were_read_are_not_taken(system, version, line):
    """A container sees its own group at the mount, whatever the path that it is told."""
    root = system(line)
    make_group(root, version, "/", 8000, 7900, inactive=6000)
    assert group_memory(root) == 6100


def test_without_control_groups_there_is_no_limit(system, tmp_path):
    assert group_memory(tmp_path / "nowhere") is None
    assert group_memory(system("0::/gone", "4:cpu:/x")) is None
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("many")
    assert group_memory(tmp_path) is None


def test_bytes_of_arrays_wherever_they_are():
    ids = np.zeros(10, np.int64)
    batch = EdgeBatch(
        position=Position(0, 0, 1),
        index=ids,
        head=ids[:2],
        relation=ids[:2],
        tail=ids[:2],
        negatives={"head": ids[:4], "tail": ids[:4]},
        dropped={"head": ids[:1]},
        importance={},
        edge_weight={},
        seed=3,
        lease=None,
    )
    assert array_bytes(batch) == 8 * (10 + 3 * 2 + 2 * 4 + 1)
    assert array_bytes([ids, (ids, "text", None)]) == 160
    known = KnownEdges(np.zeros((5, 3), np.int32))
    by_question, by_node = 8 + 2 * 8 + 5 * 8 + 5 * 2, 2 * 4 + 5 * 4
    assert known.nbytes == 2 * (by_question + by_node)
    with known._index["tail"].asked.lend():
        pass
    assert known.nbytes == 2 * (by_question + by_node) + 4  # scratch of a search, kept


@pytest.mark.parametrize(("capacity", "slots"), [(8, 8), (2, 3)])
def test_result_names_components(tmp_path, capacity, slots):
    rng = np.random.default_rng(0)
    edges = rng.integers(NODES, size=(EDGES, 3))
    edges[:, 1] = 0
    prepare_arrays(edges, tmp_path / "graph", partitions=8, num_nodes=NODES, test=edges[:50])
    words = [f"graph={tmp_path / 'graph'}", f"output={tmp_path / 'run'}", f"model.dim={DIM}"]
    words += [f"negatives.count={NEGATIVES}", f"training.batch_size={BATCH}", f"storage.capacity={capacity}"]
    assert cli.train([*words, "training.epochs=1", "training.valid_every=0"]) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    memory = result["memory"]
    parts = memory["components"]
    assert set(parts) == {"batches", "buffer", "edges", "evaluation", "known edges", "workspaces"}
    slot_rows = parts["buffer"] // (slots * 2 * DIM * 4)
    assert parts["buffer"] == slots * slot_rows * 2 * DIM * 4
    assert slot_rows >= NODES / 8
    rows = 2 * (BATCH + NEGATIVES)  # at most, of a batch
    assert BATCH * 3 * 8 < parts["batches"] <= 6 * (rows * (2 * DIM * 4 + 16) + 4 * BATCH * 8)
    assert parts["edges"] >= EDGES * 12 / 32  # a block at least: two of eight partitions take 28 steps
    assert min(parts.values()) > 0
    phases = memory["peak_rss_bytes"]
    assert phases["start"] <= phases["training"] <= phases["evaluation"]
    assert sum(parts.values()) - parts["evaluation"] < phases["training"]
