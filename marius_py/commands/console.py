"""What every command shares (floor 6): one message and an exit code for whatever happens, logging, flags.

In: a function that does a command's work. Out: its exit code; errors as one line on stderr.
"""

from __future__ import annotations

import _thread
import argparse
import contextlib
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from marius_py.commands.progress import Bars
from marius_py.commands.streams import discard, flush, tell
from marius_py.errors import (
    ConfigError,
    InterruptedRunError,
    MariusError,
    StalledError,
    StorageError,
)
from marius_py.readable import readable
from marius_py.storage.targets import check_working_directory
from marius_py.version import __version__

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

log = logging.getLogger("marius_py")


class Once(argparse.Action):
    """Stores the value of a flag, and refuses a second one, which argparse would take in its place.

    Attributes:
        hint: what the message adds.
    """

    hint = ""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Store; ConfigError: the flag was given before."""
        if self.option_strings:
            given = namespace.__dict__.setdefault("given_once", {})
            if self.dest in given:
                raise ConfigError(
                    f"{option_string} is given twice: {given[self.dest]!r} and {values!r}; "
                    f"{self.hint or 'leave one of them out'}"
                )
            given[self.dest] = values
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """argparse, whose errors are `ConfigError` like all others, and whose flags with a value are `Once`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name in (None, "store"):
            self.register("action", name, Once)

    def error(self, message: str) -> Any:
        """Raise instead of exiting, so that every command reports alike."""
        lacking = re.fullmatch(r"argument (--[\w-]+)\S*: expected one argument", message)
        if lacking is not None:
            message += f"; one that begins with - is given as {lacking[1]}=-…"
        raise ConfigError(f"{message} ({self.prog} --help lists the flags){self._form(message)}")

    def _form(self, message: str) -> str:
        """How the command takes what it did not recognize, settings or flags; else nothing."""
        if "unrecognized arguments" not in message:
            return ""
        meant = self._meant(message)
        if meant:
            return meant
        if any(action.nargs == "*" for action in self._actions):
            return "; settings are given without dashes, as key=value"
        return "; flags are given with dashes, as --flag VALUE" if re.search(r": \w\S*=", message) else ""

    def _meant(self, message: str) -> str:
        """The flag that the first of those not recognized is near to; else nothing."""
        from marius_py.config.near import suggest

        flag = re.search(r": (--[\w-]+)", message)
        known = [one for action in self._actions for one in action.option_strings if one.startswith("--")]
        return suggest(flag[1], known) if flag else ""

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help or the version, where argparse would not tell that it could not."""
        write(message)


def flagged(parser: Parser, run: Callable[[argparse.Namespace], None], argv: Sequence[str] | None) -> int:
    """A command of flags: parse `argv` (None: sys.argv), run, and report; returns the exit code."""
    parser.add_argument("--version", action="version", version=f"{parser.prog} {__version__}")
    parser.add_argument(
        "--log-level", default=None, choices=LEVELS, help="debug also prints tracebacks (default: info)"
    )

    def go() -> None:
        try:
            options = parser.parse_args(argv)
        except SystemExit:  # argparse has printed its help or the version
            return
        set_log_level(options.log_level)
        run(options)

    return guarded(go, leaves=argv is None)


def guarded(run: Callable[[], None], *, leaves: bool = False) -> int:
    """Run, and turn whatever happens into one message on stderr and an exit code.

    Args:
        run: the work.
        leaves: the process ends with the code: SIGINT and SIGTERM are ignored from here on, so that none
            that comes while the interpreter is taken down replaces it. Otherwise the handlers of before are
            put back.
    """
    with _interrupts(leaves) as signals:
        try:
            code = _outcome(run)
            flush(sys.stdout)
            flush(sys.stderr)
            signals.settled = True
        except KeyboardInterrupt:  # one more, while the outcome was told: perhaps nobody reads it
            signals.settled = True
            code = INTERRUPTED
            if leaves:
                discard(sys.stdout)
                discard(sys.stderr)
    return code


def _outcome(run: Callable[[], None]) -> int:
    """The exit code of `run`, whose error is told."""
    try:
        _start_logging()
        check_working_directory()
        run()
        _write_out()
    except ConfigError as error:
        return _report(error, USAGE)
    except (InterruptedRunError, KeyboardInterrupt) as error:
        return _report(error, INTERRUPTED, str(error) or "interrupted")
    except StalledError as error:
        # The thread that hangs may hold locks which an orderly end would wait for.
        code = _report(error, FAILED)
        flush(sys.stdout)
        os._exit(code)
    except MariusError as error:
        return _report(error, FAILED)
    except BrokenPipeError as error:
        return _report(error, FAILED, "the output was closed")
    except BaseException as error:  # of a user's class, or of Rust; flags and help have had theirs
        return _report(error, FAILED, told(error))
    return OK


def _write_out() -> None:
    """Write what stdout holds back, while a reader that has left or a full disk is an error to report."""
    with printing():
        sys.stdout.flush()


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """What the system says of no file is said of stdout, which is written here."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if isinstance(error, MariusError) or error.filename is not None or not error.strerror:
            raise
        raise StorageError(f"standard output cannot be written: {error.strerror}") from error


def told(error: BaseException) -> str:
    """What is said of an error, in one line if it is one of the package's."""
    if isinstance(error, MariusError) and str(error):
        return str(error)
    if isinstance(error, MemoryError):
        return "out of memory"
    if isinstance(error, OSError) and error.strerror:  # a full disk, a name too long: no defect of ours
        where = "reading or writing" if error.filename is None else error.filename
        return f"{where}: {error.strerror}"
    try:
        said = str(error)
    except Exception as failure:  # a class of a user's may fail at that too
        said = f"its text cannot be had ({type(failure).__name__})"
    return f"unexpected {type(error).__name__}: {said}"


def _report(error: BaseException, code: int, text: str | None = None) -> int:
    message = (str(error) if isinstance(error, MariusError) and str(error) else text or repr(error)).strip()
    debug = log.isEnabledFor(logging.DEBUG)
    if debug:
        log.debug("traceback", exc_info=error)
    elif text is not None and code == FAILED:
        message += " (MARIUS_DEBUG=1 prints the traceback)"
    notes = "; ".join(getattr(error, "__notes__", ()))
    tell(readable(f"error: {message}{f' ({notes})' if notes else ''}"))
    return code


class _Signals:
    """A handler of SIGINT and SIGTERM that interrupts the command.

    It does not interrupt an import, which would leave modules half made, or be swallowed by a library that
    can do without what it imports, nor omegaconf and hydra where it reads, which make other errors of it,
    nor what Python calls when an object goes and LLVM while it compiles, where errors are lost: the signal is
    sent again until they are over.

    Attributes:
        settled: the exit code is; signals do nothing.
    """

    def __init__(self) -> None:
        self.settled = False
        self._waiting = False

    def interrupt(self, signum: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, or come back later."""
        if self.settled or self._waiting:
            return
        if not _is_brittle(frame):
            raise KeyboardInterrupt
        self._waiting = True
        # Not a threading.Thread: this may have interrupted the start of one, which holds a lock.
        _thread.start_new_thread(self._send_again, (signum, _thread.get_ident()))

    def _send_again(self, signum: int, main: int) -> None:
        time.sleep(0.02)
        self._waiting = False
        if not self.settled:
            signal.pthread_kill(main, signum)


@contextlib.contextmanager
def _interrupts(leaves: bool) -> Iterator[_Signals]:
    """SIGTERM ends a command as Ctrl-C does; while a run trains, `CommandWatcher` handles both.

    Signals that are ignored stay so. In the end the handlers of before are put back, or, where the process
    `leaves`, both signals are ignored.
    """
    signals = _Signals()
    previous: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():  # else whoever started it handles signals
        for one in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(one) not in (signal.SIG_IGN, None):
                previous[one] = signal.signal(one, signals.interrupt)
    try:
        yield signals
    finally:
        for one, handler in previous.items():
            signal.signal(one, signal.SIG_IGN if leaves else handler)


_BRITTLE = (
    "omegaconf",
    "weakref",
    "_weakrefset",
    "hydra._internal.core_plugins.importlib_resources_config_source",
    "llvmlite",
    "numba.core.types.abstract",
)


def _is_brittle(frame: FrameType | None) -> bool:
    """Whether `frame` is part of what is not to be interrupted, begun by the command."""
    while frame is not None and frame.f_code is not _outcome.__code__:
        module, code = str(frame.f_globals.get("__name__")), frame.f_code
        if (
            module in _BRITTLE
            or module.partition(".")[0] in _BRITTLE
            or code.co_name == "__del__"
            or "<frozen importlib" in code.co_filename
        ):
            return True
        frame = frame.f_back
    return False


LEVELS = ("debug", "info", "warning", "error")


def _start_logging() -> None:
    """INFO lines on stderr; another level by MARIUS_LOG, everything with MARIUS_DEBUG=1.

    On a terminal they have the time of day; elsewhere the date too, for a file may be of a run of weeks.

    Raises:
        ConfigError: MARIUS_LOG names no level.
    """
    for handler in [one for one in log.handlers if isinstance(one, _StderrHandler)]:
        log.removeHandler(handler)
    handler = _StderrHandler()
    when = "%H:%M:%S" if sys.stderr.isatty() else "%Y-%m-%d %H:%M:%S"
    handler.setFormatter(_OneLine("%(asctime)s %(levelname).1s %(message)s", when))
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


class _OneLine(logging.Formatter):
    """Escapes what a message holds of line breaks and control characters; a traceback has its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (the name is logging's)
        """The line of a record."""
        return readable(super().formatMessage(record))


class _StderrHandler(logging.Handler):
    """Writes above a progress bar instead of through it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line to the stderr of this moment."""
        try:
            Bars.write(self.format(record))
        except Exception:
            # The handler of a signal may come upon a line that is being written.
            with contextlib.suppress(Exception):
                self.handleError(record)


def say(text: str) -> None:
    """Print a line on stdout."""
    write(text + "\n")


def write(text: str) -> None:
    """Print text on stdout; StorageError: it cannot be written."""
    with printing():
        sys.stdout.write(text)
