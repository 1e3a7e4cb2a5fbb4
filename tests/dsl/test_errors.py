"""A wrong call is refused while tracing, names the caller's file and line, and leaves nothing behind."""

from __future__ import annotations

import inspect

import pytest

from pyptx_ops.dsl import Kernel, TensorMapSpec, TraceError, ptx, special

from .refused import Call, check_refused

REFUSED: dict[str, tuple[Call, str] | tuple[Call, str, str]] = {
    # what: (call, what the error says, target if not sm_90a)
    "unknown modifier": (
        lambda k, r: ptx.add(r["u32"], 1, wrap=True),
        "add: no modifier or operand wrap; known: .*sat",
    ),
    "unknown value": (
        lambda k, r: ptx.add(r["f32"], 1.0, rnd="up"),
        "rnd takes 'rn' or 'rz' or 'rm' or 'rp', got 'up'",
    ),
    "modifier of another type": (lambda k, r: ptx.add(r["u32"], 1, ftz=True), "add: .*"),
    "unknown instruction": (lambda k, r: ptx.addd(r["u32"], 1), "no instruction ptx.addd; known there: .*add"),
    "too few operands": (lambda k, r: ptx.add(r["u32"]), r"takes 2 operands \(a, b\), got 1"),
    "operand type": (lambda k, r: ptx.add(r["u32"], r["f32"]), "add.u32: b takes u32, got a f32 register"),
    "operand width": (lambda k, r: ptx.add(r["u32"], r["u64"]), "b takes u32, got a u64 register"),
    "float literal": (lambda k, r: ptx.add(r["u32"], 1.5), "b is u32, got the float 1.5"),
    "literal too wide": (lambda k, r: ptx.add(r["u32"], 1 << 32), "b is u32, which cannot hold 4294967296"),
    "Python bool": (lambda k, r: ptx.add(r["u32"], True), "got the Python bool True"),
    "no type": (lambda k, r: ptx.mov(1), "no operand tells the type"),
    "type without a form": (lambda k, r: ptx.sin.approx(r["f64"]), "no form for f64; type= takes f32"),
    "foreign register": (
        lambda k, r: ptx.add(r["u32"], Kernel("other").reg("u32")),
        "that this kernel does not declare",
    ),
    "foreign address": (lambda k, r: ptx.ld(Kernel("o").reg("u64").at(8), type="u32"), "this kernel does not declare"),
    "foreign guard": (lambda k, r: ptx.ret(pred=Kernel("o").reg("pred")), "that this kernel does not declare"),
    "foreign destination": (lambda k, r: ptx.add(r["u32"], 1, out=Kernel("o").reg("u32")), "does not declare"),
    "guard that is no predicate": (lambda k, r: ptx.ret(pred=r["u32"]), "pred= takes a predicate, got a u32 register"),
    "address of a float": (lambda k, r: ptx.ld(r["f32"], type="u32"), "addr is an address, got a f32 register"),
    "vector length": (
        lambda k, r: ptx.st(r["u64"], [r["f32"]] * 3, vec="v4"),
        "takes a vector of 4 f32, got a vector of 3",
    ),
    "stored hole": (
        lambda k, r: ptx.st(r["u64"], [r["f32"], None], vec="v2", type="f32"),
        "value takes a f32 register or literal",
    ),
    "three destinations": (
        lambda k, r: ptx.shfl.dual(1, 1, 31, -1, mode="up", out=[1, 2, 3]),
        "out= takes two registers",
    ),
    "out of a sink": (
        lambda k, r: ptx.mbarrier.arrive(r["u32"], space="shared::cluster", out=r["b64"]),
        "gives no result",
    ),
    "special register": (lambda k, r: special("tid"), "no special register 'tid'"),
    "register type": (lambda k, r: k.reg("i32"), "no type 'i32'; known: pred"),
    "as_type width": (lambda k, r: r["u32"].as_type("u64"), "cannot be read as u64: the widths differ"),
    "bool of a predicate": (lambda k, r: bool(r["u32"] == 0), "known only when the kernel runs: use k.if_"),
    "bool of a register": (lambda k, r: bool(r["u32"]), "has no value while tracing"),
    "bool of a complement": (lambda k, r: bool(~r["pred"]), "known only when the kernel runs"),
    "Python range": (lambda k, r: range(r["u32"]), "loop over it with k.range"),
    "k.if_ of a Python value": (lambda k, r: k.if_(True).__enter__(), "for Python values use Python's if"),
    "branch on a Python value": (lambda k, r: k.branch("$L", pred=True), "a branch takes a predicate, got True"),
    "break outside": (lambda k, r: k.break_(), "k.break_ outside a run-time loop"),
    "else alone": (lambda k, r: k.else_().__enter__(), "k.else_ follows a k.if_ block directly"),
    "backwards": (lambda k, r: next(iter(k.range(4, step=0))), "counts upwards, got step 0"),
    "param kind": (lambda k, r: k.param("x", "float"), "kind is one of pointer, u32"),
    "param twice": (lambda k, r: (k.param("x", "u32"), k.param("x", "u32")), "already has a parameter 'x'"),
    "tensor map rank": (lambda k, r: k.tensor_map("t", TensorMapSpec("bf16", (8,) * 6)), "1 to 5 dimensions, got 6"),
    "two plans": (lambda k, r: (k.dynamic_shared(), k.dynamic_shared()), "one plan of dynamic shared memory"),
    "outside a piece": (lambda k, r: k.dynamic_shared().array("a", 64).at(60, 8), "bytes 60 to 68 lie outside a"),
    "piece twice": (
        lambda k, r: [p.array("a", 8) for p in [k.dynamic_shared()] for _ in "ab"],
        "already has a piece named 'a'",
    ),
    "piece alignment": (
        lambda k, r: k.dynamic_shared(128).array("a", 8, align=256),
        "a power of two up to 128, got 256",
    ),
    "global twice": (lambda k, r: [k.global_array("a", "f32", 4) for _ in "ab"], "already has a variable 'a'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_callers_line(case: str) -> None:
    check_refused(*REFUSED[case])


def test_a_refused_call_appends_nothing() -> None:
    with Kernel("k") as k:
        a = k.reg("u32")
        for wrong in (lambda: ptx.add(a, 1.5), lambda: ptx.wgmma.wait_group(-1), lambda: ptx.bar.sync(99)):
            before = k.ptx()
            with pytest.raises(TraceError):
                wrong()
            assert k.ptx() == before


@pytest.mark.parametrize("leave", ["break", "return", "while"])
def test_leaving_a_run_time_loop_from_python_is_refused(leave: str) -> None:
    def body(k: Kernel) -> int:
        for _ in k.range(4):
            line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
            if leave == "break":
                break
            return line
        return line

    says = "k.range opened here was left with Python's break, return or an exception"
    with pytest.raises(TraceError, match=says) as caught, Kernel("k") as k:
        line = body(k)
    assert caught.value.location.file == __file__
    assert caught.value.location.line == line


def test_an_error_inside_the_kernel_comes_through_unchanged() -> None:
    with pytest.raises(ZeroDivisionError), Kernel("k") as k:
        for _ in k.range(4):
            raise ZeroDivisionError


def test_instructions_need_a_kernel() -> None:
    with pytest.raises(TraceError, match="called outside a kernel"):
        ptx.ret()


def test_a_kernel_is_not_traced_twice_at_once() -> None:
    kernel = Kernel("k")
    with kernel, pytest.raises(TraceError, match="already being traced"):
        kernel.__enter__()


@pytest.mark.parametrize("wrong", [{"name": "a b"}, {"name": "k", "target": "sm_70"}])
def test_a_kernel_needs_a_name_and_a_target(wrong: dict[str, str]) -> None:
    with pytest.raises(TraceError, match=r"identifier|target is one of"):
        Kernel(**wrong)  # type: ignore[arg-type]


def test_too_much_shared_memory() -> None:
    with Kernel("k") as k:
        k.dynamic_shared().array("tile", 232448)
    with pytest.raises(TraceError, match="233472 bytes of shared memory; sm_90a has 232448"):
        _ = k.dynamic_smem
