"""The statements of a kernel's PTX, and mutants of it: the same text with a few statements changed or moved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from pyptx_ops.dsl import Kernel
from pyptx_ops.dsl.check import forms_of
from pyptx_ops.dsl.ir import Address, Function, Instruction, Negated, Operand, Pair, Register, TensorCoordinates, Vector
from pyptx_ops.dsl.sim import Program, load
from pyptx_ops.dsl.sim.ptx import Line, read
from pyptx_ops.dsl.types import Param
from pyptx_ops.simulator import traced

__all__ = ["COUNTER", "Body", "Mutant", "Statement", "body_of"]

ROOT = Path(__file__).resolve().parents[2]
COUNTER = "%s1"  # zero when the kernel starts
EXTRA_REGISTERS = (".reg .pred %q<1>;", ".reg .b32 %s<2>;")  # that mutants may use, besides the kernel's


@dataclass(frozen=True)
class Statement:
    """A label or an instruction. line: in the original text.  reads, writes: names of registers."""

    text: str
    line: int
    opcode: str = ""
    label: str = ""
    target: str = ""
    guarded: bool = False
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Body:
    """A kernel's text: what stands before its statements, and these."""

    kernel: Kernel
    head: tuple[str, ...]
    statements: tuple[Statement, ...]

    @property
    def name(self) -> str:
        return self.kernel.entry

    def where(self, label: str) -> int:
        """The index of a label."""
        return next(i for i, s in enumerate(self.statements) if s.label == label)

    def branches_to(self, label: str) -> list[int]:
        return [i for i, s in enumerate(self.statements) if s.target == label]

    def writer(self, register: str, before: int) -> int | None:
        """The index of the last statement above that writes a register."""
        return next((i for i in range(before - 1, -1, -1) if register in self.statements[i].writes), None)


@dataclass(frozen=True)
class Mutant:
    """A changed kernel.

    kind: of the change.  index, line: of the statement that it concerns, in the original.  change: what was done to it.
    statements: (text, line of the original).  swizzle: parameter -> bytes, where a tensor map is another.
    """

    body: Body
    kind: str
    index: int
    change: str
    statements: tuple[tuple[str, int], ...]
    swizzle: tuple[str, int] | None = None

    @property
    def kernel(self) -> str:
        return self.body.name

    @property
    def line(self) -> int:
        return self.body.statements[self.index].line

    @property
    def statement(self) -> str:
        return self.body.statements[self.index].text

    @property
    def what(self) -> str:
        if self.swizzle:
            return f"tensor map {self.swizzle[0]}: {self.change}"
        text = self.statement if len(self.statement) < 100 else self.statement[:60] + " … " + self.statement[-36:]
        return f"line {self.line}: {text}: {self.change}"

    @property
    def python(self) -> str:
        """The file, from the root of the sources, and line of the kernel's Python that emitted the statement."""
        location = _instructions(self.kernel)[self.line].location
        return f"{Path(location.file).relative_to(ROOT)}:{location.line}" if location and not self.swizzle else ""

    @property
    def params(self) -> tuple[Param, ...]:
        def changed(param: Param) -> Param:
            if self.swizzle is None or param.name != self.swizzle[0] or param.tensor_map is None:
                return param
            return replace(param, tensor_map=replace(param.tensor_map, swizzle=self.swizzle[1]))

        return tuple(changed(param) for param in self.body.kernel.params)

    @property
    def _run(self) -> tuple[tuple[str, int], ...]:
        """The statements, behind one that clears the counter."""
        return ((f"mov.u32 {COUNTER}, 0;", self.body.statements[0].line), *self.statements)

    @property
    def ptx(self) -> str:
        return "\n".join([*self.body.head, *EXTRA_REGISTERS, *(text for text, _ in self._run), "}", ""])

    def program(self) -> Program:
        """Ready to run; reports name the Python lines of the statements as they were emitted."""
        kernel, instructions = self.body.kernel, _instructions(self.kernel)
        emitted = [instructions[line] for text, line in self._run if not text.endswith(":")]
        return load(
            self.ptx, block=kernel.block, cluster=kernel.cluster, shared_memory=kernel.dynamic_smem,
            instructions=emitted,
        )  # fmt: skip


@cache
def body_of(name: str) -> Body:
    """The statements of a kernel of the package."""
    kernel = traced(name)
    text = kernel.ptx()
    lines, parsed = text.splitlines(), read(text)
    instructions = {line.number: line for line in parsed.lines}
    first = next(i for i, line in enumerate(lines) if i + 1 in instructions or line.strip().endswith(":"))
    statements = []
    for number, raw in enumerate(lines[first:], first + 1):
        text = raw.strip()
        if text.endswith(":"):
            statements.append(Statement(text, number, label=text[:-1]))
        elif number in instructions:
            statements.append(_statement(text, instructions[number]))
    return Body(kernel, tuple(lines[:first]), tuple(statements))


def _statement(text: str, line: Line) -> Statement:
    from_form = [form for form in forms_of(line.opcode) if len(form.operands) == len(line.operands)]
    operands = from_form[0].operands if from_form else ()
    reads, writes = set(_registers(line.guard)), set()
    for spec, operand in zip(operands, line.operands):
        names = set(_registers(operand))
        if spec.output or spec.spec.role == "inout":
            writes |= names
        if not spec.output:
            reads |= names
    if line.guard is not None:
        reads |= writes  # which stay as they are where the guard does not hold
    target = str(line.operands[0].name) if line.opcode.startswith("bra") else ""
    return Statement(
        text, line.number, line.opcode, target=target, guarded=line.guard is not None,
        reads=frozenset(reads), writes=frozenset(writes),
    )  # fmt: skip


def _registers(operand: Operand | None) -> Iterator[str]:
    parts: Sequence[Operand] = ()
    if isinstance(operand, Register):
        if operand.name != "_":
            yield operand.name
    elif isinstance(operand, Negated):
        parts = (operand.operand,)
    elif isinstance(operand, Vector):
        parts = operand.elements
    elif isinstance(operand, Pair):
        parts = (operand.first, operand.second)
    elif isinstance(operand, Address):
        parts = (operand.base,)
    elif isinstance(operand, TensorCoordinates):
        parts = (operand.map, operand.coordinates)
    for part in parts:
        yield from _registers(part)


@cache
def _instructions(name: str) -> dict[int, Instruction]:
    """PTX line -> the instruction with its Python line."""
    kernel = traced(name)
    (function,) = (s for s in kernel.module().statements if isinstance(s, Function))
    emitted = [s for s in function.body.body if isinstance(s, Instruction)]
    return {line.number: instruction for line, instruction in zip(read(kernel.ptx()).lines, emitted, strict=True)}
