"""Bound calls against an exchange API of our own: which are taken, streams, devices."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from torch import Tensor

from pyptx_ops import _launch

from .conftest import StubDriver
from .test_calls import CAPSULE, X, aligned, simple

pytestmark = pytest.mark.skipif(CAPSULE is None, reason="this torch has no DLPack exchange API")


class ExchangeApi(ctypes.Structure):
    """As csrc/dlpack.h has it."""

    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p),
        ("unused", ctypes.c_void_p * 3), ("tensor_from_object", ctypes.c_void_p), ("current_stream", ctypes.c_void_p),
    ]  # fmt: skip


SHOW = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_int32))
STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype, capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
NAME = b"dlpack_exchange_api"


class TwoDevices:
    """An exchange API whose tensors are on CUDA devices, by what `devices` says, with a stream for each."""

    def __init__(self, major: int = 1) -> None:
        self.devices: dict[int, int] = {}
        torch_api = ExchangeApi.from_address(capsule_pointer(CAPSULE, NAME))
        show_tensor = SHOW(torch_api.tensor_from_object)

        @SHOW
        def show(tensor: Tensor, out: Any) -> int:
            code = show_tensor(tensor, out)
            out[2], out[3] = 2, self.devices.get(tensor.data_ptr(), 0)  # device type and index
            return code

        @STREAM
        def stream(kind: int, device: int, out: Any) -> int:
            assert kind == 2
            out[0] = 0x1000 + device
            return 0

        self.kept = show, stream
        pointers = (ctypes.cast(function, ctypes.c_void_p).value for function in self.kept)
        self.api = ExchangeApi(major, 0, None, (ctypes.c_void_p * 3)(), *pointers)
        self.capsule = new_capsule(ctypes.addressof(self.api), NAME, None)


def test_the_stream_and_the_device_are_the_tensors_own(stub: StubDriver) -> None:
    world = TwoDevices()
    calls = _launch.BoundCalls(
        world.capsule, ("x",), (), (torch.Tensor,), (), (), limit=8  # CUDA is the default
    )  # fmt: skip
    kernel, first, second = simple(stub), aligned(4), aligned(4)
    world.devices[second.data_ptr()] = 1
    for device, x in enumerate((first, second)):
        assert calls.run(x) is NotImplemented
        assert calls.add((x,), kernel, device, (1, 1, 1), (0, 0), ((0, X, 0),), ())
        assert calls.run(x) is None
        assert (stub.launched()["device"], stub.launched()["stream"]) == (str(device), str(0x1000 + device))
    assert len(calls) == 2


def test_versions_of_the_exchange_api() -> None:
    newer, known, older = TwoDevices(major=2), TwoDevices(), TwoDevices(major=0)
    build = lambda world: _launch.BoundCalls(world.capsule, (), (), (), (), ())  # noqa: E731
    for world in (newer, older):
        with pytest.raises(ValueError, match=rf"version 1 that shows tensors, got one of version {world.api.major}"):
            build(world)
    newer.api.previous = ctypes.addressof(known.api)
    assert len(build(newer)) == 0
    known.api.tensor_from_object = None
    with pytest.raises(ValueError, match="version 1 that shows tensors"):
        build(known)


def test_a_capsule_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="PyCapsule"):
        _launch.BoundCalls(torch.zeros(1).__dlpack__(), (), (), (), (), ())
