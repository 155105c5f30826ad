"""Commands that hydra configures (floor 6): words in; a checked configuration, or a sweep of them, out.

Plain runs are composed by `config.compose`; `--multirun`, `--cfg` and hydra's other flags go through hydra's
own main. Both end in the command's function.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marius_py.commands.console import LEVELS, Parser, guarded, log, printing, say, set_log_level, told, write
from marius_py.errors import ConfigError, InterruptedRunError, StalledError
from marius_py.version import __version__


@dataclass(frozen=True, slots=True)
class _Flags:
    """What precedes or stands between the settings."""

    overrides: tuple[str, ...] = ()
    hydra: tuple[str, ...] = ()
    sweep: bool = False
    config_dir: str | None = None


@dataclass(frozen=True, slots=True)
class HydraCommand:
    """A command that hydra configures.

    Attributes:
        name: as it is called.
        kind: name of its configuration class in `marius_py.config`.
        purpose, examples: for `--help`.
        run: its work; returns the figure that a sweep goes by.
        sweep_output: in a sweep without `output`, what it is; each job has a folder of its own.
        places: keys of files or folders that the command writes, of which each job has its own.
    """

    name: str
    kind: str
    purpose: str
    examples: tuple[str, ...]
    run: Callable[[Any], float | None]
    sweep_output: str = "${hydra:runtime.output_dir}"
    places: tuple[str, ...] = ()


def configured(command: HydraCommand, argv: Sequence[str] | None) -> int:
    """Compose what `argv` (None: sys.argv) asks for, run, and report; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)

    def run() -> None:
        from marius_py import config as configs

        kind = getattr(configs, command.kind)
        if "-h" in words or "--help" in words:
            from marius_py.config.help import help_text

            write(help_text(kind, command.name, command.purpose, command.examples))
        elif "--version" in words:
            say(f"{command.name} {__version__}")
        else:
            _compose_and_run(command, kind, words)

    return guarded(run, leaves=argv is None)


def _compose_and_run(command: HydraCommand, kind: type[Any], words: Sequence[str]) -> None:
    from marius_py import config as configs
    from marius_py.config.compose import naming_files
    from marius_py.config.overrides import keys_in, prepare_overrides
    from marius_py.config.saved import yaml_text

    flags = _parse_flags(words, command.name)
    if flags.hydra == ("--cfg", "job") and not flags.sweep and "resume" in keys_in(flags.overrides):
        # hydra does not know of the settings that the run has.
        composed = configs.compose(kind, flags.overrides, config_dir=flags.config_dir)
        write(yaml_text(configs.plain(composed)))
    elif flags.hydra or flags.sweep:
        _through_hydra(command, kind, flags)
    else:
        config = configs.compose(kind, flags.overrides, config_dir=flags.config_dir)
        if flags.config_dir is None:
            command.run(config)
            return
        given = prepare_overrides(kind, flags.overrides, config_dir=flags.config_dir)
        with naming_files(kind, given, flags.config_dir):
            command.run(config)


def _parse_flags(words: Sequence[str], command: str) -> _Flags:
    """Sort words into settings and flags; flags of hydra that are not ours go to it as they stand."""
    parser = Parser(prog=command, add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--log-level", choices=LEVELS)
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("--package", "-p")
    parser.add_argument("--info", "-i", nargs="?", const="all")
    parser.add_argument("--hydra-help", action="store_true")
    parser.add_argument("--shell-completion", "-sc", action="store_true")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_intermixed_args(list(words))
    set_log_level(options.log_level)
    one_of = {
        "--multirun": options.multirun,
        "--cfg": options.cfg is not None,
        "--info": options.info is not None,
        "--shell-completion": options.shell_completion,
    }
    chosen = [flag for flag, given in one_of.items() if given]
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)} cannot go together: allowed is one of {', '.join(one_of)}")
    if options.resolve and options.cfg is None:
        raise ConfigError("--resolve goes with --cfg: add --cfg job, hydra or all, or leave it out")
    hydra: list[str] = []
    for flag, value in (("--cfg", options.cfg), ("--package", options.package), ("--info", options.info)):
        hydra += [flag, value] if value is not None else []
    for name in ("resolve", "hydra_help", "shell_completion"):
        hydra += [f"--{name.replace('_', '-')}"] if getattr(options, name) else []
    return _Flags(tuple(options.overrides), tuple(hydra), options.multirun, options.config_dir)


def _through_hydra(command: HydraCommand, kind: type[Any], flags: _Flags) -> None:
    """Sweeps and hydra's own questions: hydra's main composes and calls back once a job."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from marius_py.config import EvaluateConfig
    from marius_py.config.compose import NAMES, config_from, naming_files
    from marius_py.config.groups import own_groups
    from marius_py.config.overrides import (
        job_words,
        keys_in,
        prepare_overrides,
        warn_of_hydra,
        warn_of_idle_words,
    )
    from marius_py.config.search_path import searched

    own = own_groups(NAMES[kind], flags.config_dir)
    overrides = prepare_overrides(kind, flags.overrides, sweep=flags.sweep, config_dir=flags.config_dir)
    if flags.sweep:
        warn_of_hydra(flags.overrides, sweep=True)
        if kind is EvaluateConfig:
            warn_of_idle_words(flags.overrides, sweep=True)
    if flags.sweep and "output" not in keys_in(flags.overrides):
        overrides.append(f"output={command.sweep_output}")
    jobs = _Jobs(flags.sweep)

    def job(composed: Any) -> float | None:
        given = list(HydraConfig.get().overrides.task)
        number = HydraConfig.get().job.num if flags.sweep else 0
        if flags.sweep:
            words = ["--config-dir", flags.config_dir] if flags.config_dir is not None else []
            words += job_words(kind, flags.overrides, overrides, swept, given)
            log.info("job %d: %s", number, shlex.join(words))

        def work() -> float | None:
            config = config_from(kind, composed, given, config_dir=flags.config_dir)
            resumes = getattr(config, "resume", False)  # it may go on with the run of a job before
            places = {} if resumes else {key: getattr(config, key) for key in command.places}
            jobs.check(places)
            with naming_files(kind, given, flags.config_dir):
                found = command.run(config)
            jobs.written |= {os.path.realpath(name): number for name in places.values() if name is not None}
            return found

        try:
            return jobs.run(number, work)
        finally:
            if flags.sweep:
                with suppress(OSError):  # it has content, as a rule
                    os.rmdir(HydraConfig.get().runtime.output_dir)

    if "--hydra-help" in flags.hydra:
        overrides = []  # hydra composes its help without the settings that they are for
    words = [command.name, *flags.hydra, *(["-m"] if flags.sweep else []), *overrides]
    try:
        with _composing(overrides, own), searched(own):
            parsed = OverridesParser.create().parse_overrides(overrides)
            swept = {one.key_or_group for one in parsed if one.is_sweep_override()}
            with printing():  # jobs keep their errors to themselves
                _hydra_main(kind, words, job)
    except BaseException as error:
        jobs.conclude(error)
        raise
    jobs.conclude()


def _hydra_main(kind: type[Any], words: list[str], job: Callable[[Any], float | None]) -> None:
    """Hydra's main with `words` for a command line, errors raised as they are; ConfigError: it refuses it."""
    import hydra

    from marius_py.config.compose import NAMES
    from marius_py.config.groups import conf_dir

    before, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    # Otherwise hydra prints and leaves with code 1; here the caller makes one message and a code of it.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv = words
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=NAMES[kind])(job)()
    except SystemExit as leave:
        if leave.code not in (None, 0):
            raise ConfigError("hydra refused the command line; its message is above") from leave
    finally:
        sys.argv = before
        if full_error is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error


@contextmanager
def _composing(words: Sequence[str], own: Path | None) -> Iterator[None]:
    """What hydra finds wrong with words and files is a ConfigError; errors of jobs have notes, and stay."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from marius_py.config.groups import refused

    try:
        yield
    except ConfigError:
        raise
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        if getattr(error, "__notes__", ()):
            raise
        raise refused(error, words, own) from error


@dataclass(slots=True)
class _Jobs:
    """Runs the jobs of a sweep to its end, whichever fail.

    Attributes:
        sweep: there can be several.
        begun: their number.
        failures: the error of each that failed.
        ended_by: what ends the sweep with its job: an interrupt, or a thread that hangs.
        parent: the process that counts; a launcher may fork others.
        written: files and folders that jobs have written, and the job of each.
    """

    sweep: bool
    begun: int = 0
    failures: list[Exception] = field(default_factory=list)
    ended_by: Exception | None = None
    parent: int = field(default_factory=os.getpid)
    written: dict[str, int] = field(default_factory=dict)

    def check(self, places: Mapping[str, str | None]) -> None:
        """Refuse the file or folder of a key if an earlier job has written it: its results would be lost.

        Raises:
            ConfigError: names key, file or folder, and job.
        """
        for key, name in places.items():
            number = None if name is None else self.written.get(os.path.realpath(name))
            if number is not None:
                way = "leave it out, or name it" if key == "output" else "name it"
                raise ConfigError(
                    f"{key}={name} was written by job {number}, and each job needs one of its own: {way} by "
                    f"what is swept or by the job, as in '{key}=job-${{hydra:job.num}}"
                    f"{os.path.splitext(str(name))[1]}'"
                )

    def run(self, number: int, work: Callable[[], float | None]) -> float | None:
        """What `work` returns, for the sweeper; None where it fails, by which sweepers know that."""
        self.begun += 1
        try:
            return work()
        except Exception as error:
            if self.sweep:
                error.add_note(f"job {number}")
            if os.getpid() != self.parent:  # only hydra can carry the error over
                raise
            if isinstance(error, (InterruptedRunError, StalledError)):
                self.ended_by = error
                raise KeyboardInterrupt from error  # hydra and sweepers collect other errors
            self.failures.append(error)
            if self.sweep:
                log.error("job %d failed: %s", number, told(error))
                log.debug("traceback", exc_info=error)
            return None

    def conclude(self, error: BaseException | None = None) -> None:
        """Raise what ended the sweep or failed first.

        Args:
            error: of hydra or the sweeper. What no job has raised, or interrupts, is left to the caller.
        """
        if self.ended_by is not None:
            raise self.ended_by
        if not self.failures or not isinstance(error, Exception | None):
            return
        if error is not None:
            log.error("the sweep ended: %s", told(error))
        first = self.failures[0]
        if self.sweep:
            first.add_note(f"{len(self.failures)} of {self.begun} jobs failed, this one first")
        raise first
