"""An instruction of a text as the call of its function in the namespace."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import NamedTuple, Union

from . import ir
from .check import spellings
from .errors import TraceError
from .isa.row import Form, Operand
from .namespace import Overloads, overloads, python_name
from .pycode import Argument, Display, identifier, quoted
from .reg import LITERAL
from .types import SPECIAL_REGISTERS, TYPES, Type

__all__ = ["Call", "Known", "Scope", "call_of"]

PARAMETER = re.compile(r"param_\d+$", re.ASCII)
LONG = 40  # characters
DECIMAL = re.compile(r"-?[1-9]\d*|0", re.ASCII)


class NoCall(Exception):
    """The operands are not those of the form."""


class Known(NamedTuple):
    """A register: its type, and the Python for it, or for a range `array` and `number`."""

    type: Type
    python: str
    array: str = ""
    number: int = 0


class Scope:
    """The registers that are declared where an instruction stands."""

    def __init__(self) -> None:
        self._blocks: list[dict[str, tuple[Type, str, int]]] = [{}]  # name or prefix -> type, Python, size or 0
        self._found: dict[str, Known | None] = {}
        self.taken: set[str] = set()
        self.bound: dict[str, str] = {}  # long symbols, and the Python names that stand for them
        self.unbound: list[tuple[str, str]] = []  # those that are still to be written

    def start(self, taken: set[str]) -> None:
        """A function starts, in which these Python names are taken."""
        self.taken = taken
        self.bound.clear()

    def symbol(self, name: str) -> str:
        """The Python for a symbol; a long one gets a name of its own."""
        if len(name) <= LONG:
            return f"symbol({quoted(name)})"
        if name not in self.bound:
            parameter = PARAMETER.search(name)
            self.bound[name] = identifier(parameter[0] if parameter else name[:20].strip("_"), self.taken)
            self.unbound.append((self.bound[name], name))
        return self.bound[name]

    def enter(self) -> None:
        self._blocks.append({})

    def leave(self) -> None:
        if block := self._blocks.pop():
            self._found.clear()
            self.taken -= {python for _, python, _ in block.values()}

    def declare(self, name: str, size: str | None, type: Type) -> str:
        """A register or a range of them; the Python name for it comes back."""
        python = identifier(name, self.taken)
        self._blocks[-1][name + "<" if size else name] = type, python, int(size or 0)
        self._found.clear()
        return python

    def find(self, name: str) -> Known | None:
        """The register of this name, or None."""
        if name not in self._found:
            self._found[name] = self._search(name)
        return self._found[name]

    def _search(self, name: str) -> Known | None:
        prefix = name.rstrip("0123456789")
        number = name[len(prefix) :]
        while True:  # the range that `a10` is of may be `a1<5>`
            for block in reversed(self._blocks):
                if not number and (single := block.get(prefix)) and prefix == name:
                    return Known(single[0], single[1])
                if number and name in block:
                    return Known(*block[name][:2])
                array = block.get(prefix + "<") if number and (number == "0" or number[0] != "0") else None
                if array and len(number) < 10 and int(number) < array[2]:
                    return Known(array[0], f"{array[1]}[{number}]", array[1], int(number))
            if len(number) <= 1:
                break
            prefix, number = prefix + number[0], number[1:]
        kind = SPECIAL_REGISTERS.get(name[1:]) if name[:1] == "%" else None
        return Known(TYPES[kind], f"special({quoted(name[1:])})", "%") if kind else None


class Call(NamedTuple):
    """`function(arguments)`."""

    function: str
    arguments: list[Argument]


class _Candidate(NamedTuple):
    form: Form
    function: str
    keywords: tuple[str, ...]


@cache
def _groups() -> Mapping[str, Overloads]:
    return {group.path: group for group in overloads()}


@cache
def _candidates(opcode: str) -> tuple[_Candidate, ...]:
    """The forms spelled like this for which a call with their modifiers gives that very form."""
    found = []
    for form, values, given in spellings(opcode):
        group = _groups()[form.row.path]
        full = {name: values.get(name, default) for name, default in group.defaults.items()}
        arity = sum(2 if s.kind == "tensor" else 1 for s in form.row.specs if s.role != "out" and not s.optional)
        try:
            called = group.new_form(full, given, arity)
        except TraceError:
            continue
        if called.opcode == opcode and _shape(called) == _shape(form):
            words = [f"{python_name(n)}={_value(v)}" for n, v in full.items() if v != group.defaults[n]]
            path = ".".join([python_name(word) for word in form.row.path.split(".")])
            found.append(_Candidate(form, "ptx." + path, tuple(words)))
    return tuple(found)


def _shape(form: Form) -> list[tuple[object, ...]]:
    return [(o.name, o.kind, o.type, o.count, o.second, o.bounds) for o in form.operands]


def _value(value: Union[str, bool, None]) -> str:
    return quoted(value) if isinstance(value, str) else repr(value)


def call_of(instruction: ir.Instruction, scope: Scope) -> Call | None:
    """The call that appends the instruction, or None where the table has no form for it."""
    for candidate in _candidates(instruction.opcode):
        if len(candidate.form.operands) == len(instruction.operands):
            try:
                return Call(candidate.function, _arguments(candidate, instruction, scope))
            except NoCall:
                continue
    return None


def _arguments(candidate: _Candidate, instruction: ir.Instruction, scope: Scope) -> list[Argument]:
    positional: list[Argument] = []
    named: list[Argument] = []
    out: Argument | None = None
    for operand, got in zip(candidate.form.operands, instruction.operands):
        if operand.output:
            out = _destination(operand, got, scope)
        elif operand.kind == "tensor":
            if not isinstance(got, ir.TensorCoordinates):
                raise NoCall
            positional += [_based(got.map, "", scope), _vector(operand, got.coordinates, scope, "")]
        elif operand.kind == "arguments":
            positional.append(_passed(got, scope))
        elif operand.spec.optional:
            before = python_name(operand.name) + "="
            named.append(
                _vector(operand, got, scope, before) if operand.count else before + _input(operand, got, scope)
            )
        else:
            positional.append(_vector(operand, got, scope, "") if operand.count else _input(operand, got, scope))
    arguments = [*positional, *candidate.keywords, *named]
    if out is not None:
        arguments.append(out)
    if instruction.guard is not None:
        arguments.append("pred=" + _scalar(TYPES["pred"], frozenset(["pred"]), instruction.guard, scope))
    return arguments


def _passed(got: ir.Operand, scope: Scope) -> Argument:
    """What a call passes or gets back."""
    if not isinstance(got, ir.Arguments):
        raise NoCall
    return Display("", "[]", [_passed_one(element, scope) for element in got.elements])


def _passed_one(got: ir.Operand, scope: Scope) -> str:
    if isinstance(got, ir.Symbol):
        return scope.symbol(got.name)
    if isinstance(got, ir.Immediate):
        return _literal(None, None, got.text)
    if not isinstance(got, ir.Register):
        raise NoCall
    return "None" if got.name == "_" else _register(got, scope).python


def _destination(operand: Operand, got: ir.Operand, scope: Scope) -> Argument | None:
    if operand.count:
        return _vector(operand, got, scope, "out=")
    assert operand.type is not None
    if operand.second is not None:
        if not isinstance(got, ir.Pair) or not isinstance(got.second, ir.Register) or operand.element is None:
            raise NoCall
        second = _register(got.second, scope)
        if got.second.name == "_" or not operand.second.accepts(second.type) or second.array == "%":
            raise NoCall
        if got.first == ir.Register("_"):
            if operand.name != "_":
                raise NoCall
            return f"out=(None, {second.python})"
        return f"out=({_input(operand.element, got.first, scope)}, {second.python})"
    if got == ir.Register("_") and (operand.name == "_" or operand.spec.sink):
        return None
    if operand.may_be_braced and isinstance(got, ir.Vector) and len(got.elements) == 1:
        return f"out=[{_input(operand, got.elements[0], scope)}]"
    if operand.name == "_" or not isinstance(got, ir.Register) or _register(got, scope).array == "%":
        raise NoCall
    return "out=" + _scalar(operand.type, operand.takes, got, scope)


def _input(operand: Operand, got: ir.Operand, scope: Scope) -> str:
    """An operand outside braces."""
    if operand.kind == "address":
        return _address(got, scope)
    if operand.kind == "function" and isinstance(got, ir.Register):
        return _register(got, scope).python
    if operand.kind in ("label", "function"):
        if not isinstance(got, ir.Symbol):
            raise NoCall
        return quoted(got.name)
    if operand.may_be_braced and isinstance(got, ir.Vector) and len(got.elements) == 1:
        return f"[{_input(operand, got.elements[0], scope)}]"
    if operand.kind == "immediate":
        if not isinstance(got, ir.Immediate):
            raise NoCall
        return _literal(None, operand.bounds, got.text)
    if isinstance(got, ir.Immediate):
        return _literal(operand.type, operand.bounds, got.text)
    if isinstance(got, ir.Expression):
        text = "".join(got.tokens)
        if operand.bounds or tuple(LITERAL.findall(text)) != got.tokens:
            raise NoCall
        return f"lit({quoted(text)})"
    if isinstance(got, ir.Symbol):
        return scope.symbol(got.name)
    assert operand.type is not None
    return _scalar(operand.type, operand.takes, got, scope)


def _scalar(type: Type, takes: frozenset[str], got: ir.Operand, scope: Scope) -> str:
    negated = isinstance(got, ir.Negated) and type is TYPES["pred"]
    register = got.operand if isinstance(got, ir.Negated) else got
    if not isinstance(register, ir.Register) or (isinstance(got, ir.Negated) and not negated):
        raise NoCall
    known = _register(register, scope)
    if known.type.name not in takes:
        raise NoCall
    return "~" + known.python if negated else known.python


def _register(register: ir.Register, scope: Scope) -> Known:
    known = scope.find(register.name)
    if known is None:
        raise NoCall
    return known


def _address(got: ir.Operand, scope: Scope) -> str:
    if not isinstance(got, ir.Address) or got.plus != "+":
        raise NoCall
    return _based(got.base, got.offset, scope)


def _based(base: ir.Operand, offset: str, scope: Scope) -> str:
    """An address by its base and offset."""
    at = "" if not offset else f".at({offset if DECIMAL.fullmatch(offset) and offset != '0' else quoted(offset)})"
    if isinstance(base, ir.Symbol):
        return scope.symbol(base.name) + at
    if not isinstance(base, ir.Register):
        raise NoCall
    known = _register(base, scope)
    if known.type.bits not in (32, 64) or known.type.cls in ("float", "pred") or known.array == "%":
        raise NoCall
    return known.python + at


def _vector(operand: Operand, got: ir.Operand, scope: Scope, before: str) -> Argument:
    """A vector: a slice of a range where it is one."""
    if not isinstance(got, ir.Vector) or len(got.elements) != operand.count:
        raise NoCall
    assert operand.element is not None
    sink = ir.Register("_")
    elements = ["None" if operand.output and e == sink else _input(operand.element, e, scope) for e in got.elements]
    known = [scope.find(e.name) if isinstance(e, ir.Register) else None for e in got.elements]
    first = known[0]
    if first is not None and first.array not in ("", "%") and len(known) > 2:
        run = [k is not None and k.array == first.array and k.number == first.number + i for i, k in enumerate(known)]
        if all(run):
            return f"{before}{first.array}[{first.number}:{first.number + len(known)}]"
    return Display(before, "[]", elements)


@lru_cache(maxsize=65536)
def _literal(type: Type | None, bounds: tuple[int, int, int] | None, text: str) -> str:
    """The Python for a literal: itself where the DSL spells it so, else `lit("…")`. Raises NoCall out of bounds."""
    try:
        value: int | None = int(text.rstrip("U"), 0)
    except ValueError:
        value = None
    if bounds and (value is None or not bounds[0] <= value <= bounds[1] or (value - bounds[0]) % bounds[2]):
        raise NoCall
    if type is None and value is None:
        raise NoCall
    if type is not None and type.cls == "float":
        return _float(type.bits, text)
    if DECIMAL.fullmatch(text) and value is not None and (type is None or _fits(type.bits, value)):
        return text
    return f"lit({quoted(text)})"


def _fits(bits: int, value: int) -> bool:
    return (0 if bits == 1 else -(1 << (bits - 1))) <= value < (1 << bits)


def _float(bits: int, text: str) -> str:
    mark, code, digits = ("0f", ">f", 8) if bits == 32 else ("0d", ">d", 16)
    if text[:2] == mark and len(text) == digits + 2 and text == mark + text[2:].upper():
        value = struct.unpack(code, bytes.fromhex(text[2:]))[0]
        if math.isfinite(value):
            return repr(value).replace("e+", "e")
    return f"lit({quoted(text)})"
