"""Triples of DGL-KE (floor 5): text files of names or numbers in; edges as numbers of its mappings out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from marius_py.errors import FormatError
from marius_py.prepare import WeightedEdges
from marius_py.prepare.blocks import EdgeBlock
from marius_py.prepare.columns import MissingColumnError, WeightKey
from marius_py.prepare.sources import open_source

ORDERS = tuple("".join(order) for order in permutations("hrt"))
FORMATS = ("built_in", *(f"raw_udd_{order}" for order in ORDERS), *(f"udd_{order}" for order in ORDERS))

_TEXT_BLOCK_BYTES = 1 << 26


class Triples:
    """Reads triples of names or numbers as numbers.

    Args:
        entities, relations: names by number.
        format: one of `FORMATS`.
        delimiter: one character.
    """

    def __init__(self, entities: list[str], relations: list[str], format: str, delimiter: str) -> None:
        self._numbered = format.startswith("udd")
        order = "hrt" if format == "built_in" else format[-3:]
        self._columns = [order.index(letter) for letter in "hrt"]
        self._delimiter = delimiter
        self._entities = pa.array(entities, pa.large_string())
        self._relations = pa.array(relations, pa.large_string())

    def blocks(self, path: Path, *, weighted: bool = False) -> Iterator[NDArray[np.int64] | WeightedEdges]:
        """Edges (n, 3) int64 of a file, in blocks; if `weighted`, with the weights in its fourth column.

        Raises:
            FormatError: a line is malformed, or a name or number is in no mapping.
        """
        # Each search makes a hash table of all names: blocks are as large as those, so that they are few.
        block_bytes = max(_TEXT_BLOCK_BYTES, 0 if self._numbered else int(self._entities.nbytes))
        for block in _text_blocks(path, self._delimiter, self._columns, block_bytes, weighted=weighted):
            edges = np.empty((block.num_edges, 3), dtype=np.int64)
            ends = self._numbers(path, block, (block.head, block.tail), self._entities, "entity")
            edges[:, 0], edges[:, 2] = ends
            (edges[:, 1],) = self._numbers(path, block, (block.relation,), self._relations, "relation")
            yield edges if block.weight is None else WeightedEdges(edges, block.weight)

    def _numbers(
        self, path: Path, block: EdgeBlock, columns: tuple[Any, ...], names: Any, what: str
    ) -> NDArray[np.int64]:
        """Numbers (columns, n) of names of one kind."""
        if self._numbered:
            numbers = np.stack([_integers(column, path, block.first_row, what) for column in columns])
        else:
            texts = [pc.utf8_trim_whitespace(column).cast(pa.large_string()) for column in columns]
            together = pa.chunked_array([chunk for text in texts for chunk in text.chunks], pa.large_string())
            places = pc.fill_null(pc.index_in(together, value_set=names), -1).to_numpy()
            numbers = places.astype(np.int64).reshape(len(columns), block.num_edges)
        wrong = np.argwhere(((numbers < 0) | (numbers >= len(names))).T)
        if wrong.size:
            row, place = wrong[0].tolist()
            raise FormatError(
                f"{path}, edge {block.first_row + row}: the {what} {columns[place][row].as_py()!r} is in no "
                "mapping"
            )
        return numbers


def _text_blocks(
    path: Path,
    delimiter: str,
    columns: Sequence[int],
    block_bytes: int = _TEXT_BLOCK_BYTES,
    *,
    weighted: bool = False,
) -> Iterator[EdgeBlock]:
    """Blocks of a text file without header, whose cells are never quoted; `weighted`, by a last column."""
    try:
        source = open_source(
            path,
            format="tsv",
            delimiter=delimiter,
            quoting=False,
            header=False,
            columns=list(columns),
            weight=WeightKey(len(columns)) if weighted else None,
            block_bytes=block_bytes,
        )
    except MissingColumnError as error:
        fourth = "; the fourth has weights, as importance=true says" if weighted else ""
        raise FormatError(
            f"{path} has fewer than {len(columns) + weighted} columns in its first line, cut at "
            f"{delimiter!r}{fourth}; format= and delimiter= say how it is laid out"
        ) from error
    return source.blocks()


def _integers(column: Any, path: Path, first_row: int, what: str) -> NDArray[np.int64]:
    texts = pc.utf8_trim_whitespace(column)
    try:
        numbers: NDArray[np.int64] = texts.cast(pa.int64()).to_numpy()
        return numbers
    except pa.ArrowInvalid as error:
        row, text = next((row, text) for row, text in enumerate(texts) if not _is_whole(text))
        raise FormatError(
            f"{path}, edge {first_row + row}: the {what} {text.as_py()!r} is no whole number of 64 bits"
        ) from error


def _is_whole(text: Any) -> bool:
    try:
        text.cast(pa.int64())
    except pa.ArrowInvalid:
        return False
    return True
