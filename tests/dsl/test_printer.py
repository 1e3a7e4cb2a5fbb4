"""Nodes are frozen; a node with trivia prints as it was read, and an edit changes the edited tokens only."""

from __future__ import annotations

import pytest

from pyptx_ops.dsl.ir import (
    Address,
    Block,
    Comment,
    Directive,
    Function,
    Immediate,
    Instruction,
    Label,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    Symbol,
    TensorCoordinates,
    Vector,
)
from pyptx_ops.dsl.printer import print_module, print_operand, tokens

R = [Register(f"%r{i}") for i in range(4)]
P = Register("%p0")
LOAD = Instruction(
    "ld.global.v2.u32",
    (Vector((R[0], R[1])), Address(Register("%rd0"), "8")),
    Negated(P),
    trivia=(
        "\n\t/* why */ ", "", "", "   ", " ", "", " ", "  ", "\t", " ", "", "", " ", "", "", "// end\n",
    ),
)  # fmt: skip
SOURCE = Module(
    (
        Directive((".version", "8.0"), ("// head\n", "  ")),
        Function(
            (".entry", "k", "(", ")"),
            Block((Label("$L", ("\n", " ")), LOAD, Instruction("ret", (), trivia=("\n  ", " "))), ("\n", "\n")),
            ("\n", " ", "", ""),
        ),
    ),
    "\n// the end",
)
TEXT = (
    "// head\n.version  8.0\n.entry k()\n{\n$L :"
    "\n\t/* why */ @!%p0   ld.global.v2.u32 {%r0 ,  %r1\t} ,[%rd0 +8]// end\n;"
    "\n  ret ;\n}\n// the end"
)


def test_trivia_print_back_byte_for_byte() -> None:
    assert len(LOAD.trivia or ()) == len(list(tokens(LOAD)))
    assert print_module(SOURCE) == TEXT


def test_renaming_a_register_changes_its_tokens_only() -> None:
    function = SOURCE.statements[1]
    assert isinstance(function, Function)
    edited = LOAD._replace(operands=(Vector((R[0], Register("%value"))), LOAD.operands[1]))
    body = tuple(edited if s is LOAD else s for s in function.body.body)
    module = SOURCE._replace(
        statements=(SOURCE.statements[0], function._replace(body=function.body._replace(body=body)))
    )
    assert print_module(module) == TEXT.replace("%r1", "%value")


@pytest.mark.parametrize(
    ("operand", "text"),
    [
        (R[0], "%r0"),
        (Symbol("$L_1"), "$L_1"),
        (Immediate("0f3F800000"), "0f3F800000"),
        (Negated(P), "!%p0"),
        (Vector((R[0], Register("_"))), "{%r0, _}"),
        (Pair(Register("_"), P), "_|%p0"),
        (Address(R[0]), "[%r0]"),
        (Address(Symbol("buffer"), "16"), "[buffer+16]"),
        (TensorCoordinates(Register("%rd0"), Vector((R[0], Immediate("-1")))), "[%rd0, {%r0, -1}]"),
    ],
)
def test_operands(operand: Operand, text: str) -> None:
    assert print_operand(operand) == text
    assert "".join(tokens(operand)) == text.replace(" ", "")


def test_the_canonical_layout() -> None:
    body = (Label("$L"), Comment("why"), Instruction("bra", (Symbol("$L"),), P), Block((Instruction("ret", ()),)))
    module = Module((Directive((".target", "sm_90a")), Function((".entry", "k", "(", ")"), Block(body))))
    assert print_module(module).splitlines() == [
        ".target sm_90a", "", ".entry k ()", "{",
        "$L:", "    // why", "    @%p0 bra $L;", "    {", "        ret;", "    }", "}",
    ]  # fmt: skip


@pytest.mark.parametrize("node", [R[0], LOAD, SOURCE, Label("$L"), Vector((R[0],))])
def test_nodes_are_frozen(node: object) -> None:
    for field in node._fields:  # type: ignore[attr-defined]
        with pytest.raises(AttributeError):
            setattr(node, field, None)


def test_something_else_is_no_operand() -> None:
    with pytest.raises(TypeError, match="not an operand"):
        print_operand("%r0")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no flat token list"):
        list(tokens(Block(())))
