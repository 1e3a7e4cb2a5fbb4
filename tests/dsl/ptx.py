"""Assembling and reading PTX in tests."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pyptx_ops.dsl import Kernel, ir
from pyptx_ops.dsl.printer import print_module
from pyptx_ops.ptxas import find_ptxas


def assemble(text: str, target: str, folder: Path, *, optimise: bool = False) -> None:
    """Fail with ptxas's own words and the lines it means, unless it takes the text."""
    ptxas = find_ptxas()
    if ptxas is None:
        pytest.skip("needs ptxas")
    source = folder / "module.ptx"
    source.write_text(text)
    command = [str(ptxas.path), f"-arch={target}", str(source), "-o", str(folder / "module.cubin")]
    done = subprocess.run(command if optimise else [*command, "-O0"], capture_output=True, text=True)
    if done.returncode:
        lines = text.splitlines()
        said = re.findall(r"line (\d+); (?:error|fatal)\s*: (.*)", done.stderr)
        said = [f"{lines[int(n) - 1].strip()}  <-- {what}" for n, what in said]
        pytest.fail("\n".join(said[:20]) or done.stderr[-2000:])


def join(kernels: Sequence[Kernel], version: str | None = None) -> str:
    """One module of several kernels of one target, at their own PTX version or a given one."""
    modules = [k.module() for k in kernels]
    functions = [s for m in modules for s in m.statements if isinstance(s, ir.Function)]
    versions = [m.statements[0].tokens[1] for m in modules]  # type: ignore[union-attr]
    newest = version or max(versions, key=lambda v: tuple(map(int, v.split("."))))
    head = (ir.Directive((".version", newest)), *modules[0].statements[1:3])
    return print_module(ir.Module((*head, *functions)))


def instructions(text: str) -> Iterator[tuple[ir.Instruction, dict[str, str]]]:
    """The instructions of simple PTX with the registers declared so far (name or prefix -> type)."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    body = text[text.index("{", text.index(".entry")) + 1 : text.rindex("}")]
    registers: dict[str, str] = {}
    for statement in re.split(r"[;]|(?<=\w):(?!:)(?=\s)", body):
        words = statement.strip()
        if words.startswith(".reg"):
            kind, names = words[4:].strip().lstrip(".").split(None, 1)
            registers.update((re.sub(r"<\d+>", "", name.strip()), kind) for name in names.split(","))
        elif words and not re.fullmatch(r"[\w$]+|\..*", words, flags=re.S):
            yield _instruction(words), registers
        elif words in ("ret", "exit"):
            yield ir.Instruction(words, ()), registers


def _instruction(words: str) -> ir.Instruction:
    guard: ir.Register | ir.Negated | None = None
    if words.startswith("@"):
        mark, words = words[1:].split(None, 1)
        guard = ir.Negated(ir.Register(mark[1:])) if mark[0] == "!" else ir.Register(mark)
    opcode, *more = words.split(None, 1)
    rest = more[0] if more else ""
    return ir.Instruction(opcode, tuple(map(_operand, _split(rest))), guard)


def _split(text: str) -> list[str]:
    """At the commas that stand outside brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "{[(") - (c in "}])")
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip() for p in parts if p.strip()]


def _operand(text: str) -> ir.Operand:
    if "|" in text:
        first, second = text.split("|")
        return ir.Pair(_operand(first.strip()), _operand(second.strip()))
    if text.startswith("{"):
        return ir.Vector(tuple(map(_operand, _split(text[1:-1]))))
    if text.startswith("["):
        inside = _split(text[1:-1])
        if len(inside) == 2:
            coordinates = _operand(inside[1])
            assert isinstance(coordinates, ir.Vector)
            return ir.TensorCoordinates(_operand(inside[0]), coordinates)
        base, _, offset = inside[0].partition("+")
        found = _operand(base.strip())
        assert isinstance(found, (ir.Register, ir.Symbol))
        return ir.Address(found, offset.strip())
    if text.startswith("!"):
        return ir.Negated(ir.Register(text[1:]))
    if text.startswith("%") or text == "_":
        return ir.Register(text)
    return ir.Symbol(text) if re.match(r"[A-Za-z$]", text) else ir.Immediate(text)
