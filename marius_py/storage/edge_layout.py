"""Where everything lies in an `edges.h5` (floor 1).

In: the path of a file that `storage.edge_writer` wrote. Out: offsets, counts and checksums. The file holds
contiguous data sets `train`, `valid`, `test` (E, 3), int32 below 2³¹ nodes and int64 from there, `train`
(E, 4) where edges have weights (see `storage.weighted`);
`train_offsets` (p² + 1,) int64, the first row of each bucket in row-major order of (head partition, tail
partition); `degrees` (N,) int64, total train degree by node id; `*_xxh3` uint64 checksums.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from marius_py.errors import FormatError, StorageError
from marius_py.partitioning import Partitioning
from marius_py.storage import files
from marius_py.storage.file_io import os_errors_as_storage
from marius_py.types import SPLITS

EDGE_FILE_VERSION, WEIGHTED_VERSION = 1, 2
"""Of files without weights and with weights, which earlier programs do not read."""


@dataclass(frozen=True, slots=True)
class EdgeLayout:
    """Where everything lies in an `edges.h5`.

    Attributes:
        partitioning: the ranges by which train edges are sorted.
        weighted: whether train edges have weights.
        dtype: int32 or int64.
        fingerprint: fingerprint of the graph that the edges belong to.
        counts: number of edges of each split.
        data_offsets: byte offset of each split's first row (0 for an empty split).
        bucket_starts: (p² + 1,) first train row of each bucket, then the number of train edges.
        bucket_xxh3: (p²,) checksums of the buckets.
        split_xxh3: checksums of the splits other than train.
        degrees_offset: byte offset of the degrees (0 for a graph without nodes).
        degrees_xxh3: checksum of the degrees; None in a file written before they had one.
    """

    partitioning: Partitioning
    weighted: bool
    dtype: np.dtype[Any]
    fingerprint: str
    counts: dict[str, int]
    data_offsets: dict[str, int]
    bucket_starts: NDArray[np.int64]
    bucket_xxh3: NDArray[np.uint64]
    split_xxh3: dict[str, int]
    degrees_offset: int
    degrees_xxh3: int | None

    def width(self, split: str) -> int:
        """Numbers of a row."""
        return row_width(split, weighted=self.weighted)


def row_width(split: str, *, weighted: bool) -> int:
    """Numbers of a row: head, relation, tail, and for a train edge of a graph that has them the weight."""
    return 4 if weighted and split == "train" else 3


def read_layout(path: Path) -> EdgeLayout:
    """Find the data sets of an `edges.h5`.

    Raises:
        StorageError: the file is missing, may not be read or cannot be opened as HDF5.
        FormatError: it is HDF5, but not a whole edge file of this version.
    """
    with os_errors_as_storage("open", path):
        if not path.is_file():
            raise StorageError(f"{path} is missing; prepare the graph again")
    os.close(files.open_file(path, os.O_RDONLY))  # what the system refuses is not damaged
    try:
        with h5py.File(path, "r", locking=False) as file:
            return _layout_of(file, path)
    except (FormatError, StorageError):
        raise
    except (OSError, KeyError, ValueError, RuntimeError, TypeError) as error:
        if (refusal := files.refused_by_hdf5(path, error)) is not None:
            raise refusal from error
        if isinstance(error, OSError):
            raise StorageError(f"{path} cannot be opened as HDF5; it is damaged ({error})") from error
        raise FormatError(
            f"{path} is no edge file of a prepared graph, or it is damaged ({error})"
        ) from error


def _layout_of(file: h5py.File, path: Path) -> EdgeLayout:
    version = int(file.attrs["format_version"])
    if version not in (EDGE_FILE_VERSION, WEIGHTED_VERSION):
        raise FormatError(
            f"{path} has format version {version}; this program reads versions {EDGE_FILE_VERSION} and "
            f"{WEIGHTED_VERSION}: prepare the graph again with this version"
        )
    weighted = version == WEIGHTED_VERSION
    partitioning = Partitioning(int(file.attrs["num_nodes"]), int(file.attrs["num_partitions"]))
    counts, offsets, size = {}, {}, path.stat().st_size
    dtype = file["train"].dtype
    if dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
        raise FormatError(f"{path}: edges have type {dtype}; allowed: int32, int64")
    for split in SPLITS:
        data = file[split]
        width = row_width(split, weighted=weighted)
        if data.ndim != 2 or data.shape[1] != width or data.dtype != dtype:
            raise FormatError(
                f"{path}: {split} has shape {data.shape} and type {data.dtype}; not (E, {width}) {dtype}"
            )
        counts[split] = int(data.shape[0])
        offsets[split] = _data_offset(data, path, size)
    starts = file["train_offsets"][...]
    xxh3 = file["train_xxh3"][...]
    buckets = partitioning.num_partitions**2
    whole = starts.shape == (buckets + 1,) and xxh3.shape == (buckets,)
    if not whole or starts[0] != 0 or starts[-1] != counts["train"] or (np.diff(starts) < 0).any():
        raise FormatError(f"{path}: the bucket offsets do not fit the {counts['train']} train edges")
    if file["degrees"].shape != (partitioning.num_nodes,):
        raise FormatError(
            f"{path}: degrees of {file['degrees'].shape} rows for {partitioning.num_nodes} nodes"
        )
    return EdgeLayout(
        partitioning=partitioning,
        weighted=weighted,
        dtype=dtype,
        fingerprint=str(file.attrs["fingerprint"]),
        counts=counts,
        data_offsets=offsets,
        bucket_starts=starts,
        bucket_xxh3=xxh3,
        split_xxh3={split: int(file.attrs[f"{split}_xxh3"]) for split in SPLITS[1:]},
        degrees_offset=_data_offset(file["degrees"], path, size),
        degrees_xxh3=int(file.attrs["degrees_xxh3"]) if "degrees_xxh3" in file.attrs else None,
    )


def _data_offset(data: h5py.Dataset, path: Path, file_size: int) -> int:
    if data.size == 0:
        return 0
    offset = data.id.get_offset()
    if offset is None or offset + data.nbytes > file_size:
        raise StorageError(
            f"{path} is damaged: {data.name} should end at byte "
            f"{(offset or 0) + data.nbytes}, the file has {file_size}"
        )
    return int(offset)


def bucket_groups(starts: NDArray[np.int64], rows: int) -> Iterator[tuple[int, int]]:
    """Ranges first:last of all buckets, ascending: as many as hold `rows` rows together, or one with more.

    Args:
        starts: (p² + 1,) first row of each bucket, then the number of rows.
        rows: at most so many in a range of several buckets; 1 or more.

    >>> list(bucket_groups(np.array([0, 2, 2, 5, 15, 16]), 5))
    [(0, 3), (3, 4), (4, 5)]
    """
    first = 0
    while first < len(starts) - 1:
        fitting = int(np.searchsorted(starts, starts[first] + rows, side="right")) - 1
        yield first, max(fitting, first + 1)
        first = max(fitting, first + 1)
