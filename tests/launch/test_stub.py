"""The launcher against a driver that records what it is asked: every byte of a launch, and every error."""

from __future__ import annotations

import gc
import math
import random
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pyptx_ops import _launch
from pyptx_ops.dsl.types import Param, TensorMapSpec
from pyptx_ops.launch import param_spec

from .conftest import StubDriver

U64 = 2**64 - 1
MAP = param_spec(Param("a", "tensor_map", TensorMapSpec("bf16", (64, 128), swizzle=128, l2_promotion=256)))


def hexed(format: str, value: float) -> str:
    return struct.pack("<" + format, value).hex()


@pytest.mark.parametrize(
    ("kind", "format", "values"),
    [
        ("pointer", "Q", [0, 1, 2**63, U64]),
        ("u64", "Q", [0, 1, 2**63, U64]),
        ("i64", "q", [0, -1, 2**63 - 1, -(2**63)]),
        ("u32", "I", [0, 1, 2**31, 2**32 - 1]),
        ("i32", "i", [0, -1, 2**31 - 1, -(2**31)]),
        ("f32", "f", [0.0, -1.5, 3, 3.4028234663852886e38, math.inf, -math.inf]),
        ("f64", "d", [0.0, -1.5, 3, 1.7976931348623157e308, math.inf]),
    ],
)
def test_a_scalar_arrives_byte_for_byte(stub: StubDriver, kind: str, format: str, values: list[float]) -> None:
    kernel = stub.kernel((("x", kind),))
    for value in values:
        kernel.launch(0, 0, 1, 1, 1, value)
        assert stub.launched()["params"] == hexed(format, value)


def test_nan_arrives(stub: StubDriver) -> None:
    stub.kernel((("x", "f32"), ("y", "f64"))).launch(0, 0, 1, 1, 1, math.nan, math.nan)
    single, double = stub.launched()["params"].split(",")
    assert math.isnan(struct.unpack("<f", bytes.fromhex(single))[0])
    assert math.isnan(struct.unpack("<d", bytes.fromhex(double))[0])


@pytest.mark.parametrize("seed", range(8))
def test_any_mix_of_parameters_arrives(stub: StubDriver, seed: int) -> None:
    rng = random.Random(seed)
    formats = {"pointer": "Q", "u32": "I", "i32": "i", "u64": "Q", "i64": "q", "f32": "f", "f64": "d"}
    kinds = rng.choices([*formats, "tensor_map"], k=rng.randrange(1, 24))
    kinds = [kind if kinds[:index].count("tensor_map") < 16 else "u32" for index, kind in enumerate(kinds)]
    params, args, wanted, maps = [], [], [], 0
    for index, kind in enumerate(kinds):
        if kind == "tensor_map":
            params.append((f"p{index}", *MAP[1:]))
            args += [rng.randrange(2**40), 64, 128, 256]
            maps += 1
            wanted.append(f"{maps:02x}" * 128)
        else:
            value = rng.randrange(2**31) if formats[kind] not in "fd" else float(rng.randrange(2**20))
            params.append((f"p{index}", kind))
            args.append(value)
            wanted.append(hexed(formats[kind], value))
    stub.kernel(tuple(params)).launch(0, 0, 1, 1, 1, *args)
    assert stub.launched()["params"].split(",") == wanted


def test_a_launch_carries_its_shape(stub: StubDriver) -> None:
    kernel = stub.kernel((), block=(384, 2, 3), cluster=(2, 1, 4), shared_memory=1024, pdl=True)
    kernel.launch(1, 0xABC, 6, 5, 4)
    wanted = {"device": "1", "grid": "6,5,4", "block": "384,2,3", "shared": "1024", "stream": str(0xABC)}
    assert stub.launched() == wanted | {"attributes": "4:2,1,4;6:1", "params": ""}


@pytest.mark.parametrize(("cluster", "pdl", "attributes"), [(1, False, ""), (1, True, "6:1"), (2, False, "4:2,1,1")])
def test_attributes_are_those_asked_for(stub: StubDriver, cluster: int, pdl: bool, attributes: str) -> None:
    stub.kernel((), cluster=(cluster, 1, 1), pdl=pdl).launch(0, 0, 1, 1, 1)
    assert stub.launched()["attributes"] == attributes


@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_an_empty_grid_calls_nothing(stub: StubDriver, grid: tuple[int, int, int]) -> None:
    kernel = stub.kernel((MAP, ("n", "u32")))
    before = stub.calls()
    kernel.launch(0, 0, *grid, 0, 0, 0, 0, 0)
    assert stub.calls() == before
    with pytest.raises(OverflowError):
        kernel.launch(0, 0, *grid, 0, 0, 0, 0, 2**32)


@pytest.mark.parametrize(("shared", "cluster", "wanted"), [
    (49152, 8, []),
    (49153, 8, ["8=49153"]),
    (232448, 16, ["8=232448", "14=1"]),
])  # fmt: skip
def test_limits_are_raised_once_per_device(stub: StubDriver, shared: int, cluster: int, wanted: list[str]) -> None:
    kernel = stub.kernel((), shared_memory=shared, cluster=(cluster, 1, 1))
    for device in (0, 1, 0, 1):
        kernel.launch(device, 0, cluster, 1, 1)
    limits = [f"cuKernelSetAttribute {limit} device={device}" for device in (0, 1) for limit in wanted]
    assert stub.calls("cuKernelSetAttribute") == limits
    loads = [f"cuKernelGetFunction device={device} capture=2" for device in (0, 1)]
    assert stub.calls("cuKernelGetFunction") == loads  # in relaxed mode: legal during a capture
    assert stub.library.stub_capture_mode() == 0


def test_prepare_leaves_nothing_but_the_launch(stub: StubDriver) -> None:
    kernel = stub.kernel((), shared_memory=100_000)
    stub.library.stub_set_context(1)
    kernel.prepare(1)
    before = len(stub.calls())
    kernel.launch(1, 0, 1, 1, 1)
    assert [call.split()[0] for call in stub.calls()[before:]] == ["cuLaunchKernelEx"]


@pytest.mark.parametrize("current", [-1, 0, 1])
@pytest.mark.parametrize("device", [0, 1])
def test_the_context_is_the_devices_then_the_callers_again(stub: StubDriver, current: int, device: int) -> None:
    kernel = stub.kernel((MAP,))
    stub.library.stub_set_context(current)
    for _ in range(2):
        kernel.launch(device, 0, 1, 1, 1, 0, 1, 1, 16)
        assert stub.launched()["device"] == str(device)
        assert stub.library.stub_device() == current
    kernel.attributes(device)
    assert stub.library.stub_device() == current
    stub.fail("cuLaunchKernelEx", 1)
    with pytest.raises(_launch.LaunchError):
        kernel.launch(device, 0, 1, 1, 1, 0, 1, 1, 16)
    assert stub.library.stub_device() == current


def test_contexts_are_retained_once(stub: StubDriver) -> None:
    for _ in range(3):
        kernel = stub.kernel(())
        kernel.launch(0, 0, 1, 1, 1)
        kernel.launch(1, 0, 1, 1, 1)
    assert stub.calls("cuDevicePrimaryCtxRetain") == [f"cuDevicePrimaryCtxRetain device={i}" for i in (0, 1)]


def test_attributes_name_what_the_driver_knows(stub: StubDriver) -> None:
    wanted = {"registers": 104, "local_bytes": 103, "shared_bytes": 101, "max_threads": 100, "binary_version": 106}
    assert stub.kernel(()).attributes(1) == wanted


def test_threads_launch_on_several_devices(stub: StubDriver) -> None:
    kernel = stub.kernel((("thread", "u32"), ("step", "u32")))
    threads, steps = 8, 200
    start, failures = threading.Barrier(threads), []

    def work(thread: int) -> None:
        try:
            start.wait()
            for step in range(steps):
                kernel.launch(thread % 2, 1000 + thread, 1, 1, 1, thread, step)
        except Exception as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures
    seen = [dict(field.split("=") for field in call.split()[2:]) for call in stub.calls("cuLaunchKernelEx")]
    for thread in range(threads):
        mine = [call for call in seen if call["stream"] == str(1000 + thread)]
        assert [call["params"] for call in mine] == [
            f"{hexed('I', thread)},{hexed('I', step)}" for step in range(steps)
        ]
        assert {call["device"] for call in mine} == {str(thread % 2)}
    assert len(stub.calls("cuKernelGetFunction")) == 2
    assert len(stub.calls("cuDevicePrimaryCtxRetain")) == 2


# ---------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("kind", "value", "error"),
    [
        ("u32", 2**32, OverflowError), ("u32", -1, OverflowError), ("u32", 1.0, TypeError), ("u32", "1", TypeError),
        ("i32", 2**31, OverflowError), ("i32", -(2**31) - 1, OverflowError), ("i32", None, TypeError),
        ("u64", 2**64, OverflowError), ("u64", -1, OverflowError), ("pointer", -1, OverflowError),
        ("pointer", None, TypeError), ("i64", 2**63, OverflowError), ("i64", -(2**63) - 1, OverflowError),
        ("f32", 1e39, OverflowError), ("f32", 10**400, OverflowError), ("f32", "1", TypeError), ("f64", [], TypeError),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_named(stub: StubDriver, kind: str, value: object, error: type) -> None:
    kernel = stub.kernel((("before", "u32"), ("wrong", kind)))
    with pytest.raises(
        error, match=rf"kernel 'entry': parameter 'wrong' wanted a value of kind {kind}, got "
    ) as caught:
        kernel.launch(0, 0, 1, 1, 1, 0, value)  # type: ignore[arg-type]
    assert repr(value) in str(caught.value)
    assert not stub.calls("cuLaunchKernelEx")


@pytest.mark.parametrize(("index", "what"), [*enumerate(["address", "size 0", "size 1", "stride 1"])])
def test_a_wrong_part_of_a_tensor_map_is_named(stub: StubDriver, index: int, what: str) -> None:
    values: list[object] = [0, 1, 1, 16]
    values[index] = -1
    with pytest.raises(OverflowError, match=f"kernel 'entry': tensor map 'a' {what} wanted .* got -1"):
        stub.kernel((MAP,)).launch(0, 0, 1, 1, 1, *values)  # type: ignore[arg-type]


@pytest.mark.parametrize(("place", "what"), [*enumerate(["device", "stream", "grid", "grid", "grid"])])
def test_a_wrong_place_or_grid_is_named(stub: StubDriver, place: int, what: str) -> None:
    for value, error in ((-1, OverflowError), (2**64, OverflowError), (None, TypeError), (1.5, TypeError)):
        values: list[object] = [0, 0, 1, 1, 1]
        values[place] = value
        with pytest.raises(error, match=f"kernel 'entry': {what} wanted"):
            stub.kernel(()).launch(*values)  # type: ignore[arg-type]


def test_a_device_that_is_not_there_is_named(stub: StubDriver) -> None:
    kernel = stub.kernel(())
    for call in (lambda: kernel.launch(2, 0, 1, 1, 1), lambda: kernel.prepare(2), lambda: kernel.attributes(2)):
        with pytest.raises(_launch.LaunchError, match="kernel 'entry': device 2 does not exist; the driver sees 2"):
            call()


@pytest.mark.parametrize("count", [0, 4, 5, 9, 11])
def test_a_wrong_count_lists_what_is_wanted(stub: StubDriver, count: int) -> None:
    wanted = r"kernel 'entry' wanted 10 values \(device, stream, grid_x, grid_y, grid_z, a: tensor_map "
    wanted += rf"\(address, 2 sizes, 1 strides\), n: u32\), got {count}$"
    with pytest.raises(TypeError, match=wanted):
        stub.kernel((MAP, ("n", "u32"))).launch(*([0] * count))


@pytest.mark.parametrize("call", [
    "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent", "cuKernelSetAttribute", "cuKernelGetFunction", "cuLaunchKernelEx",
])  # fmt: skip
def test_a_failed_call_is_named_and_may_succeed_later(stub: StubDriver, call: str) -> None:
    kernel = stub.kernel((), shared_memory=100_000, cluster=(2, 1, 1))
    stub.fail(call, 1)
    wanted = rf"{call}.* failed with CUDA_ERROR_INVALID_VALUE \(1: invalid argument\) for kernel 'entry' on device 1"
    with pytest.raises(_launch.LaunchError, match=wanted) as caught:
        kernel.launch(1, 0, 7, 1, 1)
    assert "grid (7, 1, 1), block (128, 1, 1), cluster (2, 1, 1), dynamic shared memory 100000" in str(caught.value)
    assert stub.library.stub_device() == -1
    assert stub.library.stub_capture_mode() == 0
    stub.fail(call, 0)
    kernel.launch(1, 0, 8, 1, 1)
    assert stub.launched()["grid"] == "8,1,1"


def test_a_code_without_a_name_is_still_told(stub: StubDriver) -> None:
    stub.fail("cuLaunchKernelEx", 999)
    with pytest.raises(_launch.LaunchError, match=r"cuLaunchKernelEx failed with an unknown error \(999\)"):
        stub.kernel(()).launch(0, 0, 1, 1, 1)


def test_a_jit_failure_carries_the_log(stub: StubDriver) -> None:
    stub.fail("cuLibraryLoadData", 218)
    with pytest.raises(_launch.LaunchError) as caught:
        stub.kernel(())
    text = str(caught.value)
    assert text.startswith("cuLibraryLoadData failed with CUDA_ERROR_INVALID_PTX (218: a PTX JIT compilation failed)")
    assert "for kernel 'image'" in text
    assert "compiler errors:\nline 3: no such opcode\ncompiler log:\ncompiling" in text


def test_a_missing_entry_is_named(stub: StubDriver) -> None:
    stub.fail("cuLibraryGetKernel", 1)
    with pytest.raises(_launch.LaunchError, match="cuLibraryGetKernel failed .* 'entry' in the image of 'image'"):
        stub.kernel(())


@pytest.mark.parametrize(
    ("params", "error", "match"),
    [
        ((("x", "u16"),), ValueError, "parameter 'x': unknown kind 'u16'"),
        ((("x", "tensor_map"),), ValueError, "parameter 'x': a tensor map, and nothing else, has a box"),
        ((("x", "u32", *MAP[2:]),), ValueError, "a tensor map, and nothing else, has a box"),
        ((("x", "tensor_map", 9, 2, (), 0, 0, 0),), ValueError, "a box of 1 to 5 dimensions, got 0"),
        ((("x", "tensor_map", 9, 2, (1,) * 6, 0, 0, 0),), ValueError, "a box of 1 to 5 dimensions, got 6"),
        ((("x", "tensor_map", 9, 2, (-1,), 0, 0, 0),), OverflowError, "box of 'x' wanted"),
        ((("x", "u32"),) * 65, ValueError, "at most 64 parameters .* got 65 with 0"),
        ((MAP,) * 17, ValueError, "with 16 tensor maps, got 17 with 17"),
    ],
)
def test_a_wrong_description_is_refused(stub: StubDriver, params: tuple, error: type, match: str) -> None:
    with pytest.raises(error, match=match):
        stub.kernel(params)


def test_no_driver_tells_what_was_tried(tmp_path: Path, stub_path: Path) -> None:
    with pytest.raises(_launch.DriverNotFound, match="tried to load 'libnothing.so.9'.*install an NVIDIA driver"):
        _launch.Driver("libnothing.so.9")
    with pytest.raises(
        _launch.DriverNotFound, match="libm.so.6' has no cuInit; wanted a driver for CUDA 12.0 or newer"
    ):
        _launch.Driver("libm.so.6")
    assert issubclass(_launch.DriverNotFound, _launch.LaunchError) and issubclass(_launch.LaunchError, RuntimeError)


def test_a_machine_without_a_gpu_has_no_devices(stub: StubDriver) -> None:
    stub.fail("cuInit", 100)
    driver = _launch.Driver(str(stub.path))
    assert driver.device_count() == 0
    assert driver.version() == (12, 8)
    with pytest.raises(_launch.LaunchError, match="device 0 does not exist; the driver sees 0"):
        driver.load(b"", "image").kernel("entry", (), (1, 1, 1)).launch(0, 0, 1, 1, 1)


def test_a_driver_that_does_not_start_is_an_error(stub: StubDriver) -> None:
    stub.fail("cuInit", 1)
    with pytest.raises(_launch.LaunchError, match="cuInit failed with CUDA_ERROR_INVALID_VALUE"):
        _launch.Driver(str(stub.path))


def test_the_driver_describes_the_machine(stub: StubDriver) -> None:
    assert stub.driver.version() == (12, 8)
    assert stub.driver.device_count() == 2
    assert stub.driver.compute_capability(1) == (9, 0)
    with pytest.raises(_launch.LaunchError, match="for device 2 of 2"):
        stub.driver.compute_capability(2)


# ------------------------------------------------------------------------------------------------------- lifetimes


def test_a_kernel_outlives_what_it_came_from(stub: StubDriver) -> None:
    kernel = _launch.Driver(str(stub.path)).load(b"4", "image").kernel("entry", (("n", "u32"),), (1, 1, 1))
    gc.collect()
    kernel.launch(0, 0, 1, 1, 1, 7)
    assert stub.launched()["params"] == hexed("I", 7)
    assert kernel.name == "entry"


def test_launches_and_errors_leak_no_reference(stub: StubDriver) -> None:
    kernel = stub.kernel((("n", "u64"), MAP))

    for good, number in ((True, 2**40 + 1), (False, 2**64 + 1)):
        before = sys.getrefcount(number), sys.getrefcount(None), sys.getrefcount(kernel)
        for _ in range(1000):
            if good:
                kernel.launch(0, 0, 1, 1, 1, number, 0, 1, 1, 16)
            else:
                with pytest.raises(OverflowError):
                    kernel.launch(0, 0, 1, 1, 1, number, 0, 1, 1, 16)
        after = sys.getrefcount(number), sys.getrefcount(None), sys.getrefcount(kernel)
        assert all(abs(new - old) < 100 for new, old in zip(after, before, strict=True))  # a leak would be a thousand


def test_objects_are_freed_with_their_types(stub: StubDriver) -> None:
    types = (_launch.Driver, _launch.Library, _launch.Kernel)
    before = [sys.getrefcount(type_) for type_ in types]
    for _ in range(100):
        _launch.Driver(str(stub.path)).load(b"", "image").kernel("entry", (), (1, 1, 1))
    assert [sys.getrefcount(type_) for type_ in types] == before


def test_types_are_not_made_by_hand() -> None:
    for type_ in (_launch.Library, _launch.Kernel):
        with pytest.raises(TypeError):
            type_()


def test_importing_the_extension_needs_no_torch_and_no_driver() -> None:
    code = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('pyptx_ops._launch', {_launch.__file__!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "assert 'torch' not in sys.modules and hasattr(module, 'Driver')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
