"""A graph without relations: who is near whom, and a map of all.

    python examples/social_graph.py
    python examples/social_graph.py --edges friends.tsv

Without --edges the graph is NetworkX's "Les Misérables": 77 characters of Victor Hugo's novel, an edge
between any two who appear together. The decoder is the dot product, which learns nothing of relations; a
node's embedding is then close to those of the nodes that share its neighbours. Communities that NetworkX
finds in the graph itself are compared with what the embeddings say. Needs
`pip install 'marius_py[plot]' networkx`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

try:
    import networkx as nx
    from matplotlib.figure import Figure
except ModuleNotFoundError:
    raise SystemExit(
        "this example needs networkx and matplotlib: pip install 'marius_py[plot]' networkx"
    ) from None

import marius_py
from marius_py.run import Run


def read_graph(path: Path | None) -> nx.Graph:
    """The edges of a TSV file, or the built-in graph."""
    if path is None:
        return nx.les_miserables_graph()
    return nx.read_edgelist(path, delimiter="\t", data=False)


def communities_of(graph: nx.Graph) -> dict[str, int]:
    """Node → number of its community, the largest first (greedy modularity)."""
    found = nx.community.greedy_modularity_communities(graph)
    return {str(node): number for number, members in enumerate(found) for node in members}


def agreement(run: Run, communities: dict[str, int], k: int = 3) -> tuple[float, float]:
    """Share of nodes' k nearest neighbours that are of their community; and the same of random pairs."""
    names = run.node_names()
    near = run.neighbors(names, k=k, metric="cosine")
    same = np.mean([communities[one.node] == communities[one.neighbor] for one in near])
    sizes = np.bincount([communities[name] for name in names])
    return float(same), float((sizes * (sizes - 1)).sum() / (len(names) * (len(names) - 1)))


def draw_map(run: Run, communities: dict[str, int], path: Path) -> None:
    """Embeddings on their two first principal components, coloured by community, the best known named."""
    names = run.node_names()
    rows = run.to_numpy()
    rows = rows - rows.mean(axis=0)
    points = rows @ np.linalg.svd(rows, full_matrices=False)[2][:2].T  # (N, 2)
    figure = Figure(figsize=(8, 7), layout="constrained")
    axes = figure.subplots()
    for number in sorted(set(communities.values())):
        members = [place for place, name in enumerate(names) if communities[name] == number]
        axes.scatter(*points[members].T, s=25, alpha=0.8, label=f"community {number}")
    for place in np.argsort(-run.graph.degrees(0, run.num_nodes), kind="stable")[:15]:
        axes.annotate(names[place], points[place], fontsize=7)
    axes.legend(frameon=False, fontsize=7)
    figure.savefig(path, dpi=150)
    print(f"\na map of the {run.num_nodes} nodes, coloured by community: {path}")


def main() -> None:
    """Train on all edges, and look at what is near what."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--edges", type=Path, help="a TSV file with two columns")
    parser.add_argument("--node", default="Valjean", help="whose neighbours to print")
    parser.add_argument("--output", type=Path, default=Path("runs/social_graph"))
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--dim", type=int, default=16)
    options = parser.parse_args()

    # 1. A NetworkX graph goes straight in. All edges are for training: nothing is to be predicted here.
    graph = read_graph(options.edges)
    print(f"{graph.number_of_nodes()} nodes, {graph.number_of_edges()} edges")
    prepared = marius_py.graph_from(
        graph, options.output.with_name(options.output.name + "-graph"), split=(1, 0, 0)
    )

    # 2. Train. Half of the negatives are drawn by degree, or everybody would be near the best known.
    settings = {
        "model.decoder": "dot",
        "model.dim": options.dim,
        "negatives.count": 50,
        "negatives.degree_fraction": 0.5,
        "training.epochs": options.epochs,
        "training.batch_size": 64,
        "training.valid_every": 0,
    }
    with marius_py.train(prepared, options.output, settings) as run:
        # 3. Nearest neighbours, by cosine: direction says who one is with, length how well known one is.
        node = options.node if graph.has_node(options.node) else run.node_names(0, 1)[0]
        print(f"\nnearest to {node}:")
        for one in run.neighbors(node, k=5, metric="cosine"):
            mark = "an edge" if graph.has_edge(node, one.neighbor) else "no edge"
            print(f"  {one.rank}. {one.neighbor}  (cosine {one.score:.2f}, {mark})")

        # 4. Edges that are not there, but would fit best. Each edge was stored in one direction only, and
        # filter_known knows no other: ask for as many more as there are neighbours, and leave those out.
        print(f"\nwhom {node} might know too:")
        answers = run.predict(head=node, k=graph.degree(node) + 4)
        others = [one for one in answers if one.tail != node and not graph.has_edge(node, one.tail)]
        for place, answer in enumerate(others[:3], 1):
            print(f"  {place}. {answer.tail}  (score {answer.score:.2f})")

        # 5. Communities, found without embeddings, against nearest neighbours.
        communities = communities_of(graph)
        same, chance = agreement(run, communities)
        print(f"\n{same:.0%} of the three nearest are of the same community, by chance {chance:.0%}")
        draw_map(run, communities, options.output / "map.png")


if __name__ == "__main__":
    main()
