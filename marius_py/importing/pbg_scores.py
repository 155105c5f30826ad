"""Which decoder scores like a PyTorch-BigGraph model (floor 5): its parameters in, relation rows out.

With one operator a relation (static) an edge has the score comparator(lhs, operator(rhs)). With dynamic
relations tails are ranked by comparator(lhs_operator(lhs), rhs) and heads by comparator(lhs,
rhs_operator(rhs)), which is what a reciprocal run does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from marius_py.errors import ConfigError
from marius_py.importing.files import read_floats
from marius_py.importing.pbg_schema import Schema

Float32 = NDArray[np.float32]

OPERATOR_DECODER = "marius_py.importing.operators.OperatorDecoder"

_SAME = {
    ("none", "dot"): "dot",
    ("diagonal", "dot"): "distmult",
    ("complex_diagonal", "dot"): "complex",
    ("linear", "dot"): "rescal",
    ("translation", "l2"): "transe",
    ("none", "l2"): "transe",
}
"""Operator and comparator → decoder with the same score."""

_ONE_SIDED = (*_SAME, ("translation", "squared_l2"), ("none", "squared_l2"), ("none", "cos"))
"""What can rank both ends with one operator a relation, on the right-hand side."""


@dataclass(frozen=True, slots=True)
class ConvertedRelations:
    """decoder: {"_target_": …}; relations (R, Dr), or (2R, Dr) if reciprocal."""

    decoder: Mapping[str, Any]
    reciprocal: bool
    relations: Float32


def convert_relations(schema: Schema, file: h5py.File, count: int) -> ConvertedRelations:
    """Find the decoder and its relation rows.

    Args:
        schema: of the model.
        file: open model.vN.h5.
        count: R.

    Raises:
        ConfigError: nothing here scores alike. FormatError: a parameter is missing or has another shape.
    """
    operator = _operator(schema)
    comparator, dim = schema.comparator, schema.dimension or 1
    if not schema.dynamic and (
        (operator, comparator) not in _ONE_SIDED or (schema.bias and operator != "none")
    ):
        raise ConfigError(_no_equal(operator, comparator, schema.bias))
    decoder = _decoder(operator, comparator, schema.bias)
    if operator == "none":
        width = dim if decoder["_target_"] == "transe" else 0
        return ConvertedRelations(decoder, False, np.zeros((count, width), np.float32))
    if schema.dynamic:
        halves = [_rows(_dynamic(file, side, operator, count, dim), decoder) for side in ("lhs", "rhs")]
        return ConvertedRelations(decoder, True, np.concatenate(halves))
    rows = np.stack([_static(file, i, one.operator, operator, dim) for i, one in enumerate(schema.relations)])
    return ConvertedRelations(decoder, False, _inverse(rows, operator))


def _operator(schema: Schema) -> str:
    """The operator of all relations; those with none get one that changes nothing."""
    operators = sorted({one.operator for one in schema.relations} - {"none"})
    if len(operators) > 1:
        raise ConfigError(
            f"the relations have the operators {', '.join(operators)}; a run has one decoder for all of them"
        )
    return operators[0] if operators else "none"


def _decoder(operator: str, comparator: str, bias: bool) -> dict[str, Any]:
    same = _SAME.get((operator, comparator))
    if same is not None and not bias:
        return {"_target_": same}
    return {"_target_": OPERATOR_DECODER, "operator": operator, "comparator": comparator, "bias": bias}


def _no_equal(operator: str, comparator: str, bias: bool) -> str:
    return (
        f"the operator {operator} with the comparator {comparator}{' and a bias' if bias else ''} has no "
        "equal here: ranking right-hand sides needs the operator on every candidate. With dynamic_relations "
        "it could be imported; without, these can: "
        + ", ".join(f"{one} with {other}" for one, other in _ONE_SIDED)
        + ("; a bias with the operator none only" if bias else "")
    )


_PARAMETERS = {
    "diagonal": ("diagonal",),
    "translation": ("translation",),
    "complex_diagonal": ("real", "imag"),
    "linear": ("linear_transformation",),
    "affine": ("linear_transformation", "translation"),
}


def _shape(name: str, dim: int) -> tuple[int, ...]:
    if name == "linear_transformation":
        return (dim, dim)
    return (dim // 2,) if name in ("real", "imag") else (dim,)


def _dynamic(file: h5py.File, side: str, operator: str, count: int, dim: int) -> Float32:
    """Parameters (R, Dr) of one side's operators."""
    parts = []
    for name in _PARAMETERS[operator]:
        plural = name if name in ("real", "imag") else f"{name}s"
        shape = (count, *_shape(name, dim))
        parts.append(
            read_floats(file, f"model/relations/0/operator/{side}/{plural}", shape).reshape(count, -1)
        )
    return np.concatenate(parts, axis=1)


def _static(file: h5py.File, number: int, own: str, operator: str, dim: int) -> Float32:
    """Parameters (Dr,) of one relation."""
    if own == "none":
        if operator == "linear":
            return np.eye(dim, dtype=np.float32).reshape(-1)
        if operator == "complex_diagonal":
            return np.repeat(np.array([1, 0], np.float32), dim // 2)
        return np.full(dim, operator == "diagonal", dtype=np.float32)
    return np.concatenate(
        [
            read_floats(file, f"model/relations/{number}/operator/rhs/{name}", _shape(name, dim)).reshape(-1)
            for name in _PARAMETERS[operator]
        ]
    )


def _rows(rows: Float32, decoder: Mapping[str, Any]) -> Float32:
    """Rows for queries for tails: RESCAL multiplies a head from the left, so its matrices are transposed."""
    if decoder["_target_"] != "rescal":
        return rows
    dim = round(rows.shape[1] ** 0.5)
    return np.ascontiguousarray(rows.reshape(-1, dim, dim).transpose(0, 2, 1)).reshape(len(rows), -1)


def _inverse(rows: Float32, operator: str) -> Float32:
    """Rows that act on the left-hand side as these do on the right: conjugates, opposite translations."""
    rows = rows.copy()
    if operator == "complex_diagonal":
        rows[:, rows.shape[1] // 2 :] *= -1
    elif operator == "translation":
        rows *= -1
    return rows
