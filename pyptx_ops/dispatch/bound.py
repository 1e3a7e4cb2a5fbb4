"""Bound calls: a call of a kind that was planned before is launched without Python.

`calls_of(op, run)` is what an op tries first. The families `launch` through here, which binds the kind of the call;
whatever is not bound, or is no plain call, is answered with NotImplemented and goes the long way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor

from ..launch import BoundCalls, Kernel, bound_calls, can_bind, may_bind

__all__ = ["binds", "calls_of", "launch"]

_EXCHANGE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)  # torch 2.10 and later
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_UNUSUAL = (torch.Tensor.is_neg,)  # what DLPack does not tell of a tensor: that its values are the negated memory

_NUMBERS = (int, float)

# What compiled graphs allocate with, on the current device: half the cost of a public function on the host.
_EMPTY_STRIDED: dict[str, Callable[..., Tensor]] = {
    device_type: function
    for device_type in ("cpu", "cuda")
    if (function := getattr(torch._C._dynamo.guards, f"_empty_strided_{device_type}", None))
}
Allocation = tuple[Callable[..., Tensor], tuple[Any, ...]]  # a function and its arguments

_tables: dict[str, BoundCalls] = {}
_current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0)


def binds() -> bool:
    """Whether calls are bound at all: torch must show its tensors to C, and the extension must be built."""
    return _EXCHANGE is not None and can_bind()


def calls_of(op: str, run: Callable[..., Any], device_type: int = 2, *, apart: bool = False) -> Callable[..., Any]:
    """A function with the arguments of `run` that launches bound calls and answers NotImplemented to others.

    run: its signature is the op's.  device_type: DLPack's number of the device whose tensors are taken.  apart: only
    tensors from one address to another that no other tensor of the call reaches into: of ops that write to them.
    """
    parameters = signature(run).parameters.values()
    if not binds():
        return _nothing_is_bound
    table = _tables[op] = bound_calls(
        exchange=_EXCHANGE,
        names=tuple(parameter.name for parameter in parameters),
        defaults=tuple(parameter.default for parameter in parameters if parameter.default is not Parameter.empty),
        tensor_types=_TENSORS,
        constant_types=(torch.dtype,),
        unusual=_UNUSUAL,
        device_type=device_type,
        apart=apart,
    )
    return table.run


def _nothing_is_bound(*args: Any, **kwargs: Any) -> Any:
    return NotImplemented


def launch(
    op: str, args: tuple[object, ...], kernel: Kernel, device: int, grid: tuple[int, int, int],
    values: tuple[Any, ...], outputs: tuple[Tensor, ...] = (),
) -> None:  # fmt: skip
    """Enqueues a grid on the current stream, and lets later calls of the kind of this one do the same without Python.

    args: all the op's arguments.
    values: those of the launch; a tensor stands for its address, and (tensor, offset) for one so many bytes on.
    outputs: contiguous tensors that the call made and returns.
    """
    numbers = [value if isinstance(value, _NUMBERS) else _address(value) for value in values]
    if device < 0 and hasattr(kernel, "launch_on"):  # a simulated kernel is told what it may touch
        tensors = [_tensor(value) for value in values if not isinstance(value, _NUMBERS)]
        kernel.launch_on(tensors, grid, *numbers, fresh=outputs)
        return
    stream = _current_stream(device) if device >= 0 else 0
    kernel.launch(device, stream, *grid, *numbers)
    table = _tables.get(op)
    if table is None or not may_bind(kernel):
        return
    addresses = _addresses((*args, *outputs), values)
    if addresses is None or _is_capturing():
        return
    allocations = tuple(map(_allocation, outputs))
    if all(map(_makes, allocations, outputs)):
        table.add(args, kernel, device, grid, tuple(numbers), addresses, allocations)


def _tensor(value: Any) -> Tensor:
    tensor: Tensor = value[0] if isinstance(value, tuple) else value
    return tensor


def _address(value: Any) -> int:
    tensor, offset = value if isinstance(value, tuple) else (value, 0)
    address: int = tensor.data_ptr()
    return address + offset


def _addresses(operands: tuple[object, ...], values: tuple[Any, ...]) -> tuple[tuple[int, int, int], ...] | None:
    """(position, operand, offset) of each address; None where one is not an operand's, but that of a copy, say."""
    known = {id(operand): index for index, operand in enumerate(operands) if isinstance(operand, Tensor)}
    found = []
    for position, value in enumerate(values):
        tensor, offset = value if isinstance(value, tuple) else (value, 0)
        if isinstance(tensor, Tensor):
            if id(tensor) not in known:
                return None
            found.append((position, known[id(tensor)], offset))
    return tuple(found)


def _is_capturing() -> bool:
    """In a graph capture, memory that is kept would keep the graph's whole pool."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _allocation(out: Tensor) -> Allocation:
    """What makes tensors like `out`, of no given values, again."""
    if (empty_strided := _EMPTY_STRIDED.get(out.device.type)) and _is_current(out.device):
        return empty_strided, (tuple(out.shape), out.stride(), out.dtype)
    return torch.empty_like, (_model(out),)


def _is_current(device: torch.device) -> bool:
    return device.type == "cpu" or device.index == torch.cuda.current_device()


def _model(out: Tensor) -> Tensor:
    """A tensor without memory of its own, that `torch.empty_like` makes contiguous ones of the shape of `out` from."""
    with torch.inference_mode(False):
        return _item(out.dtype, out.device).view((1,) * out.dim()).expand(out.shape)


@functools.cache
def _item(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(1, dtype=dtype, device=device)


def _makes(allocation: Allocation, out: Tensor) -> bool:
    function, arguments = allocation
    made: Tensor = function(*arguments)
    return made.stride() == out.stride() and made.device == out.device
