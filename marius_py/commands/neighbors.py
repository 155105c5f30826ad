"""`marius-neighbors` (floor 6): the most similar nodes, by name."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from marius_py.commands.common import add_answer_flags, add_run_flags, answer_format, open_run
from marius_py.progress import Bars

PURPOSE = (
    "Find the nodes whose embeddings are nearest to a node's. Exact: all embeddings stream by in blocks."
)
EXAMPLES = """examples:
  marius-neighbors runs/mine --node Oslo
  marius-neighbors runs/mine --node Oslo --node Bern -k 5 --metric l2 --format json"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    add_run_flags(parser)
    parser.add_argument(
        "--node", required=True, action="append", metavar="NAME", help="name of a node; may be repeated"
    )
    parser.add_argument(
        "--metric",
        choices=("cosine", "dot", "l2"),
        default="cosine",
        help="cosine and dot: higher is nearer; l2: euclidean distance, lower is nearer (default: cosine)",
    )
    add_answer_flags(parser)


def run(options: argparse.Namespace) -> None:
    """Find and print the neighbours."""
    from marius_py.predict import Neighbor, neighbors
    from marius_py.predict.files import AnswerWriter

    output = None if options.output is None else Path(options.output)
    writer = AnswerWriter(output, answer_format(options), Neighbor, sys.stdout)
    with open_run(options) as opened, Bars() as bars, writer:
        writer.write(
            neighbors(
                opened,
                options.node,
                k=options.k,
                metric=options.metric,
                memory_bytes=options.memory,
                progress=lambda done, total: bars("search", done, total, "nodes"),
            )
        )
    if output is not None:
        sys.stdout.write(f"{output}\n")
