"""Names in several spellings (floor 4): with blanks around them, or numbers with `.0` behind them.

In: the names of a graph, block by block in the order of ids. Out: how many are spelt so, and which names
differ by nothing else: a graph keeps them. Other names cost one pass of Arrow over each block; memory is up
to `LOOKED_UP` names that are spelt so, whatever the number of names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

LOOKED_UP = 1 << 20
"""Names so spelt whose other spellings are looked for: the first ones in the order of ids."""

_EXAMPLES = 5


class Spelling(ABC):
    """Collects the names that are spelt in one way while the names pass by."""

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._num_kept = 0
        self.count = 0

    @abstractmethod
    def _chosen(self, names: Any) -> Any:
        """Those of an Arrow array of texts that are spelt so."""

    @abstractmethod
    def _bare(self, names: Any) -> Any:
        """Such names, large_string, in the spelling that others of the same meaning have."""

    def watch(self, blocks: Iterator[Any]) -> Iterator[Any]:
        """Yield Arrow arrays of large_string or int64 names as they are, and note those that are spelt so."""
        for block in blocks:
            if not pa.types.is_integer(block.type):
                self._add(block)
            yield block

    def _add(self, block: Any) -> None:
        chosen = self._chosen(block).cast(pa.large_string())
        self.count += len(chosen)
        kept = chosen[: LOOKED_UP - self._num_kept]
        if len(kept):
            self._kept.append(kept)
            self._num_kept += len(kept)

    def facts(self) -> dict[str, Any]:
        """Their number and the first of them, for a graph's report."""
        examples = pa.chunked_array(self._kept, pa.large_string())[:_EXAMPLES].to_pylist()
        return {"count": self.count, "examples": examples}

    def twins(self, blocks: Callable[[], Iterator[Any]]) -> dict[str, Any]:
        """Which names differ by nothing but this spelling.

        Args:
            blocks: yields all names once more, as large_string; called only if some are spelt so.

        Returns:
            For a graph's report the number of bare names that occur in several spellings, and two spellings
            each of the first of them.
        """
        if not self._kept:
            return {"count": 0, "examples": []}
        chosen = pa.concat_arrays(self._kept)
        encoded = self._bare(chosen).dictionary_encode()
        bare, number = encoded.dictionary, encoded.indices.to_numpy()
        occurs = np.zeros(len(bare), dtype=np.bool_)
        for names in _of_size(blocks(), len(bare)):  # each search makes a hash table of all that are sought
            occurs[pc.index_in(names, value_set=bare).drop_null().to_numpy()] = True
        several = np.flatnonzero(occurs | (np.bincount(number, minlength=len(bare)) > 1))
        examples = []
        for index in several[:_EXAMPLES].tolist():
            spellings = chosen.take(pa.array(np.flatnonzero(number == index)[:2])).to_pylist()
            examples.append([spellings[0], bare[index].as_py() if occurs[index] else spellings[1]])
        return {"count": len(several), "examples": examples}


class PaddedNames(Spelling):
    """Names with blanks around them."""

    def _chosen(self, names: Any) -> Any:
        trimmed = pc.binary_length(pc.utf8_trim_whitespace(names))
        return names.filter(pc.less(trimmed, pc.binary_length(names)))

    def _bare(self, names: Any) -> Any:
        return pc.utf8_trim_whitespace(names)


class PointedNumbers(Spelling):
    """Whole numbers with `.0` behind them, as pandas writes a column that had gaps."""

    def _chosen(self, names: Any) -> Any:
        pointed = names.filter(pc.ends_with(names, ".0"))
        return pointed.filter(pc.match_substring_regex(pointed, r"^[0-9]+\.0$"))

    def _bare(self, names: Any) -> Any:
        return pc.utf8_slice_codeunits(names, 0, -2)


class RoundedNumbers(Spelling):
    """Large whole numbers as pandas writes them of a column that had gaps: 16 digits and an exponent."""

    def _chosen(self, names: Any) -> Any:
        exponents = names.filter(pc.match_substring(names, "e+"))
        return exponents.filter(pc.match_substring_regex(exponents, r"^[0-9]\.[0-9]+e\+[0-9]+$"))

    def _bare(self, names: Any) -> Any:
        return names


def _of_size(blocks: Iterator[Any], rows: int) -> Iterator[Any]:
    """Blocks joined until they have so many rows, as chunked arrays."""
    waiting: list[Any] = []
    for block in blocks:
        waiting.append(block)
        if sum(map(len, waiting)) >= rows:
            yield pa.chunked_array(waiting)
            waiting = []
    if waiting:
        yield pa.chunked_array(waiting)
