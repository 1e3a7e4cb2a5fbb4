"""One kernel per form: a thread loads its operands, runs the instruction and stores what came out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyptx_ops.dsl import Kernel, Reg, ir, ptx, special
from pyptx_ops.dsl.isa.row import Operand
from pyptx_ops.dsl.namespace import python_name
from pyptx_ops.dsl.printer import print_module
from pyptx_ops.dsl.types import Type

from .forms import TARGET, Case

__all__ = ["THREADS", "joined", "outputs", "sources", "trace"]

THREADS = 128


def sources(case: Case) -> list[tuple[Operand, int]]:
    """The words that a thread is given: operands, vectors element by element; where a carry is read, its summands."""
    return [(operand, element) for operand in case.inputs for element in range(operand.count or 1)]


def outputs(case: Case) -> list[int]:
    """The bits of every word that a thread stores."""
    found = []
    for operand in case.form.operands:
        if operand.output:
            assert operand.type is not None
            found += [] if operand.name == "_" else [_width(operand.type)] * (operand.count or 1)
            found += [operand.second.bits] if operand.second else []
    return found + [32, 32] * case.writes_carry


def _width(type: Type) -> int:
    """Bytes live in registers of 16 bits."""
    return 16 if type.bits == 8 else type.bits


def trace(case: Case, name: str) -> Kernel:
    """Source and out hold one 64-bit word per thread and operand; `stride` is the bytes from operand to operand."""
    with Kernel(name, target=TARGET, block=(THREADS, 1, 1)) as k:
        source, out, stride = k.param("source", "pointer"), k.param("out", "pointer"), k.param("stride", "u64")
        thread = ptx.mad.lo(ptx.mov(special("ctaid.x")), THREADS, ptx.mov(special("tid.x")), type="u32")
        place = ptx.mul.wide(thread, 8)

        def word(base: Reg, number: int) -> Reg:
            return ptx.mad.lo(stride, number, base + place, type="u64")

        loaded = [_load(k, word(source, i), operand) for i, (operand, _) in enumerate(sources(case))]
        if case.reads_carry:
            kind, sets = str(case.values["type"]), ptx.sub.cc if case.row.path == "subc" else ptx.add.cc
            sets(loaded[0], loaded[-1], type=kind)
        values: dict[str, Any] = dict(case.literals)
        for operand in case.inputs:
            taken = [loaded.pop(0) for _ in range(operand.count or 1)]
            values[operand.name] = taken if operand.count else taken[0]
        results = _call(k, case, [values[o.name] for o in case.form.operands if not o.output])
        if case.writes_carry:
            results += [
                ptx.addc(ptx.mov(0, type="u32"), 0, type="u32"),
                ptx.subc(ptx.mov(0, type="u32"), 0, type="u32"),
            ]
        for i, (result, bits) in enumerate(zip(results, outputs(case), strict=True)):
            _store(word(out, i), result, bits)
        ptx.ret()
    return k


def _call(k: Kernel, case: Case, operands: list[Any]) -> list[Any]:
    function: Any = ptx
    for part in case.row.path.split("."):
        function = getattr(function, python_name(part))
    keywords: dict[str, Any] = {python_name(name): value for name, value in case.values.items()}
    first = case.form.operands[0]
    if first.output and first.type is not None and first.type.bits == 8:
        keywords["out"] = k.reg("b16")
    return _flat(function(*operands, **keywords))


def _flat(result: Any) -> list[Any]:
    if isinstance(result, (tuple, list)):
        return [part for item in result for part in _flat(item)]
    return [] if result is None else [result]


def _load(k: Kernel, address: Reg, operand: Operand) -> Any:
    type = operand.type
    assert type is not None
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
    head = (ir.Directive((".version", newest)), *modules[0].statements[1:3])
    return print_module(ir.Module((*head, *functions)))
