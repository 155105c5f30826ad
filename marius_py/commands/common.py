"""What several commands share (floor 6): flags of a run, and a word on runs that are not finished."""

from __future__ import annotations

import argparse
import logging
import re
import time
from decimal import Decimal
from typing import TYPE_CHECKING

from marius_py.errors import ConfigError
from marius_py.memory import with_unit
from marius_py.types import ANSWER_FORMATS

if TYPE_CHECKING:
    from marius_py.run import Run

logger = logging.getLogger(__name__)

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """RUN, --graph, --device and --memory."""
    parser.add_argument("run", metavar="RUN", help="folder that marius-train wrote")
    parser.add_argument("--graph", metavar="DIR", help="the prepared graph, if it has moved since training")
    parser.add_argument(
        "--device",
        metavar="DEVICE",
        default="cpu",
        help="where to score: cpu, cuda, cuda:1 and so on, or auto: cuda where there is one (default: cpu)",
    )
    parser.add_argument(
        "--memory",
        type=parse_bytes,
        default="256M",
        metavar="BYTES",
        help="bound of the working memory, with K, M, G (binary); 16M or more (default: 256M)",
    )


def add_among_flag(parser: argparse.ArgumentParser, what: str) -> None:
    """--among, for the nodes that may be `what`."""
    parser.add_argument(
        "--among",
        metavar="FILE",
        help=f"names, one a line, or the column name of a Parquet file: only these nodes may be {what}",
    )


def names_among(options: argparse.Namespace) -> list[str] | None:
    """The names in the file of --among; None without it.

    Raises:
        MissingPathError, StorageError, FormatError: there are none, or they cannot be read.
    """
    from marius_py.predict.query_files import read_names

    return None if options.among is None else read_names(options.among, "--among ")


def add_answer_flags(parser: argparse.ArgumentParser) -> None:
    """-k, --output and --format."""
    parser.add_argument("-k", type=parse_whole, default=10, metavar="K", help="answers a query (default: 10)")
    parser.add_argument(
        "--output",
        type=lambda name: None if name == "-" else name,
        metavar="FILE",
        help="write to FILE instead of the terminal; - is standard output, as without it",
    )
    parser.add_argument(
        "--format",
        choices=ANSWER_FORMATS,
        help="of the answers (default: by the ending of FILE, else table); parquet needs a FILE",
    )


def parse_bytes(text: str) -> int:
    """Bytes of a number with an optional binary unit.

    >>> parse_bytes("64M")
    67108864
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().casefold())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes; write for example 512M or 4G")
    return int(Decimal(match[1]) * _UNITS[match[2]])


def parse_whole(text: str) -> int:
    """The whole number that `text` is; its range is checked where it is used."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: a whole number from 1") from None


def check_named(output: str) -> None:
    """Refuse "-" as the name of the first of several files, which standard output cannot take.

    Raises:
        ConfigError: says how a file is called so.
    """
    if output == "-":
        raise ConfigError(
            "--output - is no name: the command writes several files, and none to standard output; give "
            "--output FILE (./- is a file called -)"
        )


def open_run(options: argparse.Namespace) -> Run:
    """Open the run of the flags; says so when it has not finished."""
    from marius_py.run import load

    run = load(options.run, graph=options.graph, device=options.device)
    say_if_unfinished(run)
    return run


def say_costs(count: int, what: tuple[str, str], started: float) -> None:
    """Log how many queries were answered, in what time and memory.

    Args:
        count: queries.
        what: their name for one and for more, ("query", "queries").
        started: time.perf_counter() before the run was opened.
    """
    from marius_py.run_files.results import peak_rss_bytes

    seconds, peak = time.perf_counter() - started, with_unit(peak_rss_bytes())
    logger.info("%d %s in %.1f s, %s of memory at most", count, what[count != 1], seconds, peak)


def say_if_unfinished(run: Run) -> None:
    """Log what a run has that was interrupted or is still going on."""
    if run.unfinished is not None:
        logger.warning("%s", run.unfinished)
