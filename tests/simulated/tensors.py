"""Tensors of the simulated device, and what becomes of a call that is given them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from tests.simulated.streams import DEVICE, Stream, current_stream, is_capturing, launch, wait

POISON = {torch.float32: math.nan, torch.float64: math.nan, torch.int64: -(1 << 40), torch.int32: -(1 << 30)}

aten = torch.ops.aten

_WAITING = {
    aten._local_scalar_dense.default,
    aten._unique2.default,
    aten.bincount.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten.masked_select.default,
    aten.nonzero.default,
    aten.repeat_interleave.Tensor,
    aten.unique_consecutive.default,
    aten.unique_dim.default,
}
"""Calls whose results the host has to see."""


class Memory:
    """What a tensor and its views lie in. When the last of them is gone, others may write there.

    As PyTorch's allocator has it: once the stream that it was made on has done what was asked of it, and the
    streams that `record_stream` told of.
    """

    def __init__(self, values: Tensor) -> None:
        self.users: list[Stream] = []
        if not is_capturing():  # a graph's memory is its own
            weakref.finalize(self, _free, values, current_stream(), self.users)


def _free(values: Tensor, stream: Stream, users: Sequence[Stream]) -> None:
    marks = [(user, user.asked) for user in users if user is not stream]

    def work() -> None:
        for user, mark in marks:
            user.do(mark)
        _poison(values)

    stream.put_off(work)


class DeviceTensor(Tensor):
    """A tensor that says it is on the device. `held` has its values once their work is done."""

    held: Tensor
    memory: Memory

    @staticmethod
    def __new__(cls, held: Tensor, memory: Memory | None = None) -> DeviceTensor:
        made: Any = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        made.held, made.memory = held, memory or Memory(held)
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype})"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


def empty_like(shape: Tensor) -> DeviceTensor:
    """A tensor of a shape on "meta" that holds `POISON`."""
    held = torch.empty_strided(shape.size(), shape.stride(), dtype=shape.dtype, device="cpu")
    return DeviceTensor(_poison(held))


def held_by(one: Any) -> Any:
    """The values of a tensor on the device; of a device the one that has them; else what is given."""
    if isinstance(one, DeviceTensor):
        return one.held
    return torch.device("cpu") if isinstance(one, torch.device) else one


def tensors_in(values: Any) -> Iterator[Tensor]:
    """All tensors among arguments."""
    for one in values:
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, tuple | list):
            yield from tensors_in(one)


def _poison(values: Tensor) -> Tensor:
    return values.fill_(POISON.get(values.dtype, 0))


def _dispatch(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if func is aten.copy_.default:
        return _copy(*args, **kwargs)
    if func is aten._to_copy.default and getattr(kwargs.get("device"), "type", "cuda") == "cpu":
        wait("copy to the host")
        return args[0].held.to(dtype=kwargs.get("dtype") or args[0].dtype).clone()
    if func.is_view:
        memory = next(one for one in tensors_in(args) if isinstance(one, DeviceTensor)).memory
        views = func(*tree_map(held_by, args), **tree_map(held_by, kwargs))
        return tree_map(lambda one: DeviceTensor(one, memory) if isinstance(one, Tensor) else one, views)
    for one in tensors_in([*args, *kwargs.values()]):
        if not isinstance(one, DeviceTensor) and one.dim():
            raise RuntimeError(f"Expected all tensors to be on the same device, but one is on cpu: {func}")
    args, kwargs = tree_map(_as_now, list(args)), tree_map(_as_now, kwargs)
    given, named = tree_map(held_by, args), tree_map(held_by, kwargs)
    if func in _WAITING or _has_mask_as_index(func, args):
        wait(str(func))
        found = func(*given, **named)
        return _changed(func, args, kwargs) if func._schema.is_mutable else tree_map(_on_device, found)
    if func._schema.is_mutable:
        launch(lambda: func(*given, **named))
        return _changed(func, args, kwargs)
    outs = tree_map(
        lambda one: empty_like(one) if isinstance(one, Tensor) else one,
        func(*tree_map(_shape, args), **tree_map(_shape, kwargs)),
    )
    results = [out.held for out in tensors_in(_listed(outs)) if isinstance(out, DeviceTensor)]

    def work() -> None:
        for result, found in zip(results, tensors_in(_listed(func(*given, **named))), strict=True):
            result.copy_(found)

    launch(work)
    return outs


def _copy(into: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    values = held_by(source)
    if isinstance(into, DeviceTensor):
        if not isinstance(source, DeviceTensor) and not (non_blocking and source.is_pinned()):
            if source.dim() and is_capturing():
                raise RuntimeError("cannot copy from unpinned memory of the host while recording")
            values = source.clone()  # it is read before the call returns
        target = into.held
        launch(lambda: target.copy_(values))
        if source.is_pinned() and not non_blocking:
            wait("copy from the host")
    elif non_blocking and into.is_pinned():
        launch(lambda: into.copy_(values))
    else:
        wait("copy to the host")
        into.copy_(values)
    return into


def _as_now(one: Any) -> Any:
    """A number of the host goes with the launch, as it is."""
    return one.clone() if isinstance(one, Tensor) and not isinstance(one, DeviceTensor) else one


def _shape(one: Any) -> Any:
    if isinstance(one, Tensor):
        return torch.empty_strided(one.size(), one.stride(), dtype=one.dtype, device="meta")
    return torch.device("meta") if isinstance(one, torch.device) else one


def _on_device(one: Any) -> Any:
    return DeviceTensor(one) if isinstance(one, Tensor) else one


def _listed(values: Any) -> Sequence[Any]:
    return values if isinstance(values, tuple | list) else [values]


def _has_mask_as_index(func: Any, args: Sequence[Any]) -> bool:
    if func not in (aten.index.Tensor, aten.index_put_.default, aten.index_put.default):
        return False
    return any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1])


def _changed(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Those arguments of a call in place that it returns."""
    by_alias = {}
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            by_alias[frozenset(argument.alias_info.before_set)] = value
    found = []
    for one in func._schema.returns:
        if one.alias_info is None:
            raise RuntimeError(f"{func} writes to an argument and returns another tensor: it is not played")
        found.append(by_alias[frozenset(one.alias_info.before_set)])
    return None if not found else found[0] if len(found) == 1 else tuple(found)
