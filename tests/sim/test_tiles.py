"""A descriptor that does not fit the tile in shared memory is found, and said what it fetches instead."""

from __future__ import annotations

import pytest
import torch

from pyptx_ops.dsl import Kernel, TensorMapSpec, ptx
from pyptx_ops.dsl.desc import MatrixDescriptor, k_major_128b, mn_major_128b
from pyptx_ops.dsl.macros import wait_parity
from pyptx_ops.dsl.sim import SimulationError
from tests.sim.tools import POLICIES, item, launch, thread_index

THREADS, M, N, K, DEEP = 128, 64, 128, 64, 16


def multiply(
    right: MatrixDescriptor, *, mn_major: bool = False, boxes: int = 2, offset: int = 0,
    steps: tuple[int, ...] = (0, 1, 2, 3), k_of: tuple[int, int] = (64, 64),
) -> Kernel:  # fmt: skip
    """D (64 x 128) = A · B of one tile 64 deep; B's descriptor as given, its tile copied in boxes."""
    with Kernel("multiply", block=(THREADS, 1, 1)) as k:
        a = k.tensor_map("a", TensorMapSpec("bf16", (K, M), swizzle=128))
        wide = N // boxes
        b = k.tensor_map("b", TensorMapSpec("bf16", (wide, K) if mn_major else (K, wide), swizzle=128))
        out = k.param("out", "pointer")
        smem = k.dynamic_shared(1024)
        rows, columns = smem.array("rows", 2 * M * K, 1024), smem.array("columns", 2 * N * K + 4096, 1024)
        full = smem.array("full", 8, 8)
        thread = thread_index()
        with k.if_(thread == 0):
            ptx.mbarrier.init(full, 1)
            ptx.fence.mbarrier_init()
            ptx.mbarrier.arrive.expect_tx(full.reg(), 2 * (M + N) * K)
            ptx.cp.async_.bulk.tensor.load(rows.reg(), a, [64, 0], full.reg(), dim="2d")
            for i in range(boxes):
                at = [i * wide, k_of[i % 2]] if mn_major else [k_of[i % 2], i * wide]
                target = columns.at(2 * K * wide * i).reg()
                ptx.cp.async_.bulk.tensor.load(target, b, at, full.reg(), dim="2d")
        ptx.st(columns.reg() + 2 * N * K + thread * 4, 0, space="shared::cta", type="u32")
        ptx.fence.proxy.async_(space="shared::cta")
        ptx.bar.sync(0)
        wait_parity(full.reg(), 0)
        left = k_major_128b()
        first, second = left.at(rows.reg()), right.at(columns.reg() + offset)
        sums = k.regs("f32", N // 2)
        ptx.wgmma.fence()
        for turn, step in enumerate(steps):
            operands = (left.advance(first, turn), right.advance(second, step), int(turn > 0), 1, 1, 0, int(mn_major))
            ptx.wgmma.mma_async(sums, *operands, shape=f"m64n{N}k16", dtype="f32", atype="bf16", btype="bf16")
        ptx.wgmma.commit_group()
        ptx.wgmma.wait_group(0)
        for i, total in enumerate(sums):
            ptx.st(item(out, thread, 2 * N) + 4 * i, total, space="global")
        ptx.ret()
    return k


def run(kernel: Kernel, mn_major: bool = False, policy: str = "lazy") -> None:
    a, b = torch.randn(M, 2 * K).bfloat16(), torch.randn(N, 2 * K).bfloat16()
    stored = b.t().contiguous() if mn_major else b
    out = torch.zeros(THREADS, N // 2)
    sizes = (N, 2 * K, 2 * N) if mn_major else (2 * K, N, 4 * K)
    launch(kernel, a, 2 * K, M, 4 * K, stored, *sizes, out, policy=policy)
    lane, warp = torch.arange(THREADS)[:, None] % 32, torch.arange(THREADS)[:, None] // 32
    i = torch.arange(N // 2)[None, :]
    truth = a[:, K:].double() @ b[:, K:].double().t()
    wanted = truth[16 * warp + lane // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (lane % 4) + i % 2]
    assert torch.allclose(out.double(), wanted, rtol=0, atol=64 * 2.0**-20)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("boxes", [1, 2, 4])
def test_the_kernels_are_right(boxes: int, policy: str) -> None:
    run(multiply(k_major_128b(), boxes=boxes), policy=policy)
    if boxes == 2:
        run(multiply(mn_major_128b(K), mn_major=True), True, policy=policy)


def descriptor(**changes: int) -> MatrixDescriptor:
    fields = {"leading": 16, "stride": 1024, "swizzle": 128, "k_step": 32} | changes
    return MatrixDescriptor(**fields)


WRONG = {
    "offset of 8-row groups": ({"right": descriptor(stride=2048)}, "row 8 of B at k 0 came from row 16 of the tile"),
    "offset of 8-row groups halved": ({"right": descriptor(stride=512)}, "row 8 of B at k 0 came from row 4 of"),
    "swizzle of 64 bytes": ({"right": descriptor(swizzle=64)}, "B"),
    "swizzle of 32 bytes": ({"right": descriptor(swizzle=32, stride=256)}, "B"),
    "no swizzle": ({"right": descriptor(swizzle=0, leading=1024, stride=128)}, "B"),
    "start within a row": ({"right": descriptor(), "offset": 112}, "row 0 of B at k 8 lies past the end of its line"),
    "last step beyond the row": ({"right": descriptor(), "steps": (1, 2, 3, 4)}, "k 112 of A by k 64 of B"),
    "a step left out": ({"right": descriptor(), "steps": (0, 1, 3, 2)}, "k 96 of A by k 112 of B"),
    "boxes from different k": ({"right": descriptor(), "k_of": (64, 0)}, "differ in the coordinate along K"),
    "blocks too close": ({"right": descriptor(leading=4096, k_step=2048), "mn_major": True}, "row 64 of B"),
    "groups of k too far": (
        {"right": descriptor(leading=8192, stride=2048, k_step=2048), "mn_major": True},
        "row 0 of B at k 8 came from k 16 of the tile",
    ),
    "columns from different k": (
        {"right": descriptor(leading=8192, k_step=2048), "mn_major": True, "k_of": (64, 0)},
        "differ in the coordinate along K",
    ),
}  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", WRONG)
def test_what_a_wrong_descriptor_fetches(name: str, policy: str) -> None:
    changes, message = WRONG[name]
    with pytest.raises(SimulationError) as raised:
        run(multiply(**changes), bool(changes.get("mn_major")), policy)
    report = raised.value.report
    assert report.kind == "inconsistent tile" and message in report.message, str(report)


def test_ordinary_stores_take_the_place_of_a_tile() -> None:
    """Where a kernel writes a tile itself there is nothing to compare with: a wrong descriptor shows in the result."""
    with Kernel("written", block=(THREADS, 1, 1)) as k:
        columns = k.dynamic_shared(1024).array("columns", 16384, 1024).reg()
        thread = thread_index()
        for i in range(32):
            ptx.st(columns + thread * 4 + 512 * i, 0, space="shared::cta", type="u32")
        ptx.fence.proxy.async_(space="shared::cta")
        ptx.bar.sync(0)
        start = descriptor(stride=64).at(columns)
        sums = k.regs("f32", 4)
        ptx.wgmma.fence()
        ptx.wgmma.mma_async(sums, start, start, 0, 1, 1, 0, 0, shape="m64n8k16", dtype="f32", atype="f16", btype="f16")
        ptx.wgmma.commit_group()
        ptx.wgmma.wait_group(0)
        ptx.ret()
    launch(k)
