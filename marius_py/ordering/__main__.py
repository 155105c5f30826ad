"""`python -m marius_py.ordering P C`: an order as a table, a picture or JSON (floor 0).

In: flags. Out: text on standard output; exit code 0, or with a message 2 for what cannot be built and 1
for a file that cannot be written.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from marius_py.errors import ConfigError, MariusError, StorageError
from marius_py.ordering.assignment import POLICIES
from marius_py.ordering.bounds import lower_bound
from marius_py.ordering.build import ORDER_NAMES, build_schedule
from marius_py.ordering.drawing import plot
from marius_py.ordering.orders.stored import OPTIMAL, stored_orders
from marius_py.ordering.serialization import to_json
from marius_py.ordering.simulation import hidden_io_cost
from marius_py.ordering.table import format_summary, format_table


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; `arguments` None means those of the process. Returns the exit code."""
    flags = _parser().parse_args(arguments)
    try:
        _print(_run(flags))
    except (MariusError, OSError) as error:
        if not _is_closed("stderr"):
            sys.stderr.write(f"error: {error}\n")
        return 1 if isinstance(error, OSError) else 2
    return 0


def _print(text: str) -> None:
    """Write to standard output, if it is open, with an escape for each character that its encoding lacks."""
    if _is_closed("stdout"):
        return
    out = sys.stdout
    encoding = out.encoding or "utf-8"  # a stream of text in memory has none
    try:
        out.write(text.encode(encoding, "backslashreplace").decode(encoding))
        out.write("\n")  # apart: an unbuffered stream tells of no text that fits in part, but of the next
        out.flush()
    except OSError as error:
        with suppress(OSError):
            out.close()  # else the interpreter flushes it on its way out, and fails with a code of its own
        raise StorageError(f"standard output cannot be written: {error.strerror or error}") from error


def _is_closed(stream: str) -> bool:
    """Whether a standard stream is missing, as after `>&-`: Python has None for it."""
    return getattr(sys, stream) is None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m marius_py.ordering",
        description="How P partitions pass through a buffer of C, and which buckets run when.",
    )
    parser.add_argument("p", type=int, help="number of partitions")
    parser.add_argument("c", type=int, help="partitions that fit in the buffer, 2 to P")
    parser.add_argument("--order", choices=ORDER_NAMES, help="construction (default: auto)")
    parser.add_argument(
        "--policy", choices=POLICIES, help="when a bucket runs (default: deadline; comet: random)"
    )
    parser.add_argument("--seed", type=int, help="renumber the partitions at random (default: do not)")
    parser.add_argument(
        "--compare", action="store_true", help="loads of every construction, for P and C alone"
    )
    parser.add_argument("--json", metavar="FILE", type=_file, help="store the schedule")
    parser.add_argument("--plot", metavar="FILE", type=_picture, help="draw the schedule (png, svg, pdf)")
    return parser


def _file(name: str) -> Path:
    """The file of a flag; a Path would lose the slash with which a folder's name ends."""
    if name.endswith("/"):
        raise argparse.ArgumentTypeError(f"{name} ends in a slash, as a folder does; give the name of a file")
    return Path(name)


def _picture(name: str) -> Path:
    """The file of a picture; matplotlib would write one without an ending under another name."""
    path = _file(name)
    if os.path.splitext(name)[1] in ("", "."):
        raise argparse.ArgumentTypeError(
            f"{name!r} has no ending, which chooses the format; give one of png, svg and pdf, as in order.png"
        )
    return path


def _are_one(one: Path, other: Path) -> bool:
    """Whether two names are of one file, which need not exist."""
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    return os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)


def _run(flags: argparse.Namespace) -> str:
    """Builds what was asked for, writes files, returns the text."""
    if flags.compare:
        others = ("order", "policy", "seed", "json", "plot")
        given = [f"--{name}" for name in others if getattr(flags, name) is not None]
        if given:
            raise ConfigError(f"--compare goes with P and C alone; leave it out, or {', '.join(given)}")
        return _compare(flags.p, flags.c)
    for flag, path in (("--json", flags.json), ("--plot", flags.plot)):
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"{flag} {path}: there is no folder {path.parent}; create it first")
    if flags.json and flags.plot and _are_one(flags.json, flags.plot):
        raise ConfigError(f"--plot {flags.plot} is the file of --json {flags.json} too; give each its own")
    order = flags.order or "auto"
    schedule = build_schedule(flags.p, flags.c, order, flags.seed, policy=flags.policy)
    text = [format_table(schedule), "", f"order {order}", format_summary(schedule)]
    if flags.json:
        with _written("--json", flags.json):
            flags.json.write_text(to_json(schedule) + "\n", encoding="utf-8")
        text.append(f"schedule: {flags.json}")
    if flags.plot:
        with _written("--plot", flags.plot):
            plot(schedule, flags.plot)
        text.append(f"picture: {flags.plot}")
    return "\n".join(text)


@contextmanager
def _written(flag: str, path: Path) -> Iterator[None]:
    """Name the flag and its file in what the system, or matplotlib of the file's ending, says of it."""
    try:
        yield
    except MariusError:
        raise
    except ValueError as error:
        raise ConfigError(f"{flag} {path}: {error}") from error
    except OSError as error:
        raise StorageError(
            f"{flag} {path} cannot be written ({error.strerror or error}); give another file"
        ) from error


def _compare(p: int, c: int) -> str:
    """Loads, excess over the bound and hidden I/O of every construction that exists for p and c."""
    bound = lower_bound(p, c)
    lines = [
        f"p = {p}, c = {c}, lower bound {bound}",
        f"{'order':<18} {'loads':>6} {'over':>7}  hidden I/O a swap",
    ]
    for name in ORDER_NAMES:
        if name == "optimal" and p != c and (p, c) not in stored_orders(OPTIMAL):
            continue
        schedule = build_schedule(p, c, name, seed=None)
        hidden = hidden_io_cost(schedule)
        lines.append(
            f"{name:<18} {schedule.loads:>6} {schedule.loads / bound - 1:>7.1%}  {hidden:.1f} buckets"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
