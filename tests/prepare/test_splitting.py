from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_py.errors import ConfigError
from marius_py.prepare import prepare, prepare_arrays, splitting
from marius_py.prepare.dictionary import EdgeSpill
from marius_py.prepare.progress import silent
from marius_py.prepare.splitting import RandomSplits, random_counts

Counts = tuple[int, int, int]
SPLIT_NAMES = ("train", "valid", "test")


@pytest.fixture(scope="module")
def spill_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[np.ndarray], EdgeSpill]]:
    """Write rows to a spill: spill_of(rows (n, 3))."""
    folder = tmp_path_factory.mktemp("spills")
    spills: list[EdgeSpill] = []

    def write(rows: np.ndarray) -> EdgeSpill:
        if spills:
            spills.pop().close()
        spills.append(EdgeSpill(folder / "rows", np.dtype(np.int32)))
        spills[0].append(rows)
        return spills[0]

    yield write
    for spill in spills:
        spill.close()


def distinct(count: int) -> np.ndarray:
    return np.repeat(np.arange(count, dtype=np.int32)[:, None], 3, axis=1)


def draw(spill: EdgeSpill, counts: Counts, seed: int = 0, block_rows: int = 1 << 20) -> dict[str, Counter]:
    """Multisets of rows by split; both passes over the spill must agree."""
    splits = RandomSplits.draw(spill, counts, seed, silent, block_rows)
    passes = []
    for _ in range(2):
        found: dict[str, Counter] = {split: Counter() for split in SPLIT_NAMES}
        for split, rows in splits.blocks(spill, block_rows):
            found[split].update(map(tuple, rows.tolist()))
        passes.append(found)
    assert passes[0] == passes[1]
    return passes[0]


@settings(max_examples=40)
@given(
    copies=st.lists(st.integers(1, 30), min_size=1, max_size=40),
    shares=st.tuples(st.integers(1, 10), st.integers(0, 10), st.integers(0, 10)),
    seed=st.integers(0, 2**64 - 1),
    block_rows=st.integers(20, 200),
)
def test_copies_share_a_split_whatever_the_blocks(
    spill_of: Callable[[np.ndarray], EdgeSpill],
    copies: list[int],
    shares: Counts,
    seed: int,
    block_rows: int,
) -> None:
    rows = np.repeat(distinct(len(copies)), copies, axis=0)
    rows = rows[np.random.default_rng(seed).permutation(len(rows))]
    total = sum(shares)
    test, valid = len(rows) * shares[2] // total, len(rows) * shares[1] // total
    wanted = (len(rows) - test - valid, valid, test)
    spill = spill_of(rows)
    found = draw(spill, wanted, seed, block_rows)
    assert found == draw(spill, wanted, seed)
    assert sum(found.values(), Counter()) == Counter(map(tuple, rows.tolist()))
    assert sum(len(found[split]) for split in SPLIT_NAMES) == len(copies)
    sizes = [found[split].total() for split in SPLIT_NAMES]
    if max(copies) == 1:
        assert tuple(sizes) == wanted
    assert sizes[1] <= valid
    assert sizes[2] <= test
    # no group of copies that is left in train would have fitted
    for missing in (valid - sizes[1], test - sizes[2]):
        assert missing < min(found["train"].values())


@pytest.mark.parametrize("bits", [0, 3, 8, 20])
@pytest.mark.parametrize("counts", [(18, 1, 1), (1, 10, 9), (20, 0, 0), (1, 0, 19), (1, 19, 0)])
def test_without_copies_counts_are_exact_however_full_bins_are(
    spill_of: Callable[[np.ndarray], EdgeSpill],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    bits: int,
    counts: Counts,
) -> None:
    caplog.set_level(logging.INFO, "marius_py")
    monkeypatch.setattr(splitting, "BIN_BITS", bits)
    monkeypatch.setattr(splitting, "_bin_of", lambda keys: (keys % np.uint64(1 << bits)).astype(np.int64))
    for scale in (1, 97):
        wanted = (counts[0] * scale, counts[1] * scale, counts[2] * scale)
        found = draw(spill_of(distinct(20 * scale)), wanted, 5, 113)
        assert tuple(found[split].total() for split in SPLIT_NAMES) == wanted
    assert not caplog.messages


def test_the_edges_of_few_bins_are_decided_one_by_one(
    spill_of: Callable[[np.ndarray], EdgeSpill], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splitting, "BIN_BITS", 8)
    monkeypatch.setattr(splitting, "_bin_of", lambda keys: (keys % np.uint64(1 << 8)).astype(np.int64))
    splits = RandomSplits.draw(spill_of(distinct(5120)), (5119, 0, 1), 0, silent)
    assert 0 < len(splits.keys) < 5120 / 2


def test_what_has_nothing_to_decide_is_not_read(spill_of: Callable[[np.ndarray], EdgeSpill]) -> None:
    spill, told = spill_of(distinct(100)), []
    for counts, expected in (((100, 0, 0), []), ((80, 10, 10), [("split", 100, 100, "edges")])):
        told.clear()
        RandomSplits.draw(spill, counts, 0, lambda *now: told.append(now))
        assert told == expected


def test_choice_is_uniform_over_places_and_seeds(spill_of: Callable[[np.ndarray], EdgeSpill]) -> None:
    spill = spill_of(distinct(1000))
    counts = np.zeros(1000, dtype=int)
    for seed in range(60):
        found = draw(spill, (800, 120, 80), seed)
        assert {split: found[split].total() for split in SPLIT_NAMES} == {
            "train": 800,
            "valid": 120,
            "test": 80,
        }
        counts[[row[0] for row in found["valid"]]] += 1
    # each row is in valid 60 · 0.12 = 7.2 times on average, wherever it lies, with a variance of 6.3
    assert [counts[i : i + 333].mean() for i in (0, 333, 666)] == pytest.approx([7.2] * 3, abs=0.5)
    assert counts.var() == pytest.approx(6.3, rel=0.2)
    assert counts.max() < 22


def test_input_order_stays_within_a_split(spill_of: Callable[[np.ndarray], EdgeSpill]) -> None:
    splits = RandomSplits.draw(spill_of(distinct(500)), (400, 50, 50), 3, silent)
    for split, rows in splits.blocks(spill_of(distinct(500)), 500):
        assert (np.diff(rows[:, 0]) > 0).all(), split


def test_one_edge_with_most_copies_costs_neither_valid_nor_test_their_share(
    spill_of: Callable[[np.ndarray], EdgeSpill],
) -> None:
    rows = np.concatenate([distinct(1000), np.full((3000, 3), 7, dtype=np.int32)])
    for seed in range(5):
        found = draw(spill_of(rows), (3600, 200, 200), seed, 700)
        assert found["train"][(7, 7, 7)] == 3001
        assert found["valid"].total() == found["test"].total() == 200


def test_split_that_copies_leave_empty_is_one_clear_line_and_a_graph(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "marius_py"):
        graph = prepare_arrays(np.array([[0, 0, 1]] * 40), tmp_path / "g", split=(0.8, 0, 0.2))
    assert graph.num_edges == {"train": 40, "valid": 0, "test": 0}
    lines = [one.message for one in caplog.records if "random split" in one.message]
    assert len(lines) == 1
    assert "test 0 of the 8 edges" in lines[0]


@pytest.mark.parametrize(("copies", "level"), [(2, logging.INFO), (4, logging.WARNING)])
def test_edges_that_are_missing_to_a_split_are_said(
    spill_of: Callable[[np.ndarray], EdgeSpill], caplog: pytest.LogCaptureFixture, copies: int, level: int
) -> None:
    caplog.set_level(logging.INFO, "marius_py")
    draw(spill_of(np.repeat(distinct(10), copies, axis=0)), (10 * copies - 3, 0, 3))
    (record,) = caplog.records
    assert record.levelno == level
    assert f"test {3 // copies * copies} of the 3 edges" in record.message


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ((0.9, 0.1), "give three shares"),
        ((0.8, 0.1, 0.05, 0.05), "give three shares"),
        ((1, -0.1, 0.1), "give three shares"),
        (0.8, r"split is 0\.8; give three shares"),
        ({0.8, 0.15, 0.05}, "give three shares"),
        ((0.9, 0.05, 0.06), "add up to 1"),
        ((0, 0.5, 0.5), "train above 0"),
        ((0.1, 0.9, 0), "leaves none for train"),
    ],
)
def test_wrong_shares_are_refused(split: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        random_counts(2, split, "x")


def test_shares_too_small_are_told_with_the_edges_there_are(tmp_path: Path) -> None:
    (tmp_path / "e.tsv").write_text("a\tb\nb\tc\nc\ta\n")
    with pytest.raises(ConfigError, match=r"e\.tsv has 3 edges; a split of .* leaves none for train"):
        prepare(tmp_path / "e.tsv", tmp_path / "g", split=(1e-7, 0.5, 0.4999999))
    assert not (tmp_path / "g").exists()


def test_counts_follow_the_shares() -> None:
    assert random_counts(20, (0.9, 0.05, 0.05), "x") == (18, 1, 1)
    assert random_counts(10, (0.7, 0.2, 0.1), "x") == (7, 2, 1)
    assert random_counts(29, (0.8, 0.1, 0.1), "x") == (23, 3, 3)
    assert random_counts(1000, (0.5, 0.5, 0), "x") == (500, 500, 0)
    assert random_counts(1000, np.array([0.5, 0.5, 0], np.float32), "x") == (500, 500, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("num_edges", "split", "empty"),
    [
        (10, None, "valid and test, whose share is half an edge or less (0.05, 0.05)"),
        (11, None, None),
        (4, (0.7, 0.3, 0), None),
        (4, (0.6, 0.3, 0.1), "test, whose share is half an edge or less (0.1)"),
        (4, (1, 0, 0), None),
    ],
)
def test_shares_that_give_no_edge_are_warned_of(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    num_edges: int,
    split: tuple[float, float, float] | None,
    empty: str | None,
) -> None:
    graph = prepare_arrays(distinct(num_edges), tmp_path / "g", split=split, partitions=1)
    told = [one.message for one in caplog.records if "gives none to" in one.message]
    assert told == (
        []
        if empty is None
        else [
            f"the graph has {num_edges} edges: the random split gives none to {empty}; give larger "
            "shares with input.split (split= in Python), or files of your own"
        ]
    )
    shares = split or (0.9, 0.05, 0.05)
    counts = dict(zip(SPLIT_NAMES, shares, strict=True))
    with graph.edges() as store:
        none = {name for name, share in counts.items() if share and not store.num_edges(name)}
    assert none == {name for name in SPLIT_NAMES if empty and name in empty.split(",")[0]}
