"""Threads that begin, or say why they do not (floor 0)."""

from __future__ import annotations

from threading import Thread

from marius_py.errors import PipelineError


def start_thread(thread: Thread) -> None:
    """Start a thread; PipelineError, with its name as the stage, if the system has no room for it."""
    try:
        thread.start()
    except RuntimeError as error:
        message = (
            f"the thread {thread.name!r} cannot be started: {error}; does a limit of processes apply? "
            "pipeline.compute_threads says how many a run may have"
        )
        raise PipelineError(message, stage=thread.name) from error
