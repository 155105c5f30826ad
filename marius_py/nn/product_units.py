"""What float32 products of this process round their factors to (floor 1), as PyTorch is set."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

HostPrecision = Literal["float32", "bfloat16"]
"""Of the host's matrix products: what their factors are rounded to; sums are float32."""

_lock = threading.Lock()
_users: Counter[HostPrecision] = Counter()
"""How many use products of each precision, in all threads of this process."""
_found: dict[str, bool] = {}
"""Setting → whether products under it round their factors on this processor."""
_before: str | None = None
"""What PyTorch was set to before factors were let be rounded; None while it is as a program has set it."""


def product_precision(device: str) -> str:
    """What PyTorch, as it is set, lets float32 products round their factors to on "cpu" or "cuda".

    Asked of the device's own setting, for torch.get_float32_matmul_precision raises where a program has set
    the devices apart.

    Returns:
        "ieee" for float32, "tf32" or "bf16".
    """
    backend = torch.backends.cuda if device == "cuda" else torch.backends.mkldnn
    precision = str(backend.matmul.fp32_precision)
    return "ieee" if precision == "none" else precision


def rounds_products() -> bool:
    """Whether batched float32 products of this process, as PyTorch is set, round their factors on this CPU.

    Asking for units is not having them: a CPU may know bfloat16, and PyTorch still multiply in float32.
    """
    precision = product_precision("cpu")
    return precision != "ieee" and _rounds(precision)


def _rounds(precision: str) -> bool:
    """As found by a product under the setting `precision`, which is the one at hand; found once."""
    if precision in _found:
        return _found[precision]
    # Nearest in bfloat16 and in TensorFloat-32: 1.
    factors = torch.full((1, 64, 64), 1 + 2**-12, dtype=torch.float32, device="cpu")
    with torch.autocast("cpu", enabled=False):
        rounds = bool(torch.bmm(factors, factors)[0, 0, 0] < 64 * (1 + 2**-12))
    if product_precision("cpu") == precision:  # no other thread has changed it meanwhile
        _found[precision] = rounds
    return rounds


@contextmanager
def product_units(precision: HostPrecision) -> Iterator[None]:
    """Let float32 products of this process use the units for bfloat16 meanwhile, if that is the precision.

    PyTorch has one setting for all threads. So while one of those at work asks for "float32", nobody's
    factors are rounded; after the last, PyTorch is set as it was before the first.
    """
    _count(precision, 1)
    try:
        yield
    finally:
        _count(precision, -1)


def _count(precision: HostPrecision, change: int) -> None:
    """Note that users of a precision came or went, and set PyTorch for those who are there."""
    global _before
    setting = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # made at import
    with _lock:
        _users[precision] += change
        rounds = _users["bfloat16"] > 0 and not _users["float32"]
        if rounds and _before is None:
            _before = setting.fp32_precision
            setting.fp32_precision = "bf16"
        elif not rounds and _before is not None:
            setting.fp32_precision = _before
            _before = None
