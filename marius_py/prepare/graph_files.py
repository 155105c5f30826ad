"""From edges under their final ids to a prepared graph's files (floor 4).

In: the content of a graph, its edges readable twice, block by block. Out: nodes.parquet, relations.parquet,
edges.h5 and, last, graph.json in a folder, and a log of what a user should know about the data. The first
pass over the edges counts, the second sorts them into buckets.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from marius_py.errors import FormatError
from marius_py.graph.manifest import (
    EDGES_FILE,
    GRAPH_FILE,
    MEAN_WEIGHT,
    NODES_FILE,
    RELATIONS_FILE,
    manifest_bytes,
)
from marius_py.graph.names import read_names, write_names
from marius_py.partitioning import Partitioning
from marius_py.prepare.duplicates import count_duplicates
from marius_py.prepare.overlap import TrainOverlap
from marius_py.prepare.progress import ProgressHook
from marius_py.prepare.records import cut
from marius_py.prepare.spellings import PaddedNames, PointedNumbers, RoundedNumbers
from marius_py.prepare.survey import Survey
from marius_py.readable import so_many
from marius_py.storage.edge_writer import EdgeWriter
from marius_py.storage.file_io import file_checksum, replace_file
from marius_py.storage.hdf5_edges import Hdf5EdgeStore
from marius_py.storage.protocols import Edges
from marius_py.types import SPLITS
from marius_py.workers import made_ahead

logger = logging.getLogger(__name__)

MIRRORED = "mirrored"
"""Entry of the report of a graph to whose edges their reverses were added."""

_EXAMPLES = 5
_THEY = ("it is", "they are")
_EASY = ": their ranks will look better than those of pairs that are new"
_SEEN = ": they measure what the model was trained on, and make it look better than it is"
_UNDIRECTED = (
    "; a random split with input.undirected=true (in Python undirected=True of graph_from or prepare, whose "
    "Graph train takes) keeps edges of the same relation that are listed in both directions together"
)
_TWICE = " (input.mirror=true adds reverses also where they are listed already)"
_MANY_RELATIONS, _NODES_PER_RELATION = 100, 8
"""So many relations, with fewer nodes for each, are rather the tails of a file of head, tail and weight."""


@dataclass(frozen=True, slots=True)
class GraphContent:
    """A graph under its final ids.

    Attributes:
        partitioning: its nodes and their ranges.
        num_relations: R.
        has_relations: False when the input had two columns.
        seed: of the ids and the split.
        node_type: Arrow type of the nodes' names.
        node_names: yields the names in id order, in blocks as `write_names` wants them.
        relation_type, relation_names: likewise of the relations.
        num_edges: E of all splits.
        edges: yields (split, rows (n, 3)) over all edges, on a thread of its own; called twice, with the same
            answer.
        weighted: rows of train are (n, 4), with weights.
        mirrored: behind each edge comes its reverse, which the input did not list.
        release: called when the edges have been read for the second time.
        parts_reverses: the split is a random one that may part an edge from its reverse.
        report: further entries of graph.json's report.
    """

    partitioning: Partitioning
    num_relations: int
    has_relations: bool
    seed: int
    node_type: Any
    node_names: Callable[[], Iterator[Any]]
    relation_type: Any
    relation_names: Callable[[], Iterator[Any]]
    num_edges: int
    edges: Callable[[], Iterator[tuple[str, Edges]]]
    release: Callable[[], None]
    weighted: bool = False
    mirrored: bool = False
    parts_reverses: bool = False
    report: Mapping[str, Any] = field(default_factory=dict)


def write_graph(folder: Path, content: GraphContent, progress: ProgressHook) -> None:
    """Write all files of a graph into `folder`; graph.json last.

    Raises:
        StorageError: a write failed; the folder then holds no graph. FormatError: all weights are 0.
    """
    survey = Survey(content.partitioning, content.num_relations)
    known = TrainOverlap()
    for split, edges in _counted(content, "count", progress):
        survey.add(split, edges)
        if split != "train":
            known.sample(split, edges)
    if content.weighted and not survey.total_weight:
        raise FormatError(
            "all weights of the train edges are 0: no edge would count; is it the right column?"
        )
    padded = {"nodes": PaddedNames(), "relations": PaddedNames()}
    pointed = {"nodes": PointedNumbers(), "relations": PointedNumbers()}
    rounded = RoundedNumbers()
    nodes = rounded.watch(pointed["nodes"].watch(padded["nodes"].watch(content.node_names())))
    relations = pointed["relations"].watch(padded["relations"].watch(content.relation_names()))
    hashes = (
        write_names(folder / NODES_FILE, content.node_type, nodes),
        write_names(folder / RELATIONS_FILE, content.relation_type, relations),
    )
    blanks = {
        **{f"padded_{what}": names.facts() for what, names in padded.items()},
        "spellings_of_nodes": padded["nodes"].twins(content.node_names),
        "spellings_of_relations": padded["relations"].twins(content.relation_names),
    }
    numbers = {
        "nodes": pointed["nodes"].twins(content.node_names),
        "relations": pointed["relations"].twins(content.relation_names),
    }
    floats = rounded.facts()
    del padded, pointed, rounded, nodes, relations
    fingerprint = _fingerprint(content, survey, hashes)
    with EdgeWriter(
        folder / EDGES_FILE,
        content.partitioning,
        survey.bucket_counts,
        num_valid=survey.counts["valid"],
        num_test=survey.counts["test"],
        degrees=survey.degrees,
        fingerprint=fingerprint,
        weighted=content.weighted,
    ) as writer:
        for split, edges in _counted(content, "sort", progress):
            writer.append(split, edges)
            if split == "train":
                known.look(edges)
        content.release()
        writer.finish()
    report = {**blanks, **_report(folder, content, survey, known)}
    _log_report(report, content.parts_reverses)
    _log_numbers(numbers)
    _log_floats(floats)
    _doubt_relations(content)
    facts = {
        "num_nodes": content.partitioning.num_nodes,
        "num_relations": content.num_relations,
        "has_relations": content.has_relations,
        "num_partitions": content.partitioning.num_partitions,
        "num_edges": survey.counts,
        "fingerprint": fingerprint,
        "seed": content.seed,
        "names_are_integers": pa.types.is_integer(content.node_type),
        **({MEAN_WEIGHT: mean} if (mean := _mean_weight(content, survey)) is not None else {}),
        "report": report,
        "files": {name: _file_facts(folder / name) for name in (NODES_FILE, RELATIONS_FILE, EDGES_FILE)},
    }
    replace_file(folder / GRAPH_FILE, manifest_bytes(facts))


def _mean_weight(content: GraphContent, survey: Survey) -> float | None:
    """Mean weight of the train edges; None without weights."""
    if not content.weighted:
        return None
    mean = survey.total_weight / survey.counts["train"]
    logger.info("the train edges have weights, %.4g on average and %.4g at most", mean, survey.largest_weight)
    return mean


def _counted(content: GraphContent, stage: str, progress: ProgressHook) -> Iterator[tuple[str, Edges]]:
    done = 0
    for split, edges in made_ahead(content.edges(), "marius-edges"):
        yield split, edges
        done += len(edges)
        progress(stage, done, content.num_edges, "edges")


def _fingerprint(content: GraphContent, survey: Survey, hashes: tuple[str, str]) -> str:
    known = [
        content.partitioning.num_nodes,
        content.num_relations,
        content.has_relations,
        *hashes,
        survey.content(),
    ]
    return xxhash.xxh3_128_hexdigest(json.dumps(known, sort_keys=True).encode())


def _report(folder: Path, content: GraphContent, survey: Survey, known: TrainOverlap) -> dict[str, Any]:
    """What a user should know about the data; the edges themselves are never changed."""
    report: dict[str, Any] = {"self_loops": dict(survey.self_loops)}
    nodes, relations = folder / NODES_FILE, folder / RELATIONS_FILE
    num_nodes, num_relations = content.partitioning.num_nodes, content.num_relations
    for what, path, count, unknown, unused in (
        ("nodes", nodes, num_nodes, survey.unknown_nodes, survey.unused_nodes()),
        ("relations", relations, num_relations, survey.unknown_relations, survey.unused_relations()),
    ):
        report[f"unknown_{what}"] = {split: _noted(path, unknown(split), count) for split in SPLITS[1:]}
        report[f"unused_{what}"] = _noted(path, unused, count)
    with Hdf5EdgeStore(folder / EDGES_FILE) as store:
        report["duplicate_edges"] = count_duplicates(store, folder)
    report["edges_in_train"] = known.in_train()
    report["reversed_edges"] = known.reversed_in_train()
    return {**report, **({MIRRORED: True} if content.mirrored else {}), **content.report}


def _noted(path: Path, ids: NDArray[np.int64], count: int) -> dict[str, Any]:
    """How many ids there are, and the first of their names, of `count` in a file."""
    examples = [read_names(path, i, i + 1, count)[0] for i in ids[:_EXAMPLES].tolist()]
    return {"count": len(ids), "examples": examples}


def _log_report(report: dict[str, Any], parts_reverses: bool) -> None:
    for what in ("nodes", "relations"):
        for split, found in report[f"unknown_{what}"].items():
            if found["count"]:
                count = so_many(found["count"], f"{what[:-1]} of {split} occurs", f"{what} of {split} occur")
                logger.warning(
                    "%s in no train edge (%s); %s kept and will be ranked untrained",
                    count, _some(found), _THEY[found["count"] != 1],
                )  # fmt: skip
        found = report[f"unused_{what}"]
        if found["count"]:
            count = so_many(found["count"], f"{what[:-1]} occurs", f"{what} occur")
            logger.info("%s in no edge (%s); %s kept", count, _some(found), _THEY[found["count"] != 1])
        _log_blanks(what, report[f"padded_{what}"], report[f"spellings_of_{what}"])
    for key, words in (
        ("duplicate_edges", ("edge that repeats another", "edges that repeat another")),
        ("self_loops", ("self-loop", "self-loops")),
    ):
        for split, number in report[key].items():
            if number:
                again = _TWICE if key == "duplicate_edges" and report.get(MIRRORED) else ""
                found = so_many(number, *words)
                logger.info("%s has %s; %s kept%s", split, found, _THEY[number != 1], again)
    for split, found in report["edges_in_train"].items():
        if found["in_train"]:
            much = 100 * found["in_train"] >= found["sampled"]
            logger.log(
                logging.WARNING if much else logging.INFO,
                "of %d %s edges that were looked up, %d stand in train as they are%s",
                found["sampled"],
                split,
                found["in_train"],
                _SEEN if much else "",
            )
    for split, found in report["reversed_edges"].items():
        if found["reversed"] and 200 * found["reversed"] >= found["sampled"]:  # half a per cent
            much = 2 * found["reversed"] >= found["sampled"]
            hint = _EASY + _UNDIRECTED * parts_reverses
            logger.log(
                logging.WARNING if much else logging.INFO,
                "%.0f %% of the %s edges stand in train the other way round%s",
                max(1, 100 * found["reversed"] / found["sampled"]),
                split,
                hint if much else "",
            )


def _doubt_relations(content: GraphContent) -> None:
    """Warn where there are so many relations for the nodes that they may be nodes themselves."""
    relations, nodes = content.num_relations, content.partitioning.num_nodes
    if content.has_relations and relations >= _MANY_RELATIONS and relations * _NODES_PER_RELATION > nodes:
        logger.warning(
            "%d relations are many for %d nodes: if the second column holds tails, and the third no part of "
            "an edge, such as a weight, rating or count, let edges count by it with input.weight=2, or leave "
            "it out with input.columns=[0,1] (in Python weight=, columns=, or pairs in place of triples)",
            relations, nodes,
        )  # fmt: skip


def _log_blanks(what: str, padded: Mapping[str, Any], spellings: Mapping[str, Any]) -> None:
    """Log the names of nodes or relations with blanks around them; a warning where only these part names."""
    if spellings["count"]:
        first, second = spellings["examples"][0]
        logger.warning(
            "%s with and without blanks around them, or with several (such as %r and %r); "
            "blanks are part of a name, so each spelling is another one: remove the blanks from the data if "
            "they are not meant, such as those after the commas of a CSV file",
            so_many(spellings["count"], f"name of {what} occurs", f"names of {what} occur"),
            cut(first), cut(second),
        )  # fmt: skip
    elif padded["count"]:
        logger.info(
            "%s blanks around them (such as %r); %s kept",
            so_many(padded["count"], f"name of {what} has", f"names of {what} have"),
            cut(padded["examples"][0]), _THEY[padded["count"] != 1],
        )  # fmt: skip


def _log_numbers(spellings: Mapping[str, Mapping[str, Any]]) -> None:
    """Warn of whole numbers that are names both as such and with `.0` behind them."""
    for what, found in spellings.items():
        if found["count"]:
            pointed, plain = found["examples"][0]
            logger.warning(
                "%s of %s in two spellings (such as %r and %r), and each spelling is "
                "another one: pandas writes whole numbers so in a column that had gaps; if they are not "
                "meant, convert that column with .astype('Int64') first",
                so_many(found["count"], "number is a name", "numbers are names"), what,
                cut(plain), cut(pointed),
            )  # fmt: skip


def _log_floats(found: Mapping[str, Any]) -> None:
    """Warn of nodes whose names are large numbers that a float has rounded."""
    if found["count"]:
        logger.warning(
            "%s (such as %r), which hold 16 digits: pandas makes them of large "
            "whole numbers beside a gap, and those that differ later have become one; if they are ids, read "
            "that column as text, with dtype=str",
            so_many(found["count"], "name of a node is a float", "names of nodes are floats"),
            found["examples"][0],
        )  # fmt: skip


def _some(found: Mapping[str, Any]) -> str:
    """The examples of what `_noted` returned, for a message."""
    return ", ".join([*map(cut, found["examples"]), *["…"] * (found["count"] > len(found["examples"]))])


def _file_facts(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "xxh3": file_checksum(path)}
