"""Ranks as files (floor 4): edges, their counts and a way to names in; CSV or Parquet out, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from marius_py.errors import ConfigError
from marius_py.evaluation.ranking.ranker import Counts
from marius_py.given import as_path, check_flags
from marius_py.storage.replacing import Replacing
from marius_py.storage.targets import check_target
from marius_py.types import SIDES

Names = Callable[[NDArray[np.int64]], Sequence[str]]
"""Ids (n,) → their n names."""

ENDINGS = (".csv", ".parquet")

_BLOCK_EDGES = 1 << 17
"""Edges whose names are in memory at once: some tens of MiB, and few passes over the table of names."""


def check_ranks_file(path: Path | str, *, overwrite: bool = False) -> Path:
    """Refuse a file that ranks cannot be written to.

    Raises:
        ConfigError: another ending than .csv or .parquet, no such folder, or it exists. StorageError: the
        folder cannot be written to.
    """
    check_flags(overwrite=overwrite)
    target = as_path(path, "ranks", "the file to write")
    if target.suffix.casefold() not in ENDINGS:
        raise ConfigError(
            f"ranks={target}: ranks are written as {' or '.join(ENDINGS)}, by the file's ending"
        )
    check_target(path, f"ranks={path}")
    if target.exists() and not overwrite:
        raise ConfigError(f"{target} exists; choose another name, or overwrite it")
    return target


def write_ranks(
    path: Path | str,
    edges: NDArray[np.integer],
    counts: Counts,
    *,
    sampled: bool,
    node_names: Names | None = None,
    relation_names: Names | None = None,
    overwrite: bool = False,
) -> None:
    """Write a row for each rank of E edges, that of an edge's head and that of its tail.

    Columns: head, relation, tail (names, or ids without a way to names), side, rank (realistic),
    optimistic_rank, pessimistic_rank, candidates (after filtering, the true one included), sampled.

    Args:
        path: file to write; it appears whole or not at all.
        edges: (E, 3) ids.
        counts: of the E edges.
        sampled: whether edges or candidates are a sample, which each row says.
        node_names, relation_names: give names; asked for a block of edges at a time.
        overwrite: replace the file if it exists.

    Raises:
        ConfigError, StorageError: see `check_ranks_file`. StorageError: writing failed.
    """
    target = check_ranks_file(path, overwrite=overwrite)
    kinds = [pa.int64() if names is None else pa.string() for names in (node_names, relation_names)]
    schema = pa.schema(
        [
            ("head", kinds[0]),
            ("relation", kinds[1]),
            ("tail", kinds[0]),
            ("side", pa.string()),
            ("rank", pa.float64()),
            ("optimistic_rank", pa.int64()),
            ("pessimistic_rank", pa.int64()),
            ("candidates", pa.int64()),
            ("sampled", pa.bool_()),
        ]
    )
    with (
        Replacing([target]) as temporary,
        _writer(temporary[target], target.suffix.casefold(), schema) as writer,
    ):
        for start in range(0, len(edges), _BLOCK_EDGES):
            part = slice(start, start + _BLOCK_EDGES)
            columns = _columns(edges[part], counts.of(part), node_names, relation_names)
            columns["sampled"] = np.full(len(columns["rank"]), sampled)
            writer.write_table(pa.table(columns, schema=schema))


@contextmanager
def _writer(path: Path, ending: str, schema: Any) -> Iterator[Any]:
    with path.open("wb") as file:  # Arrow takes no path that is not UTF-8
        if ending == ".parquet":
            with pq.ParquetWriter(file, schema) as writer:
                yield writer
        else:
            options = pa.csv.WriteOptions(quoting_style="needed")
            with pa.csv.CSVWriter(file, schema, write_options=options) as writer:
                yield writer


def _columns(
    edges: NDArray[np.integer],
    counts: Counts,
    node_names: Names | None,
    relation_names: Names | None,
) -> dict[str, Any]:
    """Columns of a block of edges, a row for each side that was ranked."""
    ranked = counts.ranked
    edge, side = np.nonzero(ranked)
    columns: dict[str, Any] = {}
    for place, role, names in (
        (0, "head", node_names),
        (1, "relation", relation_names),
        (2, "tail", node_names),
    ):
        ids = edges[edge, place].astype(np.int64)
        columns[role] = pa.array(ids) if names is None else _named(ids, names)
    columns["side"] = pa.array(SIDES).take(pa.array(side))
    columns["rank"] = counts.ranks[ranked]
    columns["optimistic_rank"] = (counts.better + 1)[ranked]
    columns["pessimistic_rank"] = (counts.better + counts.equal)[ranked]
    columns["candidates"] = counts.candidates[ranked]
    return columns


def _named(ids: NDArray[np.int64], names: Names) -> Any:
    """The names of ids (n,) as an Arrow array; every distinct one is asked for once."""
    distinct, place = np.unique(ids, return_inverse=True)
    found = pa.array(names(distinct), pa.string())
    return found.take(pa.array(place.reshape(-1)))
