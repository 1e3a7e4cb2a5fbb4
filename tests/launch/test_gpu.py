"""The launcher on a GPU, with small kernels written by hand: what was passed is what arrives."""

from __future__ import annotations

import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pyptx_ops import _launch, settings
from pyptx_ops.dsl.types import Param, TensorMapSpec
from pyptx_ops.launch import param_spec
from pyptx_ops.ptxas import assemble, find_ptxas

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0), reason="needs a GPU of 9.0 or newer"
)
Load = Callable[[str], _launch.Library]
POINTER = ("out", "pointer")
TILE = TensorMapSpec("f32", (8, 4))


def ptx(params: str, body: str, registers: str = "") -> str:
    head = ".version 8.0\n.target sm_90\n.address_size 64\n.extern .shared .align 128 .b8 dynamic[];\n"
    declared = ".reg .b32 %r<16>; .reg .b64 %rd<16>; .reg .f32 %f<8>; .reg .f64 %fd<2>; .reg .pred %p<4>;"
    return f"{head}.visible .entry entry({params})\n{{\n{declared}\n{body}\nret;\n}}\n"


LOAD_OUT = "ld.param.u64 %rd0, [out];\ncvta.to.global.u64 %rd0, %rd0;\n"
SCALARS = ptx(
    ".param .u64 out, .param .u32 a, .param .s32 b, .param .u64 c, .param .s64 d, .param .f32 e, .param .f64 f",
    LOAD_OUT + "ld.param.u32 %r0, [a]; ld.param.s32 %r1, [b]; ld.param.u64 %rd1, [c]; ld.param.s64 %rd2, [d];\n"
    "ld.param.f32 %f0, [e]; ld.param.f64 %fd0, [f];\n"
    "st.global.u32 [%rd0], %r0; st.global.u32 [%rd0+4], %r1; st.global.u64 [%rd0+8], %rd1;\n"
    "st.global.u64 [%rd0+16], %rd2; st.global.f32 [%rd0+24], %f0; st.global.f64 [%rd0+32], %fd0;",
)
ADD = ptx(  # adds n to every element, one a thread
    ".param .u64 out, .param .u32 n",
    LOAD_OUT + "ld.param.u32 %r0, [n];\nmov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x;\n"
    "mad.lo.u32 %r1, %r2, %r3, %r1;\nmul.wide.u32 %rd1, %r1, 4;\nadd.u64 %rd0, %rd0, %rd1;\n"
    "ld.global.u32 %r4, [%rd0];\nadd.u32 %r4, %r4, %r0;\nst.global.u32 [%rd0], %r4;",
)
RANKS = ptx(  # writes each CTA's rank in its cluster, and the cluster's size
    ".param .u64 out",
    LOAD_OUT + "mov.u32 %r0, %ctaid.x; mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, %cluster_nctarank;\n"
    "mul.wide.u32 %rd1, %r0, 8;\nadd.u64 %rd0, %rd0, %rd1;\nst.global.v2.u32 [%rd0], {%r1, %r2};",
)
SHARED = ptx(  # writes the last word of `bytes` of shared memory and reads it back
    ".param .u64 out, .param .u32 bytes",
    LOAD_OUT + "ld.param.u32 %r0, [bytes];\nmov.u32 %r1, dynamic;\nadd.u32 %r1, %r1, %r0;\n"
    "st.volatile.shared.u32 [%r1+-4], %r0;\nld.volatile.shared.u32 %r2, [%r1+-4];\nst.global.u32 [%rd0], %r2;",
)
DEPENDENT = ptx(  # adds 1 after the grid before it has written
    ".param .u64 out",
    LOAD_OUT + "griddepcontrol.wait;\nld.global.u32 %r0, [%rd0];\nadd.u32 %r0, %r0, 1;\nst.global.u32 [%rd0], %r0;\n"
    "griddepcontrol.launch_dependents;",
)
TILE_COPY = ptx(  # loads one box at (x, y) and writes it out, densely
    ".param .u64 out, .param .align 128 .b8 map[128], .param .s32 x, .param .s32 y",
    """.shared .align 128 .b8 tile[128];
.shared .align 8 .b64 full;
mov.b64 %rd1, map; cvta.param.u64 %rd1, %rd1;
"""
    + LOAD_OUT
    + """ld.param.s32 %r0, [x]; ld.param.s32 %r1, [y];
mov.u32 %r2, tile; mov.u32 %r3, full; mov.u32 %r4, %tid.x;
setp.ne.u32 %p0, %r4, 0;
@%p0 bra started;
mbarrier.init.shared::cta.b64 [%r3], 1;
fence.mbarrier_init.release.cluster;
fence.proxy.async.shared::cta;
mbarrier.arrive.expect_tx.shared::cta.b64 %rd2, [%r3], 128;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2], [%rd1, {%r0, %r1}], [%r3];
started:
bar.sync 0;
wait:
mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r3], 0;
@!%p1 bra wait;
shl.b32 %r5, %r4, 2;
add.u32 %r6, %r2, %r5;
ld.shared.u32 %r7, [%r6];
mul.wide.u32 %rd3, %r4, 4;
add.u64 %rd0, %rd0, %rd3;
st.global.u32 [%rd0], %r7;""",
)


@pytest.fixture(scope="module")
def driver() -> _launch.Driver:
    return _launch.Driver(settings.driver_path())


@pytest.fixture(params=["ptx", "cubin"])
def load(request: pytest.FixtureRequest, driver: _launch.Driver, tmp_path: Path) -> Load:
    """PTX -> library, compiled by the driver or by ptxas."""

    def load_text(text: str) -> _launch.Library:
        if request.param == "ptx":
            return driver.load(text.encode(), "test")
        ptxas = find_ptxas()
        if ptxas is None:
            pytest.skip("no ptxas on this machine")
        major, minor = torch.cuda.get_device_capability()
        assemble(ptxas, text, f"sm_{major}{minor}", tmp_path / "entry.cubin")
        return driver.load((tmp_path / "entry.cubin").read_bytes(), "test")

    return load_text


def stream() -> int:
    return torch.cuda.current_stream().cuda_stream


def test_every_scalar_arrives(load: Load) -> None:
    kinds = ("u32", "i32", "u64", "i64", "f32", "f64")
    values = (2**32 - 5, -7, 2**64 - 9, -(2**63), 1.1, -2.2)
    kernel = load(SCALARS).kernel("entry", (POINTER, *zip("abcdef", kinds, strict=True)), (1, 1, 1))
    out = torch.full((40,), 0xEE, dtype=torch.uint8, device="cuda")
    kernel.launch(out.get_device(), stream(), 1, 1, 1, out.data_ptr(), *values)
    got = struct.unpack("<IiQqf4xd", bytes(out.tolist()))
    assert got == (*values[:4], struct.unpack("f", struct.pack("f", 1.1))[0], -2.2)


@pytest.mark.parametrize(("x", "y"), [(0, 0), (8, 4), (4, 1), (12, 6), (-4, -1), (40, 40)])
def test_a_tensor_map_arrives_and_fills_what_is_out_of_bounds(load: Load, x: int, y: int) -> None:
    """A copy starts at a multiple of 16 bytes along the contiguous dimension: others are illegal instructions."""
    rows, columns = 7, 13
    source = torch.randn(rows, 16, device="cuda")
    params = (POINTER, param_spec(Param("map", "tensor_map", TILE)), ("x", "i32"), ("y", "i32"))
    kernel = load(TILE_COPY).kernel("entry", params, (32, 1, 1))
    out = torch.full((4, 8), torch.nan, device="cuda")
    kernel.launch(0, stream(), 1, 1, 1, out.data_ptr(), source.data_ptr(), columns, rows, 64, x, y)
    padded = torch.zeros(64, 64)
    padded[8 : 8 + rows, 8 : 8 + columns] = source[:, :columns].cpu()
    assert torch.equal(out.cpu(), padded[8 + y : 12 + y, 8 + x : 16 + x])


@pytest.mark.parametrize("size", [1, 2, 8, 16])
def test_clusters_are_as_large_as_asked_for(load: Load, size: int) -> None:
    kernel = load(RANKS).kernel("entry", (POINTER,), (32, 1, 1), cluster=(size, 1, 1))
    out = torch.full((2 * size, 2), -1, dtype=torch.int32, device="cuda")
    kernel.launch(0, stream(), 2 * size, 1, 1, out.data_ptr())
    assert out.tolist() == [[rank % size, size] for rank in range(2 * size)]


@pytest.mark.parametrize("size", [4, 48 * 1024, 48 * 1024 + 4, 200 * 1024, 227 * 1024])
def test_dynamic_shared_memory(load: Load, size: int) -> None:
    kernel = load(SHARED).kernel("entry", (POINTER, ("bytes", "u32")), (1, 1, 1), shared_memory=size)
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    kernel.launch(0, stream(), 1, 1, 1, out.data_ptr(), size)
    assert out.item() == size


def test_dependent_launches_keep_their_order(load: Load) -> None:
    kernel = load(DEPENDENT).kernel("entry", (POINTER,), (1, 1, 1), pdl=True)
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    for _ in range(100):
        kernel.launch(0, stream(), 1, 1, 1, out.data_ptr())
    assert out.item() == 100


def test_a_first_launch_may_be_captured(load: Load) -> None:
    kernel = load(SHARED).kernel("entry", (POINTER, ("bytes", "u32")), (1, 1, 1), shared_memory=100_000)
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel.launch(0, stream(), 1, 1, 1, out.data_ptr(), 100_000)
    del kernel
    for _ in range(2):
        out.zero_()
        graph.replay()
        assert out.item() == 100_000


def test_streams_and_threads(load: Load) -> None:
    kernel = load(ADD).kernel("entry", (POINTER, ("n", "u32")), (128, 1, 1))
    outs = [torch.zeros(1024, dtype=torch.int32, device="cuda") for _ in range(8)]
    torch.cuda.synchronize()

    def work(index: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(100):
                kernel.launch(0, stream(), 8, 1, 1, outs[index].data_ptr(), index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    for index, out in enumerate(outs):
        assert torch.equal(out.cpu(), torch.full((1024,), 100 * index, dtype=torch.int32))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_device_that_is_not_current(load: Load) -> None:
    kernel = load(ADD).kernel("entry", (POINTER, ("n", "u32")), (128, 1, 1))
    for device in (1, 0, 1):
        out = torch.zeros(128, dtype=torch.int32, device=f"cuda:{device}")
        kernel.launch(device, torch.cuda.current_stream(device).cuda_stream, 1, 1, 1, out.data_ptr(), 3)
        assert torch.cuda.current_device() == 0
        assert out.unique().tolist() == [3]


def test_the_driver_knows_the_kernel(load: Load, driver: _launch.Driver) -> None:
    kernel = load(TILE_COPY).kernel("entry", (), (32, 1, 1))
    attributes = kernel.attributes(0)
    assert attributes["registers"] > 0 and attributes["local_bytes"] == 0 and attributes["shared_bytes"] >= 136
    major, minor = torch.cuda.get_device_capability()
    assert attributes["max_threads"] == 1024 and attributes["binary_version"] == 10 * major + minor
    assert driver.compute_capability(0) == (major, minor)
    assert driver.device_count() == torch.cuda.device_count()
    assert driver.version() >= (12, 0)


# ---------------------------------------------------------------------------------------------------------- errors


def test_a_jit_failure_carries_the_compilers_words(driver: _launch.Driver) -> None:
    with pytest.raises(_launch.LaunchError, match="failed with CUDA_ERROR_") as caught:
        driver.load(SCALARS.replace("ret;", "frobnicate;").encode(), "broken").kernel("entry", (), (1, 1, 1)).prepare(0)
    assert "frobnicate" in str(caught.value) and "line" in str(caught.value)


def test_an_entry_that_is_not_there(load: Load) -> None:
    with pytest.raises(_launch.LaunchError, match="cuLibraryGetKernel failed with CUDA_ERROR_NOT_FOUND .*'nothing'"):
        load(ADD).kernel("nothing", (), (1, 1, 1))


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ((8, 13, 7, 64), "the address must be a multiple of 16"),
        ((0, 13, 7, 60), r"stride\[1\] must be a multiple of 16"),
        ((0, 0, 7, 64), r"size\[0\] must be 1 to"),
    ],
)
def test_a_tensor_map_that_the_driver_refuses(load: Load, values: tuple[int, ...], rule: str) -> None:
    params = (POINTER, param_spec(Param("map", "tensor_map", TILE)), ("x", "i32"), ("y", "i32"))
    kernel = load(TILE_COPY).kernel("entry", params, (32, 1, 1))
    source = torch.randn(8, 16, device="cuda")
    offset, *rest = values
    with pytest.raises(_launch.LaunchError, match=f"cuTensorMapEncodeTiled failed .*tensor map 'map'(.|\n)*{rule}"):
        kernel.launch(0, stream(), 1, 1, 1, 0, source.data_ptr() + offset, *rest, 0, 0)
    torch.cuda.synchronize()


@pytest.mark.parametrize(
    ("options", "grid", "call"),
    [
        ({"block": (1025, 1, 1)}, 1, "cuLaunchKernelEx"),
        ({"block": (1, 1, 1), "shared_memory": 2**20}, 1, "cuKernelSetAttribute"),
        ({"block": (1, 1, 1), "cluster": (2, 1, 1)}, 3, "cuLaunchKernelEx"),
    ],
)
def test_a_launch_that_the_driver_refuses(load: Load, options: dict[str, Any], grid: int, call: str) -> None:
    kernel = load(RANKS).kernel("entry", (POINTER,), **options)
    with pytest.raises(_launch.LaunchError, match=f"{call}.* failed with CUDA_ERROR_.* for kernel 'entry' on device 0"):
        kernel.launch(0, stream(), grid, 1, 1, 0)
    torch.cuda.synchronize()


def test_it_runs_without_torch() -> None:
    code = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('pyptx_ops._launch', {_launch.__file__!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        f"driver = module.Driver({settings.driver_path()!r})\n"
        f"kernel = driver.load({ptx('', '').encode()!r}, 'empty').kernel('entry', (), (1, 1, 1))\n"
        "kernel.launch(driver.device_count() - 1, 0, 1, 1, 1)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
