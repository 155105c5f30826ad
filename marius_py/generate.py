"""Made-up graphs (floor 4): a planted knowledge graph that a model can learn, and R-MAT graphs of any size.

In: sizes and a seed. Out: blocks or arrays of (E, 3) numbers, or a prepared graph. Block i follows from the
seed and i alone, so a graph is the same however it is consumed, and memory is one block.

The planted graph: nodes fall into groups that lie on a circle; relation r maps group g to group
g + shift_r, some relations to a group and back (shift 0 or half the circle); a node's place in its group
decides how often it is drawn (power law); a few edges are noise. A rotation in the complex plane is such a
shift, so ComplEx and RotatE can represent all relations, DistMult the symmetric ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from marius_py.errors import ConfigError
from marius_py.graph import Graph
from marius_py.prepare import ProgressHook, prepare_arrays
from marius_py.storage.edge_writer import edge_dtype
from marius_py.streams import Purpose, stream
from marius_py.types import MAX_SEED
from marius_py.whole import MAX_INT64, is_whole

BLOCK_ROWS = 1 << 20
GROUP_SIZE = 10
NOISE = 0.05
RMAT_SHARES = (0.57, 0.19, 0.19, 0.05)

_PLANTED, _RELATIONS, _RMAT = 0, 1, 2


def planted_edges(
    num_nodes: int = 10_000,
    num_relations: int = 20,
    num_edges: int = 200_000,
    *,
    seed: int = 0,
    noise: float = NOISE,
) -> NDArray[np.integer]:
    """Draw the planted graph with exactly `num_edges` distinct edges, in memory.

    Args:
        num_nodes, num_relations, num_edges: N, R and E.
        seed: of everything.
        noise: share of the edges whose tail is of any group, 0 to 1.

    Returns:
        (E, 3) int32 rows of head, relation, tail, in random order.

    Raises:
        ConfigError: a size out of range, or more edges than the graph has room for.
    """
    num_nodes, num_relations, num_edges = _checked_sizes(num_nodes, num_relations, num_edges)
    planted = _Planted(num_nodes, num_relations, seed, noise)
    # every relation leads from a node to about one group; beyond half of all pairs, distinct edges get rare
    room = num_nodes * num_relations * min(GROUP_SIZE, num_nodes // 2) // 2
    if num_edges > room:
        raise ConfigError(
            f"num_edges is {num_edges}; a planted graph of {num_nodes} nodes and {num_relations} "
            f"relations has room for {room} distinct ones"
        )
    edges, index = planted.block(0, num_edges), 1
    while True:
        edges = edges[_first_of_each(edges)]
        if len(edges) >= num_edges:
            return edges[:num_edges].copy()
        edges = np.concatenate([edges, planted.block(index, num_edges)])
        index += 1


def planted_graph(
    output: Path | str,
    *,
    num_nodes: int = 10_000,
    num_relations: int = 20,
    num_edges: int = 200_000,
    seed: int = 0,
    partitions: int | None = None,
    overwrite: bool = False,
    progress: ProgressHook | None = None,
) -> Graph:
    """Prepare the planted graph: distinct edges, split 90/5/5, names node_0 … and relation_0 ….

    Sizes and seed are those of `planted_edges`, the other arguments those of `prepare_arrays`.

    Raises:
        ConfigError: a size out of range, or `output` is in use. StorageError: it cannot be written.
    """
    edges = planted_edges(num_nodes, num_relations, num_edges, seed=seed)
    return prepare_arrays(
        edges,
        output,
        num_nodes=num_nodes,
        num_relations=num_relations,
        node_names=[f"node_{i}" for i in range(num_nodes)],
        relation_names=[f"relation_{i}" for i in range(num_relations)],
        partitions=partitions,
        seed=seed,
        overwrite=overwrite,
        progress=progress,
    )


def rmat_edges(
    num_nodes: int,
    num_edges: int,
    num_relations: int = 1,
    *,
    seed: int = 0,
    shares: tuple[float, float, float, float] = RMAT_SHARES,
    block_rows: int = BLOCK_ROWS,
) -> Iterator[NDArray[np.integer]]:
    """Draw edges of an R-MAT graph: skewed degrees like those of web and social graphs, edges may repeat.

    Each edge picks a quadrant of the adjacency matrix, then a quadrant of that, down to one cell
    (Chakrabarti, Zhan, Faloutsos, 2004). Relations are drawn with weight 1 / (r + 1).

    Args:
        num_nodes: N; other sizes than powers of two fold the next power of two evenly onto N.
        num_edges: E.
        num_relations: R.
        seed: of everything.
        shares: chances of the quadrants (head low, tail low), (low, high), (high, low), (high, high).
        block_rows: edges of a block.

    Yields:
        (n, 3) int32 (int64 from 2³¹ nodes) rows of head, relation, tail.

    Raises:
        ConfigError: a size out of range, or shares that are no chances.
    """
    num_nodes, num_relations, num_edges = _checked_sizes(num_nodes, num_relations, num_edges)
    _check_seed(seed)
    if not is_whole(block_rows, 1):
        raise ConfigError(f"block_rows is {block_rows!r}; allowed: a whole number from 1")
    chances = list(shares) if isinstance(shares, (Sequence, np.ndarray)) else []
    is_fit = len(chances) == 4 and all(_is_number(one) and one >= 0 for one in chances)
    if not is_fit or abs(sum(chances) - 1) > 1e-6:
        raise ConfigError(f"shares is {shares!r}; give four chances that add up to 1")
    levels = (num_nodes - 1).bit_length()
    weights = np.cumsum(1 / np.arange(1, num_relations + 1))
    for index, start in enumerate(range(0, num_edges, block_rows)):
        rng = stream(seed, Purpose.GENERATE, _RMAT, index)
        count = min(block_rows, num_edges - start)
        edges = np.empty((count, 3), dtype=edge_dtype(num_nodes))
        edges[:, 0], edges[:, 2] = (
            _folded(ids, levels, num_nodes) for ids in _rmat_cells(rng, count, levels, shares)
        )
        edges[:, 1] = np.searchsorted(weights, rng.random(count) * weights[-1], side="right")
        yield edges


class _Planted:
    """The planted graph's fixed facts, and its blocks by number."""

    def __init__(self, num_nodes: int, num_relations: int, seed: int, noise: float) -> None:
        _check_seed(seed)
        if not (_is_number(noise) and 0 <= noise <= 1):
            raise ConfigError(f"noise is {noise!r}; allowed: a number from 0 to 1")
        self._num_nodes, self._seed, self._noise = num_nodes, seed, noise
        self._groups = max(num_nodes // GROUP_SIZE, 2)
        rng = stream(seed, Purpose.GENERATE, _RELATIONS)
        self._shifts = rng.integers(1, self._groups, num_relations)
        # every fourth relation is symmetric: within a group, or between opposite groups
        self._shifts[::8] = 0
        self._shifts[4::8] = self._groups // 2

    def block(self, index: int, count: int) -> NDArray[np.integer]:
        """Block number `index` of `count` edges: (count, 3)."""
        rng = stream(self._seed, Purpose.GENERATE, _PLANTED, index)
        edges = np.empty((count, 3), dtype=edge_dtype(self._num_nodes))
        edges[:, 1] = rng.integers(0, len(self._shifts), count)
        head_group = rng.integers(0, self._groups, count)
        tail_group = (head_group + self._shifts[edges[:, 1]]) % self._groups
        anywhere = rng.random(count) < self._noise
        tail_group[anywhere] = rng.integers(0, self._groups, int(anywhere.sum()))
        edges[:, 0] = self._member(rng, head_group)
        edges[:, 2] = self._member(rng, tail_group)
        return edges

    def _member(self, rng: np.random.Generator, group: NDArray[np.int64]) -> NDArray[np.int64]:
        """A node of each group; the k-th member is drawn with weight about 1 / k."""
        size = (self._num_nodes - 1 - group) // self._groups + 1
        place = np.exp(rng.random(len(group)) * np.log(size + 1)).astype(np.int64) - 1
        return np.clip(place, 0, size - 1) * self._groups + group


def _rmat_cells(
    rng: np.random.Generator, count: int, levels: int, shares: tuple[float, float, float, float]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row and column of `count` cells of a matrix of 2^levels rows."""
    low, middle, high = (np.cumsum(shares)[:3] * 65536).round().astype(np.int64).tolist()
    head = np.zeros(count, dtype=np.int64)
    tail = np.zeros(count, dtype=np.int64)
    for _ in range(levels):
        draw = rng.integers(0, 65536, count, dtype=np.uint16)
        lower = draw >= middle
        head += head
        head += lower
        tail += tail
        tail += ((draw >= low) & ~lower) | (draw >= high)
    return head, tail


def _folded(ids: NDArray[np.int64], levels: int, num_nodes: int) -> NDArray[np.int64]:
    """ids · N / 2^levels, rounded down, of ids (n,) below 2^levels."""
    if num_nodes == 1 << levels:
        return ids
    if levels < 32:
        return (ids * num_nodes) >> levels
    high, low = divmod(num_nodes, 1 << 20)  # in two parts, as the product may have 80 bits
    return (ids * high + ((ids * low) >> 20)) >> (levels - 20)


def _first_of_each(edges: NDArray[np.integer]) -> NDArray[np.int64]:
    """Ascending positions at which an edge comes for the first time."""
    spans = [int(top) + 1 for top in edges.max(axis=0)]
    if spans[0] * spans[1] * spans[2] <= MAX_INT64:
        keys = (edges[:, 0].astype(np.int64) * spans[1] + edges[:, 1]) * spans[2] + edges[:, 2]
        first = np.unique(keys, return_index=True)[1]
    else:
        first = np.unique(edges, axis=0, return_index=True)[1]
    return np.sort(first)


def _check_seed(seed: object) -> None:
    if not is_whole(seed, 0, MAX_SEED):
        raise ConfigError(f"seed is {seed!r}; allowed: a whole number from 0 to 2^63 - 1")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _checked_sizes(num_nodes: int, num_relations: int, num_edges: int) -> tuple[int, int, int]:
    sizes = {"num_nodes": (num_nodes, 2), "num_relations": (num_relations, 1), "num_edges": (num_edges, 1)}
    for name, (value, least) in sizes.items():
        if not is_whole(value, least, 1 << 40):
            raise ConfigError(f"{name} is {value!r}; allowed: a whole number from {least} to 2^40")
    return int(num_nodes), int(num_relations), int(num_edges)
