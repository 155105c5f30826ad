"""Small stand-ins for ranking tests: rows in an array, edges in arrays, scorers that need no training."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch

from marius_py.partitioning import Partitioning


class ArrayReader:
    """Node rows in memory; remembers the largest block that was asked for."""

    def __init__(self, rows):
        self.rows = np.ascontiguousarray(rows, dtype=np.float32)
        self.largest = 0

    def read_rows(self, start, stop):
        self.largest = max(self.largest, stop - start)
        return self.rows[start:stop].copy()


class ArrayEdges:
    """The part of an edge store that evaluation uses."""

    def __init__(self, num_nodes, train, valid=None, test=None):
        none = np.zeros((0, 3), np.int32)
        self.splits = {
            name: none if edges is None else np.asarray(edges, np.int32).reshape(-1, 3)
            for name, edges in (("train", train), ("valid", valid), ("test", test))
        }
        self.partitioning = Partitioning(num_nodes, 1)

    def num_edges(self, split):
        return len(self.splits[split])

    def read(self, split, bucket=None):
        return self.splits[split]

    def read_range(self, split, start, stop):
        return self.splits[split][start:stop]

    def bucket_counts(self):
        return np.array([[len(self.splits["train"])]])

    def close(self):
        pass


class DotModel:
    """score = Σ anchor · relation row · candidate, DistMult."""

    similarity = "dot"
    device = torch.device("cpu")

    def __init__(self, relations):
        self.relations = torch.as_tensor(relations, dtype=torch.float32)

    def queries(self, anchors, relations, side):
        return anchors * self.relations[relations]

    def compare(self, query, candidates):
        return torch.bmm(query, candidates.transpose(1, 2))


class DistanceModel:
    """score = −‖anchor ± relation − candidate‖; `power` 1 or 2, the latter by expanded squares."""

    device = torch.device("cpu")

    def __init__(self, relations, power):
        self.relations = torch.as_tensor(relations, dtype=torch.float32)
        self.power = power
        if power == 2:
            self.similarity = "l2"

    def queries(self, anchors, relations, side):
        return anchors + self.relations[relations] * (1 if side == "tail" else -1)

    def compare(self, query, candidates):
        if self.power == 1:
            return -(query.unsqueeze(2) - candidates.unsqueeze(1)).abs().sum(-1)
        norms = query.square().sum(-1, keepdim=True) + candidates.square().sum(-1).unsqueeze(1)
        squares = torch.baddbmm(norms, query, candidates.transpose(1, 2), alpha=-2)
        return -squares.clamp_min(1e-12).sqrt()


class CountScorer:
    """score(h, r, t) = train edges (·, r, t) for tails, (h, r, ·) for heads: integers, so exact."""

    device = torch.device("cpu")

    def __init__(self, num_relations):
        self.num_relations = num_relations

    def queries(self, anchors, relations, side):
        column = relations + (0 if side == "tail" else self.num_relations)
        return torch.nn.functional.one_hot(column, 2 * self.num_relations).float()

    def scores(self, queries, candidates):
        return candidates.T[queries.argmax(1)].contiguous()

    def exact(self, queries, candidates):
        return candidates.gather(1, queries.argmax(1, keepdim=True)).squeeze(1).double()

    def band(self, true, query_norm, candidate_norm, dtype):
        return true, true


def count_rows(train, num_nodes, num_relations):
    """Rows (N, 2R): edges (·, r, n), then edges (n, r, ·)."""
    rows = np.zeros((num_nodes, 2 * num_relations), np.float32)
    np.add.at(rows, (train[:, 2], train[:, 1]), 1)
    np.add.at(rows, (train[:, 0], num_relations + train[:, 1]), 1)
    return rows


def read_graph(folder: Path):
    """(N, R, {split: (E, 3) int32}) of a folder of gzipped TSV files."""
    nodes, relations = {}, {}
    splits = {}
    for split in ("train", "valid", "test"):
        with gzip.open(folder / f"{split}.tsv.gz", "rt", encoding="utf-8", newline="\n") as lines:
            triples = [line.rstrip("\n").split("\t") for line in lines]
        splits[split] = np.array(
            [
                (
                    nodes.setdefault(h, len(nodes)),
                    relations.setdefault(r, len(relations)),
                    nodes.setdefault(t, len(nodes)),
                )
                for h, r, t in triples
            ],
            dtype=np.int32,
        )
    return len(nodes), len(relations), splits


def brute_force(scores, splits, edges, among=None):
    """Better, equal, candidates (E, 2) by one loop an edge: `scores(h, r, t, side) -> (N,)` float64.

    NaN ranks last; column 0 is the head. With ids `among`, others neither compete nor are ranked: all zero.
    """
    known = {tuple(e) for part in splits for e in np.asarray(part).tolist()}
    result = np.zeros((3, len(edges), 2), np.int64)
    for i, (h, r, t) in enumerate(edges.tolist()):
        for column, side in ((0, "head"), (1, "tail")):
            row = scores(h, r, t, side)
            true = h if side == "head" else t
            if among is not None and true not in among:
                continue
            keep = np.array(
                [
                    n == true or ((n, r, t) if side == "head" else (h, r, n)) not in known
                    for n in range(len(row))
                ]
            )
            if among is not None:
                keep &= np.isin(np.arange(len(row)), list(among))
            result[2, i, column] = keep.sum()
            if np.isnan(row[true]):
                result[:2, i, column] = keep.sum() - 1, 1
            else:
                result[0, i, column] = (keep & (row > row[true])).sum()
                result[1, i, column] = (keep & (row == row[true])).sum()
    return result
