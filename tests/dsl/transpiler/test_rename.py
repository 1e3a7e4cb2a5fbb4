"""Renaming a register changes its tokens and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyptx_ops import dsl
from pyptx_ops.dsl import ir
from pyptx_ops.dsl.syntax.names import function_name, registers

from .corpus import FILES, kernel, name, read, takes

BODY = kernel("""\
	.reg .b32 %r<4>, x;
	.reg .pred %p;
	mov.u32 %r1, x; // %r1 x
	@%p ld.v2.u32 {%r1, x}, [%r1+4];
	setp.eq.u32 %p|x, %r10, !x;
	{
		.reg .b32 x;
		mov.u32 x, %r1;
		{ mov.u32 x.b0, ((x)+%r1); }
	}
	{
		.reg .b32 %r<2>, y;
		mov.u32 x, %r1;
		mov.u32 %r3, y;
	}
""")
X = """\
	.reg .b32 %r<4>, new;
	.reg .pred %p;
	mov.u32 %r1, new; // %r1 x
	@%p ld.v2.u32 {%r1, new}, [%r1+4];
	setp.eq.u32 %p|new, %r10, !new;
	{
		.reg .b32 x;
		mov.u32 x, %r1;
		{ mov.u32 x.b0, ((x)+%r1); }
	}
	{
		.reg .b32 %r<2>, y;
		mov.u32 new, %r1;
		mov.u32 %r3, y;
	}
"""
R1 = """\
	.reg .b32 %r<4>, new, x;
	.reg .pred %p;
	mov.u32 new, x; // %r1 x
	@%p ld.v2.u32 {new, x}, [new+4];
	setp.eq.u32 %p|x, %r10, !x;
	{
		.reg .b32 x;
		mov.u32 x, new;
		{ mov.u32 x.b0, ((x)+new); }
	}
	{
		.reg .b32 %r<2>, y;
		mov.u32 x, %r1;
		mov.u32 %r3, y;
	}
"""


@pytest.mark.parametrize(("old", "expected"), [("x", X), ("%r1", R1)])
def test_scopes_and_ranges(old: str, expected: str) -> None:
    assert dsl.print(dsl.rename(dsl.parse(BODY), "k", old, "new")) == kernel(expected)


def test_a_guard_and_a_name_of_an_inner_block() -> None:
    renamed = dsl.rename(dsl.rename(dsl.parse(BODY), "k", "%p", "%q"), "k", "y", "%z")
    assert dsl.print(renamed) == BODY.replace("%p", "%q").replace("y;", "%z;")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("%r9", "new", "no register %r9"),
        ("x", "%r3", "%r3 is taken"),
        ("x", "y", "y is taken"),
        ("x", "%r10", "%r10 is taken"),
        ("x", "a-b", "no PTX identifier"),
        ("x", "%", "no PTX identifier"),
    ],
)
def test_what_cannot_be_renamed(old: str, new: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        dsl.rename(dsl.parse(BODY), "k", old, new)


def test_several_blocks_and_no_function() -> None:
    module = dsl.parse(kernel("{ .reg .b32 a; } { .reg .b32 a; }\n"))
    with pytest.raises(ValueError, match="2 blocks that declare a"):
        dsl.rename(module, "k", "a", "b")
    with pytest.raises(ValueError, match="no function 'l'"):
        dsl.rename(module, "l", "a", "b")


def test_a_parameter_register() -> None:
    text = ".func (.reg .b32 r) f(.reg .b32 a){ mov.b32 r, a; }"
    assert dsl.print(dsl.rename(dsl.parse(text), "f", "a", "b")) == text.replace(" a", " b")


@pytest.mark.parametrize("path", [p for p in FILES if p.parent.name != "odd"], ids=name)
def test_in_every_file_the_tokens_of_one_register_change(path: Path, tmp_path: Path) -> None:
    """Against a count of tokens that knows nothing of the tree; and ptxas still takes the file."""
    module = dsl.parse(text := read(path))
    checked = 0
    for function in [s for s in module.statements if isinstance(s, ir.Function)]:
        blocks = [s for s in function.body.body if isinstance(s, ir.Block)]
        ranges = [r for s in function.body.body if isinstance(s, ir.Directive) for r in registers(s) if r.size]
        if blocks or not ranges:
            continue
        old, new = f"{ranges[0].name}1", "%renamed_one"
        out = dsl.print(dsl.rename(module, function_name(function), old, new))
        body = dsl.print(ir.Module((function,)))
        bare = re.sub(r"//[^\n]*", "", body)
        uses = len(re.findall(rf"(?<![\w$]){re.escape(old)}(?![\w$])", bare))
        assert out.count(new) == uses + 1
        assert out.replace(f", {new}", "", 1).replace(new, old) == text or uses == 0
        checked += 1
    if checked:
        target = re.findall(r"\.target\s+(sm_\d+a?)", text)[0]
        assert not takes(out, "sm_75" if target == "sm_10" else target, tmp_path)
