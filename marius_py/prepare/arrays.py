"""Preparing a graph whose nodes and relations are numbers already (floor 4).

In: (E, 3) or (E, 2) integer arrays, or iterables of such blocks, whose ids are dense. Out: an opened `Graph`.
No dictionary is built: beyond a block, memory is about 30 bytes a node. Names, where given, stay in RAM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from marius_py.errors import ConfigError, FormatError
from marius_py.given import as_path, check_flags
from marius_py.graph import Graph, open_graph
from marius_py.prepare.api import (
    DEFAULT_SPLIT,
    check_directions,
    check_given_splits,
    checked_arguments,
    choose_splits,
    partitioning_for,
)
from marius_py.prepare.assemble import UNNAMED_RELATION, NumberedGraph, assemble
from marius_py.prepare.blocks import WEIGHTS, bad_weight, has_nul, name_fault
from marius_py.prepare.dictionary import EdgeSpill
from marius_py.prepare.folder import building, check_output
from marius_py.prepare.progress import ProgressHook, silent
from marius_py.prepare.splitting import check_shares
from marius_py.storage.edge_writer import BLOCK_ROWS, edge_dtype
from marius_py.storage.protocols import Float32
from marius_py.storage.weighted import weighted_rows
from marius_py.types import SPLITS
from marius_py.whole import is_whole


class WeightedEdges(NamedTuple):
    """Edges (n, 3) or (n, 2) of any integer type, and their weights (n,), numbers from 0."""

    edges: NDArray[np.integer]
    weights: NDArray[Any]


EdgeBlocks = NDArray[np.integer] | WeightedEdges | Iterable[NDArray[np.integer] | WeightedEdges]
"""One array of edges, one with weights, or blocks of them that are read once."""

_SPARSE = 100
_MOST = (1 << 40, 1 << 31)
"""Nodes and relations that a graph may have."""


def most_numbers(num_edges: int) -> int:
    """Numbers of nodes or relations that so many edges may need unless told that there are more."""
    return _SPARSE * num_edges + 1_000_000


def prepare_arrays(
    train: EdgeBlocks,
    output: Path | str,
    *,
    valid: EdgeBlocks | None = None,
    test: EdgeBlocks | None = None,
    num_nodes: int | None = None,
    num_relations: int | None = None,
    node_names: Sequence[str] | None = None,
    relation_names: Sequence[str] | None = None,
    weights: NDArray[Any] | None = None,
    weighted: bool = False,
    partitions: int | None = None,
    seed: int = 0,
    split: Sequence[float] | None = None,
    undirected: bool = False,
    mirror: bool = False,
    overwrite: bool = False,
    progress: ProgressHook | None = None,
) -> Graph:
    """Turn arrays of numbered edges into a prepared graph, out of core.

    Ids in the graph are random, so a node's id is not its number here; its name is the given one, or its
    number as text.

    Args:
        train: (E, 3) rows (head, relation, tail) or (E, 2) rows (head, tail) of any integer type, or
            `WeightedEdges`; or an iterable of such blocks, read once, so a generator can make graphs larger
            than RAM.
        output: folder to create.
        valid: edges of the validation split.
        test: edges of the test split. With neither, `train` is split at random by `split`, copies together.
        num_nodes: N, all numbers lie in [0, N); None: the largest number plus one.
        num_relations: R likewise.
        node_names: N distinct, non-empty names by number; None: the numbers.
        relation_names: R likewise.
        weights: (E,) weights of the edges `train`, where that is one array; see `prepare`.
        weighted: the blocks of `train` are `WeightedEdges`.
        partitions, seed, split, undirected, mirror, overwrite, progress: as for `prepare`.

    Returns:
        The graph, opened.

    Raises:
        ConfigError: an argument is wrong or `output` is in use. FormatError: an array holds no edges
        or a number out of range. StorageError: reading or writing failed. Nothing is then left at `output`.
    """
    report = progress or silent
    partitions, seed = checked_arguments(partitions, seed)
    shares = DEFAULT_SPLIT if split is None else split
    check_shares(shares)
    output = as_path(output, "output", "the folder to create")
    check_output(output, overwrite)
    output = output.absolute()  # the current folder may be another one at the end
    check_directions(undirected, mirror)
    check_given_splits(split, undirected, valid, test)
    check_flags(weighted=weighted)
    if weights is not None:
        train = _with_weights(train, weights)
    weighted = weighted or isinstance(train, WeightedEdges)
    names = _names(node_names, "node_names"), _names(relation_names, "relation_names")
    limits = (
        _limit(num_nodes, names[0], "num_nodes", _MOST[0]),
        _limit(num_relations, names[1], "num_relations", _MOST[1]),
    )
    dtype = np.dtype(np.int64) if limits[0] is None else edge_dtype(limits[0])
    with building(output, overwrite) as folder:
        spill = EdgeSpill(folder / "rows.tmp", dtype, weighted=weighted, mirror=mirror)
        try:
            reader = _Reader(spill, limits, report)
            counts = tuple(
                reader.read(name, blocks) for name, blocks in zip(SPLITS, (train, valid, test), strict=True)
            )
            random = shares if valid is None and test is None else None
            graph = NumberedGraph(
                spill=spill,
                splits=choose_splits(
                    spill, counts, random, seed, "the graph", report, undirected=undirected or mirror
                ),
                num_nodes=reader.num_nodes(),
                num_relations=reader.num_relations(),
                has_relations=reader.width == 3,
                node_names=names[0],
                relation_names=names[1] if reader.width == 3 else UNNAMED_RELATION,
            )
            assemble(folder, graph, partitioning_for(graph.num_nodes, partitions), seed, report)
        finally:
            spill.close()
    return open_graph(output)


class _Reader:
    """Copies blocks into the spill and checks them on the way."""

    def __init__(
        self, spill: EdgeSpill, limits: tuple[int | None, int | None], progress: ProgressHook
    ) -> None:
        self._spill = spill
        self._limits = limits
        self._progress = progress
        self._largest = [-1, -1]
        self.width: int | None = None

    def read(self, split: str, blocks: EdgeBlocks | None) -> int:
        """Append a split to the spill; returns how many rows it has brought."""
        count, before = 0, len(self._spill)
        for block, weights in _blocks(blocks):
            self._check(split, block, count)
            rows = block = np.asarray(block)  # columns of a matrix are matrices
            if block.shape[1] == 2:
                rows = np.zeros((len(block), 3), dtype=self._spill.dtype)
                rows[:, 0], rows[:, 2] = block[:, 0], block[:, 1]
            if self._spill.weighted:
                needed = self._weights(split, weights, len(block), count)
                rows = weighted_rows(rows.astype(self._spill.dtype), needed)
            elif weights is not None and split == "train":
                raise ConfigError(
                    "the blocks of train have weights, and weighted is False: pass weighted=True"
                )
            self._spill.append(rows)
            count += len(block)
            self._progress(f"read {split}", count, None, "edges")
        if count == 0 and blocks is not None:
            raise FormatError(f"{split} has no edges")
        return len(self._spill) - before

    def num_nodes(self) -> int:
        """N: as given, or the largest number plus one unless that is absurd."""
        if self._limits[0] is not None:
            return self._limits[0]
        return self._dense(0, "node")

    def num_relations(self) -> int:
        """R: as given, or the largest number plus one unless that is absurd; 1 without relations."""
        if self.width == 2:
            return 1
        return self._dense(1, "relation") if self._limits[1] is None else self._limits[1]

    def _dense(self, index: int, what: str) -> int:
        count = self._largest[index] + 1
        if count > most_numbers(len(self._spill)):
            raise ConfigError(
                f"the largest {what} number is {count - 1:,} in a graph of {len(self._spill):,} edges; "
                f"numbers must be dense: pass num_{what}s= if that is meant, or save the array as .npy and "
                "use prepare(), which takes the numbers as names"
            )
        return count

    @staticmethod
    def _weights(split: str, weights: Any, size: int, before: int) -> Float32:
        """Weights (size,) of a block, 0 in splits that need none."""
        if split != "train":
            return np.zeros(size, dtype=np.float32)
        found = _unmasked(weights)
        if found.shape != (size,) or found.dtype.kind not in "biuf":
            what = (
                "no weights" if weights is None else f"weights of shape {found.shape} and type {found.dtype}"
            )
            raise FormatError(f"{split} has a block of {size} edges with {what}; every edge needs a number")
        values = found.astype(np.float64)
        place = bad_weight(values)
        if place >= 0:
            raise FormatError(f"{split}, row {before + place}: the weight is {found[place]}; {WEIGHTS}")
        return values.astype(np.float32)

    def _check(self, split: str, block: Any, before: int) -> None:
        if not isinstance(block, np.ndarray):
            raise FormatError(
                f"{split} has a block that is a {type(block).__name__}; edges need a NumPy array (E, 3) or "
                "(E, 2), or several: numpy.asarray makes one, and marius_py.graph_from takes lists and frames"
            )
        if block.ndim != 2 or block.shape[1] not in (2, 3):
            raise FormatError(
                f"{split} has a block of shape {block.shape}; edges need an array (E, 3) or (E, 2)"
            )
        if block.dtype.kind not in "iu":
            raise FormatError(f"{split} has a block of type {block.dtype}; edges need an integer type")
        if np.ma.is_masked(block):
            row = int(np.ma.getmaskarray(block).any(axis=1).argmax())
            raise FormatError(f"{split}, row {before + row}: a mask hides a number; every edge needs all")
        if self.width not in (None, block.shape[1]):
            raise FormatError(
                f"{split} has {block.shape[1]} columns where others have {self.width}; all must agree"
            )
        self.width = block.shape[1]
        columns = (
            (("node", (0, -1), 0), ("relation", (1,), 1)) if self.width == 3 else (("node", (0, -1), 0),)
        )
        for what, positions, index in columns:
            limit = self._limits[index]
            for position in positions:
                column = block[:, position]
                low, high = int(column.min()), int(column.max())
                top = _MOST[index] if limit is None else limit
                if low < 0 or high >= top:
                    row = int(np.flatnonzero((column < 0) | (column >= top))[0])
                    raise FormatError(
                        f"{split}, row {before + row}: {what} number {int(column[row])}; "
                        f"allowed: 0 to {top - 1}"
                    )
                self._largest[index] = max(self._largest[index], high)


def _with_weights(train: EdgeBlocks, weights: Any) -> WeightedEdges:
    if not isinstance(train, np.ndarray):
        raise ConfigError(
            "weights= belongs to one array of edges; blocks are WeightedEdges with weighted=True instead"
        )
    return WeightedEdges(train, _unmasked(weights))


def _unmasked(weights: Any) -> NDArray[Any]:
    """Weights as an array; those that a mask hides are missing, and so no numbers."""
    hidden = isinstance(weights, np.ma.MaskedArray) and weights.dtype.kind in "iuf"
    return np.asarray(weights.astype(np.float64).filled(np.nan) if hidden else weights)


def _blocks(blocks: EdgeBlocks | None) -> Iterator[tuple[Any, Any]]:
    """Blocks of edges, and their weights or None."""
    if blocks is None:
        return
    several: Iterable[Any] = [blocks]
    if isinstance(blocks, Iterable) and not isinstance(blocks, (np.ndarray, WeightedEdges)):
        several = blocks
    for one in several:
        block, weights = one if isinstance(one, WeightedEdges) else (one, None)
        fits = isinstance(block, np.ndarray) and block.ndim == 2
        if not fits or (weights is not None and np.shape(weights)[:1] != (len(block),)):
            yield block, weights  # to be refused
            continue
        for start in range(0, len(block), BLOCK_ROWS):
            span = slice(start, start + BLOCK_ROWS)
            yield block[span], None if weights is None else weights[span]


def listed_names(names: Iterable[str], key: str) -> list[str]:
    """Names by number; ConfigError for one text, and for a set or a mapping, where no place is a number."""
    if isinstance(names, (str, bytes, set, frozenset, Mapping)):
        raise ConfigError(
            f"{key} is of type {type(names).__name__}; allowed: a list of names, in the order of their "
            "numbers"
        )
    return list(names)


def _names(names: Sequence[str] | None, key: str) -> Any | None:
    if names is None:
        return None
    try:
        array = pa.array(listed_names(names, key), pa.large_string())
    except UnicodeEncodeError as error:
        raise ConfigError(f"{key} holds {error.object!r}, which {name_fault(error.object)}") from error
    except (pa.ArrowException, TypeError) as error:
        raise ConfigError(f"{key} must be a sequence of text: {error}") from error
    if array.null_count or pc.any(pc.equal(pc.binary_length(array), 0)).as_py():
        raise ConfigError(f"{key} holds an empty name or None; every name needs text")
    place = pc.index(has_nul(array), True).as_py()
    if place >= 0:
        name = array[place].as_py()
        raise ConfigError(f"{key} holds {name!r}, which {name_fault(name)}")
    if len(array.unique()) != len(array):
        counts = array.value_counts()
        repeated = counts.field("values")[pc.index(pc.greater(counts.field("counts"), 1), True).as_py()]
        raise ConfigError(f"{key} holds {repeated.as_py()!r} more than once; names must be distinct")
    return array


def _limit(count: int | None, names: Any | None, key: str, most: int) -> int | None:
    if count is None:
        return None if names is None else len(names)
    if not is_whole(count, 1, most):
        raise ConfigError(f"{key} is {count!r}; allowed: a whole number from 1 to {most}")
    if names is not None and len(names) != count:
        raise ConfigError(f"{key} is {count}, but {len(names)} names were given")
    return int(count)
