"""Parameters, shared memory, globals and structured control flow: what they emit, and that ptxas takes it."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from pyptx_ops.dsl import Kernel, Param, TensorMapSpec, ir, ptx, special
from pyptx_ops.dsl.check import check_module

from .ptx import assemble


def body(k: Kernel) -> list[str]:
    """The statements after the register declarations."""
    lines = k.ptx().split("{", 1)[1].rsplit("}", 1)[0].strip("\n").splitlines()
    return [line.strip() for line in lines if not line.strip().startswith(".reg")]


def test_if_else() -> None:
    with Kernel("k") as k:
        a = k.reg("u32")
        with k.if_(a == 0):
            ptx.trap()
        with k.else_():
            ptx.exit()
        ptx.ret()
    assert body(k) == [
        "setp.eq.u32 %p0, %r0, 0;",
        "@!%p0 bra $ENDIF_1;",
        "trap;",
        "bra $ENDELSE_2;",
        "$ENDIF_1:",
        "exit;",
        "$ENDELSE_2:",
        "ret;",
    ]


def test_if_of_a_complement() -> None:
    with Kernel("k") as k, k.if_(~(k.reg("u32") == 0)):
        pass
    assert body(k) == ["setp.eq.u32 %p0, %r0, 0;", "@%p0 bra $ENDIF_1;", "$ENDIF_1:"]


def test_range_counts_in_a_register() -> None:
    with Kernel("k") as k:
        for i in k.range(k.reg("u32")):
            ptx.nanosleep(i)
    assert body(k) == [
        "mov.u32 %r1, 0;",
        "$LOOP_1:",
        "setp.ge.u32 %p0, %r1, %r0;",
        "@%p0 bra $END_3;",
        "nanosleep.u32 %r1;",
        "$NEXT_2:",
        "add.u32 %r1, %r1, 1;",
        "bra $LOOP_1;",
        "$END_3:",
    ]


def test_the_counter_has_the_type_of_the_bounds() -> None:
    with Kernel("k") as k:
        for i in k.range(k.reg("s64"), 8, k.reg("s64")):
            assert i.type.name == "s64"
        for i in k.range(2, 9, 3):
            assert i.type.name == "u32"


def test_break_and_continue_concern_the_innermost_loop() -> None:
    with Kernel("k") as k, k.loop():
        for i in k.range(4):
            k.continue_(i == 1)
            k.break_(i == 2)
        k.break_()
    lines = body(k)
    assert [line for line in lines if line.startswith("@%p1")] == ["@%p1 bra $NEXT_4;"]
    assert [line for line in lines if line.startswith("@%p2")] == ["@%p2 bra $END_5;"]
    assert lines.index("bra $END_2;") == lines.index("$END_5:") + 1


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_nested_control_flow_assembles(target: str, tmp_path: Path) -> None:
    with Kernel("k", target=target, cluster=(2, 1, 1), min_blocks=1) as k:
        out, n = k.param("out", "pointer"), k.param("n", "u32")
        thread = ptx.mov(special("tid.x"), type="u32")
        total = k.var("u32", 0)
        for i in k.range(n):
            with k.if_(i == thread):
                for j in k.range(i, n, 2):
                    k.continue_(j == 3)
                    total += j
                    with k.loop():
                        total ^= i
                        k.break_(total > 5)
            with k.else_(), k.if_(~(thread < 7)):
                k.break_(total == 9)
        ptx.st(out + ptx.mul.wide(thread, 4), total, space="global")
        ptx.ret()
    assert check_module(k.module()) == []
    assemble(k.ptx(), target, tmp_path, optimise=True)


def test_params_of_every_kind(tmp_path: Path) -> None:
    spec = TensorMapSpec("bf16", (64, 128), swizzle=128)
    kinds = {"pointer": "u64", "u32": "u32", "i32": "s32", "u64": "u64", "i64": "s64", "f32": "f32", "f64": "f64"}
    with Kernel("k", max_registers=64) as k:
        loaded = {kind: k.param(f"a_{kind}", kind) for kind in kinds}
        tensor = k.tensor_map("map", spec)
        ptx.prefetch.tensormap(tensor)
        for kind, register in loaded.items():
            ptx.st(loaded["pointer"].at(8), register, space="global", type=kinds[kind])
        ptx.ret()
    assert {kind: register.type.name for kind, register in loaded.items()} == kinds
    assert k.params == (*(Param(f"a_{kind}", kind) for kind in kinds), Param("map", "tensor_map", spec))
    assert [p.values for p in k.params] == [1, 1, 1, 1, 1, 1, 1, 4]
    assert ".param .align 64 .b8 param_map[128]" in k.ptx()
    assert check_module(k.module()) == []
    assemble(k.ptx(), "sm_90a", tmp_path)


def test_the_shared_plan(tmp_path: Path) -> None:
    with Kernel("k") as k:
        plan = k.dynamic_shared()
        first, second = plan.array("first", 100), plan.array("second", 2048, align=1024)
        barrier = plan.array("barrier", 8, align=8)
        assert [(p.offset, p.nbytes) for p in plan.pieces] == [(0, 100), (1024, 2048), (3072, 8)]
        assert second.at(8).at(16).offset == 1024 + 24
        before = len(k)
        ptx.mbarrier.init(barrier, 1)
        ptx.st(first.at(4), 1, space="shared::cta", type="u32")
        assert len(k) == before + 2
        address = second.reg()
        ptx.st(address.at(4), 1, space="shared::cta", type="u32")
    assert k.dynamic_smem == 3080 + 1024
    assert "mbarrier.init.shared::cta.b64 [%r2+3072], 1;" in k.ptx()
    assert check_module(k.module()) == []
    assemble(k.ptx(), "sm_90a", tmp_path)


def test_a_small_alignment_costs_nothing() -> None:
    with Kernel("k") as k:
        k.dynamic_shared(align=16).array("a", 32)
    assert k.dynamic_smem == 32 and len(k) == 1


def test_globals_and_constants(tmp_path: Path) -> None:
    with Kernel("k") as k:
        table = k.global_array("table", "f32", [1.0, -0.5], space="const")
        counter = k.global_array("counter", "u32", 1)
        staging = k.shared_array("staging", 256, align=128)
        value = ptx.ld(table, space="const", type="f32")
        ptx.st(staging, value, space="shared")
        ptx.red(counter, 1, space="global", op="add", type="u32")
        ptx.ld(ptx.mov(table, type="u64").at(4), space="const", type="f32")
    assert ".const .align 4 .f32 table[2] = {0f3F800000, 0fBF000000};" in k.ptx()
    assert ".global .align 4 .u32 counter[1];" in k.ptx()
    assert check_module(k.module()) == []
    assemble(k.ptx(), "sm_90a", tmp_path)


def test_the_version_is_what_the_forms_need() -> None:
    def version(*forms: object) -> str:
        with Kernel("k", target="sm_100a") as k:
            for form in forms:
                form()  # type: ignore[operator]
        return k.ptx().split("\n", 1)[0]

    assert version() == ".version 8.6"
    assert version(lambda: ptx.ld(special_pointer(), space="global", vec="v8", type="f32")) == ".version 8.8"


def special_pointer() -> object:
    return ptx.mov(0, type="u64")


def test_tracing_gives_the_collector_back() -> None:
    assert gc.isenabled()
    with Kernel("k"), Kernel("inner"):
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with Kernel("k"):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_two_traces_of_one_program_are_equal() -> None:
    def trace() -> str:
        with Kernel("k") as k:
            for i in k.range(k.param("n", "u32")):
                k.comment("one turn")
                ptx.nanosleep(i)
        return k.ptx()

    assert trace() == trace()
    assert "// one turn" in trace()


def test_the_checker_finds_what_a_trace_cannot_contain() -> None:
    with Kernel("k") as k:
        a = k.reg("u32")
        k.place("$L")
        k.place("$L")
        k.branch("$NOWHERE")
        k.append(ir.Instruction("add.u32", (ir.Register("%r9"), a.operand, a.operand)))
        k.append(ir.Instruction("add.u33", (a.operand, a.operand, a.operand)))
        k.append(ir.Instruction("add.u32", (a.operand, a.operand)))
        k.append(ir.Instruction("add.f32", (a.operand, a.operand, ir.Immediate("1"))))
        k.append(ir.Instruction("add.u32", (a.operand, a.operand, ir.Immediate("0f3F800000"))))
        k.append(ir.Instruction("bar.sync", (ir.Immediate("16"),)))
        k.append(ir.Instruction("ret", (), ir.Register("%p5")))
        k.append(ir.Instruction("fma.rn.f32x2", (ir.Register("%rd0"),) * 4))
        k.reg("u64")
    assert [p.message for p in check_module(k.module())] == [
        "label $L is placed twice",
        "bra: target takes a label or function that exists, got Symbol(name='$NOWHERE')",
        "add.u32: %r9 is not declared",
        "add.u33: the instruction table has no such form",
        "add.u32: takes 3 operands, got 2",
        "add.f32: b is f32, got the literal 1",
        "add.u32: b is u32, got the literal 0f3F800000",
        "bar.sync: barrier is from 0 to 15, got 16",
        "ret: %p5 is not declared",
        "fma.rn.f32x2: needs sm_100, and the target is sm_90a",
    ]
