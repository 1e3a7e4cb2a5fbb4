"""Which path a device takes, and what is said about it."""

from __future__ import annotations

import warnings

import pytest
import torch

import pyptx_ops
from pyptx_ops import dispatch, launch
from pyptx_ops.dispatch import gemm, gemm_swiglu, norm, swiglu
from pyptx_ops.manifest import ManifestError
from tests.ops.inputs import ends, randn


class Launcher:
    """Stands in for a CUDA launcher: has kernels for what it was told."""

    def __init__(self, *arches):
        self.arches = arches

    def manifest(self, arch):
        if arch not in self.arches:
            raise ManifestError(f"no kernels: {arch} was not built")


@pytest.fixture
def gpus(monkeypatch):
    """Three devices of different architectures; nothing asked or warned of yet."""
    names = ["NVIDIA H200", "NVIDIA B200", "NVIDIA A100"]
    capabilities = [(9, 0), (10, 0), (8, 0)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capabilities[index])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: names[index])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(dispatch, "_routes", type(dispatch._routes)())
    monkeypatch.setattr(dispatch, "_warned", set())


def test_cpu_and_meta_take_the_reference_path_in_silence():
    for device in ("cpu", torch.device("meta")):
        route = dispatch.route(device)
        assert (route.path, route.arch) == ("reference", None) and str(device) in route.why
    assert not dispatch.runs_kernels(torch.zeros(1, dtype=torch.bfloat16))


def test_hopper_with_kernels(gpus):
    with launch.use_launcher(Launcher("sm_90a")):
        route = dispatch.route("cuda")
        assert (route.path, route.arch) == ("kernel", "sm_90a") and "NVIDIA H200" in route.why
        assert (
            dispatch.route(0) is dispatch.route("cuda:0") is route and dispatch.route(torch.device("cuda", 0)) is route
        )


def test_hopper_without_kernels_says_so_once(gpus):
    with launch.use_launcher(Launcher()):
        with pytest.warns(RuntimeWarning, match="reference path: kernels for sm_90a cannot be launched: no kernels"):
            route = dispatch.route("cuda:0")
        assert (route.path, route.arch) == ("reference", "sm_90a")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert dispatch.route("cuda:0") is route


@pytest.mark.parametrize("index, name", [(1, r"B200 \(compute capability 10\.0\)"), (2, "A100")])
def test_other_devices_say_so_once(gpus, index, name):
    with (
        launch.use_launcher(Launcher("sm_90a")),
        pytest.warns(RuntimeWarning, match=f"no kernels for NVIDIA {name}.*only for sm_90a") as caught,
    ):
        route = dispatch.route(f"cuda:{index}")
        dispatch.route(f"cuda:{index}")
    assert len(caught) == 1 and (route.path, route.arch) == ("reference", None)


def test_no_driver(gpus, tmp_path):
    """Kernels are there, the driver is not."""

    class Built(launch.CudaLauncher):
        def manifest(self, arch):
            return None

    with (
        launch.use_launcher(Built(tmp_path, driver=str(tmp_path / "libcuda.so.1"))),
        pytest.warns(RuntimeWarning, match=r"cannot be launched: .*libcuda\.so\.1"),
    ):
        assert dispatch.route("cuda:0").path == "reference"


@pytest.mark.parametrize("dtype, kernel", [(torch.bfloat16, True), (torch.float16, True), (torch.float32, False)])
def test_dtypes_that_kernels_take(dtype, kernel):
    assert (dtype in dispatch.KERNEL_DTYPES) is kernel


CALLS = {  # op: (module, keyword arguments, what the family gets after the tensors)
    "gemm": (gemm, {"a": (3, 4), "b": (4, 2), "bias": (2,), "out_dtype": torch.float32}),
    "grouped_gemm": (gemm, {"a": (3, 4), "b": (2, 4, 2), "offs": (1, 2), "bias": (2, 2), "out_dtype": None}),
    "gemm_swiglu": (gemm_swiglu, {"a": (3, 4), "w13": (4, 6), "bias": (6,), "interleaved": True}),
    "grouped_gemm_swiglu": (
        gemm_swiglu,
        {"a": (3, 4), "w13": (2, 4, 6), "offs": (1, 2), "bias": (2, 6), "interleaved": False},
    ),
    "rms_norm": (norm, {"x": (3, 4), "weight": (4,), "eps": 1e-5, "weight_offset": 1.0, "cast_before_weight": False}),
    "fused_add_rms_norm": (
        norm,
        {"x": (3, 4), "residual": (3, 4), "weight": (4,), "eps": 0.5, "weight_offset": 0.0, "cast_before_weight": True},
    ),
    "fused_add_rms_norm_": (
        norm,
        {"x": (3, 4), "residual": (3, 4), "weight": (4,), "eps": 0.5, "weight_offset": 1.0, "cast_before_weight": True},
    ),
    "silu_and_mul": (swiglu, {"x": (3, 4), "interleaved": True}),
    "swiglu": (swiglu, {"gate": (3, 4), "up": (3, 4), "offs": (1, 2)}),
}


@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize("mode", ["eager", "no_grad", "inference", "grad"])
def test_the_family_gets_the_checked_arguments(monkeypatch, op, mode):
    """The same tensors, not copies, and every option; what it returns is what the op returns."""
    module, arguments = CALLS[op]
    if mode == "grad" and op.endswith("gemm_swiglu"):
        pytest.skip("is recorded as a product and an activation")
    arguments = dict(arguments)
    for name, shape in arguments.items():
        if isinstance(shape, tuple):
            values = ends(*shape, device="cpu") if name == "offs" else randn(*shape, device="cpu")
            arguments[name] = values if name == "offs" else values.bfloat16()
    calls = []
    result = torch.full((3, 2), 7.0)

    def family(*args):
        calls.append(args)
        return {"fused_add_rms_norm": (result, result.clone()), "fused_add_rms_norm_": None}.get(op, result)

    monkeypatch.setattr(dispatch, "runs_kernels", lambda tensor: True)
    monkeypatch.setattr(module, op, family)
    if mode == "grad" and not op.endswith("_"):
        arguments["a" if "a" in arguments else "gate" if "gate" in arguments else "x"].requires_grad_()
    version = next(iter(arguments.values()))._version
    with torch.inference_mode(mode == "inference"), torch.set_grad_enabled(mode != "no_grad"):
        got = getattr(pyptx_ops, op)(**arguments)
    (call,) = calls
    for passed, given in zip(call, arguments.values(), strict=True):
        assert (passed.data_ptr() == given.data_ptr()) if isinstance(given, torch.Tensor) else passed == given
    if op.endswith("_"):
        assert got is None
        assert arguments["x"]._version == arguments["residual"]._version == version + 1
    else:
        first = got[0] if isinstance(got, tuple) else got
        assert torch.equal(first, result) and first.requires_grad == (mode == "grad")
