"""`marius-neighbors` (floor 6): the most similar nodes, by name."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from marius_py.commands.common import (
    add_among_flag,
    add_answer_flags,
    add_run_flags,
    names_among,
    open_run,
    parse_whole,
    say_costs,
)
from marius_py.commands.console import say
from marius_py.commands.progress import Bars
from marius_py.errors import ConfigError

PURPOSE = (
    "Find the nodes whose embeddings are nearest to a node's. Exact: all embeddings stream by in blocks;\n"
    "with --index faiss approximate, by an index built once: pip install 'marius_py[faiss]'."
)
EXAMPLES = """examples:
  marius-neighbors runs/mine --node Oslo
  marius-neighbors runs/mine --node Oslo --node Bern -k 5 --metric l2 --format json
  marius-neighbors runs/mine --node Oslo --index faiss
  marius-neighbors runs/mine --node Oslo --index faiss --index-folder /fast --index-type HNSW32"""


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
    parser.add_argument(
        "--index",
        choices=("exact", "faiss"),
        default="exact",
        help="exact: no index; faiss: build or open one, approximate (default: exact)",
    )
    parser.add_argument("--index-folder", metavar="DIR", help="where indexes are kept (default: RUN/index)")
    parser.add_argument(
        "--index-type",
        metavar="TYPE",
        default="auto",
        help="as faiss describes indexes, such as HNSW32 or IVF4096,PQ32 (default: auto, vectors in lists)",
    )
    parser.add_argument(
        "--probes",
        type=parse_whole,
        metavar="N",
        help="lists that are searched, of an index of lists: more are slower and nearer to exact "
        "(default: a sixteenth, at least 16)",
    )
    add_answer_flags(parser)
    add_among_flag(parser, "neighbours")


def run(options: argparse.Namespace) -> None:
    """Find and print the neighbours."""
    from marius_py.predict import Neighbor, neighbors, open_index
    from marius_py.predict.answer_files import AnswerWriter, format_of
    from marius_py.run_files.outputs import check_output

    _check(options)
    among = names_among(options)
    started = time.perf_counter()
    output = None if options.output is None else Path(options.output)
    writer = AnswerWriter(options.output, format_of(output, options.format), Neighbor, sys.stdout)
    with open_run(options) as opened, Bars() as bars, writer:
        if output is not None:
            check_output(opened, output, f"--output {output}")
        index = None
        if options.index == "faiss":
            index = open_index(
                opened,
                options.metric,
                folder=options.index_folder,
                factory=options.index_type,
                probes=options.probes,
                memory_bytes=options.memory,
                progress=lambda done, total: bars("index", done, total, "nodes"),
            )
        writer.write(
            neighbors(
                opened,
                options.node,
                k=options.k,
                metric=options.metric,
                among=among,
                index=index,
                memory_bytes=options.memory,
                progress=lambda done, total: bars("search", done, total, "nodes"),
            )
        )
    say_costs(len(options.node), ("node", "nodes"), started)
    if output is not None:
        say(str(output))


def _check(options: argparse.Namespace) -> None:
    """Refuse flags of an index where there is none."""
    if options.index == "exact":
        for flag in ("index_folder", "probes"):
            if getattr(options, flag) is not None:
                raise ConfigError(f"--{flag.replace('_', '-')} is of --index faiss, which is not given")
        if options.index_type != "auto":
            raise ConfigError("--index-type is of --index faiss, which is not given")
    elif options.among is not None:
        raise ConfigError("--among is of exact search: leave out --index faiss, or --among")
