"""Every operator is one instruction, of the form that its left register's type asks for."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest

from pyptx_ops.dsl import Kernel, Pred, Var, ptx, special
from pyptx_ops.dsl.ir import Instruction, Location

BINARY: dict[str, tuple[Callable[[Any, Any], Any], dict[str, str]]] = {
    "add": (operator.add, {"u32": "add.u32", "s64": "add.s64", "f32": "add.rn.f32", "f64": "add.rn.f64"}),
    "sub": (operator.sub, {"u32": "sub.u32", "f32": "sub.rn.f32"}),
    "mul": (operator.mul, {"u32": "mul.lo.u32", "s64": "mul.lo.s64", "f64": "mul.rn.f64"}),
    "floordiv": (operator.floordiv, {"u32": "div.u32", "s32": "div.s32"}),
    "mod": (operator.mod, {"u64": "rem.u64"}),
    "and": (operator.and_, {"u32": "and.b32", "s64": "and.b64", "b16": "and.b16", "pred": "and.pred"}),
    "or": (operator.or_, {"u32": "or.b32", "pred": "or.pred"}),
    "xor": (operator.xor, {"u32": "xor.b32", "pred": "xor.pred"}),
    "lt": (operator.lt, {"u32": "setp.lt.u32", "s32": "setp.lt.s32", "f32": "setp.lt.f32"}),
    "le": (operator.le, {"u32": "setp.le.u32"}),
    "gt": (operator.gt, {"s64": "setp.gt.s64"}),
    "ge": (operator.ge, {"f64": "setp.ge.f64"}),
    "eq": (operator.eq, {"u32": "setp.eq.u32", "b32": "setp.eq.b32"}),
    "ne": (operator.ne, {"u64": "setp.ne.u64"}),
}
SHIFTS = {"shl": (operator.lshift, "shl.b32", "shl.b32"), "shr": (operator.rshift, "shr.u32", "shr.s32")}
IN_PLACE = {
    "iadd": (operator.iadd, "add.u32"),
    "isub": (operator.isub, "sub.u32"),
    "imul": (operator.imul, "mul.lo.u32"),
    "iand": (operator.iand, "and.b32"),
    "ior": (operator.ior, "or.b32"),
    "ixor": (operator.ixor, "xor.b32"),
    "ilshift": (operator.ilshift, "shl.b32"),
    "irshift": (operator.irshift, "shr.u32"),
}


def appended(k: Kernel, before: int) -> list[Instruction]:
    instructions = [s for s in k.module().statements[-1].body.body if isinstance(s, Instruction)]  # type: ignore[union-attr]
    return instructions[before:]


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    apply, forms = BINARY[name]
    for kind, opcode in forms.items():
        with Kernel("k") as k:
            a, b = k.reg(kind), k.reg(kind)
            before = len(k)
            result = apply(a, b)
            (instruction,) = appended(k, before)
        assert instruction.opcode == opcode
        assert instruction.operands == (result.operand, a.operand, b.operand)
        compares = opcode.startswith("setp")
        assert isinstance(result, Pred) == (compares or kind == "pred")
        assert result.type.name == ("pred" if compares else kind)


def test_literals_on_either_side() -> None:
    with Kernel("k") as k:
        a, f = k.reg("s32"), k.reg("f32")
        _ = 1 - a, 2 + a, 3 * a, 1.0 - f, f * 0.5
        text = [
            " ".join(line.split()[2:]) for line in k.ptx().splitlines() if line.startswith("    ") and line[4] != "."
        ]
    assert text == ["1, %r0;", "%r0, 2;", "%r0, 3;", "0f3F800000, %f0;", "%f0, 0f3F000000;"]


@pytest.mark.parametrize("name", SHIFTS)
def test_shift_counts_are_u32_whatever_is_shifted(name: str) -> None:
    apply, unsigned, signed = SHIFTS[name]
    for kind, opcode in (("u32", unsigned), ("s32", signed)):
        with Kernel("k") as k:
            result = apply(k.reg(kind), 3)
            (instruction,) = appended(k, 0)
        assert (instruction.opcode, result.type.name) == (opcode, kind)


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name: str) -> None:
    apply, opcode = IN_PLACE[name]
    with Kernel("k") as k:
        variable = k.var("u32", 7)
        same = apply(variable, 3)
        _, instruction = appended(k, 0)
    assert same is variable and isinstance(variable, Var)
    assert instruction.opcode == opcode and instruction.operands[0] == variable.operand


def test_unary_and_what_emits_nothing() -> None:
    with Kernel("k") as k:
        a, p = k.reg("s32"), k.reg("pred")
        _ = -a, ~a
        assert [i.opcode for i in appended(k, 0)] == ["neg.s32", "not.b32"]
        complement = ~p  # type: ignore[operator]
        assert ~complement is p
        a.as_type("u32"), a.at(4), special("tid.x"), k.reg("f32"), k.regs("b32", 3), k.label()
        assert len(k) == 2


def test_set_is_one_mov() -> None:
    with Kernel("k") as k:
        v = k.var("f32")
        v.set(1.0)
        v.set(k.reg("f32"))
        assert [i.opcode for i in appended(k, 0)] == ["mov.f32", "mov.f32"]


def test_an_instruction_carries_the_line_that_called_it() -> None:
    import inspect

    with Kernel("k") as k:
        a = k.reg("u32")
        line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
        _ = a + 1
        ptx.add(a, 1)
        assert [i.location for i in appended(k, 0)] == [Location(__file__, line), Location(__file__, line + 1)]


def test_a_result_of_bits_takes_the_type_that_ptx_gives_it() -> None:
    with Kernel("k") as k:
        a = k.reg("b32")
        assert ptx.popc(a).type.name == "u32"
        assert ptx.mul.wide(k.reg("s32"), 4).type.name == "s64"
        low, high = ptx.mov.unpack(k.reg("u64"), type="b64")
        assert low.type.name == high.type.name == "b32"
        assert ptx.mov.pack([low, high], type="b64").type.name == "b64"
        lane, inside = ptx.shfl.dual(a, 1, 31, -1, mode="down")
        assert (lane.type.name, inside.type.name) == ("b32", "pred")
        assert len(ptx.ld(k.reg("u64"), space="global", vec="v4", type="f32")) == 4
