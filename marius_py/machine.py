"""What this machine has (floor 0): cores and memory that this process may take, and devices by name."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from marius_py.errors import ConfigError

DEVICES = ("auto", "cpu", "cuda")

_MEMORY = (
    # mount, and of a group: its limit, what it uses, and the entry of memory.stat for pages dropped first
    ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Memory controllers of control groups: version 2, then version 1."""

_PROCESSOR = (("sys/fs/cgroup", "cpu.max"), ("sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us"))
"""Processor controllers likewise: mount, and of a group the files of its quota and the period it is for."""


def resolve_device(name: str) -> torch.device:
    """The device that `device=` names; "auto" takes CUDA where there is one, "cuda:1" the second of several.

    Raises:
        ConfigError: no such name, or CUDA is asked for and not available.
    """
    kind, colon, number = name.partition(":")
    if name not in DEVICES and not (kind == "cuda" and colon and number.isdecimal()):
        raise ConfigError(
            f"device={name} is unknown: it takes one of {', '.join(DEVICES)}, or cuda:1 and so on"
        )
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"device={name}, but this machine has no usable CUDA device: set device=cpu or auto"
        )
    if colon and int(number) >= torch.cuda.device_count():
        raise ConfigError(
            f"device={name}, but this machine has {torch.cuda.device_count()} CUDA devices: the last is "
            f"cuda:{torch.cuda.device_count() - 1}"
        )
    if colon:
        return torch.device("cuda", int(number))
    if kind == "cuda" or (name == "auto" and torch.cuda.is_available()):
        return torch.device(
            "cuda", torch.cuda.current_device()
        )  # that of this thread, others may have theirs
    return torch.device("cpu")


def on_this_device(body: Callable[[], None]) -> Callable[[], None]:
    """A body for another thread, there with this thread's CUDA device: threads begin with the first one."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return body
    device = torch.cuda.current_device()

    def there() -> None:
        torch.cuda.set_device(device)
        body()

    return there


def available_cores() -> int:
    """Cores that this process may use, the quotas of control groups, as containers have them, included."""
    cores, grouped = len(os.sched_getaffinity(0)), group_cores()
    return cores if grouped is None else max(1, min(cores, math.ceil(grouped)))


def available_memory(device: str = "cpu") -> int:
    """Bytes of memory that can be taken without swapping, the limits of control groups included.

    On "cuda": bytes of the device's memory that are free, where there is one, and of those that this process
    has taken and not in use.
    """
    if device == "cuda" and torch.cuda.is_available():
        cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return int(torch.cuda.mem_get_info()[0]) + cached
    free = _meminfo("MemAvailable")
    if free is None:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    grouped = group_memory()
    return free if grouped is None else min(grouped, free)


def memory_with_swap(device: str = "cpu") -> int:
    """Bytes that can be had at all: `available_memory`, and on this machine what swap has room for."""
    return available_memory(device) + (0 if device == "cuda" else _meminfo("SwapFree") or 0)


def _meminfo(name: str) -> int | None:
    """Bytes that the kernel counts under a name; None where it does not tell."""
    try:
        facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(facts[name].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def group_memory(root: Path = Path("/")) -> int | None:
    """Bytes that the control groups of this process leave it, of version 1 and 2; None without a limit.

    A group shares in the limits of those above it, so the smallest rest up to the root counts. Pages of files
    that were not used lately do not count as taken: the kernel drops them as soon as memory is wanted.

    Args:
        root: where /proc and /sys are.
    """
    rests = [_rest(*names) for names in _groups("memory", _MEMORY, root)]
    return min((rest for rest in rests if rest is not None), default=None)


def group_cores(root: Path = Path("/")) -> float | None:
    """Cores' worth of time that the control groups of this process leave it; None without a quota.

    Args:
        root: where /proc and /sys are.
    """
    quotas = [_quota(*names) for names in _groups("cpu", _PROCESSOR, root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _groups(
    controller: str, versions: tuple[tuple[str, ...], ...], root: Path
) -> Iterator[tuple[Path, *tuple[str, ...]]]:
    """The groups of this process and all above them, each with the names of its files."""
    try:
        lines = os.fsdecode((root / "proc/self/cgroup").read_bytes()).splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount, *files = versions[1 if controllers else 0]
        group = root / mount
        yield group, *files  # in a container often its own group, whatever the path says
        for name in filter(None, path.split("/")):
            group /= name
            yield group, *files


def _quota(group: Path, *files: str) -> float | None:
    """Cores' worth of time of one control group; None if it has no quota, or none that can be read."""
    try:
        quota, period = " ".join((group / name).read_text() for name in files).split()
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # "max" is no quota, nor is -1
        return None


def _rest(group: Path, *names: str) -> int | None:
    """Bytes that one control group may still take; None if it has no limit, or none that can be read."""
    limit, usage, reclaimable = names
    try:
        allowed, used = (int((group / name).read_text()) for name in (limit, usage))
        facts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return max(0, allowed - used + int(facts[reclaimable]))
    except (OSError, ValueError, KeyError):  # "max" is no limit
        return None
