"""Edges of a prepared graph in one ordinary HDF5 file, read by bucket (floor 1).

In: the path of an `edges.h5` that `storage.edge_writer` wrote. Out: (E, 3) arrays. h5py is used to find the
data sets when the file is opened (`storage.edge_layout`); after that a bucket is one positioned read, and
h5py's process-wide lock is never taken.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from marius_py.errors import ConfigError, StorageError
from marius_py.partitioning import Partitioning
from marius_py.storage.edge_layout import bucket_groups, read_layout
from marius_py.storage.file_io import array_checksum, read_array
from marius_py.storage.files import drop_cache, open_file
from marius_py.storage.protocols import Edges
from marius_py.storage.weighted import without_weights
from marius_py.types import SPLITS, Bucket
from marius_py.whole import is_whole

VERIFY_ROWS = 1 << 20
SORT_ANEW = "remove it; the next start sorts the graph's edges anew"
"""What helps where a run's own sorted copy of a graph's edges is damaged."""


class Hdf5EdgeStore:
    """Edges on disk, fulfilling `EdgeStore`. Reads are thread-safe and verify checksums.

    Args:
        path: the `edges.h5`.
        remedy: what helps where it is damaged, for errors.

    Raises:
        StorageError, FormatError: as `read_layout`.
    """

    def __init__(self, path: Path | str, remedy: str = "prepare the graph again") -> None:
        self._path, self._remedy = Path(path), remedy
        self._layout = read_layout(self._path)
        self._file = os.fdopen(open_file(self._path, os.O_RDONLY), "rb", buffering=0)
        self._verified: set[str] = set()
        self._verified_buckets = np.zeros(len(self._layout.bucket_xxh3), dtype=np.bool_)

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def partitioning(self) -> Partitioning:
        """The partition ranges by which train edges are sorted into buckets."""
        return self._layout.partitioning

    @property
    def weighted(self) -> bool:
        """Whether the train edges have weights."""
        return self._layout.weighted

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the graph that the edges belong to."""
        return self._layout.fingerprint

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of ids: int32 below 2³¹ nodes, int64 from there."""
        return self._layout.dtype

    def bucket_counts(self) -> NDArray[np.int64]:
        """Count the train edges by bucket: (p, p), rows are head partitions."""
        p = self._layout.partitioning.num_partitions
        return np.diff(self._layout.bucket_starts).reshape(p, p)

    def train_order(self) -> str:
        """A digest of the train edges in their order, made of the checksums of all buckets."""
        return f"{array_checksum(self._layout.bucket_xxh3):016x}"

    def num_edges(self, split: str) -> int:
        """Count the edges of a split ("train", "valid" or "test")."""
        return self._layout.counts[_checked_split(split)]

    def read(self, split: str, bucket: Bucket | None = None, *, weights: bool = False) -> Edges:
        """Read the edges of a split, or of one bucket of train, and verify their checksum.

        Returns:
            (E, 3) int32 or int64, freshly allocated and owned by the caller; with `weights`, (E, 4) of the
            train split of a graph that has some.

        Raises:
            StorageError: the read failed, or the data do not match their checksum.
            ConfigError: no such split or bucket.
        """
        _checked_split(split)
        if split != "train":
            if bucket is not None:
                raise ConfigError(f"split {split!r} has no buckets; only train edges lie in bucket order")
            return self._read_split(split)
        first, number = (
            (0, len(self._verified_buckets)) if bucket is None else (self._bucket_index(bucket), 1)
        )
        rows = self._read_buckets(first, number)
        return rows if weights else without_weights(rows)

    def read_range(self, split: str, start: int, stop: int, *, weights: bool = False) -> Edges:
        """Read the (stop − start, 3) edges of a split by position, for streaming in blocks.

        With `weights`, as `read`.

        Whole buckets are verified whenever they are read. A range that ends inside a bucket has it verified
        as a whole, in a pass of its own, unless that was done before; two threads may both do it.

        Raises:
            StorageError: the read failed, or the data do not match their checksum.
            ConfigError: no such split or range.
        """
        count = self.num_edges(split)
        if not 0 <= start <= stop <= count:
            raise ConfigError(f"edge range {start}:{stop} of split {split!r}; allowed: within 0:{count}")
        rows = self._read_rows(split, start, stop)
        self._verify_range(split, start, stop, rows)
        return rows if weights else without_weights(rows)

    def _verify_range(self, split: str, start: int, stop: int, edges: Edges) -> None:
        """Verify every bucket (or the split) that start:stop touches; `edges` are its rows as stored."""
        if split == "train":
            starts = self._layout.bucket_starts
            first = int(np.searchsorted(starts, start, side="right")) - 1
            last = int(np.searchsorted(starts, stop, side="left"))
            units: list[tuple[int, int, int | None]] = [
                (int(starts[i]), int(starts[i + 1]), i) for i in range(first, last)
            ]
        else:
            units = [(0, self._layout.counts[split], None)]
        for begin, end, index in units:
            if begin == end:
                continue
            if start <= begin and end <= stop:
                self._compare(array_checksum(edges[begin - start : end - start]), split, index)
            elif not (split in self._verified if index is None else self._verified_buckets[index]):
                for _ in self._checked_range(split, begin, end, VERIFY_ROWS, index, verify_only=True):
                    pass

    def read_unverified(self, split: str, start: int, stop: int) -> Edges:
        """Read the (stop − start, 3) edges of a split by position, without comparing a checksum.

        For rows that count as work alone: verifying them takes whole buckets, and one may be the whole file.

        Raises:
            StorageError: the read failed.
        """
        return without_weights(self._read_rows(split, start, stop))

    def _read_rows(self, split: str, start: int, stop: int) -> Edges:
        """Read rows by position as they are stored, without comparing a checksum."""
        rows = np.empty((stop - start, self._layout.width(split)), dtype=self._layout.dtype)
        if len(rows):
            offset = self._layout.data_offsets[split] + start * rows.strides[0]
            read_array(self._descriptor(), rows, offset, self._path)
            drop_cache(self._descriptor(), offset, rows.nbytes)
        return rows

    def degrees(self, start: int, stop: int) -> NDArray[np.int64]:
        """Read the total train degree (a self-loop counts twice) of node ids start..stop: (n,) int64."""
        count = self._layout.partitioning.num_nodes
        if not (is_whole(start, 0) and is_whole(stop, start, count)):
            raise ConfigError(f"node range {start!r}:{stop!r}; allowed: within 0:{count}")
        if "degrees" not in self._verified:
            self._verify_degrees()
            self._verified.add("degrees")
        return self._read_degrees(start, stop)

    def _read_degrees(self, start: int, stop: int) -> NDArray[np.int64]:
        degrees = np.empty(stop - start, dtype=np.int64)
        read_array(self._descriptor(), degrees, self._layout.degrees_offset + start * 8, self._path)
        return degrees

    def _verify_degrees(self) -> None:
        """Compare all degrees with their checksum; StorageError unless they are whole."""
        expected, count = self._layout.degrees_xxh3, self._layout.partitioning.num_nodes
        if expected is None:
            return
        digest = xxhash.xxh3_64()
        for begin in range(0, count, VERIFY_ROWS):
            digest.update(self._read_degrees(begin, min(begin + VERIFY_ROWS, count)).data)
        if digest.intdigest() != expected:
            raise self._damaged("the degrees do")

    def blocks(self, split: str, block_rows: int, *, weights: bool = False) -> Iterator[Edges]:
        """Stream a split in file order, at most `block_rows` rows (n, 3) at a time, all verified before.

        With `weights`, as `read`.

        A checksum covers a bucket of train or another whole split; where that is larger than a block, it is
        read twice. Smaller buckets share a block: how many blocks there are follows from the number of edges.

        Raises:
            StorageError: a read failed, or a checksum does not match.
        """
        _checked_split(split)
        for rows in self._verified_blocks(split, block_rows):
            yield rows if weights else without_weights(rows)

    def _verified_blocks(self, split: str, block_rows: int) -> Iterator[Edges]:
        """Stream a split's rows as they are stored."""
        if split != "train":
            yield from self._checked_range(split, 0, self._layout.counts[split], block_rows, None)
            return
        starts = self._layout.bucket_starts
        for first, last in bucket_groups(starts, block_rows):
            if last - first > 1:
                edges = self._read_buckets(first, last - first)
                if len(edges):
                    yield edges
            else:
                yield from self._checked_range(
                    split, int(starts[first]), int(starts[last]), block_rows, first
                )

    def verify(self, block_rows: int = 1 << 20) -> list[StorageError]:
        """Read all edges and compare checksums.

        Returns:
            An error for each bucket or split that is damaged or cannot be read, and one for the degrees;
            empty when all are whole.
        """
        starts = self._layout.bucket_starts
        ranges: list[tuple[str, int, int, int | None]] = [
            ("train", int(starts[i]), int(starts[i + 1]), i) for i in range(len(starts) - 1)
        ]
        ranges += [(split, 0, self._layout.counts[split], None) for split in SPLITS[1:]]
        errors = []
        for split, start, stop, index in ranges:
            try:
                for _ in self._checked_range(split, start, stop, block_rows, index):
                    pass
            except StorageError as error:
                errors.append(error)
        try:
            self._verify_degrees()
        except StorageError as error:
            errors.append(error)
        return errors

    def close(self) -> None:
        """Release the file. May be called twice."""
        self._file.close()

    def __enter__(self) -> Hdf5EdgeStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _damaged(self, what: str) -> StorageError:
        return StorageError(f"{self._path} is damaged: {what} not match the checksum; {self._remedy}")

    def _descriptor(self) -> int:
        if self._file.closed:
            raise StorageError(f"{self._path} was closed; open the edge store again")
        return self._file.fileno()

    def _bucket_index(self, bucket: Bucket) -> int:
        p = self._layout.partitioning.num_partitions
        if not (0 <= bucket[0] < p and 0 <= bucket[1] < p):
            raise ConfigError(f"bucket {tuple(bucket)}; allowed: both partitions from 0 to {p - 1}")
        return bucket[0] * p + bucket[1]

    def _read_split(self, split: str) -> Edges:
        edges = self._read_rows(split, 0, self._layout.counts[split])
        self._compare(array_checksum(edges), split, None)
        return edges

    def _read_buckets(self, first: int, count: int) -> Edges:
        starts = self._layout.bucket_starts
        edges = self._read_rows("train", int(starts[first]), int(starts[first + count]))
        for index in range(first, first + count):
            part = edges[starts[index] - starts[first] : starts[index + 1] - starts[first]]
            self._compare(array_checksum(part), "train", index)
        return edges

    def _checked_range(
        self, split: str, start: int, stop: int, rows: int, index: int | None, *, verify_only: bool = False
    ) -> Iterator[Edges]:
        if stop - start <= rows:
            edges = self._read_rows(split, start, stop)
            self._compare(array_checksum(edges), split, index)
            if len(edges):
                yield edges
            return
        digest = xxhash.xxh3_64()
        for begin in range(start, stop, rows):
            digest.update(self._read_rows(split, begin, min(begin + rows, stop)).data)
        self._compare(digest.intdigest(), split, index)
        if verify_only:
            return
        for begin in range(start, stop, rows):
            yield self._read_rows(split, begin, min(begin + rows, stop))

    def _compare(self, checksum: int, split: str, index: int | None) -> None:
        """Raise unless the checksum is that of the bucket or split; note that it was verified."""
        if index is None:
            expected, what = self._layout.split_xxh3[split], f"the {split} edges do"
        else:
            bucket = divmod(index, self._layout.partitioning.num_partitions)
            expected, what = int(self._layout.bucket_xxh3[index]), f"train bucket {bucket} does"
        if checksum != expected:
            raise self._damaged(what)
        if index is None:
            self._verified.add(split)
        else:
            self._verified_buckets[index] = True


def _checked_split(split: str) -> str:
    if split not in SPLITS:
        raise ConfigError(f"split is {split!r}; allowed: {', '.join(SPLITS)}")
    return split
