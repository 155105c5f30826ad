"""Where scores and batches are computed (floor 4): the name of a device in, torch's device out."""

from __future__ import annotations

import torch

from marius_py.errors import ConfigError

DEVICES = ("auto", "cpu", "cuda")


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
    return torch.device(
        "cuda" if name == "auto" and torch.cuda.is_available() else name.replace("auto", "cpu")
    )
