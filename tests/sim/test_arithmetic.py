"""Arithmetic of the simulator against NumPy, and against exact values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pyptx_ops.dsl import Kernel, ptx, special
from tests.sim.tools import item, launch

THREADS = 128


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
