"""``python -m pyptx_ops check kernel.ptx``: what a PTX file needs, and what is wrong with it."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .dsl import ir, parse
from .dsl.check import check_module, forms_of
from .dsl.isa.row import Requirement
from .tables import table
from .transpile import read

__all__ = ["check", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what each instruction needs, and what is wrong. 1: something is, or the file is no PTX."""
    parser = argparse.ArgumentParser(
        prog="python -m pyptx_ops check", description="Which PTX version and target each instruction of a file needs."
    )
    parser.add_argument("file", type=Path)
    options = parser.parse_args(arguments)
    try:
        module = parse(read(options.file), str(options.file))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    needs, problems = check(module)
    print(table(("instruction", "times", "PTX", "target"), needs))
    for problem in problems:
        print(f"{options.file}:{problem}")
    return 1 if problems else 0


def check(module: ir.Module) -> tuple[list[tuple[str, str, str, str]], list[str]]:
    """(opcode, times, PTX version, target) of each instruction, and "line: what is wrong" in the order of the lines."""
    lines = _lines(module)
    counts = Counter(s.opcode for _, s in lines if isinstance(s, ir.Instruction))
    rows = []
    for opcode in sorted(counts):
        needs = min((f.requirement for f in forms_of(opcode)), default=None)
        rows.append((opcode, str(counts[opcode]), *_needs(needs)))
    places = {id(s): line for line, s in lines}
    problems = [(places.get(id(p.statement), 0), p.message) for p in check_module(module)]
    return rows, [f"{line}: {message}" for line, message in sorted(problems, key=lambda p: p[0])]


def _needs(requirement: Requirement | None) -> tuple[str, str]:
    if requirement is None:
        return "?", "not in the table"
    return "{}.{}".format(*requirement.version), {"sm_50": "any", "a": "sm_90a, sm_100a"}.get(
        requirement.target, requirement.target
    )


def _lines(module: ir.Module) -> list[tuple[int, ir.Statement]]:
    """Each statement without a body, and the line that it starts on."""
    found: list[tuple[int, ir.Statement]] = []
    line = 1
    todo = [iter(module.statements)]
    ends: list[str] = []
    while todo:
        for node in todo[-1]:
            if isinstance(node, (ir.Function, ir.Block)):
                block = node.body if isinstance(node, ir.Function) else node
                before, end = block.trivia or ("", "")
                line += "".join(node.trivia or ()).count("\n") if isinstance(node, ir.Function) else 0
                line += before.count("\n")
                todo.append(iter(block.body))
                ends.append(end)
                break
            trivia = getattr(node, "trivia", None) or ("",)
            line += trivia[0].count("\n")
            found.append((line, node))
            inner = "".join(trivia[1:]).count("\n")
            line += inner + (sum(word.count("\n") for word in node.tokens) if isinstance(node, ir.Directive) else 0)
        else:
            todo.pop()
            line += ends.pop().count("\n") if ends else 0
    return found
