"""Puts the simulated device, for good, in the place of one that is not there."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from tests.simulated import streams
from tests.simulated.streams import DEVICE, launch
from tests.simulated.tensors import DeviceTensor, empty_like, held_by, tensors_in

_HostGenerator = torch.Generator
_pinned: dict[int, int] = {}
_kept: list[Any] = []
"""What must live as long as the process."""


# ---------------------------------------------------------------------- pinned memory


def _pin(tensor: Tensor) -> Tensor:
    start, size = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
    if size:
        _pinned[start] = size
        weakref.finalize(tensor, _pinned.pop, start, None)
    return tensor


def _is_pinned(tensor: Tensor, device: Any = None) -> bool:
    if isinstance(tensor, DeviceTensor):
        return False
    return tensor.untyped_storage().data_ptr() in _pinned


def _pin_memory(tensor: Tensor, device: Any = None) -> Tensor:
    return tensor if _is_pinned(tensor) else _pin(tensor.clone())


# ---------------------------------------------------------------------- functions of PyTorch


def _device(given: Any) -> Any:
    """A device, with its number if it is CUDA: without, PyTorch looks for a real one."""
    return DEVICE if _is_cuda(given) else given


def _is_cuda(given: Any) -> bool:
    return isinstance(given, str | torch.device) and torch.device(given).type == "cuda"


def _sent(real: Callable[..., Any]) -> Callable[..., Any]:
    """A function with devices among its arguments, and perhaps memory to be pinned."""

    def call(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        named = {name: _device(one) if name == "device" else one for name, one in kwargs.items()}
        tensor = real(*map(_device, args), **named)
        return _pin(tensor) if pin_memory else tensor

    return call


def _from_data(real: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes tensors of what the host has."""

    def call(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        if not _is_cuda(device):
            return real(*args, device=device, **kwargs)
        return real(*args, **kwargs).to(DEVICE)

    return call


def _counted(real: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.arange`, which PyTorch makes by resizing an empty tensor."""

    def call(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        if not _is_cuda(device):
            return real(*args, device=device, **kwargs)
        out = empty_like(real(*args, device="meta", **kwargs))
        held = out.held
        launch(lambda: held.copy_(real(*args, **kwargs)))
        return out

    return call


class _GeneratorType(type):
    def __instancecheck__(cls, one: Any) -> bool:
        return isinstance(one, _HostGenerator)


class _Generator(metaclass=_GeneratorType):
    """A generator of the host, wherever it is said to be."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return _HostGenerator("cpu")


# ---------------------------------------------------------------------- in their place


def _install_guard() -> None:
    """Let PyTorch's device guard of the CPU, which does nothing, guard the device."""
    c10 = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 2).in_dll(c10, "_ZN3c104impl26device_guard_impl_registryE")
    guards[1] = guards[0]  # by device type: CPU is 0, CUDA 1


def _install_memory() -> None:
    def empty(size: Any, *, dtype: Any = None, **_: Any) -> Tensor:
        return empty_like(torch.empty(size, dtype=dtype, device="meta"))

    def empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Tensor:
        return empty_like(torch.empty_strided(size, stride, dtype=dtype, device="meta"))

    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", empty, "CUDA")
    library.impl("empty_strided", empty_strided, "CUDA")
    _kept.append(library)


def _install_triton() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        from triton import language
        from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle
    except ImportError:
        return
    real, real_dot = InterpretedFunction.run, InterpreterBuilder.create_dot

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        given = list(tensors_in([*args, *kwargs.values()]))
        if not any(isinstance(one, DeviceTensor) for one in given):
            real(self, *args, **kwargs)
            return
        if any(not isinstance(one, DeviceTensor) for one in given):
            raise ValueError("Pointer argument cannot be accessed from Triton (cpu tensor?)")
        held, named = tree_map(held_by, args), tree_map(held_by, kwargs)
        launch(lambda: real(self, *held, **named))

    def widened(one: Any) -> Any:
        """The interpreter holds bfloat16 as integers and would multiply those."""
        if one.dtype.scalar != language.bfloat16:
            return one
        return TensorHandle((one.data.astype(np.uint32) << 16).view(np.float32), language.float32)

    def dot(self: Any, left: Any, right: Any, *others: Any) -> Any:
        return real_dot(self, widened(left), widened(right), *others)

    InterpretedFunction.run = run
    InterpreterBuilder.create_dot = dot


def _install_functions() -> None:
    cuda: Any = torch.cuda
    for name, value in {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_name": lambda device=None: "a simulated device",
        "get_device_capability": lambda device=None: (9, 0),
        "mem_get_info": lambda device=None: (8 << 30, 8 << 30),
        "memory_reserved": lambda device=None: 0,
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
        "empty_cache": lambda: None,
        "synchronize": streams.synchronize,
        "Stream": streams.Stream,
        "Event": streams.Event,
        "stream": streams.on_stream,
        "current_stream": streams.current_stream,
        "default_stream": lambda device=None: streams.default,
        "set_stream": streams.set_stream,
        "CUDAGraph": streams.Graph,
        "graph": streams.recording,
        "graph_pool_handle": lambda: (0, 1),
        "is_current_stream_capturing": streams.is_capturing,
        "set_sync_debug_mode": streams.set_sync_debug_mode,
    }.items():
        setattr(cuda, name, value)
    tensor: Any = Tensor
    for name in ("to", "new_zeros", "new_empty", "new_full", "new_ones"):
        setattr(tensor, name, _sent(getattr(tensor, name)))
    real_list = tensor.tolist
    tensor.tolist = lambda self: real_list(self.cpu())
    tensor.cuda = lambda self, device=None, non_blocking=False: self.to(DEVICE, non_blocking=non_blocking)
    tensor.is_pinned, tensor.pin_memory = _is_pinned, _pin_memory
    tensor.record_stream = lambda self, stream: self.memory.users.append(stream)
    functions: Any = torch
    for name in ("empty", "zeros", "ones", "full"):
        setattr(functions, name, _sent(getattr(torch, name)))
    for name in ("tensor", "as_tensor"):
        setattr(functions, name, _from_data(getattr(torch, name)))
    functions.arange = _counted(torch.arange)
    functions.Generator = _Generator


def pytest_configure() -> None:
    """Begin with it: pytest was told to take this module as a plugin."""
    install()


def install() -> None:
    """Put the device in its place."""
    _install_guard()
    _install_memory()
    _install_triton()
    _install_functions()
