"""Edge buckets of PyTorch-BigGraph (floor 5): folders of edges_I_J.h5 in; blocks of numbered edges out.

Where the files have weights of edges, all of them have, and blocks bring them along, times the relations'.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marius_py.errors import FormatError, MissingPathError
from marius_py.importing.files import check_folder, data_set, open_hdf5
from marius_py.importing.pbg_entities import Entities
from marius_py.importing.pbg_schema import Schema
from marius_py.prepare import WeightedEdges
from marius_py.prepare.blocks import WEIGHTS, bad_weight

_EDGE_FILE = re.compile(r"edges_(\d+)_(\d+)\.h5")
_BLOCK_EDGES = 1 << 20
_LISTED = 4
"""Buckets without a file that a message names."""

logger = logging.getLogger(__name__)

Paths = Path | str | Sequence[Path | str]


def _folders(paths: Paths, key: str) -> list[Path]:
    given: Iterable[Any] = [paths]
    if isinstance(paths, Iterable) and not isinstance(paths, (str, bytes)):
        given = paths
    return [check_folder(path, key, "edges_I_J.h5") for path in given]


def have_weights(paths: Paths, key: str) -> bool:
    """Whether the edges of these folders have weights; `key` names them.

    Raises:
        FormatError: those of some files do.
    """
    found: dict[bool, Path] = {}
    for _, _, path in _bucket_files(paths, key):
        with open_hdf5(path, "a bucket of edges") as file:
            found.setdefault("weight" in file, path)
    if len(found) > 1:
        raise FormatError(
            f"{key}: the edges of {found[True]} have weights, and those of {found[False]} have none"
        )
    return True in found


def edge_blocks(
    schema: Schema,
    counts: Entities,
    relations: list[str] | None,
    paths: Paths,
    key: str,
    *,
    weighted: bool = False,
) -> Iterator[NDArray[np.int64] | WeightedEdges]:
    """Edges (n, 3) as numbers, or (n, 2) without relations, in blocks; files are listed at once.

    `paths` is a folder of edges_I_J.h5, or several, `key` the setting that names them. If `weighted`, all
    files have weights, which come along. So do those of the relations where they differ.
    """
    files = _bucket_files(paths, key)
    for folder in _folders(paths, key):
        present = {(i, j) for i, j, path in files if path.parent == folder}
        _warn_of_absent(schema, present, f"{key}={folder}")
    return _read_edges(schema, counts, relations, files, weighted=weighted)


def _bucket_files(paths: Paths, key: str) -> list[tuple[int, int, Path]]:
    """Numbers and path of every bucket."""
    files = []
    for folder in _folders(paths, key):
        found = [(entry, match) for entry in folder.iterdir() if (match := _EDGE_FILE.fullmatch(entry.name))]
        if not found:
            raise MissingPathError(f"{key}={folder} holds no edges_I_J.h5")
        files += sorted((int(match[1]), int(match[2]), entry) for entry, match in found)
    return files


def _warn_of_absent(schema: Schema, found: set[tuple[int, int]], where: str) -> None:
    """Warn of buckets without a file: one that got lost cannot be told from an empty one."""
    rows, columns = (
        range(max(schema.entities[getattr(one, side)] for one in schema.relations)) for side in ("lhs", "rhs")
    )
    present = sum(i in rows and j in columns for i, j in found)
    absent = len(rows) * len(columns) - present
    if absent:
        names = list(islice((f"{i}_{j}" for i in rows for j in columns if (i, j) not in found), _LISTED))
        more = ", …" if absent > _LISTED else ""
        logger.warning(
            "%s: %d of %d buckets have a file; none for %s%s: taken for empty",
            where, present, present + absent, ", ".join(names), more,
        )  # fmt: skip


def _read_edges(
    schema: Schema,
    counts: Entities,
    relations: list[str] | None,
    files: list[tuple[int, int, Path]],
    *,
    weighted: bool,
) -> Iterator[NDArray[np.int64] | WeightedEdges]:
    factors = schema.factors
    for lhs_part, rhs_part, path in files:
        sides = [
            _Side(schema, counts, side, part, path) for side, part in (("lhs", lhs_part), ("rhs", rhs_part))
        ]
        with open_hdf5(path, "a bucket of edges") as file:
            if "lhsd_data" in file or "rhsd_data" in file:
                raise FormatError(f"{path} holds featurized entities, which have no equal here")
            rel = data_set(file, "rel", (None,), "iu")
            ends = [data_set(file, name, rel.shape, "iu") for name in ("lhs", "rhs")]
            weight = data_set(file, "weight", rel.shape, "fiu") if weighted else None
            for start in range(0, len(rel), _BLOCK_EDGES):
                span = slice(start, start + _BLOCK_EDGES)
                kind = rel[span].astype(np.int64)
                known = len(schema.relations) if relations is None else len(relations)
                _check_range(kind, known, "relation", path, start)
                types = np.zeros_like(kind) if schema.dynamic else kind
                head, tail = (
                    side.numbers(end[span].astype(np.int64), types, start)
                    for side, end in zip(sides, ends, strict=True)
                )
                columns = (head, tail) if relations is None else (head, kind, tail)
                edges = np.stack(columns, axis=1)
                found = None if weight is None else _weights(weight[span], path, start)
                if factors is not None:
                    found = np.array(factors)[kind] * (1.0 if found is None else found)
                yield edges if found is None else WeightedEdges(edges, found)


class _Side:
    """Numbers of the nodes on one side of a bucket."""

    def __init__(self, schema: Schema, counts: Entities, side: str, part: int, path: Path) -> None:
        self._path = path
        self._name = side
        starts, sizes = [], []
        for relation in schema.relations:
            entity = getattr(relation, side)
            # An entity type in one partition meets the others in buckets of any number.
            own = 0 if schema.entities[entity] == 1 else part
            if own >= schema.entities[entity]:
                raise FormatError(
                    f"{path} is of partition {part} on side {side}; {entity} has {schema.entities[entity]}"
                )
            starts.append(counts.starts[entity][own])
            sizes.append(counts.counts[entity][own])
        self._starts, self._sizes = np.array(starts), np.array(sizes)

    def numbers(self, offsets: NDArray[np.int64], types: NDArray[np.int64], first: int) -> NDArray[np.int64]:
        """Numbers (n,) of places in the partition."""
        wrong = np.flatnonzero((offsets < 0) | (offsets >= self._sizes[types]))
        if wrong.size:
            row = int(wrong[0])
            raise FormatError(
                f"{self._path}, edge {first + row}: {self._name} is {offsets[row]}; the partition has "
                f"{self._sizes[types[row]]} entities"
            )
        found: NDArray[np.int64] = self._starts[types] + offsets
        return found


def _weights(values: NDArray[Any], path: Path, first: int) -> NDArray[Any]:
    place = bad_weight(values.astype(np.float64))
    if place >= 0:
        raise FormatError(f"{path}, edge {first + place}: the weight is {values[place]}; {WEIGHTS}")
    return values


def _check_range(values: NDArray[np.int64], count: int, what: str, path: Path, first: int) -> None:
    wrong = np.flatnonzero((values < 0) | (values >= count))
    if wrong.size:
        row = int(wrong[0])
        raise FormatError(f"{path}, edge {first + row}: {what} {values[row]}; allowed: 0 to {count - 1}")
