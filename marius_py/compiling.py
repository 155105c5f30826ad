"""Compile loops for the host with Numba (floor 0): a Python function in, machine code without the lock out.

Importing this module needs Numba; who does imports it only then, as `marius_py.nn.kernels.host`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.errors import NumbaError
from numba.core.event import Event, Listener, install_listener

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

_INNER = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Of functions that only compiled ones call: what Python would call them by takes a sixth of compiling."""

_REORDERED = {"reassoc", "contract", "arcp", "nsz", "afn"}
"""Sums in any order and quick reciprocals. Infinities and NaN keep their meaning: they tell of divergence."""


def helper(function: F) -> F:
    """Compile a function that only compiled ones call: Python cannot, and would end the process."""
    compiled: F = numba.njit(**_INNER)(function)
    return compiled


def reordered_helper(function: F) -> F:
    """As `helper`, for sums in any order, as of `kernel(reordered=True)`.

    It is compiled as part of its caller: of a function that is called, the run that compiles takes one copy
    and runs that load what is kept another, which may have put sums in another order.
    """
    compiled: F = numba.njit(forceinline=True, fastmath=_REORDERED, **_INNER)(function)
    return compiled


def elementwise(function: F) -> F:
    """As `helper`, for what a loop does with each of its numbers: it is compiled as part of the loop.

    Nothing is reordered; products and sums may be done in one step.
    """
    compiled: F = numba.njit(forceinline=True, fastmath={"contract"}, **_INNER)(function)
    return compiled


def inlined(function: F) -> F:
    """As `helper`, written out where it is called: for what is called for each element."""
    compiled: F = numba.njit(inline="always", **_INNER)(function)
    return compiled


def kernel(*, reordered: bool = False, takes_long: bool = False) -> Callable[[F], F]:
    """Compile a function at its first call; it then runs without the interpreter's lock.

    Machine code is kept for later runs, beside the module or in the user's cache folder, as Numba's
    NUMBA_CACHE_DIR says. Where it cannot be kept, each run compiles again and says so; where what is kept
    cannot be loaded (files cut off as power failed, types of another version), it is removed. Numba notices
    changes of the kernel's own file, not of a helper in another one: who works on these removes what is kept
    (*.nbi).

    Args:
        reordered: sums may be taken in another order than written; else results are those of IEEE 754.
        takes_long: compiling takes so many seconds that the first such loop of a program says so.
    """
    fastmath = _REORDERED if reordered else False
    options = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "fastmath": fastmath}

    def compile_it(function: F) -> F:
        def compiling() -> Any:
            try:
                if _has_a_folder(function):
                    return numba.njit(cache=True, **options)(function)
                reason = "neither the package's folder can be written nor is there a home"
            except RuntimeError as error:  # no folder that can be written
                reason = str(error)
            log.debug("%s: compiled code is not kept: %s", function.__name__, reason)
            return numba.njit(**options)(function)

        compiled = compiling()
        again: Any = None  # compiled anew, after what was kept could not be loaded
        lock = threading.Lock()

        @wraps(function)
        def call(*arguments: Any) -> Any:
            nonlocal again
            if again is not None:
                return again(*arguments)
            try:
                if takes_long and not compiled.signatures:
                    with install_listener("numba:compile", _Teller(compiled.stats.cache_path is not None)):
                        return compiled(*arguments)
                return compiled(*arguments)
            except (MemoryError, NumbaError):  # the loop's own
                raise
            except Exception as error:
                if isinstance(error, OSError) and compiled.signatures:  # compiled by now, but not kept
                    log.debug("%s: compiled code is not kept: %s", function.__name__, error)
                    return compiled(*arguments)
                with lock:
                    if again is None:
                        _tell_of_damage()
                        log.debug(
                            "%s: compiled code that was kept is of no use: %r", function.__name__, error
                        )
                        is_gone = _remove_kept(compiled, function)
                        again = compiling() if is_gone else numba.njit(**options)(function)
            return again(*arguments)

        return call  # type: ignore[return-value]

    return compile_it


class _Teller(Listener):  # type: ignore[misc]  # Numba has no types
    """Tells who waits that something is compiled, which Numba says of what is not kept only.

    Args:
        is_kept: there is a folder for it.
    """

    def __init__(self, is_kept: bool) -> None:
        self._is_kept = is_kept

    def on_start(self, event: Event) -> None:
        _tell_of_compiling(self._is_kept)

    def on_end(self, event: Event) -> None:
        pass


@cache
def _tell_of_compiling(is_kept: bool) -> None:
    """Once for all loops."""
    often = "once for an installation"
    if not is_kept:
        often = "in each run, since no folder to keep them can be written (NUMBA_CACHE_DIR names one)"
    log.info("compiling loops for this processor: up to half a minute, %s", often)


def _has_a_folder(function: Callable[..., Any]) -> bool:
    """Whether Numba may look for a folder to keep code in.

    Where HOME is unset and the user's number has no name, as in a container, it would make one that is called
    `~` in the working directory, and where XDG_CACHE_HOME is empty, one called `numba`.
    """
    if numba.config.CACHE_DIR:
        return True
    beside = Path(function.__code__.co_filename).parent
    kept = beside / "__pycache__"
    if os.access(kept if kept.is_dir() else beside, os.W_OK):
        return True
    return os.path.isabs(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~")))


@cache
def _tell_of_damage() -> None:
    """Once for all loops: a power failure harms more than one."""
    log.warning("compiled code that was kept is damaged: compiling again")


def _remove_kept(compiled: Any, function: Callable[..., Any]) -> bool:
    """Remove the list of a function's machine code, so that none of it is loaded; whether that could be."""
    file, line = Path(function.__code__.co_filename).stem, function.__code__.co_firstlineno
    kept = f"{file}.{function.__qualname__}-{line}.*.nbi"
    try:
        for one in Path(compiled.stats.cache_path or "").glob(kept):
            one.unlink(missing_ok=True)
    except OSError as error:
        log.debug("%s: %s", function.__name__, error)
        return False
    return True
