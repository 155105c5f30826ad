"""The folder that a run is to have (floor 5): settings in, its path out; one named by the time is made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from itertools import count
from pathlib import Path

from marius_py.config import TrainConfig
from marius_py.errors import StorageError
from marius_py.storage.files import missing_folders


@contextmanager
def named(config: TrainConfig) -> Iterator[TrainConfig]:
    """`config` with a run folder; one named by the time goes again where nothing comes into it."""
    if config.output is not None:
        yield config
        return
    made = missing_folders(Path("runs").absolute())
    folder = run_folder(config)
    try:
        yield replace(config, output=str(folder))
    finally:
        for one in (folder, *made):
            with suppress(OSError):  # it has content, as a rule
                one.rmdir()


def run_folder(config: TrainConfig) -> Path:
    """The run folder, which need not exist yet; without `output` one is made, of which the name is the time.

    Raises:
        StorageError: it cannot be made.
    """
    if config.output is not None:
        return Path(config.output).absolute()
    folder = first = Path("runs", datetime.now().strftime("%Y-%m-%d_%H-%M-%S")).absolute()
    numbers = count(2)
    try:
        first.parent.mkdir(exist_ok=True)
        while True:
            try:
                folder.mkdir()
            except FileExistsError:  # another run's of this second
                folder = first.with_name(f"{first.name}-{next(numbers)}")
            else:
                return folder
    except OSError as error:
        raise StorageError(
            f"the run folder {folder} cannot be made: {error.strerror}; give output=RUN"
        ) from error
