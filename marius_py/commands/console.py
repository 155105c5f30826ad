"""What every command shares (floor 6): one message and an exit code for whatever happens, logging, flags.

In: a function that does a command's work. Out: its exit code; errors as one line on stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from marius_py import __version__
from marius_py.commands.progress import Bars
from marius_py.errors import ConfigError, InterruptedRunError, MariusError, StalledError

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

log = logging.getLogger("marius_py")


class Parser(argparse.ArgumentParser):
    """argparse, whose errors are `ConfigError` like all others."""

    def error(self, message: str) -> Any:
        """Raise instead of exiting, so that every command reports alike."""
        raise ConfigError(f"{message} ({self.prog} --help lists the flags)")


def flagged(parser: Parser, run: Callable[[argparse.Namespace], None], argv: Sequence[str] | None) -> int:
    """A command of flags: parse `argv` (None: sys.argv), run, and report; returns the exit code."""
    parser.add_argument("--version", action="version", version=f"{parser.prog} {__version__}")
    parser.add_argument(
        "--log-level", default=None, choices=LEVELS, help="debug also prints tracebacks (default: info)"
    )

    def go() -> None:
        options = parser.parse_args(argv)
        set_log_level(options.log_level)
        run(options)

    try:
        return guarded(go)
    except SystemExit as leave:  # argparse has printed its help or the version
        return leave.code if isinstance(leave.code, int) else OK


def guarded(run: Callable[[], None]) -> int:
    """Run, and turn whatever happens into one message on stderr and an exit code."""
    try:
        _start_logging()
        with _sigterm_interrupts():
            run()
    except ConfigError as error:
        return _report(error, USAGE)
    except (InterruptedRunError, KeyboardInterrupt) as error:
        return _report(error, INTERRUPTED, str(error) or "interrupted")
    except StalledError as error:
        # The thread that hangs may hold locks which an orderly end would wait for.
        code = _report(error, FAILED)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    except MariusError as error:
        return _report(error, FAILED)
    except BrokenPipeError as error:
        # Whoever read the output has left; a second write on closing must not add a traceback.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _report(error, FAILED, "the output was closed")
    except Exception as error:
        return _report(error, FAILED, told(error))
    return OK


def told(error: BaseException) -> str:
    """What is said of an error, in one line if it is one of the package's."""
    if isinstance(error, MariusError) and str(error):
        return str(error)
    return (
        "out of memory" if isinstance(error, MemoryError) else f"unexpected {type(error).__name__}: {error}"
    )


def _report(error: BaseException, code: int, text: str | None = None) -> int:
    message = str(error) if isinstance(error, MariusError) and str(error) else text or repr(error)
    debug = log.isEnabledFor(logging.DEBUG)
    if debug:
        log.debug("traceback", exc_info=error)
    elif text is not None and code == FAILED:
        message += " (MARIUS_DEBUG=1 prints the traceback)"
    notes = "; ".join(getattr(error, "__notes__", ()))
    sys.stderr.write(f"error: {message}{f' ({notes})' if notes else ''}\n")
    return code


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does; while a run trains, `CommandWatcher` handles both."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        previous = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread: whoever started it handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


LEVELS = ("debug", "info", "warning", "error")


def _start_logging() -> None:
    """INFO lines on stderr; another level by MARIUS_LOG, everything with MARIUS_DEBUG=1.

    Raises:
        ConfigError: MARIUS_LOG names no level.
    """
    for handler in [one for one in log.handlers if isinstance(one, _StderrHandler)]:
        log.removeHandler(handler)
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(message)s", "%H:%M:%S"))
    log.addHandler(handler)
    log.propagate = False
    debug = os.environ.get("MARIUS_DEBUG", "") not in ("", "0")
    level = os.environ.get("MARIUS_LOG") or "info"
    known = level.lower() in LEVELS
    log.setLevel("DEBUG" if debug else level.upper() if known else "INFO")
    if not known:
        raise ConfigError(f"MARIUS_LOG={level} is unknown: it takes one of {', '.join(LEVELS)}")


def set_log_level(level: str | None) -> None:
    """Print lines of `level`, one of LEVELS, and above; None leaves it."""
    if level is not None:
        log.setLevel(level.upper())


class _StderrHandler(logging.Handler):
    """Writes above a progress bar instead of through it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line to the stderr of this moment."""
        try:
            Bars.write(self.format(record))
        except Exception:
            self.handleError(record)


def say(text: str) -> None:
    """Print a line on stdout."""
    sys.stdout.write(text + "\n")
