"""Loads, stores, atomics and address spaces, in all their forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pyptx_ops.dsl import Kernel, Reg, ptx
from pyptx_ops.dsl.sim import SimulationError
from tests.sim.tools import item, launch, tensor, thread_index

THREADS = 64
WIDTHS = {"b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "b32": 4, "u32": 4, "s32": 4, "f32": 4, "b64": 8,
          "u64": 8, "s64": 8, "f64": 8, "b128": 16}  # fmt: skip
FORMS = [
    (load, store)
    for load, store in [
        ({}, {}), ({"weak": True}, {"weak": True}), ({"volatile": True}, {"volatile": True}),
        ({"sem": "relaxed", "scope": "gpu"}, {"sem": "relaxed", "scope": "sys"}),
        ({"sem": "acquire", "scope": "cta"}, {"sem": "release", "scope": "cluster"}),
    ]
]  # fmt: skip


@pytest.mark.parametrize("load, store", FORMS, ids=lambda form: "-".join(map(str, form.values())) or "plain")
@pytest.mark.parametrize("space", ["global", "shared::cta", None])
def test_every_width_and_vector(space: str | None, load: dict, store: dict) -> None:
    """From global memory to a place in the space and back to global memory."""
    cases = [(kind, vec) for kind, size in WIDTHS.items() for vec in (None, "v2", "v4")
             if size * int((vec or "v1")[1:]) <= 16]  # fmt: skip
    with Kernel("move", block=(THREADS, 1, 1)) as k:
        source, between, out = (k.param(name, "pointer") for name in ("source", "between", "out"))
        buffer = k.dynamic_shared(128).array("buffer", 16 * THREADS, 128).reg()
        thread = thread_index()
        place: Reg = item(between, thread, 16)
        if space == "shared::cta":
            place = buffer + thread * 16
        elif space is None:
            place = ptx.cvta(ptx.cvt(buffer + thread * 16, type="u64", src="u32"), space="shared::cta")
        for i, (kind, vec) in enumerate(cases):
            offset = 16 * THREADS * i
            value = ptx.ld(item(source, thread, 16) + offset, space="global", type=kind, vec=vec)
            ptx.st(place, value, space=space, type=kind, vec=vec, **store)
            value = ptx.ld(place, space=space, type=kind, vec=vec, **load)
            ptx.st(item(out, thread, 16) + offset, value, space="global", type=kind, vec=vec)
        ptx.ret()
    source = torch.randint(0, 256, (len(cases), THREADS, 16), dtype=torch.uint8)
    between, out = torch.zeros(THREADS, 16, dtype=torch.uint8), torch.zeros_like(source)
    launch(k, source, between, out)
    for i, (kind, vec) in enumerate(cases):
        size = WIDTHS[kind] * int((vec or "v1")[1:])
        assert torch.equal(out[i, :, :size], source[i, :, :size]), (kind, vec)
        assert not out[i, :, size:].any()


def test_narrow_loads_extend_and_mmio_moves() -> None:
    with Kernel("extend", block=(THREADS, 1, 1)) as k:
        source, out = k.param("source", "pointer"), k.param("out", "pointer")
        thread = thread_index()
        at = item(source, thread, 8)
        wide = [ptx.ld(at, space="global", type=t, out=k.reg("s64")) for t in ("s8", "u8", "s16", "u16", "s32", "u32")]
        wide.append(ptx.ld(at, space="global", type="b64", mmio=True))
        wide.append(ptx.ldu(at, space="global", type="b64"))
        wide.append(ptx.ld(at, space="global", type="b64", nc=True))
        for i, value in enumerate(wide):
            ptx.st(item(out, thread, 8) + 8 * THREADS * i, value, space="global", type="b64", mmio=True)
        ptx.ret()
    source = np.random.default_rng(5).integers(-(2**63), 2**63, THREADS)
    out = torch.zeros(9, THREADS, dtype=torch.int64)
    launch(k, tensor(source), out)
    kinds = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32)
    wanted = [source.astype(kind).astype(np.int64) for kind in kinds] + [source] * 3
    assert (out.numpy() == np.stack(wanted)).all()


def test_words_of_128_bits() -> None:
    with Kernel("wide", block=(THREADS, 1, 1)) as k:
        source, out = k.param("source", "pointer"), k.param("out", "pointer")
        thread = thread_index()
        whole = ptx.ld(item(source, thread, 16), space="global", type="b128")
        low, high = ptx.mov.unpack(whole, type="b128")
        quarters = ptx.mov.unpack(ptx.mov.pack((high, low), type="b128"), type="b128", num="4")
        copy = ptx.mov(ptx.mov.pack(tuple(reversed(quarters)), type="b128", num="4"), type="b128")
        ptx.st(item(out, thread, 16), copy, space="global", type="b128")
        ptx.ret()
    words = torch.randint(-(2**31), 2**31, (THREADS, 4), dtype=torch.int32)
    out = torch.zeros_like(words)
    launch(k, words, out)
    assert torch.equal(out, words[:, [1, 0, 3, 2]])


def test_constants_and_variables_of_the_module() -> None:
    with Kernel("module", block=(THREADS, 1, 1)) as k:
        out = k.param("out", "pointer")
        table = k.global_array("table", "u32", [3 * i + 1 for i in range(THREADS)], space="const")
        pi = k.global_array("pi", "f64", [3.25, -0.5], space="const")
        counter = k.global_array("counter", "u64", 2)
        start = k.global_array("start", "s32", [-7, 9])
        thread = thread_index()
        offset = ptx.cvt(thread * 4, type="u64", src="u32")
        value = ptx.ld(ptx.mov(table, type="u64") + offset, space="const", type="u32")
        generic = ptx.ld(ptx.cvta(ptx.mov(table, type="u64") + offset, space="const"), type="u32")
        before = ptx.atom(counter, 1, space="global", op="add", type="u64")
        inside = ptx.isspacep(ptx.cvta(ptx.mov(pi, type="u64"), space="const"), space="const")
        results = [value, generic, ptx.cvt(before, type="u32", src="u64"), ptx.selp(1, 0, inside, type="u32")]
        results.append(ptx.ld(start, space="global", type="s32").as_type("u32"))
        results.append(ptx.cvt(ptx.ld(pi, space="const", type="u64") >> 32, type="u32", src="u64"))
        for i, result in enumerate(results):
            ptx.st(item(out, thread, 4) + 4 * THREADS * i, result, space="global")
        ptx.ret()
    for turn in range(2):  # a module's variables live on
        out = torch.zeros(6, THREADS, dtype=torch.int32)
        launch(k, out)
        index = torch.arange(THREADS)
        assert torch.equal(out[0].long(), 3 * index + 1) and torch.equal(out[1], out[0])
        assert torch.equal(out[2].sort().values.long(), index + turn * THREADS)
        assert out[3:, 0].tolist() == [1, -7, 0x400A0000]  # the upper half of 3.25


def test_constants_are_not_written() -> None:
    with Kernel("written", block=(32, 1, 1)) as k:
        table = k.global_array("table", "u32", [1, 2], space="const")
        ptx.st(ptx.cvta(ptx.mov(table, type="u64"), space="const"), 5, type="u32")
        ptx.ret()
    with pytest.raises(SimulationError, match="constant space"):
        launch(k)


def test_spaces_of_generic_addresses() -> None:
    spaces = ("global", "shared", "shared::cta", "shared::cluster", "param", "const", "local")
    with Kernel("spaces", block=(32, 1, 1)) as k:
        out = k.param("out", "pointer")
        buffer = k.dynamic_shared(128).array("buffer", 128, 128).reg()
        lane = thread_index()
        shared = ptx.cvta(ptx.cvt(buffer, type="u64", src="u32"), space="shared")
        for i, address in enumerate((out, shared)):
            for j, space in enumerate(spaces):
                inside = ptx.selp(1, 0, ptx.isspacep(address, space=space), type="u32")
                ptx.st(item(out, lane, 4) + 128 * (len(spaces) * i + j), inside, space="global")
        back = ptx.cvta.to(shared, space="shared")
        ptx.st(item(out, lane, 4) + 128 * 14, ptx.cvt(back, type="u32", src="u64") - buffer, space="global")
        ptx.ret()
    out = torch.full((15, 32), -1, dtype=torch.int32)
    launch(k, out)
    assert out[:, 3].tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0]


INTEGERS = {
    "add": ("u32", "s32", "u64"), "min": ("u32", "s32", "u64", "s64"), "max": ("u32", "s32", "u64", "s64"),
    "and": ("b32", "b64"), "or": ("b32", "b64"), "xor": ("b32", "b64"), "inc": ("u32",), "dec": ("u32",),
    "exch": ("b32", "b64"),
}  # fmt: skip
KINDS = {"u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64, "b32": np.uint32, "b64": np.uint64,
         "f32": np.float32, "f64": np.float64}  # fmt: skip


def combine(op: str, was, x):
    with np.errstate(over="ignore"):
        table = {
            "add": lambda: was + x, "min": lambda: min(was, x), "max": lambda: max(was, x), "and": lambda: was & x,
            "or": lambda: was | x, "xor": lambda: was ^ x, "exch": lambda: x,
            "inc": lambda: type(was)(0) if was >= x else was + type(was)(1),
            "dec": lambda: x if was == 0 or was > x else was - type(was)(1),
        }  # fmt: skip
        return table[op]()


@pytest.mark.parametrize("space", ["global", "shared::cta"])
@pytest.mark.parametrize("op, kind", [(op, kind) for op, kinds in INTEGERS.items() for kind in kinds])
def test_atomics_in_turn(op: str, kind: str, space: str, seed: int) -> None:
    """The lanes of a warp change one word, in their order: each gets what was there."""
    size = np.dtype(KINDS[kind]).itemsize
    with Kernel("atomics", block=(32, 1, 1)) as k:
        source, place, out = (k.param(name, "pointer") for name in ("source", "place", "out"))
        buffer = k.dynamic_shared(128).array("buffer", 128, 128).reg()
        lane = thread_index()
        value = ptx.ld(item(source, lane, size), space="global", type=kind)
        target: Reg = place
        if space != "global":
            target = buffer
            with k.if_(lane == 0):
                ptx.st(buffer, ptx.ld(place, space="global", type=kind), space=space, type=kind)
            ptx.bar.warp.sync(0xFFFFFFFF)
        ptx.st(item(out, lane, size), ptx.atom(target, value, space=space, op=op, type=kind), space="global", type=kind)
        if op != "exch":
            ptx.red(target, value, space=space, op=op, type=kind)
        ptx.bar.warp.sync(0xFFFFFFFF)
        if space != "global":
            with k.if_(lane == 0):
                ptx.st(place, ptx.ld(target, space=space, type=kind), space="global", type=kind)
        ptx.ret()
    info = np.iinfo(KINDS[kind])
    random = np.random.default_rng(seed)
    low, high = (0, 40) if op in ("inc", "dec") else (info.min, info.max)
    values = random.integers(low, high, 32, KINDS[kind], endpoint=True)
    start = random.integers(low, high, 1, KINDS[kind])
    place, out = tensor(start), torch.zeros(32 * size, dtype=torch.uint8)
    launch(k, tensor(values), place, out)
    now, seen = start[0], []
    for _ in range(1 if op == "exch" else 2):
        for value in values:
            seen.append(now)
            now = combine(op, now, value)
    assert out.numpy().view(KINDS[kind]).tolist() == [int(v) for v in seen[:32]]
    assert place.numpy().view(KINDS[kind])[0] == now


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_floating_sums_in_turn(kind: str, seed: int) -> None:
    size = np.dtype(KINDS[kind]).itemsize
    with Kernel("sums", block=(32, 1, 1)) as k:
        source, place, out = (k.param(name, "pointer") for name in ("source", "place", "out"))
        lane = thread_index()
        value = ptx.ld(item(source, lane, size), space="global", type=kind)
        old = ptx.atom(place, value, space="global", op="add", type=kind)
        ptx.st(item(out, lane, size), old, space="global")
        ptx.ret()
    values = np.random.default_rng(seed).standard_normal(33).astype(KINDS[kind])
    if kind == "f32":
        values[5] = 1e-40  # global sums take it for zero
    place, out = tensor(values[:1]), torch.zeros(32 * size, dtype=torch.uint8)
    launch(k, tensor(values[1:]), place, out)
    sums = np.add.accumulate(np.where(np.abs(values) < 1e-38, 0, values).astype(KINDS[kind]))
    assert (out.numpy().view(KINDS[kind]) == sums[:32]).all() and place.numpy().view(KINDS[kind])[0] == sums[32]


HALVES = {"f16": torch.float16, "bf16": torch.bfloat16, "f16x2": torch.float16, "bf16x2": torch.bfloat16}


@pytest.mark.parametrize("op", ["add", "min", "max"])
@pytest.mark.parametrize("kind, vec", [("f16", "v2"), ("f16", "v8"), ("bf16", "v4"), ("f16x2", "v4"), ("bf16x2", "v2")])
def test_vectors_of_halves(kind: str, vec: str, op: str) -> None:
    each = 2 * int(vec[1:]) // (1 if kind.endswith("x2") else 2) * 2
    per = each // 2
    part = "b32" if kind.endswith("x2") else "b16"
    with Kernel("vectors", block=(32, 1, 1)) as k:
        source, place, out = (k.param(name, "pointer") for name in ("source", "place", "out"))
        lane = thread_index()
        bits = 4 if part == "b32" else 2
        values = [
            ptx.ld(item(source, lane, each) + bits * i, space="global", type=part) for i in range(int(vec[1:]))
        ]  # fmt: skip
        target = item(place, lane, each)
        before = ptx.atom(target, values, space="global", op=op, noftz=True, vec=vec, type=kind)
        ptx.red(target, values, space="global", op=op, noftz=True, vec=vec, type=kind)
        for i, value in enumerate(before):
            ptx.st(item(out, lane, each) + bits * i, value, space="global", type=part)
        ptx.ret()
    dtype = HALVES[kind]
    values, start = torch.randn(32, per).to(dtype), torch.randn(32, per).to(dtype)
    place, out = start.clone(), torch.zeros_like(start)
    launch(k, values, place, out)
    step = {"add": torch.add, "min": torch.minimum, "max": torch.maximum}[op]
    assert torch.equal(out, start) and torch.equal(place, step(step(start, values), values))


def test_vectors_of_floats_and_single_halves() -> None:
    with Kernel("floats", block=(32, 1, 1)) as k:
        source, place, halves = (k.param(name, "pointer") for name in ("source", "place", "halves"))
        lane = thread_index()
        four = ptx.ld(item(source, lane, 16), space="global", vec="v4", type="f32")
        ptx.red(item(place, lane, 16), four, space="global", op="add", vec="v4", type="f32")
        ptx.atom(item(place, lane, 16), four[:2], space="global", op="add", vec="v2", type="f32")
        ptx.red(item(halves, lane, 4), 0x3C003C00, space="global", op="add", noftz=True, type="f16x2")
        ptx.red(item(halves, lane, 4), ptx.mov(0x4000, type="b16"), space="global", op="add", noftz=True, type="f16")
        ptx.ret()
    values, place = torch.randn(32, 4), torch.randn(32, 4)
    halves = torch.zeros(32, 2, dtype=torch.float16)
    wanted = place + values
    wanted[:, :2] += values[:, :2]
    launch(k, values, place, halves)
    assert torch.equal(place, wanted) and halves.tolist() == [[3.0, 1.0]] * 32


@pytest.mark.parametrize("kind", ["b16", "b32", "b64", "b128"])
def test_compare_and_swap(kind: str) -> None:
    """Each lane swaps its own index + 1 for the index that it finds: all of them get their turn."""
    size = int(kind[1:]) // 8
    with Kernel("swap", block=(32, 1, 1)) as k:
        place, out = k.param("place", "pointer"), k.param("out", "pointer")
        lane = thread_index()

        def word(value: Reg) -> Reg:
            if kind == "b16":
                return ptx.cvt(value, type="u16", src="u32")
            if kind == "b32":
                return value
            wide = ptx.cvt(value, type="u64", src="u32")
            return ptx.mov.pack((wide, wide), type="b128") if kind == "b128" else wide

        old = ptx.atom.cas(place, word(lane), word(lane + 1), space="global", type=kind)
        ptx.st(item(out, lane, size), old, space="global", type=kind)
        if kind == "b128":
            ptx.atom(place, word(lane + 7), space="global", op="exch", type=kind)
        ptx.ret()
    place, out = torch.zeros(size, dtype=torch.uint8), torch.zeros(32, size, dtype=torch.uint8)
    launch(k, place, out)
    half = min(size, 8)
    assert out.view(torch.uint8).reshape(32, -1, half)[:, -1, 0].tolist() == list(range(32))
    assert place[0] == (38 if kind == "b128" else 32)


def test_atomics_on_shared_memory_that_was_not_written() -> None:
    with Kernel("unset", block=(32, 1, 1)) as k:
        buffer = k.dynamic_shared(128).array("buffer", 128, 128).reg()
        ptx.red(buffer, 1, space="shared::cta", op="add", type="u32")
        ptx.ret()
    with pytest.raises(SimulationError, match="read before it was written"):
        launch(k)
