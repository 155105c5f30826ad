"""A knowledge graph from an edge list to answers by name.

    python examples/knowledge_graph.py
    python examples/knowledge_graph.py --edges mine.tsv --head "some node" --relation "some relation"

Without --edges the facts of `countries.tsv` beside this file are used: capitals, neighbours, languages and
regions of 191 countries. To see what has been learned and not just looked up, the continents of 30 countries
are kept back, and asked for at the end. Needs matplotlib, for the map: `pip install 'marius_py[plot]'`.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

try:
    from matplotlib.figure import Figure
except ModuleNotFoundError:
    raise SystemExit("this example needs matplotlib: pip install 'marius_py[plot]'") from None

import marius_py
from marius_py.run import Run

COUNTRIES = Path(__file__).with_name("countries.tsv")
KEPT_BACK = 30

Edge = tuple[str, str, str]


def read_edges(path: Path) -> list[Edge]:
    """Head, relation and tail of every line of a TSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return [(row[0], row[1], row[2]) for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def keep_back(edges: Sequence[Edge], relation: str, count: int, seed: int) -> tuple[list[Edge], list[Edge]]:
    """Split off `count` edges of a relation, chosen at random."""
    candidates = [edge for edge in edges if edge[1] == relation]
    kept = set(random.Random(seed).sample(candidates, min(count, len(candidates))))
    return [edge for edge in edges if edge not in kept], sorted(kept)


def show(run: Run, head: str, relation: str, k: int = 3) -> None:
    """Print the best tails of a query."""
    print(f"\n{head} --{relation}--> ?")
    for answer in run.predict(head=head, relation=relation, k=k):
        print(f"  {answer.rank}. {answer.tail}  (score {answer.score:.2f})")


def draw_map(run: Run, path: Path) -> None:
    """All embeddings on their two first principal components; nodes with many edges carry their names."""
    rows = run.to_numpy()
    rows = rows - rows.mean(axis=0)
    points = rows @ np.linalg.svd(rows, full_matrices=False)[2][:2].T  # (N, 2)
    degrees = run.graph.degrees(0, run.num_nodes)
    figure = Figure(figsize=(8, 7), layout="constrained")
    axes = figure.subplots()
    axes.scatter(*points.T, c=np.log1p(degrees), s=10)
    for place in np.argsort(-degrees, kind="stable")[:25]:
        axes.annotate(run.node_names(place, place + 1)[0], points[place], fontsize=7)
    figure.savefig(path, dpi=150)
    print(f"\na map of the {run.num_nodes} nodes: {path}")


def main() -> None:
    """Prepare, train, measure, ask."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--edges", type=Path, help="a TSV file of head, relation, tail")
    parser.add_argument("--head", help="with --relation: what to ask at the end")
    parser.add_argument("--relation")
    parser.add_argument("--output", type=Path, default=Path("runs/knowledge_graph"))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--decoder", default="transe", help="complex, distmult, rotate, …")
    parser.add_argument("--dim", type=int, default=32)
    options = parser.parse_args()

    # 1. Edges. Two splits of our own: what is kept back is for testing, the rest is for training.
    edges = read_edges(options.edges or COUNTRIES)
    if options.edges is None:
        train, test = keep_back(edges, "on_continent", KEPT_BACK, seed=0)
    else:
        train, test = keep_back(edges, options.relation or edges[0][1], len(edges) // 20, seed=0)
    print(f"{len(train)} edges to learn from, {len(test)} kept back")

    # 2. Train. A country's region lies on its continent, so what is kept back follows from two other edges.
    # In TransE a relation is a step from head to tail, and two steps add up to a third.
    graph = marius_py.graph_from(train, options.output.with_name(options.output.name + "-graph"), test=test)
    settings = {
        "model.decoder": options.decoder,
        "model.dim": options.dim,
        "training.epochs": options.epochs,
        "training.batch_size": 128,
        "training.valid_every": 0,
    }
    with marius_py.train(graph, options.output, settings) as run:
        # 3. Measure: the kept edges, each ranked among all nodes, heads as well as tails.
        tails = run.result["test"]["tail"]
        print(
            f"kept edges: the true tail comes first for {100 * tails['hits@1']:.0f} %, MRR {tails['mrr']:.2f}"
        )

        # 4. Ask by name.
        if options.head and options.relation:
            show(run, options.head, options.relation, k=10)
        else:
            for head, relation, tail in test[:3]:
                show(run, head, relation)
                print(f"  it is {tail}")
            near = ", ".join(f"{one.neighbor} ({one.score:.2f})" for one in run.neighbors("Norway", k=4))
            print(f"\nmost like Norway: {near}")

        # 5. Look.
        draw_map(run, options.output / "map.png")


if __name__ == "__main__":
    main()
