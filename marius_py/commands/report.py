"""`marius-report` (floor 6): a run as one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path

from marius_py.commands.common import check_named, parse_whole, say_if_unfinished
from marius_py.commands.console import say
from marius_py.commands.progress import Bars
from marius_py.errors import ConfigError

PURPOSE = """Draw a run: settings, test metrics, loss, throughput, timeline, ranks, relations and a map of the
embeddings, in one HTML file that opens without a network, and the figures as PNGs beside it. Needs
matplotlib: pip install 'marius_py[plot]'."""
EXAMPLES = """examples:
  marius-report runs/mine
  marius-report runs/mine --output mine.html --figures figures"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("run", metavar="RUN", help="folder that marius-train wrote")
    parser.add_argument("--graph", metavar="DIR", help="the prepared graph, if it has moved since training")
    parser.add_argument("--output", metavar="FILE", help="HTML file (default: RUN/report.html)")
    parser.add_argument(
        "--figures", metavar="DIR", help="folder for the figures as PNGs (default: STEM_figures beside FILE)"
    )
    parser.add_argument("--no-figures", action="store_true", help="write no PNGs")
    parser.add_argument(
        "--map",
        choices=("pca", "umap"),
        default="pca",
        help="map of the embeddings: principal components, or UMAP if umap-learn is installed (default: pca)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FILE and its figures if they exist")
    parser.add_argument(
        "--edges",
        type=parse_whole,
        default=2000,
        metavar="N",
        help="test edges to rank, a sample (default: 2000)",
    )
    parser.add_argument(
        "--nodes",
        type=parse_whole,
        default=2000,
        metavar="N",
        help="nodes on the map, a sample (default: 2000)",
    )


def run(options: argparse.Namespace) -> None:
    """Write the report."""
    from marius_py.evaluation.metrics import check_whole
    from marius_py.report import write_report
    from marius_py.run import load

    for flag, count in (("--edges", options.edges), ("--nodes", options.nodes)):
        check_whole(flag, count, 1)
    if options.no_figures and options.figures is not None:
        raise ConfigError("--figures names a folder and --no-figures wants none: leave one of them out")
    if options.output is not None:
        check_named(options.output)
    output = Path(options.run) / "report.html" if options.output is None else options.output
    stem = Path(output).stem
    figures = None if options.no_figures else options.figures or Path(output).with_name(f"{stem}_figures")
    with load(options.run, graph=options.graph) as opened, Bars() as bars:
        say_if_unfinished(opened)
        files = write_report(
            opened,
            output,
            figures=figures,
            overwrite=options.overwrite,
            max_edges=options.edges,
            max_nodes=options.nodes,
            map=options.map,
            progress=bars,
        )
    for path in files:
        say(str(path))
