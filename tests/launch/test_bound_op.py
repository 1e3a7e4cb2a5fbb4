"""A whole op on the recording driver: which calls are short, and that whatever watches or changes calls sees them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pyptx_ops import launch
from pyptx_ops.dispatch import bound
from pyptx_ops.ops import _register

from .conftest import StubDriver
from .stub_gpu import CPU, StubLauncher, gpu, needs_exchange, randn

__all__ = ["gpu"]  # the fixture

pytestmark = needs_exchange


class Probe:
    """An op y = probe(x, scale) and one in place; bound calls launch a kernel, the long way is counted."""

    def __init__(self, stub: StubDriver) -> None:
        self.stub, self.long = stub, 0
        self.kernel = stub.kernel((("x", "pointer"), ("y", "pointer")))
        ctx_free = {"save": lambda ctx, *args: None, "backward": lambda ctx, dy: (dy, None)}
        self.op, self.call = _register.register(
            "probe(Tensor x, float scale=1.) -> Tensor", run=self.run, fake=lambda x, scale=1.0: x.new_empty(x.shape),
            autocast=True, **ctx_free,
        )  # fmt: skip
        self.inplace, self.call_inplace = _register.register_inplace(
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

    def by(self, way: str) -> Callable[..., Tensor]:
        return self.op if way == "the op" else self.call

    def inplace_by(self, way: str) -> Callable[..., None]:
        return self.inplace if way == "the op" else self.call_inplace

    def counts(self) -> tuple[int, int]:
        """(calls that went the long way, launches) since this was last asked."""
        launches = self.stub.calls("cuLaunchKernelEx")
        counted = self.long, len(launches)
        self.long = 0
        self.stub.library.stub_reset()
        return counted


SHORT, LONG = (0, 1), (1, 1)


@pytest.fixture(params=["the op", "its function"])
def way(request: pytest.FixtureRequest) -> str:
    """How a call is made: through the dispatcher, or as the public functions make it."""
    return str(request.param)


@pytest.fixture
def probe(gpu: StubLauncher, monkeypatch: pytest.MonkeyPatch) -> Iterator[Probe]:
    library = torch.library.Library("pyptx", "FRAGMENT")
    calls_of = bound.calls_of
    monkeypatch.setattr(bound, "calls_of", lambda op, run, **options: calls_of(op, run, CPU, **options))
    monkeypatch.setattr(_register, "LIBRARY", library)
    yield Probe(gpu.stub)
    library._destroy()


def test_the_second_call_of_a_kind_is_short(probe: Probe, way: str) -> None:
    call = probe.by(way)
    for x in (randn(4), randn(2, 8)):
        call(x)
        assert probe.counts() == LONG
        for args in ((x,), (torch.nn.Parameter(x, requires_grad=False),), (x, 1.0), (x.clone(),)):
            assert call(*args).shape == x.shape
            assert probe.counts() == SHORT
        call(x, 2.0)
        assert probe.counts() == LONG


@pytest.mark.parametrize("mode", ["grad", "no_grad", "inference", "below autograd", "autocast"])
def test_modes_in_which_calls_are_short(probe: Probe, way: str, mode: str) -> None:
    call = probe.by(way)
    x = randn(4)
    call(x)
    probe.counts()
    with {
        "grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode,
        "below autograd": torch._C._AutoDispatchBelowAutograd, "autocast": lambda: torch.autocast("cpu"),
    }[mode]():  # fmt: skip
        out = call(x)
        # Below autograd and in inference mode the backend's own kernel runs; only the one for CUDA takes bound calls.
        own_kernel = way == "the op" and mode in ("inference", "below autograd")
        assert probe.counts() == (LONG if own_kernel else SHORT)
    assert out.is_inference() == (mode == "inference")


@pytest.mark.parametrize("inplace", [False, True])
def test_a_plain_call_spares_the_dispatcher(probe: Probe, inplace: bool) -> None:
    """Our kernel on the Autograd key is what the dispatcher enters first."""
    x, entered = randn(4), set()
    call = probe.call_inplace if inplace else probe.call
    for _ in range(2):
        entered.clear()
        sys.setprofile(lambda frame, event, arg: entered.add(frame.f_code.co_name))
        try:
            call(x)
        finally:
            sys.setprofile(None)
    assert probe.counts() == (1, 2) and "call" in entered and "autograd" not in entered


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # torch 2.11 says so of every profile
def test_profilers_see_the_call(probe: Probe, way: str) -> None:
    x, call = randn(4), probe.by(way)
    call(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call(x)
    assert "pyptx::probe" in {event.key for event in profile.key_averages()}


def test_function_modes_see_the_call(probe: Probe, way: str) -> None:
    class Noted(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x, call, seen = randn(4), probe.by(way), []
    call(x)
    with Noted():
        call(x)
    assert probe.op in seen


def test_traces_have_the_call(probe: Probe, way: str) -> None:
    x, call = randn(4), probe.by(way)
    call(x)
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda x: call(x))(x)
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [probe.op]


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
def test_jit_traces_have_the_call(probe: Probe, way: str) -> None:
    x, call = randn(4), probe.by(way)
    call(x)
    traced = torch.jit.trace(lambda x: call(x), (x,), check_trace=False)
    assert "pyptx::probe" in str(traced.graph)


def test_autocast_casts(probe: Probe, way: str) -> None:
    x, call = torch.randn(4), probe.by(way)
    assert call(x).dtype == call(x).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert call(x).dtype == torch.bfloat16


def test_the_kernel_for_cuda_takes_bound_calls(probe: Probe) -> None:
    """It is what inference mode and compiled graphs call."""
    x, cuda = randn(4), torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    for wanted in (LONG, SHORT):
        probe.op.redispatch(cuda, x)
        assert probe.counts() == wanted


def test_a_training_forward_is_short_and_differentiable(probe: Probe, way: str) -> None:
    call = probe.by(way)
    x = randn(4).requires_grad_()
    call(x.detach())
    probe.counts()
    y = call(x)
    assert probe.counts() == SHORT and y.requires_grad
    y.backward(torch.ones_like(y))
    assert torch.equal(x.grad, torch.ones_like(x))
    with torch.no_grad():
        assert not call(x).requires_grad
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
def test_dispatch_modes_see_the_call(probe: Probe, way: str, grad: bool) -> None:
    call = probe.by(way)
    x = randn(4).requires_grad_(grad)
    call(x.detach())
    with Seen() as seen:
        call(x)
    assert probe.op in seen.ops


def test_fake_tensors_get_fakes(probe: Probe, way: str) -> None:
    call = probe.by(way)
    x = randn(4)
    call(x)
    probe.counts()
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert isinstance(call(mode.from_tensor(x)), torch._subclasses.FakeTensor)
        assert isinstance(call(x), torch._subclasses.FakeTensor)
    assert probe.counts() == (0, 0)


def test_tangents_are_not_dropped(probe: Probe, way: str) -> None:
    call = probe.by(way)
    x = randn(4)
    call(x)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        call(torch.autograd.forward_ad.make_dual(x, x))


def test_negated_views_are_resolved(probe: Probe, way: str) -> None:
    call = probe.by(way)
    x = randn(4).half()  # a part of a complex number may be: bf16 is none
    call(x)
    probe.counts()
    call(torch._neg_view(x))
    (launched,) = probe.stub.calls("cuLaunchKernelEx")
    assert f"params={x.data_ptr().to_bytes(8, 'little').hex()}" not in launched


def test_transforms_see_the_call(probe: Probe, way: str) -> None:
    call = probe.by(way)
    x = randn(4).float()
    call(x)
    grads = torch.func.grad(lambda x: call(x).sum())(x)
    assert torch.equal(grads, torch.ones(4))
    functional = torch._to_functional_tensor(x)
    torch._enable_functionalization(reapply_views=True)
    try:
        assert torch._is_functional_tensor(call(functional))
    finally:
        torch._disable_functionalization()


def test_in_place_calls_count_as_writes(probe: Probe, way: str) -> None:
    inplace = probe.inplace_by(way)
    x = randn(4)
    for step, wanted in enumerate((LONG, SHORT, SHORT), start=1):
        assert inplace(x) is None
        assert probe.counts() == wanted and x._version == step
    with torch.no_grad():
        inplace(x)
    assert probe.counts() == SHORT and x._version == 4
    with pytest.raises(RuntimeError, match="probe_: works in place and has no derivative"):
        inplace(x.clone().requires_grad_())
    assert probe.counts() == (0, 0)


def test_inference_tensors_have_no_version(probe: Probe, way: str) -> None:
    with torch.inference_mode():
        x = randn(4)
        for _ in range(2):
            probe.inplace_by(way)(x)


def test_errors_of_the_driver_come_out_of_the_op(probe: Probe, way: str) -> None:
    call = probe.by(way)
    x = randn(4)
    call(x)
    probe.stub.fail("cuLaunchKernelEx", 1)
    with pytest.raises(launch.LaunchError, match="cuLaunchKernelEx failed with CUDA_ERROR_INVALID_VALUE"):
        call(x)


def test_threads(probe: Probe, way: str) -> None:
    call = probe.by(way)
    wrong: list[object] = []

    def work(size: int) -> None:
        x = randn(size)
        for _ in range(100):
            y = call(x)
            if y.shape != x.shape or y.data_ptr() == x.data_ptr():
                wrong.append(y)

    threads = [threading.Thread(target=work, args=(size,)) for size in (3, 4, 5, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and probe.counts()[1] == 400
