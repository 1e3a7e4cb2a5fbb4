"""Ops on the recording driver: what is bound, that it launches what the planned call does, and who goes the long way.

CPU tensors stand for a GPU's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pyptx_ops import _launch, launch
from pyptx_ops.dispatch import Route, bound, gemm, norm, swiglu
from pyptx_ops.launch import param_spec, use_launcher
from pyptx_ops.ops import _register
from tests.kernels.machines import traced

from .conftest import StubDriver

pytestmark = pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="this torch has no DLPack exchange API"
)

CPU = 1  # DLPack's device type


class StubLauncher:
    """Every kernel as the driver would have it, with nothing in it."""

    def __init__(self, stub: StubDriver) -> None:
        self.stub = stub
        self.kernels: dict[str, _launch.Kernel] = {}

    def kernel(self, arch: str, name: str) -> _launch.Kernel:
        if name not in self.kernels:
            params = tuple(map(param_spec, traced(name).params))
            self.kernels[name] = self.stub.kernel(params)
        return self.kernels[name]

    def manifest(self, arch: str) -> Any:
        raise NotImplementedError


@pytest.fixture
def gpu(stub: StubDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubLauncher]:
    """CPU tensors take the kernels' path, and calls with them are bound."""
    monkeypatch.setattr(Tensor, "get_device", lambda self: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(bound, "_tables", {})
    monkeypatch.setattr(launch, "_bound", [])
    for family in (gemm, norm, swiglu):
        monkeypatch.setattr(family, "route", lambda device: Route("kernel", "sm_90a", "recorded"))
        monkeypatch.setattr(family, "_plans", {})
    launcher = StubLauncher(stub)
    with use_launcher(launcher):
        yield launcher


def randn(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def arguments() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Calls by name: the family's function, and all of its arguments."""
    offs = torch.tensor([3, 8], dtype=torch.int32)
    x, residual, weight = randn(3, 5, 64), randn(3, 5, 64), randn(64)
    return {
        "gemm": (gemm.gemm, (randn(8, 64), randn(64, 32), None, None)),
        "gemm bias": (gemm.gemm, (randn(2, 4, 64), randn(32, 64).t(), randn(32), torch.float32)),
        "gemm many rows": (gemm.gemm, (randn(1024, 64), randn(64, 256), None, None)),
        "grouped_gemm": (gemm.grouped_gemm, (randn(8, 64), randn(2, 64, 32), offs, None, None)),
        "grouped_gemm bias": (gemm.grouped_gemm, (randn(8, 64), randn(2, 32, 64).mT, offs, randn(2, 32), None)),
        "rms_norm": (norm.rms_norm, (x, weight, 1e-6, 0.0, True)),
        "rms_norm without weight": (norm.rms_norm, (x, None, 1e-6, 0.0, True)),
        "rms_norm Gemma": (norm.rms_norm, (x[:, 1:], weight.float(), 1e-5, 1.0, False)),
        "rms_norm odd": (norm.rms_norm, (randn(4, 63), randn(63), 1e-5, 0.0, True)),
        "fused_add_rms_norm": (norm.fused_add_rms_norm, (x, residual, weight, 1e-6, 0.0, True)),
        "fused_add_rms_norm_": (norm.fused_add_rms_norm_, (x, residual, weight, 1e-6, 0.0, True)),
        "silu_and_mul": (swiglu.silu_and_mul, (randn(7, 128), False)),
        "silu_and_mul interleaved": (swiglu.silu_and_mul, (randn(7, 128), True)),
        "silu_and_mul odd": (swiglu.silu_and_mul, (randn(7, 66), True)),
        "swiglu": (swiglu.swiglu, (randn(7, 64), randn(7, 64), None)),
        "swiglu offs": (swiglu.swiglu, (*randn(8, 128).chunk(2, -1), offs)),
    }


def copied() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Calls that copy an operand first."""
    return {
        "gemm": (gemm.gemm, (randn(8, 63), randn(63, 32), None, None)),
        "gemm bias": (gemm.gemm, (randn(8, 64), randn(64, 32), randn(64)[::2], None)),
        "grouped_gemm": (gemm.grouped_gemm, (randn(8, 0), randn(2, 0, 32), torch.tensor([1, 2]).int(), None, None)),
        "rms_norm": (norm.rms_norm, (randn(64, 5).t(), randn(64), 1e-6, 0.0, True)),
        "rms_norm weight": (norm.rms_norm, (randn(5, 64), randn(128)[::2], 1e-6, 0.0, True)),
        "silu_and_mul": (swiglu.silu_and_mul, (randn(3, 4, 128).transpose(0, 1), False)),
        "swiglu": (swiglu.swiglu, (randn(3, 4, 64).transpose(0, 1), randn(4, 3, 64), None)),
    }


def tensors(*values: Any) -> list[Tensor]:
    flat = [item for value in values for item in (value if isinstance(value, tuple) else (value,))]
    return [item for item in flat if isinstance(item, Tensor)]


def record(stub: StubDriver, operands: list[Tensor]) -> tuple[dict[str, str], str, list[str]]:
    """The last launch, its tensor maps and its parameters, with operands by number in place of their addresses."""
    calls = stub.calls()
    last = max(i for i, call in enumerate(calls) if call.startswith("cuLaunchKernelEx"))
    fields, params = stub.launched(), ""
    kept = []
    for param in fields.pop("params").split(","):
        value = int.from_bytes(bytes.fromhex(param[:16]), "little")
        names = [f"{i}+{value - t.data_ptr()}" for i, t in enumerate(operands) if 0 <= value - t.data_ptr() < t.nbytes]
        kept.append("map" if len(param) == 256 else names[-1] if len(param) == 16 and names else param)
    params = ",".join(kept)
    maps = []
    for call in calls[:last][::-1]:
        if not call.startswith("cuTensorMapEncodeTiled"):
            break
        address = int(call.split("address=")[1].split()[0])
        owner = [i for i, t in enumerate(operands) if t.data_ptr() == address]
        maps.append(call.replace(f"address={address}", f"operand={owner}"))
    return fields, params, maps


@pytest.mark.parametrize("name", arguments())
def test_a_bound_call_launches_what_the_planned_one_does(gpu: StubLauncher, name: str) -> None:
    op = name.split()[0]
    family, args = arguments()[name]
    run = bound.calls_of(op, family, CPU)
    assert run(*args) is NotImplemented
    planned = family(*args)
    wanted = record(gpu.stub, tensors(*args, planned))
    again = arguments()[name][1]  # other tensors of this kind
    got = run(*again)
    assert got is not NotImplemented
    for ours, theirs in zip(tensors(got), tensors(planned), strict=True):
        assert (ours.shape, ours.stride(), ours.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
        assert ours.data_ptr() not in [tensor.data_ptr() for tensor in tensors(*again, *args, planned)]
    assert type(got) is type(planned)
    assert record(gpu.stub, tensors(*again, got)) == wanted
    assert len(gpu.stub.calls("cuLaunchKernelEx")) == 2


@pytest.mark.parametrize("name", copied())
def test_a_call_that_copies_is_not_bound(gpu: StubLauncher, name: str) -> None:
    family, args = copied()[name]
    run = bound.calls_of(name.split()[0], family, CPU)
    for _ in range(2):
        assert run(*args) is NotImplemented
        family(*args)


@pytest.mark.parametrize(
    "shape", [(1,), (7,), (1, 1), (1, 5), (5, 1), (2, 3, 4), (2, 1, 4), (1, 1, 8), (3, 1, 1, 2), (1, 2, 1, 1)]
)
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("fast", [False, True])
def test_allocations_make_contiguous_outputs(
    shape: tuple[int, ...], inference: bool, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fast:
        monkeypatch.setattr(bound, "_EMPTY_STRIDED", {})
    with torch.inference_mode(inference):
        function, given = bound._allocation(torch.empty(shape, dtype=torch.float16))
    kept = [one for one in given if isinstance(one, Tensor)]
    assert all(model.untyped_storage().nbytes() == 2 and not model.is_inference() for model in kept)
    assert fast is not bool(kept)
    out = function(*given)
    assert (out.shape, out.stride(), out.dtype) == (shape, torch.empty(shape).stride(), torch.float16)
    assert not out.is_inference() and not out.requires_grad
    with torch.inference_mode():
        assert function(*given).is_inference()


def test_another_launcher_forgets(gpu: StubLauncher) -> None:
    args = arguments()["rms_norm"][1]
    run = bound.calls_of("rms_norm", norm.rms_norm, CPU)
    norm.rms_norm(*args)
    assert run(*args) is not NotImplemented
    with use_launcher(StubLauncher(gpu.stub)) as inner:
        assert run(*args) is NotImplemented
        norm.rms_norm(*args)
        assert run(*args) is not NotImplemented and inner.kernels
    assert run(*args) is NotImplemented
    norm.rms_norm(*args)
    with launch.unbound():
        assert run(*args) is NotImplemented
        norm.rms_norm(*args)
        assert run(*args) is NotImplemented
    norm.rms_norm(*args)
    assert run(*args) is not NotImplemented


def test_kernels_of_other_machines_are_not_bound(gpu: StubLauncher) -> None:
    class Simulated:
        name, launches = "simulated", 0

        def launch(self, *args: int | float) -> None:
            self.launches += 1

    kernel, x = Simulated(), randn(4)
    run = bound.calls_of("simulated", lambda x: None, CPU)
    bound.launch("simulated", (x,), kernel, 0, (1, 1, 1), (x,))  # type: ignore[arg-type]
    assert kernel.launches == 1 and run(x) is NotImplemented


def test_nothing_is_bound_in_a_capture(gpu: StubLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    args = arguments()["rms_norm"][1]
    run = bound.calls_of("rms_norm", norm.rms_norm, CPU)
    with monkeypatch.context() as capturing:
        capturing.setattr(torch.cuda, "is_initialized", lambda: True)
        capturing.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        norm.rms_norm(*args)
    assert run(*args) is NotImplemented


@pytest.mark.parametrize("missing", ["capsule", "extension"])
def test_without_what_it_takes_nothing_is_bound(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    if missing == "capsule":
        monkeypatch.setattr(bound, "_EXCHANGE", None)
    else:
        monkeypatch.setattr(launch, "_extension_error", ImportError("not built"))
    assert bound.calls_of("any", norm.rms_norm)(randn(4), option=1) is NotImplemented


# ------------------------------------------------------------------------------------------------------ a whole op


class Probe:
    """An op y = probe(x, scale) and one in place; bound calls launch a kernel, the long way is counted."""

    def __init__(self, stub: StubDriver) -> None:
        self.stub, self.long = stub, 0
        self.kernel = stub.kernel((("x", "pointer"), ("y", "pointer")))
        ctx_free = {"save": lambda ctx, *args: None, "backward": lambda ctx, dy: (dy, None)}
        self.op = _register.register(
            "probe(Tensor x, float scale=1.) -> Tensor", run=self.run, fake=lambda x, scale=1.0: x.new_empty(x.shape),
            autocast=True, **ctx_free,
        )  # fmt: skip
        self.inplace = _register.register_inplace(
            "probe_(Tensor(a!) x, float scale=1.) -> ()",
            run=self.run_inplace,
            fake=lambda x, scale=1.0: None,
            mutated=1,
        )

    def run(self, x: Tensor, scale: float = 1.0) -> Tensor:
        self.long += 1
        y = torch.zeros(x.shape, dtype=x.dtype)
        bound.launch("probe", (x, scale), self.kernel, 0, (1, 1, 1), (x, y), (y,))
        return y

    def run_inplace(self, x: Tensor, scale: float = 1.0) -> None:
        self.long += 1
        bound.launch("probe_", (x, scale), self.kernel, 0, (1, 1, 1), (x, x))

    def counts(self) -> tuple[int, int]:
        """(calls that went the long way, launches) since this was last asked."""
        launches = self.stub.calls("cuLaunchKernelEx")
        counted = self.long, len(launches)
        self.long = 0
        self.stub.library.stub_reset()
        return counted


SHORT, LONG = (0, 1), (1, 1)


@pytest.fixture
def probe(gpu: StubLauncher, monkeypatch: pytest.MonkeyPatch) -> Iterator[Probe]:
    library = torch.library.Library("pyptx", "FRAGMENT")
    calls_of = bound.calls_of
    monkeypatch.setattr(bound, "calls_of", lambda op, run: calls_of(op, run, CPU))
    monkeypatch.setattr(_register, "LIBRARY", library)
    yield Probe(gpu.stub)
    library._destroy()


def test_the_second_call_of_a_kind_is_short(probe: Probe) -> None:
    for x in (randn(4), randn(2, 8)):
        probe.op(x)
        assert probe.counts() == LONG
        for args in ((x,), (torch.nn.Parameter(x, requires_grad=False),), (x, 1.0), (x.clone(),)):
            assert probe.op(*args).shape == x.shape
            assert probe.counts() == SHORT
        probe.op(x, 2.0)
        assert probe.counts() == LONG


@pytest.mark.parametrize("mode", ["grad", "no_grad", "inference", "below autograd", "autocast"])
def test_modes_in_which_calls_are_short(probe: Probe, mode: str) -> None:
    x = randn(4)
    probe.op(x)
    probe.counts()
    with {
        "grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode,
        "below autograd": torch._C._AutoDispatchBelowAutograd, "autocast": lambda: torch.autocast("cpu"),
    }[mode]():  # fmt: skip
        out = probe.op(x)
        # Below autograd and in inference mode the backend's own kernel runs; only the one for CUDA takes bound calls.
        assert probe.counts() == (LONG if mode in ("inference", "below autograd") else SHORT)
    assert out.is_inference() == (mode == "inference")


def test_the_kernel_for_cuda_takes_bound_calls(probe: Probe) -> None:
    """It is what inference mode and compiled graphs call."""
    x, cuda = randn(4), torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    for wanted in (LONG, SHORT):
        probe.op.redispatch(cuda, x)
        assert probe.counts() == wanted


def test_a_training_forward_is_short_and_differentiable(probe: Probe) -> None:
    x = randn(4).requires_grad_()
    probe.op(x.detach())
    probe.counts()
    y = probe.op(x)
    assert probe.counts() == SHORT and y.requires_grad
    y.backward(torch.ones_like(y))
    assert torch.equal(x.grad, torch.ones_like(x))
    with torch.no_grad():
        assert not probe.op(x).requires_grad
    assert probe.counts() == SHORT


class Seen(TorchDispatchMode):
    """Notes the ops that reach it."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[object] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("grad", [False, True])
def test_dispatch_modes_see_the_call(probe: Probe, grad: bool) -> None:
    x = randn(4).requires_grad_(grad)
    probe.op(x.detach())
    with Seen() as seen:
        probe.op(x)
    assert probe.op in seen.ops


def test_fake_tensors_get_fakes(probe: Probe) -> None:
    x = randn(4)
    probe.op(x)
    probe.counts()
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert isinstance(probe.op(mode.from_tensor(x)), torch._subclasses.FakeTensor)
        assert isinstance(probe.op(x), torch._subclasses.FakeTensor)
    assert probe.counts() == (0, 0)


def test_tangents_are_not_dropped(probe: Probe) -> None:
    x = randn(4)
    probe.op(x)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        probe.op(torch.autograd.forward_ad.make_dual(x, x))


def test_negated_views_are_resolved(probe: Probe) -> None:
    x = randn(4).half()  # a part of a complex number may be: bf16 is none
    probe.op(x)
    probe.counts()
    probe.op(torch._neg_view(x))
    (launched,) = probe.stub.calls("cuLaunchKernelEx")
    assert f"params={x.data_ptr().to_bytes(8, 'little').hex()}" not in launched


def test_transforms_see_the_call(probe: Probe) -> None:
    x = randn(4).float()
    probe.op(x)
    grads = torch.func.grad(lambda x: probe.op(x).sum())(x)
    assert torch.equal(grads, torch.ones(4))
    functional = torch._to_functional_tensor(x)
    torch._enable_functionalization(reapply_views=True)
    try:
        assert torch._is_functional_tensor(probe.op(functional))
    finally:
        torch._disable_functionalization()


def test_in_place_calls_count_as_writes(probe: Probe) -> None:
    x = randn(4)
    for step, wanted in enumerate((LONG, SHORT, SHORT), start=1):
        assert probe.inplace(x) is None
        assert probe.counts() == wanted and x._version == step
    with torch.no_grad():
        probe.inplace(x)
    assert probe.counts() == SHORT and x._version == 4
    with pytest.raises(RuntimeError, match="probe_: works in place and has no derivative"):
        probe.inplace(x.clone().requires_grad_())
    assert probe.counts() == (0, 0)


def test_errors_of_the_driver_come_out_of_the_op(probe: Probe) -> None:
    x = randn(4)
    probe.op(x)
    probe.stub.fail("cuLaunchKernelEx", 1)
    with pytest.raises(launch.LaunchError, match="cuLaunchKernelEx failed with CUDA_ERROR_INVALID_VALUE"):
        probe.op(x)


def test_threads(probe: Probe) -> None:
    wrong: list[object] = []

    def work(size: int) -> None:
        x = randn(size)
        for _ in range(100):
            y = probe.op(x)
            if y.shape != x.shape or y.data_ptr() == x.data_ptr():
                wrong.append(y)

    threads = [threading.Thread(target=work, args=(size,)) for size in (3, 4, 5, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and probe.counts()[1] == 400
