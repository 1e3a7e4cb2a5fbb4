"""Checks a module against the instruction table: forms, operands, declarations, labels, PTX version and target."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from typing import NamedTuple, Union

from . import ir
from .errors import Location
from .isa import ROWS
from .isa.row import Form, FormError, Operand, Requirement, Row, Value
from .trace import has_target
from .types import SPECIAL_REGISTERS, TYPES, Type

__all__ = ["Problem", "check_module", "forms_of", "spellings"]


class Problem(NamedTuple):
    """What is wrong, with which statement, and where in the user's Python it came from (None for parsed text)."""

    message: str
    statement: ir.Statement
    location: Union[Location, None]

    def __str__(self) -> str:
        where = f"{self.location.file}:{self.location.line}: " if self.location else ""
        return where + self.message


class _Mismatch(Exception):
    """An operand does not fit a form."""


_ROWS_BY_WORD: dict[str, list[Row]] = {}
for _row in ROWS:
    _ROWS_BY_WORD.setdefault(re.split(r"[.{]", _row.spelling, maxsplit=1)[0], []).append(_row)


Spelling = tuple[Form, dict[str, Value], frozenset[str]]
"""A form, its modifiers, and the optional operands that it has."""


@cache
def spellings(opcode: str) -> tuple[Spelling, ...]:
    """Every form that is spelled like this; forms of one spelling differ in their operands."""
    found: list[Spelling] = []
    for row in _ROWS_BY_WORD.get(opcode.split(".", 1)[0], ()):
        values = row.match(opcode)
        if values is not None:
            found += _spellings(row, values)
    return tuple(found)


def forms_of(opcode: str) -> tuple[Form, ...]:
    """Every form that is spelled like this."""
    return tuple([form for form, _, _ in spellings(opcode)])


def _spellings(row: Row, matched: Mapping[str, Value]) -> Iterator[Spelling]:
    """The forms of a row with these modifiers: one for each value of an unspelled slot, each set of free operands."""
    bound = {s.operand for s in row.segments if not isinstance(s, str) and s.operand}
    given = {s.operand for s in row.segments if not isinstance(s, str) and s.operand and matched[s.name]}
    free = [s.name for s in row.specs if s.optional and s.name not in bound]
    unspelled = [s for s in row.slots if not s.spelled]
    for choice in product(*[s.choices for s in unspelled]):
        values = {**matched, **dict(zip([s.name for s in unspelled], choice))}
        for picks in product((False, True), repeat=len(free)):
            chosen = frozenset({*given, *(n for n, pick in zip(free, picks) if pick)})
            try:
                yield row.form(values, chosen), values, chosen
            except FormError:
                continue


def check_module(module: ir.Module) -> list[Problem]:
    """Everything that is wrong with a module. A module that was traced has no problem."""
    return list(_Checker(module).problems())


class _Checker:
    def __init__(self, module: ir.Module):
        self.module = module
        self.version, self.target = (0, 0), ""
        self.symbols: set[str] = set()
        for statement in module.statements:
            if isinstance(statement, ir.Directive):
                self._directive(statement)
            elif isinstance(statement, ir.Function):
                self.symbols |= set(re.findall(r"[A-Za-z_$][\w$]*", " ".join(statement.head)))

    def _directive(self, directive: ir.Directive) -> None:
        words = directive.tokens
        if words[0] == ".version":
            major, minor = words[1].split(".")
            self.version = int(major), int(minor)
        elif words[0] == ".target":
            self.target = words[1]
        else:
            self.symbols |= _names(directive)

    def problems(self) -> Iterator[Problem]:
        for statement in self.module.statements:
            if isinstance(statement, ir.Function):
                yield from self._function(statement)

    def _function(self, function: ir.Function) -> Iterator[Problem]:
        """Block by block, with the registers and names that are in scope there."""
        heads = [f".reg {words}" for words in re.findall(r"\.reg ([^,)]*)", " ".join(function.head))]
        parameters = _Registers(None)
        for words in heads:
            parameters.declare(ir.Directive(tuple(words.split())))
        registers, names, twice = _opened(function.body, parameters, self.symbols)
        yield from twice
        todo = [(iter(function.body.body), registers, names)]
        while todo:
            rest, registers, names = todo[-1]
            for statement in rest:
                if isinstance(statement, ir.Block):
                    registers, names, twice = _opened(statement, registers, names)
                    yield from twice
                    todo.append((iter(statement.body), registers, names))
                    break
                if isinstance(statement, ir.Instruction):
                    message = self._instruction(statement, registers, names)
                    if message:
                        yield Problem(f"{statement.opcode}: {message}", statement, statement.location)
            else:
                todo.pop()

    def _instruction(self, instruction: ir.Instruction, registers: _Registers, names: set[str]) -> str:
        """What is wrong with one instruction, or ""."""
        forms = forms_of(instruction.opcode)
        if not forms:
            return "the instruction table has no such form"
        scope = _Scope(registers, names)
        reason, best = "", -2
        try:
            if instruction.guard is not None:
                scope.scalar(_GUARD, instruction.guard)
        except _Mismatch as mismatch:
            return str(mismatch)
        for form in forms:
            wrong, reached = _fits(form, instruction, scope)
            if not wrong:
                return self._available(form.requirement)
            if reached > best:
                reason, best = wrong, reached
        return reason

    def _available(self, need: Requirement) -> str:
        if not has_target(self.target, need.target):
            return f"needs {need.target}, and the target is {self.target}"
        if self.version < need.version:
            return "needs PTX {}.{}, and the version is {}.{}".format(*need.version, *self.version)
        return ""


def _opened(block: ir.Block, registers: _Registers, names: set[str]) -> tuple[_Registers, set[str], list[Problem]]:
    """The registers and names in scope in a block, and the labels that it places twice."""
    own = _Registers(registers)
    found: set[str] = set()
    labels: set[str] = set()
    twice: list[Problem] = []
    for statement in block.body:
        if isinstance(statement, ir.Label):
            if statement.name in labels:
                twice.append(Problem(f"label {statement.name} is placed twice", statement, None))
            labels.add(statement.name)
        elif isinstance(statement, ir.Directive) and statement.tokens[0] == ".reg":
            own.declare(statement)
        elif isinstance(statement, ir.Directive):
            found |= _names(statement)
    return own if own.known else registers, names | found | labels if found or labels else names, twice


def _names(directive: ir.Directive) -> set[str]:
    return set(re.findall(r"(?<![.\w$])[A-Za-z_$][\w$]*", " ".join(directive.tokens)))


class _Registers:
    """The registers in scope in a block: its own, then those of what is around it."""

    def __init__(self, outer: _Registers | None):
        self.outer = outer
        self.known: dict[str, tuple[Type, int]] = {}  # by name, or for a range by "prefix<", with its length

    def declare(self, directive: ir.Directive) -> None:
        """The registers of `.reg .b32 %r<4>;` or `.reg .b32 a, b;`."""
        word = directive.tokens[1].lstrip(".")
        kind = TYPES.get("e2m1x2" if word == "b8" else word)  # the one type that lives in 8-bit registers
        if kind is not None:
            for name, _, count in re.findall(r"([%$\w]+)( ?< ?(\d+) ?>)?", " ".join(directive.tokens[2:])):
                self.known[name + "<" if count else name] = kind, int(count or 0)

    def get(self, name: str) -> Type | None:
        """The type of a register, None if it is not declared."""
        scope: _Registers | None = self
        splits = [(name, "")] + [(name[:i], name[i:]) for i in range(len(name.rstrip("0123456789")), len(name))]
        while scope is not None:
            for prefix, number in splits:
                kind, count = scope.known.get(prefix + "<" if number else prefix, (None, 0))
                if kind is not None and (not number or (str(int(number)) == number and int(number) < count)):
                    return kind
            scope = scope.outer
        return None

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None


def _fits(form: Form, instruction: ir.Instruction, scope: _Scope) -> tuple[str, int]:
    """Why an instruction is not of this form ("" if it is), and how many operands fit before."""
    if len(form.operands) != len(instruction.operands):
        return f"takes {len(form.operands)} operands, got {len(instruction.operands)}", -1
    for i, (operand, got) in enumerate(zip(form.operands, instruction.operands)):
        try:
            scope.operand(operand, got)
        except _Mismatch as mismatch:
            return str(mismatch), i
    return "", len(form.operands)


class _Scope:
    """The names that operands may use, and whether operands fit."""

    def __init__(self, registers: _Registers, names: set[str]):
        self.registers = registers
        self.names = names

    def operand(self, wanted: Operand, got: ir.Operand) -> None:
        if wanted.kind == "label":
            self._symbol(wanted, got)
        elif wanted.kind == "function":
            self._function(wanted, got)
        elif wanted.kind == "arguments":
            self._arguments(wanted, got)
        elif wanted.kind == "immediate":
            self._immediate(wanted, got)
        elif wanted.kind == "address":
            self._address(wanted, got)
        elif wanted.kind == "tensor":
            self._tensor(wanted, got)
        elif wanted.second is not None:
            self._pair(wanted, got)
        elif wanted.count:
            self._vector(wanted, got)
        else:
            self.scalar(wanted, got)

    def scalar(self, wanted: Operand, got: ir.Operand) -> None:
        assert wanted.type is not None
        if isinstance(got, ir.Vector) and len(got.elements) == 1 and wanted.may_be_braced:
            got = got.elements[0]
        if isinstance(got, ir.Negated):
            if wanted.type is not TYPES["pred"]:
                raise _Mismatch(f"{wanted.name} takes {wanted.type!r}, got a negated predicate")
            got = got.operand
        if isinstance(got, ir.Register):
            self._register(wanted, got)
        elif isinstance(got, ir.Immediate):
            if wanted.output:
                raise _Mismatch(f"{wanted.name} is written, got the literal {got.text}")
            if wanted.type.cls in ("int", "float") and (wanted.type.cls == "int") != (_integer(got.text) is not None):
                raise _Mismatch(f"{wanted.name} is {wanted.type!r}, got the literal {got.text}")
            self._bounded(wanted, got)
        elif not (isinstance(got, ir.Symbol) and got.name in self.names):
            raise _Mismatch(f"{wanted.name} takes a {wanted.type!r} register or literal, got {got!r}")

    def _register(self, wanted: Operand, got: ir.Register) -> None:
        assert wanted.type is not None
        if got.name == "_":
            if wanted.output or wanted.spec.role == "out":
                return
            raise _Mismatch(f"{wanted.name} is read and cannot be the sink _")
        if wanted.name == "_":
            raise _Mismatch(f"gives no result here, got {got.name}")
        kind = self.registers.get(got.name)
        if kind is None and got.name[1:] in SPECIAL_REGISTERS:
            kind = TYPES[SPECIAL_REGISTERS[got.name[1:]]]
        if kind is None:
            raise _Mismatch(f"{got.name} is not declared")
        fits = wanted.type.accepts(kind) or (wanted.spec.wider and kind.bits > wanted.type.bits)
        if not fits:
            raise _Mismatch(f"{wanted.name} takes {wanted.type!r}, and {got.name} is declared {kind!r}")

    def _bounded(self, wanted: Operand, got: ir.Immediate) -> None:
        if wanted.bounds is None:
            return
        low, high, step = wanted.bounds
        value = _integer(got.text)
        if value is None or not low <= value <= high or (value - low) % step:
            steps = f" in steps of {step}" if step > 1 else ""
            raise _Mismatch(f"{wanted.name} is from {low} to {high}{steps}, got {got.text}")

    def _immediate(self, wanted: Operand, got: ir.Operand) -> None:
        if not isinstance(got, ir.Immediate) or _integer(got.text) is None:
            raise _Mismatch(f"{wanted.name} takes an integer literal, got {got!r}")
        self._bounded(wanted, got)

    def _symbol(self, wanted: Operand, got: ir.Operand) -> None:
        if not isinstance(got, ir.Symbol) or got.name not in self.names:
            raise _Mismatch(f"{wanted.name} takes a label or function that exists, got {got!r}")

    def _function(self, wanted: Operand, got: ir.Operand) -> None:
        if isinstance(got, ir.Register):
            if got.name not in self.registers:
                raise _Mismatch(f"{got.name} is not declared")
        else:
            self._symbol(wanted, got)

    def _arguments(self, wanted: Operand, got: ir.Operand) -> None:
        if not isinstance(got, ir.Arguments):
            raise _Mismatch(f"{wanted.name} stands in parentheses, got {got!r}")
        for element in got.elements:
            known = isinstance(element, ir.Immediate) or element == ir.Register("_")
            if not known and not (getattr(element, "name", None) in self.names or self._declared(element)):
                raise _Mismatch(f"{wanted.name} are parameters, registers or literals, got {element!r}")

    def _declared(self, got: ir.Operand) -> bool:
        return isinstance(got, ir.Register) and got.name in self.registers

    def _address(self, wanted: Operand, got: ir.Operand) -> None:
        if not isinstance(got, ir.Address):
            raise _Mismatch(f"{wanted.name} takes an address, got {got!r}")
        if isinstance(got.base, ir.Register):
            kind = self.registers.get(got.base.name)
            if kind is None:
                raise _Mismatch(f"{got.base.name} is not declared")
            if kind.bits not in (32, 64) or kind.cls in ("float", "pred"):
                raise _Mismatch(f"{wanted.name} is an address, and {got.base.name} is declared {kind!r}")
        elif isinstance(got.base, ir.Symbol) and got.base.name not in self.names:
            raise _Mismatch(f"{got.base.name} is not declared")

    def _tensor(self, wanted: Operand, got: ir.Operand) -> None:
        if not isinstance(got, ir.TensorCoordinates):
            raise _Mismatch(f"{wanted.name} takes a tensor map with coordinates, got {got!r}")
        if isinstance(got.map, ir.Address):
            raise _Mismatch(f"{wanted.name} is the address of a tensor map and takes no offset")
        self._address(wanted, ir.Address(got.map))  # type: ignore[arg-type]
        self._vector(wanted, got.coordinates)

    def _pair(self, wanted: Operand, got: ir.Operand) -> None:
        if not isinstance(got, ir.Pair):
            raise _Mismatch(f"{wanted.name} takes two destinations, got {got!r}")
        for kind, half in ((wanted.type, got.first), (wanted.second, got.second)):
            assert kind is not None
            if not isinstance(half, ir.Register):
                raise _Mismatch(f"{wanted.name} takes two registers, got {half!r}")
            declared = self.registers.get(half.name)
            if half.name != "_" and (declared is None or not kind.accepts(declared)):
                raise _Mismatch(f"takes {kind!r} as a destination, and {half.name} is declared {declared!r}")

    def _vector(self, wanted: Operand, got: ir.Operand) -> None:
        if not isinstance(got, ir.Vector) or len(got.elements) != wanted.count:
            raise _Mismatch(f"{wanted.name} takes a vector of {wanted.count} {wanted.type!r}, got {got!r}")
        assert wanted.element is not None
        for element in got.elements:
            if not (wanted.output and element == ir.Register("_")):
                self.scalar(wanted.element, element)


_GUARD = Row("guard", "guard", "guard:pred").form({}).operands[0]


def _integer(text: str) -> int | None:
    try:
        return int(text.rstrip("U"), 0)
    except ValueError:
        return None
