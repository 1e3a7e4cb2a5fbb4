"""mma.sync in every shape, and matrices moved between registers and shared memory."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from pyptx_ops.dsl import Kernel, ptx
from tests.sim.test_wgmma import BITS, encode
from tests.sim.tools import copy_in, item, launch, tensor, thread_index

LANES = 32
WIDTH = BITS | {"s4": 4, "u4": 4, "f64": 64}
SHAPES = [
    ("m16n8k8", "f32", "f16", "f16"), ("m16n8k16", "f32", "f16", "f16"), ("m16n8k8", "f16", "f16", "f16"),
    ("m16n8k16", "f16", "f16", "f16"), ("m16n8k8", "f32", "bf16", "bf16"), ("m16n8k16", "f32", "bf16", "bf16"),
    ("m16n8k4", "f32", "tf32", "tf32"), ("m16n8k8", "f32", "tf32", "tf32"), ("m16n8k16", "f32", "e4m3", "e5m2"),
    ("m16n8k32", "f32", "e5m2", "e4m3"), ("m16n8k32", "f16", "e4m3", "e4m3"), ("m8n8k16", "s32", "s8", "u8"),
    ("m16n8k16", "s32", "u8", "s8"), ("m16n8k32", "s32", "s8", "s8"), ("m8n8k32", "s32", "s4", "u4"),
    ("m16n8k32", "s32", "s4", "s4"), ("m16n8k64", "s32", "u4", "s4"), ("m8n8k128", "s32", "b1", "b1"),
    ("m16n8k128", "s32", "b1", "b1"), ("m16n8k256", "s32", "b1", "b1"), ("m8n8k4", "f64", "f64", "f64"),
    ("m16n8k4", "f64", "f64", "f64"), ("m16n8k8", "f64", "f64", "f64"), ("m16n8k16", "f64", "f64", "f64"),
]  # fmt: skip


def words(values: np.ndarray, dtype: str) -> np.ndarray:
    """Rows of elements as rows of registers: 32 bits, or one f64."""
    if dtype == "f64":
        return values.astype(np.float64).view(np.uint64)
    if dtype in ("s4", "u4"):
        pairs = (values & 15).astype(np.uint8)
        return np.ascontiguousarray(pairs[:, ::2] | pairs[:, 1::2] << 4).view(np.uint32)
    return np.ascontiguousarray(encode(values, dtype)).view(np.uint32)


def multiply(shape: str, d: str, a: str, b: str, counts: tuple[int, int, int], **more: str) -> Kernel:
    """Fragments come as (registers, lanes) and D goes so."""
    with Kernel("multiply", block=(LANES, 1, 1)) as k:
        left, right, start, out = (k.param(name, "pointer") for name in ("left", "right", "start", "out"))
        lane = thread_index()
        inputs, size = ("b64", 8) if d == "f64" else ("b32", 4)

        def load(base, count, kind):
            return [
                ptx.ld(item(base, lane, size) + size * LANES * i, space="global", type=kind) for i in range(count)
            ]  # fmt: skip

        kind = {"f64": "f64", "f32": "f32", "s32": "s32"}.get(d, "b32")
        operand = "f64" if d == "f64" else inputs
        result = ptx.mma.sync(
            load(left, counts[0], operand), load(right, counts[1], operand), load(start, counts[2], kind), shape=shape,
            dtype=d, atype=a, btype=b, ctype=d, **more,
        )  # fmt: skip
        for i, register in enumerate(result):
            ptx.st(item(out, lane, size) + size * LANES * i, register, space="global", type=inputs)
        ptx.ret()
    return k


OPERATIONS = [(*form, op) for form in SHAPES for op in (("and", "xor") if "b1" in form else ("and",))]


@pytest.mark.parametrize("shape, d, a, b, op", OPERATIONS, ids=str)
def test_every_shape(shape: str, d: str, a: str, b: str, op: str, seed: int) -> None:
    """Small integers, which every type holds exactly."""
    m, n, k = map(int, re.findall(r"\d+", shape))
    random = np.random.default_rng(seed)
    bounds = {"u8": (0, 200), "u4": (0, 16), "s8": (-128, 128), "s4": (-8, 8), "b1": (0, 2)}
    left = random.integers(*bounds.get(a, (-3, 4)), (m, k))
    right = random.integers(*bounds.get(b, (-3, 4)), (n, k))
    start = random.integers(-9, 10, (m, n))
    product = (left[:, None, :] ^ right[None, :, :]).sum(-1) if op == "xor" else left @ right.T
    lane, f64 = np.arange(LANES), d == "f64"
    x, y = words(left, a), words(right, b)
    per = m // 8  # rows of A in a lane
    a_registers = [x[lane // 4 + 8 * (g % per), lane % 4 + 4 * (g // per)] for g in range(x.size // LANES)]
    b_registers = [y[lane // 4, lane % 4 + 4 * g] for g in range(y.size // LANES)]
    half = d == "f16"
    value = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "s32": np.int32}[d]
    c = start.astype(value)
    places = [(lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2) for i in range(m * n // LANES)]
    elements = [c[place] for place in places]
    if half:
        elements = [np.stack(elements[i : i + 2], axis=-1).copy().view(np.uint32)[:, 0] for i in (0, 2)]
    out = torch.zeros(len(elements), LANES, dtype=torch.int64 if f64 else torch.int32)
    counts = (len(a_registers), len(b_registers), len(elements))
    more = {"op": op} if a == "b1" else {}
    kernel = multiply(shape, d, a, b, counts, **more)
    launch(kernel, *(tensor(np.stack(r)) for r in (a_registers, b_registers, elements)), out)
    got = out.numpy().view(value).reshape(len(elements), LANES, -1)
    wanted = product + start
    for i, place in enumerate(places):
        assert (got[i // 2, :, i % 2] if half else got[i, :, 0]).tolist() == wanted[place].tolist()


def test_saturation() -> None:
    k = multiply("m16n8k16", "s32", "s8", "s8", (2, 1, 4), satfinite=True)  # type: ignore[arg-type]
    ones = torch.full((4, LANES), 0x01010101, dtype=torch.int32)
    start, out = torch.full((4, LANES), 2**31 - 3, dtype=torch.int32), torch.zeros(4, LANES, dtype=torch.int32)
    launch(k, ones, ones, start, out)
    assert (out == 2**31 - 1).all()


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrices_through_shared_memory(count: int, trans: bool) -> None:
    """ldmatrix, movmatrix of each, stmatrix: out comes the matrix, transposed an odd number of times or not."""
    with Kernel("matrices", block=(LANES, 1, 1)) as k:
        source, out = k.param("source", "pointer"), k.param("out", "pointer")
        smem = k.dynamic_shared(128)
        first, second = smem.array("first", 512, 128).reg(), smem.array("second", 512, 128).reg()
        lane = thread_index()
        copy_in(k, source, first, 128 * count, lane)
        ptx.bar.sync(0)
        values = ptx.ldmatrix(first + lane * 16, num=f"x{count}", trans=trans)
        values = [ptx.movmatrix(v) for v in (values if count > 1 else [values[0]])]
        ptx.stmatrix(second + lane * 16, values, num=f"x{count}")
        ptx.bar.sync(0)
        with k.if_(lane < 8 * count):
            chunk = ptx.ld(second + lane * 16, space="shared::cta", vec="v4", type="b32")
            ptx.st(item(out, lane, 16), chunk, space="global", vec="v4", type="b32")
        ptx.ret()
    matrix = torch.randint(-(2**15), 2**15, (count, 8, 8), dtype=torch.int16)
    result = torch.zeros_like(matrix)
    launch(k, matrix, result)
    assert torch.equal(result, matrix if trans else matrix.transpose(1, 2))
