from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from marius_py.errors import ConfigError, MariusError, StorageError
from marius_py.graph import open_graph
from marius_py.prepare import dictionary, duplicates, prepare, prepare_arrays
from marius_py.storage import folders
from marius_py.storage.files import set_call_hook
from marius_py.verify import verify_graph
from tests.prepare.graphs import all_edges, named_edges, write_rows


@pytest.fixture
def calls() -> Iterator[Callable[[int | None, int], list[str]]]:
    """Count storage calls, and fail the n-th one with an errno: arm(n, errno) -> the calls so far."""
    seen: list[str] = []

    def arm(fail_at: int | None, code: int = errno.ENOSPC) -> list[str]:
        seen.clear()

        def hook(call: str, path: str, size: int) -> int:
            seen.append(call)
            if len(seen) - 1 == fail_at:
                raise OSError(code, os.strerror(code))
            return size

        set_call_hook(hook)
        return seen

    yield arm
    set_call_hook(None)


def small(folder: Path) -> Path:
    return write_rows(folder / "t.tsv", [(f"n{i % 7}", f"r{i % 2}", f"n{i * i % 7}") for i in range(40)])


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_an_error_at_any_storage_call_leaves_nothing(
    tmp_path: Path, calls: Callable[[int | None, int], list[str]], code: int
) -> None:
    train = small(tmp_path)
    seen = calls(None, code)
    prepare(train, tmp_path / "counted", partitions=2)
    count = len(seen)
    assert count > 20
    for n in range(count):
        calls(n, code)
        with pytest.raises(StorageError) as caught:
            prepare(train, tmp_path / f"g{n}", partitions=2)
        text = "disk full" if code == errno.ENOSPC else "Input/output error"
        assert text in str(caught.value)
        left = {p.name for p in tmp_path.iterdir()} - {"t.tsv", "counted"}
        # the last two calls flush the parent folder after the rename: by then the graph is there, whole
        committed = {f"g{count - 2}", f"g{count - 1}"} & {f"g{i}" for i in range(n + 1)}
        assert left == committed, n
    set_call_hook(None)
    assert verify_graph(tmp_path / f"g{count - 2}") == []


def test_a_failed_replacement_keeps_the_old_graph(
    tmp_path: Path, calls: Callable[[int | None, int], list[str]]
) -> None:
    old = prepare(small(tmp_path), tmp_path / "g", partitions=2)
    for n in (0, 5, 15):
        calls(n, errno.ENOSPC)
        with pytest.raises(StorageError, match="disk full"):
            prepare(tmp_path / "t.tsv", tmp_path / "g", seed=9, overwrite=True)
    set_call_hook(None)
    assert open_graph(tmp_path / "g") == old
    assert verify_graph(old.path) == []


def test_folders_that_were_made_for_a_graph_that_fails_go_again(
    tmp_path: Path, calls: Callable[[int | None, int], list[str]]
) -> None:
    train = small(tmp_path)
    calls(5, errno.ENOSPC)
    with pytest.raises(StorageError, match="disk full"):
        prepare(train, tmp_path / "new" / "far" / "g", partitions=2)
    set_call_hook(None)
    assert [p.name for p in tmp_path.iterdir()] == ["t.tsv"]
    assert prepare(train, tmp_path / "new" / "far" / "g", partitions=2).num_nodes == 7


@pytest.mark.parametrize("target", ["pyarrow.parquet.ParquetWriter.write_table", "h5py.File"])
def test_a_full_disk_inside_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(target, full)
    with pytest.raises(StorageError, match="disk full"):
        prepare(small(tmp_path), tmp_path / "g")
    assert [p.name for p in tmp_path.iterdir()] == ["t.tsv"]


def test_a_really_full_disk(tmp_path: Path) -> None:
    """RLIMIT_FSIZE makes the kernel itself refuse to let a file grow."""
    rows = [(f"n{i % 997}", "r", f"n{i * 7 % 991}") for i in range(20_000)]
    train = write_rows(tmp_path / "t.tsv", rows)
    code = (
        "import resource, signal\n"
        "from marius_py.prepare import prepare\n"
        "from marius_py.errors import StorageError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000,) * 2)\n"
        "try:\n"
        f"    prepare({str(train)!r}, {str(tmp_path / 'g')!r})\n"
        "except StorageError as error:\n"
        "    print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "rows.tmp" in result.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["t.tsv"]


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(small(tmp_path), tmp_path / "g", progress=stop)
    assert [p.name for p in tmp_path.iterdir()] == ["t.tsv"]


KILLED = """
import sys, time
from marius_py.prepare import prepare
train, output, stage, seed = sys.argv[1:]
def hook(name, done, total, unit):
    if name.startswith(stage):
        print("there", flush=True)
        time.sleep(60)
prepare(train, output, overwrite=True, seed=int(seed), progress=hook)
"""


def start_and_stop_at(stage: str, train: Path, output: Path, seed: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(train), str(output), stage, str(seed)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    return process


@pytest.mark.parametrize("stage", ["read", "count", "sort"])
def test_a_killed_prepare_leaves_the_old_graph_and_the_next_one_cleans_up(tmp_path: Path, stage: str) -> None:
    train, output = small(tmp_path), tmp_path / "g"
    old = prepare(train, output)
    process = start_and_stop_at(stage, train, output, 1)
    with pytest.raises(StorageError, match="another process or thread is preparing"):
        prepare(train, output, overwrite=True)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert open_graph(output) == old
    assert len(list(tmp_path.iterdir())) == 3
    new = prepare(train, output, overwrite=True, seed=1)
    assert open_graph(output) == new != old
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g", "t.tsv"]


@pytest.mark.slow
def test_kills_at_random_moments_never_leave_half_a_graph(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    train = write_rows(tmp_path / "t.tsv", [(f"n{i % 9973}", "r", f"n{i * 7 % 9967}") for i in range(60_000)])
    output = tmp_path / "g"
    arguments = f"{str(train)!r}, {str(output)!r}, overwrite=True, seed=SEED"
    code = f"from marius_py.prepare import prepare; prepare({arguments})"
    good = set()
    for seed in range(40):
        process = subprocess.Popen([sys.executable, "-c", code.replace("SEED", str(seed))])
        time.sleep(float(rng.uniform(0.2, 1.6)))
        process.kill()
        process.wait()
        if output.exists():
            graph = open_graph(output)
            left = {str(path) for path in tmp_path.glob(".g.preparing-*")}
            assert {(found.file, found.harmless) for found in verify_graph(graph.path)} == {
                (p, True) for p in left
            }
            assert len(left) <= 1
            good.add(graph.seed)
    prepare(train, output, overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g", "t.tsv"]
    assert good


def test_exchange_of_folders_has_a_fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marius_py.storage.folders._exchange", lambda first, second: False)
    old = prepare(small(tmp_path), tmp_path / "g")
    new = prepare(tmp_path / "t.tsv", tmp_path / "g", seed=1, overwrite=True)
    assert open_graph(tmp_path / "g") == new != old
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g", "t.tsv"]


@pytest.mark.parametrize("killed", [False, True])
def test_without_an_exchange_an_old_graph_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    train, output = small(tmp_path), tmp_path / "g"
    old = prepare(train, output)
    rename = os.rename

    def fail(source: Path, target: Path) -> None:
        if ".preparing-" in Path(source).name:
            raise KeyboardInterrupt if killed else OSError(errno.EIO, "Input/output error")
        rename(source, target)

    monkeypatch.setattr("marius_py.storage.folders._exchange", lambda first, second: False)
    monkeypatch.setattr("marius_py.storage.folders.os.rename", fail)
    if killed:
        monkeypatch.setattr("marius_py.storage.folders._settle", lambda output: None)
    with pytest.raises(KeyboardInterrupt if killed else StorageError):
        prepare(train, output, seed=1, overwrite=True)
    assert output.exists() != killed
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="holds a prepared graph already"):
        prepare(train, output, seed=1)
    assert open_graph(output) == old
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g", "t.tsv"]


def test_a_graph_whose_folder_cannot_be_flushed_is_said_to_be_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, output = small(tmp_path), tmp_path / "g"
    sync = folders.sync_folder

    def fail(folder: Path) -> None:
        if folder == tmp_path:
            raise StorageError(f"cannot flush {folder}: Input/output error")
        sync(folder)

    monkeypatch.setattr(folders, "sync_folder", fail)
    with pytest.raises(StorageError, match=r"flush .*g stands whole in its place, but may not outlive"):
        prepare(train, output)
    assert open_graph(output).num_nodes
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g", "t.tsv"]


@pytest.mark.parametrize("how", ["silently", "at once"])
def test_an_old_graph_that_cannot_be_removed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    train, output = small(tmp_path), tmp_path / "g"
    old = prepare(train, output)

    def refuse(folder: Path, ignore_errors: bool) -> None:
        if how == "at once":  # as Python 3.11 does where the folder itself cannot be looked at
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(folders.shutil, "rmtree", refuse)
    new = prepare(train, output, seed=1, overwrite=True)
    assert open_graph(output) == new != old
    (left,) = (path for path in tmp_path.iterdir() if path.name not in ("g", "t.tsv"))
    assert f"{left} cannot be removed: it is of no use any more" in caplog.text


def test_many_small_blocks_and_merges_give_the_same_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    rows = [
        (f"n{h}", f"r{r}", f"n{t}")
        for h, r, t in (rng.pareto(1, (3000, 3)) * [50, 1, 50]).astype(int).tolist()
    ]
    train = write_rows(tmp_path / "t.tsv", rows)
    whole = prepare(train, tmp_path / "whole")
    monkeypatch.setattr(dictionary, "PASS_BYTES", 500)
    monkeypatch.setattr("marius_py.prepare.text.BLOCK_BYTES", 300)
    pieces = prepare(train, tmp_path / "pieces")
    assert all_edges(pieces) == all_edges(whole) == Counter(rows)
    assert sorted(pieces.node_names()) == sorted(whole.node_names())
    assert sum(named_edges(pieces)["train"].values()) == 2700


def test_duplicates_are_counted_exactly_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    rows = [(f"n{h}", f"r{r}", f"n{t}") for h, r, t in rng.integers(0, 12, (3000, 3)).tolist()]
    graph = prepare(write_rows(tmp_path / "t.tsv", rows), tmp_path / "g", split=(1, 0, 0), partitions=1)
    expected = {"train": len(rows) - len(set(rows)), "valid": 0, "test": 0}
    assert graph.report["duplicate_edges"] == expected
    with graph.edges() as store:
        assert duplicates.count_duplicates(store, tmp_path, max_rows=100) == expected
        monkeypatch.setattr(duplicates, "_packed", lambda edges: None)
        assert duplicates.count_duplicates(store, tmp_path, max_rows=100) == expected
    with graph.repartition(5, tmp_path / "run") as store:
        assert duplicates.count_duplicates(store, tmp_path, max_rows=100) == expected


def test_copies_of_one_edge_are_counted_in_memory_that_does_not_grow_with_them(tmp_path: Path) -> None:
    count, max_rows = 400_000, 10_000
    rows = np.concatenate([np.full((count, 3), 7), np.arange(600).reshape(200, 3)])
    graph = prepare_arrays(rows, tmp_path / "g", split=(1, 0, 0), partitions=1)
    with graph.edges() as store:
        store.read("train")  # verified beforehand, which takes larger blocks
        tracemalloc.start()
        try:
            found = duplicates.count_duplicates(store, tmp_path, max_rows=max_rows)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert found["train"] == count - 1
    assert peak < 12 * count


def test_counting_duplicates_of_a_large_bucket_reads_it_three_times(
    tmp_path: Path, calls: Callable[[int | None, int], list[str]]
) -> None:
    rows = np.random.default_rng(0).integers(0, 40, (20_000, 3))
    graph = prepare_arrays(rows, tmp_path / "g", split=(1, 0, 0), partitions=1)
    folder = tmp_path / "work"
    folder.mkdir()
    with graph.edges() as store:
        read: list[int] = []
        verified: list[int] = []

        def hook(call: str, path: str, size: int) -> int:
            read.append(size * path.endswith("duplicates.tmp"))
            verified.append(size * path.endswith("edges.h5"))
            return size

        set_call_hook(hook)
        found = duplicates.count_duplicates(store, folder, max_rows=500)
        assert found == graph.report["duplicate_edges"]
        assert found["train"] == len(rows) - len(np.unique(rows, axis=0))
        assert sum(read) == 2 * len(rows) * 12  # written and read once
        assert sum(verified) == 2 * len(rows) * 12  # verified, then sorted into bins
        assert list(folder.iterdir()) == []
        seen = calls(None, errno.ENOSPC)
        duplicates.count_duplicates(store, folder, max_rows=500)
        write = next(i for i, call in enumerate(seen) if "write" in call)
        calls(write, errno.ENOSPC)
        with pytest.raises(StorageError, match=r"disk full.*duplicates\.tmp|duplicates\.tmp.*disk full"):
            duplicates.count_duplicates(store, folder, max_rows=500)
        assert list(folder.iterdir()) == []


def test_errors_are_all_of_one_family(tmp_path: Path) -> None:
    with pytest.raises(MariusError):
        prepare(tmp_path / "nothing.tsv", tmp_path / "g")
