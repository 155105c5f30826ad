"""Whole numbers as arguments: Python's and NumPy's, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marius_py.generate import planted_edges
from marius_py.nn.decoders.rescal import RESCAL
from marius_py.nn.negatives import UniformNegatives
from marius_py.prepare import prepare
from marius_py.whole import MAX_INT64, is_whole


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), 10**400])
def test_integers_of_python_and_numpy_are_whole(value: Any) -> None:
    assert is_whole(value, 3)
    assert not is_whole(value, int(value) + 1)
    assert is_whole(value, 0, int(value))
    assert not is_whole(value, 0, int(value) - 1)


@pytest.mark.parametrize("value", [True, np.True_, 3.0, np.float64(3), "3", None, [3], np.array([3])])
def test_all_else_is_not(value: Any) -> None:
    assert not is_whole(value, 0)


def test_the_largest_is_that_of_int64() -> None:
    assert np.iinfo(np.int64).max == MAX_INT64


def test_sizes_of_numpy_make_what_those_of_python_make(tmp_path: Path) -> None:
    edges = planted_edges(np.int64(50), np.int16(2), np.int32(60), seed=0)
    assert edges.tolist() == planted_edges(50, 2, 60, seed=0).tolist()
    np.save(tmp_path / "edges.npy", edges)
    for name, partitions, seed in (("numpy", np.int64(3), np.int64(5)), ("python", 3, 5)):
        prepare(tmp_path / "edges.npy", tmp_path / name, partitions=partitions, seed=seed)  # type: ignore[arg-type]
    files = [tmp_path / name / "graph.json" for name in ("numpy", "python")]
    found, expected = (json.loads(file.read_text()) for file in files)
    assert found["num_nodes"] == expected["num_nodes"] == len(np.unique(edges[:, [0, 2]]))
    assert found == expected


def test_parts_hold_integers_of_python() -> None:
    decoder = RESCAL(np.int64(8), np.int64(2))  # type: ignore[arg-type]
    sampler = UniformNegatives(np.int64(5), np.int64(2), np.int64(4))  # type: ignore[arg-type]
    for value in (decoder.dim, decoder.block, sampler.chunks, *sampler.counts.values()):
        assert type(value) is int
