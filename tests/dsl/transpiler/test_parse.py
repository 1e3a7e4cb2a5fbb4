"""print(parse(text)) == text, the tree says what the text does, and what is no PTX is refused with its place."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyptx_ops import dsl
from pyptx_ops.dsl import ir
from pyptx_ops.dsl.check import check_module
from pyptx_ops.dsl.syntax import lexer

from .corpus import ARCHIVED, FILES, HEADER, kernel, name, read, takes

R1, R2, RD1, P1 = (ir.Register(n) for n in ("%r1", "%r2", "%rd1", "%p1"))


def statements(text: str) -> tuple[ir.Statement, ...]:
    (function,) = [s for s in dsl.parse(text).statements if isinstance(s, ir.Function)]
    return function.body.body


def instruction(text: str) -> ir.Instruction:
    found = statements(kernel("\t" + text + "\n"))[-1]
    assert isinstance(found, ir.Instruction)
    return found


@pytest.mark.parametrize("path", [*FILES, *ARCHIVED], ids=name)
def test_a_file_prints_back(path: Path) -> None:
    text = read(path)
    assert dsl.print(dsl.parse(text, str(path))) == text


@pytest.mark.parametrize("path", [p for p in FILES if p.parent.name != "odd"], ids=name)
def test_ptxas_takes_the_files(path: Path, tmp_path: Path) -> None:
    text = read(path)
    target = re.findall(r"\.target\s+(sm_\d+a?)", text)[0]
    assert not takes(text, "sm_75" if target == "sm_10" else target, tmp_path)


@pytest.mark.parametrize(
    ("text", "operands"),
    [
        ("ret;", ()),
        ("add.s32 %r1, %r2, -5;", (R1, R2, ir.Immediate("-5"))),
        ("mov.f32 %r1, 0f3F800000;", (R1, ir.Immediate("0f3F800000"))),
        ("mov.f64 %r1, 2.5E-3;", (R1, ir.Immediate("2.5E-3"))),
        ("mov.f64 %r1, .5;", (R1, ir.Immediate(".5"))),
        ("bra $L1;", (ir.Symbol("$L1"),)),
        ("mov.u32 %r1, %tid.x;", (R1, ir.Register("%tid.x"))),
        ("ld.u32 %r1, [%rd1];", (R1, ir.Address(RD1))),
        ("ld.u32 %r1, [%rd1+8];", (R1, ir.Address(RD1, "8"))),
        ("ld.u32 %r1, [%rd1+-8];", (R1, ir.Address(RD1, "-8"))),
        ("ld.u32 %r1, [%rd1-8];", (R1, ir.Address(RD1, "-8", ""))),
        ("ld.u32 %r1, [%rd1 - 8];", (R1, ir.Address(ir.Expression(("%rd1", "-", "8"))))),
        ("ld.u32 %r1, [buffer+4];", (R1, ir.Address(ir.Symbol("buffer"), "4"))),
        ("ld.u32 %r1, [16];", (R1, ir.Address(ir.Immediate("16")))),
        ("ld.v2.u32 {%r1,%r2}, [%rd1];", (ir.Vector((R1, R2)), ir.Address(RD1))),
        ("ld.v2.u32 { %r1 , _ }, [ %rd1 + 0 ];", (ir.Vector((R1, ir.Register("_"))), ir.Address(RD1, "0"))),
        ("x {%r1, {%r2}};", (ir.Vector((R1, ir.Vector((R2,)))),)),
        ("setp.eq.u32 %r1|%p1, %r1, %r2;", (ir.Pair(R1, P1), R1, R2)),
        ("and.pred %p1, %p1, !%p1;", (P1, P1, ir.Negated(P1))),
        ("tma [%rd1, {%r1, 0}];", (ir.TensorCoordinates(RD1, ir.Vector((R1, ir.Immediate("0")))),)),
        ("tex [t, s, {%r1}];", (ir.Sampled(ir.Symbol("t"), ir.Symbol("s"), ir.Vector((R1,))),)),
        ("call (%r1), f, (%r1, 2), p;",
         (ir.Arguments((R1,)), ir.Symbol("f"), ir.Arguments((R1, ir.Immediate("2"))), ir.Symbol("p"))),
        ("call f, ();", (ir.Symbol("f"), ir.Arguments(()))),
        ("mov.u32 %r1, (1<<4)|3;", (R1, ir.Expression(tuple("(1<<4)|3")))),
        ("mov.u64 %r1, a+8;", (R1, ir.Expression(("a", "+", "8")))),
        ("vadd %r1, %r2.b0, -%r1;", (R1, ir.Register("%r2.b0"), ir.Expression(("-", "%r1")))),
    ],
)  # fmt: skip
def test_operands(text: str, operands: tuple[ir.Operand, ...]) -> None:
    assert instruction(text).operands == operands


def test_guards_and_torn_opcodes() -> None:
    assert instruction("@%p1 bra L;").guard == P1
    assert instruction("@ /**/ ! %p1 bra L;").guard == ir.Negated(P1)
    torn = instruction("st.global\n\t.v4 .b32 [%rd1], %r1;")
    assert (torn.opcode, torn.split) == ("st.global.v4.b32", (9, 3, 4))


def test_registers_that_look_like_symbols_are_known_in_their_scope() -> None:
    use = "mov.u32 x, x;"
    body = statements(kernel(f"{use} {{ .reg .b32 x; {{ {use} }} }} {use} .reg .b32 x; {use} mov.u32 x.y, z;"))
    block = body[1]
    assert isinstance(block, ir.Block) and isinstance(block.body[1], ir.Block)
    uses = [body[0], block.body[1].body[0], body[2], body[4], body[5]]
    kinds = [[type(o) for o in u.operands] for u in uses if isinstance(u, ir.Instruction)]
    symbol, register = ir.Symbol, ir.Register
    assert kinds == [[symbol] * 2, [register] * 2, [symbol] * 2, [register] * 2, [register, symbol]]


def test_a_range_that_looks_like_symbols() -> None:
    body = statements(kernel(".reg .b32 a<3>, b1<2>; add a1, b11, a; { .reg .b32 a; mov a, c1; }"))
    assert body[1].operands == (ir.Register("a1"), ir.Register("b11"), ir.Symbol("a"))  # type: ignore[union-attr]
    assert body[2].body[1].operands == (ir.Register("a"), ir.Symbol("c1"))  # type: ignore[union-attr]


def test_functions_have_heads_and_bodies() -> None:
    module = dsl.parse(f"{HEADER}.func f(.reg .b32 a);.func (.reg .b32 r) f(.reg .b32 a){{ mov.b32 r, a; }}")
    prototype, function = module.statements[3:]
    assert isinstance(prototype, ir.Directive) and isinstance(function, ir.Function)
    assert function.body.body[0].operands == (ir.Register("r"), ir.Register("a"))  # type: ignore[union-attr]


def test_what_the_dsl_prints_is_read_as_it_was_traced() -> None:
    with dsl.Kernel("k") as k:
        out = k.param("out", "pointer")
        with k.if_(out == 0):
            dsl.ptx.st(out, 1.5, space="global", type="f32")
        dsl.ptx.ld(out.at(16), space="global", vec="v2", type="f32")
    parsed = dsl.parse(k.ptx())
    assert dsl.print(parsed) == k.ptx() and check_module(parsed) == []
    traced = next(s for s in k.module().statements if isinstance(s, ir.Function)).body.body
    read = next(s for s in parsed.statements if isinstance(s, ir.Function)).body.body
    plain = [s._replace(location=None, trivia=None) for s in traced if isinstance(s, ir.Instruction)]
    assert [s._replace(trivia=None) for s in read if isinstance(s, ir.Instruction)] == plain
    assert len(plain) == 6


REFUSED = {
    # text: (line, column, what was expected, what was got)
    "add.s32 %r1 %r2;": (6, 13, "an operator, ',' or ';'", "'%r2'"),
    "add.s32 %r1, %r2": (8, 1, "';'", "the end of the text"),
    "add.s32 %r1, %r2 } .pragma;": (6, 18, "',' or ';'", "'}'"),
    "add.s32 %r1,, %r2;": (6, 13, "an operand", "','"),
    "add.s32 %r1, ;": (6, 14, "an operand", "';'"),
    "ld.u32 %r1, [%rd1;": (6, 18, "closed brackets", "';'"),
    "ld.u32 %r1, [%rd1};": (6, 18, "closed brackets", "'}'"),
    "ld.u32 %r1, [];": (6, 14, "an operand", "']'"),
    "mov.u32 {%r1, %r2;": (6, 18, "',' or '}'", "';'"),
    "mov.u32 %r1, 3 4;": (6, 16, "an operator, ',' or ';'", "'4'"),
    "mov.u32 %r1, é;": (6, 14, "PTX", "'é'"),
    "@1+ bra L;": (6, 3, "an instruction", "'+'"),
    "@, bra L;": (6, 2, "a predicate", "','"),
    "12 bra L;": (6, 1, "an instruction", "'12'"),
    "/* open": (6, 1, "a comment that ends in */", "the end of the text"),
    '.pragma "open;': (6, 9, "a string that ends in a quotation mark", "the end of the text"),
    ".reg .b32;": (6, 10, "a name", "';'"),
    ".reg .b32 %r<x>;": (6, 14, "how many registers", "'x'"),
    ".reg .b32 %r<4;": (6, 15, "'>'", "';'"),
    ".reg .b32 %r %s;": (6, 14, "',' or ';'", "'%s'"),
    ".reg %r;": (6, 6, "a type", "'%r'"),
    ".shared .align x .b8 y;": (6, 16, "an alignment", "'x'"),
    ".global .b32 a = ;": (6, 18, "an initial value", "';'"),
    ".loc 1 x 3": (6, 8, "a number", "'x'"),
    ".loc 1 2 3, nowhere": (6, 13, "function_name or inlined_at", "'nowhere'"),
    ".file 1 name": (6, 9, "a file name in quotation marks", "'name'"),
    ".section .debug .b8 1": (6, 17, "'{'", "'.b8'"),
    "{ ret;": (8, 1, "'}'", "the end of the text"),
    "} ret;": (6, 3, "a directive", "'ret'"),
    ".func () f": (7, 1, "'{' or ';'", "'}'"),
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_ptx_is_refused_with_its_place(text: str) -> None:
    line, column, wanted, got = REFUSED[text]
    with pytest.raises(dsl.PtxSyntaxError) as caught:
        dsl.parse(kernel(text + "\n"), "some.ptx")
    error = caught.value
    assert (error.line, error.column, error.wanted, error.got) == (line, column, wanted, got)
    head, shown, marker = str(error).split("\n")
    assert head == f"some.ptx:{line}:{column}: expected {wanted}, got {got}"
    assert error.text == shown == (text if line == 6 else shown) and marker.index("^") == column - 1


def test_the_shown_line_is_short() -> None:
    with pytest.raises(dsl.PtxSyntaxError) as caught:
        dsl.parse(kernel("mov.u32 " + "x" * 10**6 + " y;\n"))
    assert caught.value.column == 10**6 + 10 and len(str(caught.value)) < 400


PIECES = [
    "\t", "\n", " ", "%r1", "a", ",", ";", "{", "}", "[", "]", "(", ")", "+", "-8", "0x1F", "@", "!", ":", "|", "<",
    "=", "add.s32 ", ".reg ", ".b32", ".entry k", ".func ", ".loc ", ".section ", '"', '"s"', "/*", "*/", "//", "#",
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join), st.booleans())
def test_any_text_prints_back_or_is_refused(text: str, inside: bool) -> None:
    text = kernel(text) if inside else text
    try:
        module = dsl.parse(text)
    except dsl.PtxSyntaxError:
        return
    assert dsl.print(module) == text


@pytest.mark.parametrize("path", FILES, ids=name)
def test_pieces_of_any_size_read_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = read(path)[:60000]
    whole = _tried(text)
    for size in (1, 100, 3000):
        monkeypatch.setattr(lexer, "PIECE", size)
        assert _tried(text) == whole


def _tried(text: str) -> Any:
    try:
        return dsl.parse(text)
    except dsl.PtxSyntaxError as error:
        return str(error)


def test_a_damaged_file_is_refused_or_prints_back(seed: int) -> None:
    rng = random.Random(seed)
    for path in FILES:
        text = read(path)[:20000]
        for _ in range(6):
            at, size = rng.randrange(len(text) + 1), rng.randrange(9)
            damaged = text[:at] + "".join(rng.choices(PIECES, k=rng.randrange(3))) + text[at + size :]
            tried = _tried(damaged)
            assert isinstance(tried, str) or dsl.print(tried) == damaged
