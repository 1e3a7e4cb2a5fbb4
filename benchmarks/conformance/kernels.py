"""One kernel per form: a thread loads its operands, runs the instruction and stores what came out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pyptx_ops.dsl import Kernel, Reg, ir, ptx, special
from pyptx_ops.dsl.desc import MatrixDescriptor
from pyptx_ops.dsl.isa.row import Operand
from pyptx_ops.dsl.namespace import python_name
from pyptx_ops.dsl.printer import print_module
from pyptx_ops.dsl.types import TYPES, Type

from .forms import TARGET, Case

__all__ = ["SCRATCH_ROWS", "THREADS", "Given", "joined", "outputs", "sources", "trace"]

THREADS = 128
SLOT = 16  # bytes of memory that a thread has of its own, in shared or in global memory
SCRATCH_ROWS = SLOT // 8
WORD = TYPES["b64"]


class Given(NamedTuple):
    """A word that a thread is given: an element of an operand, or of what lies in memory before."""

    name: str
    type: Type
    element: int


def sources(case: Case) -> list[Given]:
    found = [Given(o.name, _type(o), element) for o in case.inputs for element in range(o.count or 1)]
    if case.kind == "atomic":
        value = _stored(case)
        return found + [Given("initial", _type(value), element) for element in range(value.count or 1)]
    if case.kind == "matrix":
        return [*found, Given("initial", WORD, 0), Given("initial", WORD, 1), Given("row", TYPES["u32"], 0)]
    if case.kind == "wgmma":
        tiles = [Given("tile_b", WORD, 0), Given("tile_b", WORD, 1)]
        return (
            found
            + ([] if case.row.path.endswith(".rs") else [Given("tile_a", WORD, 0), Given("tile_a", WORD, 1)])
            + tiles
        )
    return found


def outputs(case: Case) -> list[int]:
    """The bits of every word that a thread stores."""
    found = []
    for operand in case.form.operands:
        if operand.output:
            found += [] if operand.name == "_" else [_width(_type(operand))] * (operand.count or 1)
            found += [operand.second.bits] if operand.second else []
        elif operand.spec.role == "inout":
            found += [32] * operand.count
    if case.kind == "atomic":
        value = _stored(case)
        found += [_width(_type(value))] * (value.count or 1)
    if case.row.path == "stmatrix":
        found += [64, 64]
    return found + [32, 32] * case.writes_carry


def _type(operand: Operand) -> Type:
    assert operand.type is not None
    return operand.type


def _stored(case: Case) -> Operand:
    """The operand whose type and count are those of the memory that an atomic works on."""
    return next(operand for operand in case.form.operands if operand.kind == "value" and not operand.output)


def _width(type: Type) -> int:
    """Bytes live in registers of 16 bits."""
    return 16 if type.bits == 8 else type.bits


def trace(case: Case, name: str) -> Kernel:
    """Source and out hold one 64-bit word per thread and operand; `stride` is the bytes from operand to operand."""
    with Kernel(name, target=TARGET, block=(THREADS, 1, 1)) as k:
        source, out, stride = k.param("source", "pointer"), k.param("out", "pointer"), k.param("stride", "u64")
        lane = ptx.mov(special("tid.x"))
        thread = ptx.mad.lo(ptx.mov(special("ctaid.x")), THREADS, lane, type="u32")
        place = ptx.mul.wide(thread, 8)

        def word(base: Reg, number: int) -> Reg:
            return ptx.mad.lo(stride, number, base + place, type="u64")

        values: dict[str, list[Any]] = {}
        for i, one in enumerate(sources(case)):
            values.setdefault(one.name, []).append(_load(k, word(source, i), one.type))
        scratch = ptx.mad.lo(stride, len(outputs(case)), out + ptx.mul.wide(thread, SLOT), type="u64")
        results = RUNNERS[case.kind](k, case, values, lane, scratch)
        for i, (result, bits) in enumerate(zip(results, outputs(case), strict=True)):
            _store(word(out, i), result, bits)
        ptx.ret()
    return k


def _plain(k: Kernel, case: Case, values: dict[str, list[Any]], lane: Reg, scratch: Reg) -> list[Any]:
    if case.reads_carry:
        sets = ptx.sub.cc if case.row.path == "subc" else ptx.add.cc
        sets(values["a"][0], values["b"][0], type=str(case.values["type"]))
    results = _call(k, case, values)
    if case.writes_carry:
        zero = ptx.mov(0, type="u32")
        results += [ptx.addc(zero, zero), ptx.subc(zero, zero)]
    return results


def _atomic(k: Kernel, case: Case, values: dict[str, list[Any]], lane: Reg, scratch: Reg) -> list[Any]:
    """In a slot of its own memory, whose new content is a result too."""
    kind = f"b{_type(_stored(case)).bits}"
    space, base = "global", scratch
    if "shared" in str(case.values["space"]):
        space, base = "shared::cta", ptx.mov(k.shared_array("slots", SLOT * THREADS), type="u32") + lane * SLOT
    step = _type(_stored(case)).bits // 8
    for i, value in enumerate(values["initial"]):
        ptx.st(base.at(step * i), value, space=space, type=kind)
    results = _call(k, case, values | {"addr": [base]})
    for i in range(len(values["initial"])):
        results.append(ptx.ld(base.at(step * i), space=space, type=kind))
    return results


def _matrix(k: Kernel, case: Case, values: dict[str, list[Any]], lane: Reg, scratch: Reg) -> list[Any]:
    """A warp has 32 rows of 16 bytes in shared memory. Loads take any row, stores write each row once."""
    slots = ptx.mov(k.shared_array("slots", SLOT * THREADS), type="u32")
    mine = slots + lane * SLOT
    for i, value in enumerate(values["initial"]):
        ptx.st(mine.at(8 * i), value, space="shared::cta", type="b64")
    ptx.bar.sync(0)
    stores = case.row.path == "stmatrix"
    row = (lane * 5 + 3) & 31 if stores else values["row"][0]
    results = _call(k, case, values | {"addr": [slots + ((lane & -32) + row) * SLOT]})
    ptx.bar.sync(0)
    if stores:
        results += [ptx.ld(mine.at(8 * i), space="shared::cta", type="b64") for i in range(2)]
    return results


def _wgmma(k: Kernel, case: Case, values: dict[str, list[Any]], lane: Reg, scratch: Reg) -> list[Any]:
    """One of 8 columns. Both tiles lie in shared memory without swizzle, and any bytes will do: 16 of each thread."""
    descriptor = MatrixDescriptor(leading=128, stride=256, swizzle=0, k_step=0)
    tiles = {}
    for name in ("tile_a", "tile_b"):
        if name in values:
            start = ptx.mov(k.shared_array(name, SLOT * THREADS, 128), type="u32")
            for i, value in enumerate(values[name]):
                ptx.st((start + lane * SLOT).at(8 * i), value, space="shared::cta", type="b64")
            tiles[name[-1]] = [descriptor.at(start)]
    ptx.fence.proxy.async_(space="shared::cta")
    ptx.bar.sync(0)
    sums = k.regs("b32", len(values["d"]))
    for target, value in zip(sums, values["d"], strict=True):
        ptx.mov(value, out=target)
    ptx.wgmma.fence()
    _call(k, case, values | tiles | {"d": list(sums)})
    ptx.wgmma.commit_group()
    ptx.wgmma.wait_group(0)
    return list(sums)


RUNNERS = {"plain": _plain, "atomic": _atomic, "matrix": _matrix, "wgmma": _wgmma}


def _call(k: Kernel, case: Case, values: dict[str, list[Any]]) -> list[Any]:
    function: Any = ptx
    for part in case.row.path.split("."):
        function = getattr(function, python_name(part))
    operands: list[Any] = []
    for operand in case.form.operands:
        if operand.output:
            continue
        given: Any = case.literals.get(operand.name, values.get(operand.name))
        operands.append(given[0] if isinstance(given, list) and not operand.count else given)
    keywords: dict[str, Any] = {python_name(name): value for name, value in case.values.items()}
    first = case.form.operands[0]
    if first.output and first.type is not None and first.type.bits == 8:
        keywords["out"] = k.reg("b16")
    return _flat(function(*operands, **keywords))


def _flat(result: Any) -> list[Any]:
    if isinstance(result, (tuple, list)):
        return [part for item in result for part in _flat(item)]
    return [] if result is None else [result]


def _load(k: Kernel, address: Reg, type: Type) -> Any:
    if type.bits == 1:
        return ptx.setp(ptx.ld(address, space="global", type="b32"), 0, cmp="ne", type="b32")
    fresh = k.reg("b16" if type.bits == 8 else type.name)
    ptx.ld(address, space="global", type=f"b{_width(type)}", out=fresh)
    return fresh


def _store(address: Reg, value: Any, bits: int) -> None:
    if bits == 1:
        value, bits = ptx.selp(1, 0, value, type="u32"), 32
    ptx.st(address, value, space="global", type=f"b{bits}")


def joined(kernels: Sequence[Kernel]) -> str:
    """One module of several kernels."""
    modules = [k.module() for k in kernels]
    functions = [s for m in modules for s in m.statements if isinstance(s, ir.Function)]
    versions = [m.statements[0].tokens[1] for m in modules if isinstance(m.statements[0], ir.Directive)]
    newest = max(versions, key=lambda v: tuple(map(int, v.split("."))))
    shared = {s.tokens: s for m in modules for s in m.statements[3:] if isinstance(s, ir.Directive)}
    head = (ir.Directive((".version", newest)), *modules[0].statements[1:3], *shared.values())
    return print_module(ir.Module((*head, *functions)))
