"""Weights of edges as files have them (floor 4): columns of Arrow in, float32 out.

A text is the same number in every format: ASCII digits, a sign, a point and an exponent, blanks around them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from marius_py.errors import FormatError
from marius_py.prepare.blocks import WEIGHTS, bad_weight
from marius_py.prepare.records import as_number


def as_numbers(column: Any) -> NDArray[np.float64]:
    """Texts (n,) of Arrow as numbers, NaN where one is none."""
    try:
        values: NDArray[np.float64] = column.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:  # blanks and signs, which it takes for no part of a number
        numbers = [as_number(cell) for cell in column.to_pylist()]
        values = np.array([np.nan if one is None else one for one in numbers])
    return values


def check_type(data_type: np.dtype[Any], name: str, path: Path) -> None:
    """Refuse with a FormatError an array of weights whose type holds no numbers, or none that Arrow has."""
    if data_type.kind in "biuSU" or (data_type.kind == "f" and data_type.itemsize <= 8):
        return
    raise FormatError(
        f"{path}: the weights, array {name!r}, have type {data_type}; allowed: integers, floats of at most "
        "64 bits, or texts of numbers"
    )


def weight_column(column: Any, path: Path, first_row: int) -> NDArray[np.float32]:
    """A column of a typed file as weights (n,).

    Raises:
        FormatError: a null, or a value that is no weight; names file and row.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    place = pc.index(column.is_null(), True).as_py() if column.null_count else -1
    if place < 0:
        try:
            values = as_numbers(column) if _is_text(column.type) else _as_floats(column)
        except (pa.ArrowException, ValueError) as error:
            raise FormatError(f"{path}: weights of type {column.type} are no numbers ({error})") from error
        place = bad_weight(values)
    if place >= 0:
        found = column[place].as_py()
        raise FormatError(f"{path}, row {first_row + place}: the weight is {found!r}; {WEIGHTS}")
    return values.astype(np.float32)


def _as_floats(column: Any) -> NDArray[np.float64]:
    values: NDArray[np.float64] = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return values


def _is_text(data_type: Any) -> bool:
    return bool(
        pa.types.is_string(data_type)
        or pa.types.is_large_string(data_type)
        or pa.types.is_string_view(data_type)
    )
