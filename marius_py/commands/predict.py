"""`marius-predict` (floor 6): ranked completions of edges by name."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from marius_py.commands.common import (
    add_among_flag,
    add_answer_flags,
    add_run_flags,
    names_among,
    open_run,
    say_costs,
)
from marius_py.commands.console import Once, say
from marius_py.commands.progress import Bars
from marius_py.errors import ConfigError

PURPOSE = """Complete edges by name: give two of --head, --relation and --tail, and the third is predicted;
give all three for the score of that edge. Exact over all entities: the embeddings stream by in blocks."""
EXAMPLES = """examples:
  marius-predict runs/mine --head Oslo --relation capital_of
  marius-predict runs/mine --relation capital_of --tail Norway -k 3 --filter-known
  marius-predict runs/mine --head Oslo --tail Norway --probabilities
  marius-predict runs/mine --head ann --relation likes --among movies.txt
  marius-predict runs/mine --queries queries.tsv --output answers.parquet"""

_QUERIES = 1 << 14
"""Queries of a file that are answered together, if the memory holds their answers."""


class _Part(Once):
    hint = "several queries go into a file: --queries FILE"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    add_run_flags(parser)
    for part in ("head", "relation", "tail"):
        parser.add_argument(f"--{part}", action=_Part, metavar="NAME", help=f"name of the {part}")
    parser.add_argument(
        "--queries",
        metavar="FILE",
        help="TSV, CSV or Parquet with columns head, relation, tail; what is asked for is left out, "
        "empty or ?",
    )
    add_answer_flags(parser)
    add_among_flag(parser, "answers")
    parser.add_argument(
        "--filter-known",
        action="store_true",
        help="leave out answers that are an edge of the train, valid or test split",
    )
    parser.add_argument(
        "--allow-self",
        action="store_true",
        default=None,
        help="offer a query's own node too, in a graph that has neither relations nor self-loops",
    )
    parser.add_argument(
        "--probabilities",
        action="store_true",
        help="also softmax(score / T) over all answers that compete",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="of --probabilities, above 0 (default: fitted to the validation edges, and logged)",
    )


def run(options: argparse.Namespace) -> None:
    """Answer the query, or the queries of the file."""
    from marius_py.predict.answer_files import AnswerWriter, format_of
    from marius_py.predict.answers import Prediction, predict_in_blocks
    from marius_py.predict.query_files import read_queries
    from marius_py.run_files.outputs import check_output

    output = None if options.output is None else Path(options.output)
    writer = AnswerWriter(options.output, format_of(output, options.format), Prediction, sys.stdout)
    columns: dict[str, Any] = {"head": options.head, "relation": options.relation, "tail": options.tail}
    if options.temperature is not None and not options.probabilities:
        raise ConfigError("--temperature is of --probabilities, which is not given")
    if options.queries is not None:
        if any(value is not None for value in columns.values()):
            raise ConfigError("give --queries, or --head, --relation and --tail, not both")
        if output is not None and os.path.realpath(output) == os.path.realpath(options.queries):
            raise ConfigError(
                f"--output {output} and --queries {options.queries} are one file; "
                "give the answers another name"
            )
        queries = read_queries(options.queries)
        columns = {**queries.columns, "place": queries.place}
    among = names_among(options)
    started = time.perf_counter()
    with open_run(options) as opened, Bars() as bars:
        if output is not None:
            check_output(opened, output, f"--output {output}")
        lengths = [len(value) for value in columns.values() if isinstance(value, list)]
        blocks = predict_in_blocks(
            opened,
            **columns,
            k=options.k,
            among=among,
            filter_known=options.filter_known,
            allow_self=options.allow_self,
            probabilities=options.probabilities,
            temperature=options.temperature,
            memory_bytes=options.memory,
            progress=lambda done, total: bars("predict", done, total, "scores"),
            block=_QUERIES,
        )
        with writer:
            for answers in blocks:
                writer.write(answers)
    say_costs(lengths[0] if lengths else 1, ("query", "queries"), started)
    if output is not None:
        say(str(output))
