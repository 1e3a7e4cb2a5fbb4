"""Ops on the recording driver: what is bound, that it launches what the planned call does, and who goes the long way.

CPU tensors stand for a GPU's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pyptx_ops import launch
from pyptx_ops.dispatch import bound, gemm, gemm_swiglu, norm, swiglu
from pyptx_ops.launch import use_launcher

from .conftest import StubDriver
from .stub_gpu import CPU, StubLauncher, gpu, needs_exchange, randn

__all__ = ["gpu"]  # the fixture

pytestmark = needs_exchange


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
        "gemm_swiglu": (gemm_swiglu.gemm_swiglu, (randn(8, 64), randn(64, 32), None, False)),
        "gemm_swiglu few": (gemm_swiglu.gemm_swiglu, (randn(2, 64), randn(64, 64).t(), randn(64), True)),
        "grouped_gemm_swiglu": (gemm_swiglu.grouped_gemm_swiglu, (randn(8, 64), randn(2, 64, 32), offs, None, False)),
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
        "gemm_swiglu": (gemm_swiglu.gemm_swiglu, (randn(8, 64), randn(64, 32), None, True)),
        "gemm_swiglu odd": (gemm_swiglu.gemm_swiglu, (randn(8, 64), randn(64, 40)[:, 1:25], None, False)),
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


def test_a_call_that_writes_is_bound_where_its_tensors_are_apart(gpu: StubLauncher) -> None:
    """Of one kind are calls at any addresses: those whose memory meets have none."""
    memory, weight = randn(12, 64), randn(64)

    def args(start: int) -> tuple[Any, ...]:
        return memory[:4], memory[start : start + 4], weight, 1e-6, 0.0, True

    run = bound.calls_of("fused_add_rms_norm_", norm.fused_add_rms_norm_, CPU, apart=True)
    norm.fused_add_rms_norm_(*args(8))
    assert run(*args(8)) is run(*args(4)) is None
    assert run(*args(3)) is run(*args(0)) is NotImplemented
    assert run(*args(8)[:2], memory[3], 1e-6, 0.0, True) is NotImplemented
    assert run(*args(8)[:2], memory[5], 1e-6, 0.0, True) is None


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
