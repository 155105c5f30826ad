"""What holds memory is noted by component and stands in result.json."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marius_py import cli
from marius_py.data.edge_batch import EdgeBatch
from marius_py.memory import MemoryMeter, array_bytes
from marius_py.nn.known_edges import KnownEdges
from marius_py.prepare import prepare_arrays
from marius_py.run_files import results
from marius_py.types import Position

NODES, EDGES, DIM, BATCH, NEGATIVES = 3000, 6000, 16, 300, 20


def test_peaks_outlive_what_is_held():
    meter = MemoryMeter()
    meter.put("buffer", 10)
    for size in (5, 7, -5, -7):
        meter.add("batches", size)
    meter.put("buffer", 4)
    assert meter.peaks == {"buffer": 10, "batches": 12}


def test_bytes_of_arrays_wherever_they_are():
    ids = np.zeros(10, np.int64)
    batch = EdgeBatch(
        here=Position(0, 0, 0),
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
    by_question, by_node, repeated = 8 + 2 * 8 + 8 + 2, 2 * 4 + 4, 2 * 8 + 5 * 8
    assert known.nbytes == 2 * (by_question + by_node + repeated)
    with known._searched["tail"].asked.lend():
        pass
    assert known.nbytes == 2 * (by_question + by_node + repeated) + 4  # scratch of a search, kept


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
    held = {"batches", "buffer", "edges", "known edges", "relations", "workspaces"}
    assert set(parts) == held | {"evaluation"}
    slot_rows = parts["buffer"] // (slots * 2 * DIM * 4)
    assert parts["buffer"] == slots * slot_rows * 2 * DIM * 4
    assert slot_rows >= NODES / 8
    rows = 2 * (BATCH + NEGATIVES)  # at most, of a batch
    assert BATCH * 3 * 8 < parts["batches"] <= 6 * (rows * (2 * DIM * 4 + 16) + 4 * BATCH * 8)
    assert parts["edges"] >= EDGES * 12 / 32  # a block at least: two of eight partitions take 28 steps
    assert parts["relations"] == 2 * DIM * 2 * 4  # one relation and its inverse, with their state
    assert min(parts.values()) > 0
    phases = memory["peak_rss_bytes"]
    assert result["train"]["peak_rss_bytes"] == phases["training"]
    assert phases["start"] <= phases["training"] <= phases["evaluation"]
    assert sum(parts.values()) - parts["evaluation"] < phases["training"]


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the system does not count it for a process"
)
def test_memory_of_the_program_that_began_a_run_is_not_counted() -> None:
    """A notebook that holds gigabytes and begins marius-train: the system counts both as one."""
    ask = "from marius_py.run_files.results import peak_rss_bytes; print(peak_rss_bytes())"
    begin = f"""
import os, sys
held = b"x" * (1 << 30)
os.execv(sys.executable, [sys.executable, "-c", {ask!r}])
"""
    found = [
        int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for code in (ask, begin)
    ]
    assert 20 << 20 < found[0] < 900 << 20
    assert found[1] < found[0] + (200 << 20)


def test_where_the_system_does_not_tell_what_it_counts_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(self: Path, *_: Any, **__: Any) -> str:
        raise FileNotFoundError(self)

    monkeypatch.setattr(Path, "read_text", unreadable)
    assert results.peak_rss_bytes() == resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
