"""Writes `edges.h5`: train edges sorted into p² buckets out of core (floor 1).

In: blocks of (E, 3) node-id rows, or (E, 4) with weights, in any order, and their counts by bucket. Out: the
file that `storage.hdf5_edges` reads. Memory is one block, never the edges: a first pass over the blocks
counts (`count_buckets`), the file is laid out, a second pass sorts each block by bucket and writes every
bucket's rows at that bucket's cursor. The more buckets there are, the more rows are gathered before they are
sorted: a write takes as long for eight rows as for a hundred.

A bucket's rows end in random order. Trained in parts, a step has a piece of each bucket; edge lists are often
sorted by name, and a piece of a sorted bucket would hold all edges of some nodes and none of others.
"""

from __future__ import annotations

import logging
import os
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
import xxhash
from numpy.typing import NDArray

from marius_py.errors import FormatError
from marius_py.partitioning import Partitioning
from marius_py.storage.edge_layout import (
    EDGE_FILE_VERSION,
    WEIGHTED_VERSION,
    bucket_groups,
    read_layout,
    row_width,
)
from marius_py.storage.file_io import (
    array_checksum,
    hdf5_errors_as_storage,
    os_errors_as_storage,
    read_array,
    sync_path,
    write_array,
)
from marius_py.storage.files import check_space, open_file, reserve, sync_data, write_from
from marius_py.storage.hdf5_edges import Hdf5EdgeStore
from marius_py.storage.protocols import Edges
from marius_py.streams import Purpose, stream
from marius_py.types import SPLITS

logger = logging.getLogger(__name__)

BLOCK_ROWS = 1 << 21
"""Edges handled at a time: 24 MiB of int32 rows."""

_SEGMENTS = 256
"""Of a block of a longer bucket, spread over it, that are shuffled together."""

_HDF5_ROOM = 1 << 15
"""Bytes that the file takes beside its rows, degrees, offsets and checksums, at most."""

_ROWS_A_BUCKET = 32
"""Rows to be sorted together for each bucket, on average, up to `_MOST_SORTED` in all."""
_MOST_SORTED = 1 << 23
"""With what sorting takes, 250 MB where rows are of int32."""


def edge_dtype(num_nodes: int) -> np.dtype[Any]:
    """The type of edge rows: int32 while every id fits, int64 above 2³¹ nodes."""
    return np.dtype(np.int32) if num_nodes <= 1 << 31 else np.dtype(np.int64)


def bucket_keys(partitioning: Partitioning, edges: Edges) -> NDArray[np.integer]:
    """Number each edge's bucket, head partition · p + tail partition: (E,) of the smallest unsigned type."""
    p = partitioning.num_partitions
    keys = partitioning.part_of(edges[:, 0])
    keys *= p  # p² is at most 2²⁰
    keys += partitioning.part_of(edges[:, 2])
    # 16-bit keys make numpy's stable sort a radix sort, several times faster than on wider ones
    return keys.astype(np.min_scalar_type(p * p - 1))


def count_buckets(partitioning: Partitioning, edges: Edges) -> NDArray[np.int64]:
    """Count the edges of a block by bucket: (p²,) int64."""
    return np.bincount(bucket_keys(partitioning, edges), minlength=partitioning.num_partitions**2)


class EdgeWriter:
    """Fills one `edges.h5`; use as a context manager, then call `finish`.

    Args:
        path: file to create; one that exists is replaced.
        partitioning: ranges to sort by.
        bucket_counts: (p²,) train edges of each bucket, as they will be appended.
        num_valid: rows of the split valid.
        num_test: rows of the split test.
        degrees: (N,) int64 total train degree by node id.
        fingerprint: the graph's fingerprint.
        dtype: type of the rows; None: by the number of nodes.
        weighted: train edges are appended as (E, 4) rows, with weights.

    Raises:
        StorageError: the file cannot be created, say because the disk has no room for it.
    """

    def __init__(
        self,
        path: Path,
        partitioning: Partitioning,
        bucket_counts: NDArray[np.int64],
        *,
        num_valid: int,
        num_test: int,
        degrees: NDArray[np.int64],
        fingerprint: str,
        dtype: np.dtype[Any] | None = None,
        weighted: bool = False,
    ) -> None:
        self._path = path
        self._partitioning = partitioning
        starts = np.zeros(len(bucket_counts) + 1, dtype=np.int64)
        np.cumsum(bucket_counts, out=starts[1:])
        self._dtype = dtype or edge_dtype(partitioning.num_nodes)
        counts = {"train": int(starts[-1]), "valid": num_valid, "test": num_test}
        self._widths = {split: row_width(split, weighted=weighted) for split in SPLITS}
        rows = sum(counts[split] * self._widths[split] for split in SPLITS) * self._dtype.itemsize
        size = rows + 2 * starts.nbytes + 8 * partitioning.num_nodes
        with hdf5_errors_as_storage("write", path):
            # HDF5 prints what it cannot write of a file that it gives up
            check_space(path, size + _HDF5_ROOM)
            shapes = {split: (counts[split], self._widths[split]) for split in SPLITS}
            _create(path, partitioning, starts, shapes, self._dtype, fingerprint)
        layout = read_layout(path)
        self._starts = starts
        self._cursors = starts[:-1].copy()
        together = max(BLOCK_ROWS, min(_ROWS_A_BUCKET * len(bucket_counts), _MOST_SORTED))
        together = min(together, counts["train"])
        self._rows: Edges = np.empty((together, self._widths["train"]), dtype=self._dtype)
        self._waiting = 0  # of these rows, to be sorted
        self._filled = dict.fromkeys(SPLITS, 0)
        self._counts = counts
        self._offsets = layout.data_offsets
        degrees = np.ascontiguousarray(degrees, dtype=np.int64)
        self._degrees_xxh3 = array_checksum(degrees)
        # claim the blocks now: a disk that is too small says so before hours of sorting
        reserve(path, os.stat(path).st_size)
        with os_errors_as_storage("write", path):
            self._file = os.fdopen(open_file(path, os.O_RDWR), "r+b", buffering=0)
        try:
            write_array(self._file.fileno(), degrees, layout.degrees_offset, path)
        except BaseException:
            self._file.close()
            raise

    def append(self, split: str, edges: Edges) -> None:
        """Append rows (E, 3) to split "valid" or "test", or sort them into train, (E, 4) if it has weights.

        Raises:
            FormatError: more rows than announced. StorageError: writing failed.
        """
        if self._filled[split] + len(edges) > self._counts[split]:
            raise _changed(f"more {split} edges")
        filled = self._filled[split]
        self._filled[split] += len(edges)
        if split != "train":
            self._write(split, filled, np.ascontiguousarray(edges, dtype=self._dtype))
            return
        while len(edges):
            taken = edges[: len(self._rows) - self._waiting]
            self._rows[self._waiting : self._waiting + len(taken)] = taken
            self._waiting += len(taken)
            edges = edges[len(taken) :]
            if self._waiting == len(self._rows):
                self._sort_waiting()

    def _sort_waiting(self) -> None:
        """Sort the train edges that wait by bucket, and write each bucket's rows at its cursor."""
        edges, self._waiting = self._rows[: self._waiting], 0
        order, counts = self._sorted(edges)
        if (self._cursors + counts > self._starts[1:]).any():
            raise _changed("more train edges of a bucket")
        ends = np.concatenate([[0], np.cumsum(counts)])
        size = edges.itemsize * edges.shape[1]
        offsets = self._offsets["train"] + self._cursors * size
        for first, last in bucket_groups(ends, BLOCK_ROWS):
            rows = edges.take(order[ends[first] : ends[last]], axis=0)
            used = first + np.flatnonzero(counts[first:last])
            begins = ((ends[used] - ends[first]) * size).tolist()
            stops = ((ends[used + 1] - ends[first]) * size).tolist()
            content = rows.view(np.uint8).reshape(-1).data
            for begin, stop, offset in zip(begins, stops, offsets[used].tolist(), strict=True):
                write_from(self._file.fileno(), content[begin:stop], offset, self._path)
        self._cursors += counts

    def _sorted(self, edges: Edges) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
        """The stable order (n,) of edges by bucket, and how many each bucket has (p²,)."""
        blocks = [edges[begin : begin + BLOCK_ROWS] for begin in range(0, len(edges), BLOCK_ROWS)]
        keys = np.concatenate([bucket_keys(self._partitioning, block) for block in blocks])
        return _stable_order(keys), np.bincount(keys, minlength=len(self._cursors))

    def finish(self) -> None:
        """Check that every row was written, store the checksums, and make the file durable.

        Raises:
            FormatError: fewer rows were appended than announced.
            StorageError: reading back or writing failed.
        """
        if self._filled != self._counts:
            raise _changed("fewer edges")
        if self._waiting:
            self._sort_waiting()
        self._rows = self._rows[:0].copy()  # shuffling takes its memory
        xxh3 = np.zeros(len(self._cursors), dtype=np.uint64)
        for first, last in bucket_groups(self._starts, BLOCK_ROWS):
            start, stop = int(self._starts[first]), int(self._starts[last])
            rng = stream(0, Purpose.STORED_EDGES, first)
            if stop - start > BLOCK_ROWS:
                self._shuffle_long(start, stop, rng)
                xxh3[first] = self._checksum("train", start, stop)
                continue
            ends = self._starts[first : last + 1] - start
            rows = self._read("train", start, stop)[_shuffled_within(ends, rng)]
            self._write("train", start, rows)
            xxh3[first:last] = [array_checksum(rows[one:end]) for one, end in pairwise(ends.tolist())]
        splits = {split: self._checksum(split, 0, self._counts[split]) for split in SPLITS[1:]}
        with os_errors_as_storage("write", self._path):
            sync_data(self._file.fileno(), self._path)
            self._file.close()
        with hdf5_errors_as_storage("write", self._path):
            with h5py.File(self._path, "r+", locking=False) as file:
                file["train_xxh3"][...] = xxh3
                for split, value in splits.items():
                    file.attrs.modify(f"{split}_xxh3", np.uint64(value))
                file.attrs.modify("degrees_xxh3", np.uint64(self._degrees_xxh3))
            sync_path(self._path)

    def close(self) -> None:
        """Release the file. May be called twice."""
        self._file.close()

    def __enter__(self) -> EdgeWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, split: str, start: int, stop: int) -> Edges:
        rows = np.empty((stop - start, self._widths[split]), dtype=self._dtype)
        read_array(self._file.fileno(), rows, self._offsets[split] + start * rows.strides[0], self._path)
        return rows

    def _write(self, split: str, start: int, rows: Edges) -> None:
        offset = self._offsets[split] + start * rows.itemsize * self._widths[split]
        write_array(self._file.fileno(), rows, offset, self._path)

    def _shuffle_long(self, start: int, stop: int, rng: np.random.Generator) -> None:
        """Shuffle rows that do not fit in a block: block after block, each of segments from all over them."""
        blocks = -(-(stop - start) // BLOCK_ROWS)
        cuts = [start + (stop - start) * cut // (blocks * _SEGMENTS) for cut in range(blocks * _SEGMENTS + 1)]
        segments = list(pairwise(cuts))
        for number in range(blocks):
            mine = segments[number::blocks]
            rows = np.concatenate([self._read("train", *segment) for segment in mine])
            rows = rows[rng.permutation(len(rows))]
            for first, last in mine:
                self._write("train", first, rows[: last - first])
                rows = rows[last - first :]

    def _checksum(self, split: str, start: int, stop: int) -> int:
        # one bucket may be all edges (p = 1), so even a checksum reads in blocks
        if stop - start <= BLOCK_ROWS:
            return array_checksum(self._read(split, start, stop))
        digest = xxhash.xxh3_64()
        for begin in range(start, stop, BLOCK_ROWS):
            digest.update(self._read(split, begin, min(begin + BLOCK_ROWS, stop)).data)
        return int(digest.intdigest())


def _changed(what: str) -> FormatError:
    return FormatError(f"{what} in the second pass than in the first: the input changed meanwhile")


def _shuffled_within(ends: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """A random order of rows that leaves each in its bucket, where bucket i is ends[i]:ends[i + 1]."""
    order = rng.permutation(int(ends[-1]))
    kind = np.min_scalar_type(len(ends) - 2)
    bucket = np.repeat(np.arange(len(ends) - 1, dtype=kind), np.diff(ends))
    found: NDArray[np.int64] = order[_stable_order(bucket[order])]
    return found


def _stable_order(keys: NDArray[np.integer]) -> NDArray[np.integer]:
    """As `np.argsort(keys, kind="stable")`, 16 bits at a time: NumPy sorts so many by radix."""
    if keys.dtype.itemsize <= 2:
        return np.argsort(keys, kind="stable")
    order = np.argsort(keys.astype(np.uint16), kind="stable").astype(np.uint32)
    high = (keys >> 16).astype(np.uint16)
    return order[np.argsort(high[order], kind="stable")]


def _create(
    path: Path,
    partitioning: Partitioning,
    starts: NDArray[np.int64],
    shapes: dict[str, tuple[int, int]],
    dtype: np.dtype[Any],
    fingerprint: str,
) -> None:
    """Lay out the HDF5 file with every contiguous data set allocated, so that raw writes can fill them."""
    with h5py.File(_new_file(path)) as file:
        weighted = shapes["train"][1] == row_width("train", weighted=True)
        file.attrs["format_version"] = WEIGHTED_VERSION if weighted else EDGE_FILE_VERSION
        file.attrs["num_nodes"] = partitioning.num_nodes
        file.attrs["num_partitions"] = partitioning.num_partitions
        file.attrs["fingerprint"] = fingerprint
        for name in (*SPLITS[1:], "degrees"):
            file.attrs.create(f"{name}_xxh3", np.uint64(0))
        file.create_dataset("train_offsets", data=starts)
        file.create_dataset("train_xxh3", shape=(len(starts) - 1,), dtype=np.uint64)
        for split in SPLITS:
            _allocate(file, split, shapes[split], dtype)
        _allocate(file, "degrees", (partitioning.num_nodes,), np.dtype(np.int64))


def _new_file(path: Path) -> h5py.h5f.FileID:
    """Make an HDF5 file that notes no times, so that the same edges make the same bytes.

    By its own means h5py's File can leave out the time of the root group only in its latest versions.
    """
    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    creation.set_obj_track_times(False)
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    access.set_alignment(4096, 4096)
    access.set_file_locking(False, True)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    return h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_TRUNC, creation, access)


def _allocate(file: h5py.File, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    creation.set_layout(h5py.h5d.CONTIGUOUS)
    creation.set_obj_track_times(False)  # as `_new_file`
    space = h5py.h5s.create_simple(shape)
    h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(dtype), space, creation)


def resort(source: Hdf5EdgeStore, path: Path, num_partitions: int, *, block_rows: int = BLOCK_ROWS) -> None:
    """Write the edges of `source` to a new file `path`, train sorted for another number of partitions.

    Two passes over the source in blocks of `block_rows`; memory is one block and the degrees. The source's
    checksums are verified on the way, so damage never gets a fresh checksum.

    Raises:
        ConfigError: more partitions than nodes. StorageError: reading or writing failed.
    """
    partitioning = Partitioning(source.partitioning.num_nodes, num_partitions)
    logger.info("sorting the edges into the buckets of %d partitions", num_partitions)
    counts = np.zeros(num_partitions**2, dtype=np.int64)
    for edges in source.blocks("train", block_rows):
        counts += count_buckets(partitioning, edges)
    with EdgeWriter(
        path,
        partitioning,
        counts,
        num_valid=source.num_edges("valid"),
        num_test=source.num_edges("test"),
        degrees=source.degrees(0, partitioning.num_nodes),
        fingerprint=source.fingerprint,
        dtype=source.dtype,
        weighted=source.weighted,
    ) as writer:
        for split in SPLITS:
            for edges in source.blocks(split, block_rows, weights=True):
                writer.append(split, edges)
        writer.finish()
