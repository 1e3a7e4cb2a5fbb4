"""Bound calls against the recording driver: which are of one kind, what they launch, what they leave alone."""

from __future__ import annotations

import gc
import itertools
import math
import struct
import sys
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pyptx_ops import _launch
from pyptx_ops.dsl.types import Param, TensorMapSpec
from pyptx_ops.launch import param_spec

from .conftest import StubDriver

CAPSULE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
pytestmark = pytest.mark.skipif(CAPSULE is None, reason="this torch has no DLPack exchange API")

CPU = 1  # DLPack's device type
MAP = param_spec(Param("map", "tensor_map", TensorMapSpec("bf16", (64, 128), swizzle=128)))
PARAMS = (MAP, ("x", "pointer"), ("out", "pointer"), ("scale", "f32"))
VALUES = (0, 64, 128, 256, 0, 0, 1.5)  # of PARAMS; the addresses are at 0, 4 and 5
X, OTHER, OPTION, OUT = 0, 1, 2, 3


def make(**replaced: Any) -> _launch.BoundCalls:
    """Calls of op(x, other=None, option=None)."""
    given = {
        "names": ("x", "other", "option"), "defaults": (None, None),
        "tensor_types": (torch.Tensor, torch.nn.Parameter), "constant_types": (torch.dtype,),
        "unusual": (torch.Tensor.is_neg,), "device_type": CPU,
    }  # fmt: skip
    return _launch.BoundCalls(CAPSULE, **(given | replaced))


def simple(stub: StubDriver) -> _launch.Kernel:
    return stub.kernel((("x", "pointer"), ("out", "pointer")))


def bind(
    calls: _launch.BoundCalls, kernel: _launch.Kernel, *args: object, outputs: int = 1,
    allocate: Callable[..., Tensor] = torch.empty_like, device: int = 0,
) -> None:  # fmt: skip
    assert calls.add(
        args=args, kernel=kernel, device=device, grid=(3, 2, 1), values=(0, 0),
        addresses=((0, X, 0), (1, OUT if outputs else X, 0)), outputs=((allocate, (torch.zeros(2, 3),)),) * outputs,
    )  # fmt: skip


def words(*addresses: int) -> str:
    return ",".join(struct.pack("<Q", address).hex() for address in addresses)


def test_a_hit_launches_on_new_addresses_and_returns_the_output(stub: StubDriver) -> None:
    calls, kernel = make(), simple(stub)
    bind(calls, kernel, torch.zeros(4), None, None)
    for _ in range(3):
        x = torch.arange(4.0)
        out = calls.run(x)
        assert isinstance(out, Tensor) and out.shape == (2, 3) and torch.equal(x, torch.arange(4.0))
        fields = stub.launched()
        assert fields["params"] == words(x.data_ptr(), out.data_ptr())
        assert (fields["grid"], fields["device"], fields["stream"]) == ("3,2,1", "0", "0")
    assert len(stub.calls("cuLaunchKernelEx")) == 3


def test_the_launch_is_that_of_the_kernel(stub: StubDriver) -> None:
    """Tensor maps, scalars, offsets, shared memory, clusters: byte for byte."""
    calls = make()
    kernel = stub.kernel(PARAMS, cluster=(2, 1, 1), shared_memory=100_000, pdl=True)
    x, other = torch.zeros(8, 2), torch.zeros(5)
    assert calls.add(
        (x, other, torch.float32),
        kernel,
        0,
        (7, 1, 1),
        VALUES,
        ((0, OTHER, 64), (4, X, -8), (5, OUT, 0)),
        ((torch.empty_like, (x,)),),
    )
    out = calls.run(x, other, torch.float32)
    bound, encoded = stub.launched(), stub.calls("cuTensorMapEncodeTiled")[-1]
    kernel.launch(0, 0, 7, 1, 1, other.data_ptr() + 64, 64, 128, 256, x.data_ptr() - 8, out.data_ptr(), 1.5)
    assert stub.calls("cuTensorMapEncodeTiled")[-1] == encoded
    map_of = lambda fields: fields.pop("params").split(",", 1)  # noqa: E731
    (_, rest), (_, wanted) = map_of(bound), map_of(launched := stub.launched())
    assert rest == wanted and bound == launched


def test_a_tuple_of_outputs_and_none(stub: StubDriver) -> None:
    kernel, x = simple(stub), torch.zeros(4)
    two, none = make(), make()
    bind(two, kernel, x, None, None, outputs=2)
    bind(none, kernel, x, None, None, outputs=0)
    first, second = two.run(x)
    assert first.data_ptr() != second.data_ptr() and none.run(x) is None
    assert stub.launched()["params"] == words(x.data_ptr(), x.data_ptr())


def test_arguments_come_by_position_by_name_or_by_default(stub: StubDriver) -> None:
    calls, kernel, x, y = make(), simple(stub), torch.zeros(4), torch.zeros(5)
    bind(calls, kernel, x, y, torch.float32)
    assert calls.run(x, y, torch.float32) is not NotImplemented
    assert calls.run(x, y, option=torch.float32) is not NotImplemented
    assert calls.run(option=torch.float32, x=x, other=y) is not NotImplemented
    for args, kwargs in [
        ((), {}), ((x,), {}), ((x, y), {}), ((x, torch.float32), {}), ((x, y, torch.float32, None), {}),
        ((x, y), {"nothing": torch.float32}), ((x, y), {"x": x}), ((), {"other": y}),
    ]:  # fmt: skip
        assert calls.run(*args, **kwargs) is NotImplemented
    bind(calls, kernel, x, None, torch.float32)
    assert calls.run(x, option=torch.float32) is not NotImplemented


def aligned(elements: int, offset: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor that starts `offset` elements past a multiple of 16 bytes."""
    base = torch.zeros(elements + offset + 16, dtype=dtype)
    skip = -base.data_ptr() % 16 // base.element_size() + offset
    return base[skip : skip + elements]


NEGATIVE_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000000))[0]
KINDS: dict[str, object] = {
    "plain": aligned(24),
    "half": aligned(24, dtype=torch.float16),
    "bfloat": aligned(24, dtype=torch.bfloat16),
    "short": aligned(24, dtype=torch.int16),
    "complex": aligned(24, dtype=torch.complex64),
    "longer": aligned(25),
    "matrix": aligned(24).view(4, 6),
    "other matrix": aligned(24).view(6, 4),
    "transposed": aligned(24).view(6, 4).t(),
    "strided": aligned(48)[::2],
    "expanded": aligned(1).expand(24),
    "scalar": aligned(1).view(()),
    "five": aligned(24).view(1, 2, 3, 4, 1),
    "misaligned": aligned(24, 1),
    "more misaligned": aligned(24, 3),
    "none": None,
    "true": True,
    "false": False,
    "one": 1,
    "zero": 0,
    "big": 2**63 - 1,
    "small": -(2**63),
    "one as float": 1.0,
    "zero as float": 0.0,
    "minus zero": -0.0,
    "nan": math.nan,
    "another nan": NEGATIVE_NAN,
    "next to one": math.nextafter(1.0, 2.0),
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_difference_of_kind_is_told_apart(stub: StubDriver, kind: str) -> None:
    calls, kernel, x = make(), simple(stub), aligned(4)
    bind(calls, kernel, x, KINDS[kind], None)
    hits = [other for other, value in KINDS.items() if calls.run(x, value) is not NotImplemented]
    assert hits == [kind] and len(stub.calls("cuLaunchKernelEx")) == 1


def test_one_address_twice_is_another_kind(stub: StubDriver) -> None:
    calls, kernel, x, y = make(), simple(stub), aligned(4), aligned(4)
    bind(calls, kernel, x, y, None)
    assert calls.run(y, x) is not NotImplemented and calls.run(x, x) is NotImplemented


def test_a_constant_is_kept(stub: StubDriver) -> None:
    """Else another object at its address would pass for it."""

    class Constant:
        pass

    calls, kernel, x, constant = make(constant_types=(Constant,)), simple(stub), aligned(4), Constant()
    before = sys.getrefcount(constant)
    bind(calls, kernel, x, constant, None)
    assert sys.getrefcount(constant) == before + 1
    assert calls.run(x, constant) is not NotImplemented and calls.run(x, Constant()) is NotImplemented
    calls.clear()
    assert sys.getrefcount(constant) == before and len(calls) == 0 and calls.run(x, constant) is NotImplemented


class Subclass(torch.Tensor):
    pass


def unusual() -> dict[str, Any]:
    """Things that have the shape and dtype of a plain tensor of four floats, and more to them."""
    released = aligned(4).clone()
    released.untyped_storage().resize_(0)
    return {
        "subclass": aligned(4).as_subclass(Subclass),
        "meta": torch.zeros(4, device="meta"),
        "sparse": torch.ones(4).to_sparse(),
        "negated": torch._neg_view(aligned(4)),
        "zero": torch._efficientzerotensor((4,)),
        "functional": torch._to_functional_tensor(aligned(4)),
        "nested": torch.nested.nested_tensor([torch.ones(4)]),
        "quantized": torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),
        "released": released,
        "text": "x",
        "list": [1],
        "huge": 2**64,
        "complex number": 1j,
    }


@pytest.mark.filterwarnings("ignore:.*(prototype|quantize|deprecated).*")
@pytest.mark.parametrize("name", [
    "subclass", "meta", "sparse", "negated", "zero", "functional", "nested", "quantized", "released", "text", "list",
    "huge", "complex number",
])  # fmt: skip
def test_what_is_no_plain_tensor_or_constant_is_left_alone(stub: StubDriver, name: str) -> None:
    calls, kernel, x, value = make(), simple(stub), aligned(4), unusual()[name]
    bind(calls, kernel, x, x.clone(), None)
    assert calls.run(x, x.clone()) is not NotImplemented
    launches = len(stub.calls("cuLaunchKernelEx"))
    assert calls.run(x, value) is NotImplemented and calls.run(value, x) is NotImplemented
    assert len(stub.calls("cuLaunchKernelEx")) == launches


def test_a_call_without_a_key_is_not_bound(stub: StubDriver) -> None:
    calls, kernel = make(), simple(stub)
    assert not calls.add((torch.zeros(4).as_subclass(Subclass), None, None), kernel, 0, (1, 1, 1), (0, 0), (), ())
    assert not calls.add((torch.zeros(0), None, None), kernel, 0, (1, 1, 1), (0, 0), (), ())
    assert len(calls) == 0


@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp", "functionalize"])
def test_what_transforms_wrap_is_left_alone(stub: StubDriver, transform: str) -> None:
    calls, kernel, x, seen = make(), simple(stub), torch.zeros(4), []
    bind(calls, kernel, x, None, None)

    def function(inner: Tensor) -> Tensor:
        seen.append(calls.run(inner))
        return inner.sum()

    {
        "vmap": lambda: torch.func.vmap(function)(x.expand(3, 4)),
        "grad": lambda: torch.func.grad(function)(x),
        "jvp": lambda: torch.func.jvp(function, (x,), (x,)),
        "functionalize": lambda: torch.func.functionalize(function)(x),
    }[transform]()
    assert seen == [NotImplemented] and calls.run(x) is not NotImplemented


def test_fake_tensors_are_left_alone(stub: StubDriver) -> None:
    calls, kernel = make(), simple(stub)
    bind(calls, kernel, torch.zeros(4), None, None)
    with torch._subclasses.FakeTensorMode():
        fake = torch.zeros(4)
    assert calls.run(fake) is NotImplemented


def test_parameters_and_inference_tensors_are_tensors(stub: StubDriver) -> None:
    calls, kernel = make(), simple(stub)
    bind(calls, kernel, aligned(4), None, None)
    assert isinstance(calls.run(torch.nn.Parameter(aligned(4))), Tensor)
    with torch.inference_mode():
        out = calls.run(aligned(4).clone())
        assert isinstance(out, Tensor) and out.is_inference()
    assert not calls.run(aligned(4)).is_inference()


def test_tensors_of_another_device_type_are_left_alone(stub: StubDriver) -> None:
    calls = make(device_type=2)
    assert not calls.add((torch.zeros(4), None, None), simple(stub), 0, (1, 1, 1), (0, 0), (), ())


def test_a_misaligned_output_is_not_launched_on(stub: StubDriver) -> None:
    calls, kernel = make(), simple(stub)
    bind(calls, kernel, aligned(4), None, None, allocate=lambda like: aligned(6, 1))
    assert calls.run(aligned(4)) is NotImplemented and not stub.calls("cuLaunchKernelEx")


def test_an_output_on_another_device_is_not_launched_on(stub: StubDriver) -> None:
    calls, kernel = make(), simple(stub)
    bind(calls, kernel, aligned(4), None, None, device=1)  # CPU tensors are on device 0
    assert calls.run(aligned(4)) is NotImplemented and not stub.calls("cuLaunchKernelEx")


def test_an_allocation_that_fails_raises(stub: StubDriver) -> None:
    def allocate(like: Tensor) -> Tensor:
        raise MemoryError("no room")

    calls, kernel = make(), simple(stub)
    bind(calls, kernel, aligned(4), None, None, allocate=allocate)
    with pytest.raises(MemoryError, match="no room"):
        calls.run(aligned(4))
    assert not stub.calls("cuLaunchKernelEx")


@pytest.mark.parametrize("call", ["cuLaunchKernelEx", "cuTensorMapEncodeTiled"])
def test_errors_of_the_driver_are_those_of_a_launch(stub: StubDriver, call: str) -> None:
    calls, kernel, x = make(), stub.kernel(PARAMS), aligned(8)
    assert calls.add((x, None, None), kernel, 0, (1, 1, 1), VALUES, ((0, X, 0), (4, X, 0), (5, X, 0)), ())
    stub.fail(call, 1)
    with pytest.raises(_launch.LaunchError) as bound:
        calls.run(x)
    address = x.data_ptr()
    with pytest.raises(_launch.LaunchError) as direct:
        kernel.launch(0, 0, 1, 1, 1, address, 64, 128, 256, address, address, 1.5)
    assert str(bound.value) == str(direct.value) and call in str(bound.value)


def test_an_empty_grid_launches_nothing(stub: StubDriver) -> None:
    calls, x = make(), aligned(4)
    assert calls.add((x, None, None), simple(stub), 0, (1, 0, 1), (0, 0), (), ())
    assert calls.run(x) is None and not stub.calls("cuLaunchKernelEx")


X4 = aligned(4)
REFUSED = {
    "count of values": ({"values": (0,)}, TypeError, r"wanted 7 values .*got 6"),
    "value": ({"values": (0, 1.5)}, TypeError, "parameter 'out' wanted a value of kind pointer, got 1.5"),
    "range": ({"values": (0, -1)}, OverflowError, "parameter 'out'"),
    "device": ({"device": 2}, _launch.LaunchError, "device 2 does not exist"),
    "grid": ({"grid": (1, -1, 1)}, OverflowError, "grid wanted a value of kind u32, got -1"),
    "grid's rank": ({"grid": (1, 1)}, TypeError, "3 sizes of the grid, got 3 and 2"),
    "arguments": ({"args": (X4,)}, TypeError, "wanted all 3 arguments of the op.*got 1"),
    "position": ({"addresses": ((2, X, 0),)}, ValueError, "value 2 is no address"),
    "operand": ({"addresses": ((0, OUT, 0),)}, ValueError, "operand 3 is no tensor"),
    "negative operand": ({"addresses": ((0, -1, 0),)}, ValueError, "operand -1 is no tensor"),
    "operand without memory": ({"addresses": ((0, OTHER, 0),)}, ValueError, "operand 1 is no tensor"),
    "address": ({"addresses": (1,)}, TypeError, r"\(position, operand, offset\)"),
    "kernel": ({"kernel": None}, TypeError, "Kernel"),
    "outputs": ({"outputs": ((torch.empty_like, (X4,)),) * 14}, ValueError, "at most 16"),
    "output": ({"outputs": (X4,)}, TypeError, r"\(function, arguments\)"),
    "output's arguments": ({"outputs": ((torch.empty_like, X4),)}, TypeError, "tuple"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_bound_is_refused(stub: StubDriver, case: str) -> None:
    replaced, error, message = REFUSED[case]
    calls = make()
    given = {
        "args": (X4, None, None), "kernel": simple(stub), "device": 0, "grid": (1, 1, 1), "values": (0, 0),
        "addresses": (), "outputs": (),
    }  # fmt: skip
    with pytest.raises(error, match=message):
        calls.add(**(given | replaced))
    assert len(calls) == 0


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"names": tuple("abcdefghijklmnopq")}, "at most 16"),
        ({"defaults": (1, 2, 3, 4)}, "no more defaults than names"),
        ({"limit": 0}, "limit of 1"),
    ],
)
def test_what_makes_no_table_is_refused(replaced: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**replaced)


def test_the_table_is_bounded(stub: StubDriver) -> None:
    calls, kernel, x = make(limit=8), simple(stub), aligned(4)
    for option in range(100):
        bind(calls, kernel, x, None, option)
        assert 1 <= len(calls) <= 8 and calls.run(x, None, option) is not NotImplemented
    bind(calls, kernel, x, None, 99)
    assert len(calls) == 4 and calls.run(x, None, 0) is NotImplemented


def test_binding_again_replaces(stub: StubDriver) -> None:
    calls, kernel, x = make(), simple(stub), aligned(4)
    bind(calls, kernel, x, None, None)
    bind(calls, kernel, x, None, None, outputs=0)
    assert len(calls) == 1 and calls.run(x) is None


def test_the_kernel_stays_while_it_is_bound(stub: StubDriver) -> None:
    calls, x = make(), aligned(4)
    bind(calls, simple(stub), x, None, None)
    gc.collect()
    assert calls.run(x) is not NotImplemented


def test_nothing_leaks(stub: StubDriver) -> None:
    calls, x, y = make(), aligned(4), aligned(4, 1)
    kernel = simple(stub)
    bind(calls, kernel, x, None, None, outputs=2)
    watched = (x, y, None, torch.float32, calls, kernel, torch.empty_like, NotImplemented)
    tracemalloc.start()
    try:
        for rounds in (100, 1000):
            references = [sys.getrefcount(one) for one in watched]
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(rounds):
                calls.run(x)
                calls.run(y)
                calls.run(x, option=torch.float32)
                calls.run(x, y, 1, 2)
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        assert [sys.getrefcount(one) for one in watched if one is not None] == [
            count for one, count in zip(watched, references, strict=True) if one is not None
        ]
        assert grown < 1000 * 8, "less than a pointer a call"
    finally:
        tracemalloc.stop()


def test_threads(stub: StubDriver) -> None:
    """Hits, misses, binding and forgetting at once: every hit launches on its own addresses."""
    calls, kernel, wrong, hits = make(limit=4), simple(stub), [], itertools.count()

    def work(option: int) -> None:
        x = aligned(4)
        for step in range(200):
            if step % 7 == option % 7:
                bind(calls, kernel, x, None, option)
            if step % 50 == 49:
                calls.clear()
            out = calls.run(x, None, option)
            if out is not NotImplemented:
                next(hits)
                if not isinstance(out, Tensor) or out.shape != (2, 3):
                    wrong.append(out)

    threads = [threading.Thread(target=work, args=(option,)) for option in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and next(hits) == len(stub.calls("cuLaunchKernelEx")) > 0
