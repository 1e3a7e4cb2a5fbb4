"""run(transpile(text)) == text, through the functions of the table, in Python that is formatted and harmless."""

from __future__ import annotations

import ast
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyptx_ops import dsl
from pyptx_ops.dsl import Kernel, ptx
from pyptx_ops.dsl.check import check_module
from pyptx_ops.dsl.isa import ROWS
from pyptx_ops.dsl.namespace import python_name
from pyptx_ops.dsl.transpile import run, transpile, transpiled
from tests.dsl.samples import Arguments, samples

from .corpus import ARCHIVED, FILES, HEADER, kernel, name, read, takes

METHODS = {
    "Source", "Style", "at", "blank", "close", "directive", "function", "lead", "line", "lit", "open", "place", "raw",
    "reg", "scope", "spaced", "special", "style", "symbol", "trailing", "write",
}  # fmt: skip


def tame(python: str) -> None:
    """The program names nothing but the DSL, what it assigns, and instructions."""
    tree = ast.parse(python)
    imports = [n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))]
    assert [getattr(n, "module", None) for n in imports] == ["pyptx_ops.dsl.source"]
    assigned = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    imported = {alias.name for alias in imports[0].names}
    assert not assigned & imported and not any(n.startswith("__") for n in assigned)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            assert node.id in assigned | imported | {"__name__"}
        elif isinstance(node, ast.Attribute) and not ast.unparse(node).startswith("ptx."):
            assert node.attr in METHODS
        elif isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_")
        else:
            assert not isinstance(node, (ast.FunctionDef, ast.Lambda, ast.JoinedStr, ast.Global, ast.ClassDef))


@pytest.mark.parametrize("path", [*FILES, *ARCHIVED], ids=name)
def test_a_file_comes_back(path: Path) -> None:
    text = read(path)
    python = transpile(text, str(path))
    tame(python)
    assert run(python) == text


def test_instructions_go_through_the_table() -> None:
    """Of all files together at least 99 %; what does not is of these opcodes."""
    raw: Counter[str] = Counter()
    total = 0
    for path in ARCHIVED or [p for p in FILES if p.parent.name != "odd"]:
        result = transpiled(read(path), str(path))
        raw += result.raw
        total += result.instructions
    assert total > 4000 and raw.total() < 0.01 * total
    if not ARCHIVED:
        assert {opcode.split(".")[0] for opcode in raw} <= {"tex", "sust", "mov", "atom", "ld"}


def test_raw_is_counted() -> None:
    text = kernel("\t.reg .b32 %r<3>;\n\tadd.s32 %r1, %r2, 1;\n\tfrob.b32 %r1;\n\tfrob.b32 %r2;\n\tadd.s32 %x, 1, 2;\n")
    result = transpiled(text)
    assert (result.instructions, dict(result.raw)) == (4, {"frob.b32": 2, "add.s32": 1})
    assert result.python.count("m.raw(") == 3 and result.python.count("ptx.add(") == 1 and run(result.python) == text


def test_the_python_is_formatted(tmp_path: Path) -> None:
    for path in FILES:
        (tmp_path / f"{path.parent.name}_{path.stem}.py").write_text(transpile(read(path)), newline="")
    for width in ("88", "120"):
        command = [
            sys.executable,
            "-m",
            "ruff",
            "format",
            "--isolated",
            "--line-length",
            width,
            "--diff",
            str(tmp_path),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[:3000] + done.stderr[-500:]


def test_how_it_reads() -> None:
    text = kernel("""\
	.reg .pred 	%p<2>;
	.reg .b32 	%r<6>;
	.reg .b64 	%rd<3>;

	// begin
	ld.param.b64 	%rd1, [k_param_0];
	mov.u32 	%r1, %tid.x;
	setp.ge.s32 	%p1, %r1, 0x10;
	@!%p1 bra 	$L__BB0_2;
	ld.global.v4.b32 	{%r2, %r3, %r4, %r5}, [%rd1+16];
	mul.f32 	%r2, %r3, 0f3FC00000;
	st.global.v2.b32 	[%rd1], {%r2, %r4};
$L__BB0_2:
	ret;
""")
    assert (
        transpile(text)
        == """\
from pyptx_ops.dsl.source import Source, Style, lit, ptx, special, symbol

plain = Style(gap=" \\t")
m = Source(plain)
m.directive(".version 8.8")
m.directive(".target sm_90a")
m.directive(".address_size 64")
with m.function(".visible .entry k()", ""):
    p = m.reg("\\t.reg .pred \\t%p<2>;")
    r = m.reg("\\t.reg .b32 \\t%r<6>;")
    rd = m.reg("\\t.reg .b64 \\t%rd<3>;")
    m.blank()
    m.line("\\t// begin")
    ptx.ld(symbol("k_param_0"), space="param", type="b64", out=rd[1])
    ptx.mov(special("tid.x"), type="u32", out=r[1])
    ptx.setp(r[1], lit("0x10"), cmp="ge", type="s32", out=p[1])
    ptx.bra("$L__BB0_2", pred=~p[1])
    ptx.ld(rd[1].at(16), space="global", vec="v4", type="b32", out=r[2:6])
    ptx.mul(r[3], 1.5, type="f32", out=r[2])
    ptx.st(rd[1], [r[2], r[4]], space="global", vec="v2", type="b32")
    m.place("$L__BB0_2")
    ptx.ret()

if __name__ == "__main__":
    m.write()
"""
    )


def test_an_edited_program() -> None:
    """One instruction changed, one put in whose result gets a register of its own: the rest stays as it is."""
    text = kernel("\t.reg .b32 %r<3>;\n\tadd.s32 %r1, %r2, 1; // why\n\tret;\n")
    python = transpile(text)
    line = next(line for line in python.splitlines() if "ptx.add" in line)
    assert line == '    ptx.add(r[2], 1, type="s32", out=r[1])'
    edited = python.replace(line, line.replace("ptx.add", "ptx.sub").replace("r[2], 1", 'ptx.mov(7, type="s32"), 1'))
    expected = text.replace("\tadd.s32 %r1, %r2, 1;", "\tmov.s32 %r_new0, 7;\n\tsub.s32 %r1, %r_new0, 1;")
    expected = expected.replace("{\n", "{\n\t.reg .b32 %r_new<1>;\n")
    assert run(edited) == expected and check_module(dsl.parse(expected)) == []


HOSTILE = {
    "names": ".reg .b32 None, True, if, ptx, m, lit, Source, __name__, __import__, $x, %_, class<2>, plain;\n"
    "\tmov.u32 None, if; mov.u32 ptx, m; mov.u32 __import__, __name__; mov.u32 $x, class1; mov.u32 %_, plain;\n",
    "labels": '__import__: exec: $L"; bra exec;\n'.replace('$L"; ', ""),
    "pragmas": '.pragma "\\"; .pragma \'\'\'\\n"; .pragma "\')\nimport os; os.abort()#";\n'.replace(
        "'''\\n\"", "\"'''\\n\""
    ),
    "comments": "// ''' \"\"\" \\ \\N{DIGIT ONE} {x} \x01 \u2028 \u00e9 \U0001f600 \ud800\n"
    "/* \"'); import os #\n */ ret; // \\\n",
    "symbols": "mov.u64 %rd1, __import__; ld.u32 %r1, [os+4]; call __import__, (os);\n",
    "opcodes": "import.os %r1; exec __import__; eval.b32 _, [__name__];\n",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_nothing_is_injected(what: str) -> None:
    text = kernel("\t" + HOSTILE[what]).replace("{\n", "{\n\t.reg .b32 %r<2>; .reg .b64 %rd<2>;\n", 1)
    python = transpile(text)
    tame(python)
    assert run(python) == text


@pytest.mark.parametrize("depth", [1, 11, 12, 13, 40, 2000])
def test_blocks_of_any_depth(depth: int) -> None:
    text = kernel("\t{ // in\n" * depth + "\t.reg .b32 %r<2>;\n\tmov.u32 %r1, 1;\n" + "\t}\n" * depth)
    python = transpile(text)
    assert run(python) == text and "m.raw" not in python


def test_what_calls_need_is_in_the_table(tmp_path: Path) -> None:
    """Calls, their parameters and branches through tables: instructions that ptxas takes, through their functions."""
    (path,) = [p for p in FILES if p.stem == "calls"]
    result = transpiled(text := read(path))
    assert not result.raw and {"ptx.call(", "ptx.brx.idx("} <= set(re.findall(r"ptx\.[\w.]+\(", result.python))
    assert 'space="param"' in result.python and not takes(run(result.python), "sm_90a", tmp_path)
    assert check_module(dsl.parse(text)) == []


SAMPLES = [
    (row, *sample) for row in ROWS if row.meaning not in ("brx.idx", "call", "st.param") for sample in samples(row)
]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_random_modules_of_the_table(seed: int) -> None:
    """Any forms, laid out at random: the tree, the Python and the check agree with what was traced."""
    rng = random.Random(seed)
    with Kernel("k", target=(target := rng.choice(["sm_90a", "sm_100a"]))) as k:
        args = Arguments(k)
        for row, form, values, _ in rng.sample(SAMPLES, 12):
            node = ptx
            for word in row.path.split("."):
                node = getattr(node, python_name(word))
            try:
                positional, optional = args.of(form)
                node(*positional, **optional, **{python_name(n): v for n, v in values.items()})
            except dsl.TraceError as error:
                assert f"target is {target}" in str(error)
        k.place("$END")
    traced = dsl.parse(k.ptx())
    assert check_module(traced) == []
    text = scattered(k.ptx(), rng)
    module = dsl.parse(text)
    assert dsl.print(module) == text
    result = transpiled(text)
    assert run(result.python) == text and not result.raw and result.instructions == len(k)


def scattered(text: str, rng: random.Random) -> str:
    """The text with other white space and comments between some of its tokens."""
    spaces = [" ", "\t", "\n", "  ", " /* ; */ ", " // {\n", "\r\n", "\n\n"]
    chance = rng.choice([0.0, 0.01, 0.2])
    return re.sub(r"(?<=[,;{}\[\]]) ?", lambda m: rng.choice(spaces) if rng.random() < chance else m[0], text)


def test_a_module_can_be_given() -> None:
    with Kernel("k") as k:
        k.comment("why")
        ptx.ret()
    assert run(transpile(k.module())) == k.ptx()
    assert HEADER in transpile(HEADER).replace('m.directive("', "").replace('")', "")
