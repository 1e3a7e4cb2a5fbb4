"""Arithmetic of the simulator against an H200, against NumPy, and against exact values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pyptx_ops.dsl import Kernel, Reg, ptx, special
from pyptx_ops.dsl.desc import MatrixDescriptor
from pyptx_ops.simulator import SimulatedKernel, SimulatedLauncher

THREADS = 128
CASES = 4
SIZES = (2048, 256, 2048, 2048)  # bytes of A (64 x 16), B (8 x 16), C and D (64 x 8, f32)
VECTORS = Path(__file__).parent / "data" / "wgmma_h200.bin"
"""Read off an H200: per type (bf16, f16) four random cases of four ranges of magnitude; A, B, C, D of each."""


def launch(kernel: Kernel, *tensors: torch.Tensor) -> None:
    machine = SimulatedKernel(SimulatedLauncher(), kernel)
    machine.launch(0, 0, 1, 1, 1, *(tensor.data_ptr() for tensor in tensors))


def item(base: Reg, thread: Reg, nbytes: int) -> Reg:
    return base + ptx.mul.wide(thread, nbytes)


def one_wgmma(dtype: str) -> Kernel:
    """D = A · Bᵀ + C of one m64n8k16. A and B come as they lie in shared memory, C and D as fragments."""
    with Kernel(f"wgmma_{dtype}", block=(THREADS, 1, 1)) as k:
        a, b, c, d = (k.param(name, "pointer") for name in "abcd")
        smem = k.dynamic_shared(1024)
        rows, columns = smem.array("rows", 2048, 1024).reg(), smem.array("columns", 256, 1024).reg()
        thread = ptx.mov(special("tid.x"), type="u32")
        for source, target, chunks in ((a, rows, 128), (b, columns, 16)):
            with k.if_(thread < chunks):
                chunk = ptx.ld(item(source, thread, 16), space="global", vec="v4", type="b32")
                ptx.st(target + thread * 16, chunk, space="shared::cta", vec="v4", type="b32")
        ptx.fence.proxy.async_(space="shared::cta")
        ptx.bar.sync(0)
        sums = k.regs("f32", 4)
        start = ptx.ld(item(c, thread, 16), space="global", vec="v4", type="f32")
        for value, total in zip(start, sums, strict=True):
            ptx.mov(value, out=total)
        tile = MatrixDescriptor(leading=16, stride=256, swizzle=32, k_step=32)
        ptx.wgmma.fence()
        operands = (tile.at(rows), tile.at(columns), 1, 1, 1, 0, 0)
        ptx.wgmma.mma_async(sums, *operands, shape="m64n8k16", dtype="f32", atype=dtype, btype=dtype)
        ptx.wgmma.commit_group()
        ptx.wgmma.wait_group(0)
        ptx.st(item(d, thread, 16), tuple(sums), space="global", vec="v4", type="f32")
        ptx.ret()
    return k


def swizzled(matrix: np.ndarray) -> torch.Tensor:
    """Rows of 32 bytes in the 32-byte swizzle: their halves change places in every second group of four."""
    chunks = matrix.reshape(-1, 2, 16).copy()
    flipped = np.arange(len(chunks)) // 4 % 2 == 1
    chunks[flipped] = chunks[flipped, ::-1]
    return torch.from_numpy(chunks)


def fragment(matrix: np.ndarray) -> np.ndarray:
    """(64, 8) of f32 words as four registers of each of 128 threads."""
    thread, register = np.arange(THREADS)[:, None], np.arange(4)[None, :]
    lane = thread % 32
    return matrix[thread // 32 * 16 + lane // 4 + register // 2 * 8, lane % 4 * 2 + register % 2]


@pytest.mark.parametrize("case", range(CASES))
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_wgmma_gives_the_bits_of_an_h200(dtype: str, case: int) -> None:
    data = np.frombuffer(VECTORS.read_bytes(), np.uint8)
    offset = (["bf16", "f16"].index(dtype) * CASES + case) * sum(SIZES)
    a, b, c, d = np.split(data[offset : offset + sum(SIZES)], np.cumsum(SIZES)[:-1])
    out = torch.zeros(THREADS, 4)
    start, wanted = (fragment(m.view(np.uint32).reshape(64, 8)) for m in (c, d))
    launch(one_wgmma(dtype), swizzled(a), swizzled(b), torch.from_numpy(start.view(np.float32).copy()), out)
    got = out.numpy().view(np.uint32)
    zeros = ((got | wanted) & 0x7FFFFFFF) == 0  # the sign of a zero is not settled
    assert (zeros | (got == wanted)).all()
    assert len(np.unique(wanted)) > 100


def conversion(to: str) -> Kernel:
    """f32 to bf16 or f16 and back, one value a thread."""
    with Kernel(f"convert_{to}", block=(THREADS, 1, 1)) as k:
        source, out = k.param("source", "pointer"), k.param("out", "pointer")
        thread = ptx.mov(special("tid.x"), type="u32")
        value = ptx.ld(item(source, thread, 4), space="global", type="f32")
        narrow = ptx.cvt(value, type=to, src="f32", rnd="rn")
        ptx.st(item(out, thread, 4), ptx.cvt(narrow, type="f32", src=to), space="global")
        ptx.ret()
    return k


EDGES = [0.0, -0.0, 1.0, 65504.0, 65519.9, 65520.0, 1e-8, 2.0**-24, 2.0**-25, 3 * 2.0**-25, 6.1e-5, 3.4e38, 1e-45]


@pytest.mark.parametrize("to", ["bf16", "f16"])
def test_conversions_round_to_nearest_even(to: str, seed: int) -> None:
    bits = np.random.default_rng(seed).integers(0, 2**32, THREADS, dtype=np.uint32)
    values = torch.from_numpy(bits.view(np.float32).copy())
    values[: len(EDGES)] = torch.tensor(EDGES)
    values = torch.where(values.isnan(), 1.0 + 2.0**-8, values)
    out = torch.zeros(THREADS)
    launch(conversion(to), values, out)
    wanted = values.to(torch.bfloat16 if to == "bf16" else torch.float16).float()
    assert torch.equal(out.view(torch.int32), wanted.view(torch.int32))


def integers() -> Kernel:
    with Kernel("integers", block=(THREADS, 1, 1)) as k:
        left, right, out = (k.param(name, "pointer") for name in ("left", "right", "out"))
        thread = ptx.mov(special("tid.x"), type="u32")
        a, b = (ptx.ld(item(base, thread, 4), space="global", type="u32") for base in (left, right))
        results = [
            a + b, a - b, a * b, a // b, a % b, ptx.mul.hi(a, b), ptx.min(a, b), ptx.max(a, b), a & b, a | b, a ^ b,
            a << 3, a >> 5, ptx.clz(a.as_type("b32"), type="b32").as_type("u32"),
            ptx.popc(a.as_type("b32"), type="b32").as_type("u32"),
        ]  # fmt: skip
        for i, result in enumerate(results):
            ptx.st(item(out, thread, 4) + 4 * THREADS * i, result, space="global")
        ptx.ret()
    return k


def test_integers(seed: int) -> None:
    random = np.random.default_rng(seed)
    a, b = random.integers(0, 2**32, (2, THREADS), dtype=np.uint32)
    b >>= random.integers(0, 31, THREADS, dtype=np.uint32)
    b = np.maximum(b, 1)
    a[:2] = 0, 0xFFFFFFFF
    out = torch.zeros(15, THREADS, dtype=torch.int32)
    launch(integers(), *(torch.from_numpy(x.view(np.int32).copy()) for x in (a, b)), out)
    bits = [f"{value:032b}" for value in a.tolist()]
    wanted = [
        a + b, a - b, a * b, a // b, a % b, (a.astype(np.uint64) * b) >> np.uint64(32), np.minimum(a, b),
        np.maximum(a, b), a & b, a | b, a ^ b, a << np.uint32(3), a >> np.uint32(5),
        np.array([32 - len(text.lstrip("0")) for text in bits]), np.array([text.count("1") for text in bits]),
    ]  # fmt: skip
    for got, value in zip(out.numpy().view(np.uint32), wanted, strict=True):
        assert (got == value.astype(np.uint32)).all()
