"""A tiny finished run written without training: known rows, names with blanks and quotes."""

from __future__ import annotations

import numpy as np
import yaml

from marius_py.prepare import prepare
from marius_py.storage.hdf5_nodes import create_node_store
from marius_py.storage.protocols import Checkpoint, NodeTable

NAMES = ["New York", 'the "Louvre"', "Zürich", "Oslo", "Österreich", "NA", "東京", "Lima", "Bern", "Rome"]


def write_run(
    folder,
    *,
    decoder="distmult",
    dim=4,
    reciprocal=False,
    partitions=3,
    dr=None,
    names=NAMES,
    relations=("likes", "knows it"),
    diverged=0,
    spoilt=np.nan,
    constant=None,
):
    """Write folder/graph and folder/run; return (run folder, graph, rows (N, D), relations).

    The rows of the first `diverged` nodes are `spoilt`; the last coordinate of all is `constant`, if given.
    """
    rng, relation_names = np.random.default_rng(5), relations
    lines = []
    for i in range(60):
        head, tail = rng.integers(len(names), size=2)
        lines.append(f"{names[head]}\t{relation_names[i % len(relation_names)]}\t{names[tail]}\n")
    lines += [f"{name}\t{relation_names[0]}\t{names[0]}\n" for name in names]
    unique = sorted(set(lines))
    (folder / "train.tsv").write_text("".join(unique[5:]), encoding="utf-8")
    (folder / "test.tsv").write_text("".join(unique[:5]), encoding="utf-8")
    graph = prepare(
        folder / "train.tsv", folder / "graph", test=folder / "test.tsv", partitions=partitions, header=False
    )
    table = NodeTable(graph.partitioning, dim, 0)
    rows = rng.normal(size=(graph.num_nodes, dim)).astype(np.float32)
    rows[:diverged] = spoilt
    if constant is not None:
        rows[:, -1] = constant
    relations = rng.normal(size=(graph.num_relations * (1 + reciprocal), dim if dr is None else dr))
    relations = relations.astype(np.float32)
    run = folder / "run"
    with create_node_store(run / "checkpoint", table, spare_slots=1) as store:
        block = np.zeros((table.slot_rows, dim), np.float32)
        for part in range(partitions):
            start, size = graph.partitioning.start(part), graph.partitioning.size(part)
            block[:size] = rows[start : start + size]
            store.write(part, block, np.empty((table.slot_rows, 0), np.float32))
        facts = {
            "graph": {"fingerprint": graph.fingerprint},
            "settings": {
                "model.decoder": {"_target_": decoder},
                "model.dim": dim,
                "model.reciprocal": reciprocal,
            },
            "position": [3, 0, 0],
            "history": [{"epoch": 1}, {"epoch": 2}, {"epoch": 3}],
        }
        store.commit(Checkpoint(arrays={"relations": relations}, meta=facts))
    (run / "config.yaml").write_text(yaml.safe_dump({"graph": str(folder / "graph")}), encoding="utf-8")
    return run, graph, rows, relations
