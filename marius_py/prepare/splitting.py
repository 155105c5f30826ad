"""Which rows of a spill belong to which split (floor 4).

In: rows in input order. Out: blocks labelled by split, the same ones at every pass. Given splits are ranges
of rows. A random split draws exact counts: each block's share of what is left is hypergeometric, so every
choice of valid and test edges is equally likely although only one block is ever in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from marius_py.errors import ConfigError
from marius_py.prepare.dictionary import EdgeSpill
from marius_py.storage.protocols import Edges
from marius_py.streams import Purpose, stream
from marius_py.types import SPLITS


@dataclass(frozen=True, slots=True)
class GivenSplits:
    """Splits that lie one after the other in the spill: rows of train, then valid, then test."""

    counts: tuple[int, int, int]

    def blocks(self, spill: EdgeSpill, block_rows: int) -> Iterator[tuple[str, Edges]]:
        """Yield (split, rows (n, 3)) over all rows."""
        start = 0
        for split, count in zip(SPLITS, self.counts, strict=True):
            for begin in range(start, start + count, block_rows):
                yield split, spill.read(begin, min(begin + block_rows, start + count))
            start += count


@dataclass(frozen=True, slots=True)
class RandomSplits:
    """A seeded random choice of exactly `counts` rows for train, valid and test."""

    counts: tuple[int, int, int]
    seed: int

    def blocks(self, spill: EdgeSpill, block_rows: int) -> Iterator[tuple[str, Edges]]:
        """Yield (split, rows (n, 3)) over all rows; the same at every call with the same `block_rows`."""
        rng = stream(self.seed, Purpose.SPLIT)
        left = np.array(self.counts, dtype=np.int64)
        for begin in range(0, len(spill), block_rows):
            rows = spill.read(begin, min(begin + block_rows, len(spill)))
            take = _draw(rng, left, len(rows))
            left -= take
            order = rng.permutation(len(rows))
            start = 0
            for split, count in zip(SPLITS, take.tolist(), strict=True):
                if count:
                    # input order within a split, as far as rows of one block go
                    yield split, rows[np.sort(order[start : start + count])]
                start += count


def _draw(rng: np.random.Generator, left: np.ndarray, count: int) -> np.ndarray:
    """How many of the next `count` rows go to each split, when `left` rows of each are still to come."""
    if int(left.sum()) == count:
        return left.copy()
    if int(left.sum()) < 1_000_000_000:
        return rng.multivariate_hypergeometric(left, count, method="marginals")
    # NumPy's hypergeometric stops at 10⁹ rows; a binomial differs from it by nothing measurable there
    first = min(int(rng.binomial(count, left[1] / left.sum())), int(left[1]))
    second = min(int(rng.binomial(count, left[2] / left.sum())), int(left[2]))
    return np.array([count - first - second, first, second], dtype=np.int64)


def random_counts(num_edges: int, split: Sequence[float], path: object) -> tuple[int, int, int]:
    """How many edges a random split gives to train, valid and test.

    Raises:
        ConfigError: `split` is not three shares that add up to 1, or train gets no edge.
    """
    shares = list(split)
    valid = len(shares) == 3 and all(isinstance(s, (int, float)) and 0 <= s <= 1 for s in shares)
    if not valid or abs(sum(shares) - 1) > 1e-6 or shares[0] <= 0:
        raise ConfigError(
            f"split is {split!r}; give three shares (train, valid, test) that add up to 1, train above 0"
        )
    num_valid, num_test = round(num_edges * shares[1]), round(num_edges * shares[2])
    num_train = num_edges - num_valid - num_test
    if num_train < 1:
        raise ConfigError(f"{path} has {num_edges} edges; a split of {split!r} leaves none for train")
    return num_train, num_valid, num_test
