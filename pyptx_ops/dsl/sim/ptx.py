"""Reads the PTX that the DSL prints: one statement a line."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from ..ir import Address, Immediate, Negated, Operand, Pair, Register, Symbol, TensorCoordinates, Vector

__all__ = ["Line", "PtxError", "Text", "read"]


class PtxError(ValueError):
    """Text that is not read or not understood; the message names the line."""


class Line(NamedTuple):
    """One instruction and the line that it stands on, counted from 1."""

    number: int
    opcode: str
    operands: tuple[Operand, ...]
    guard: Register | Negated | None


@dataclass
class Text:
    """A module with one kernel, as the loader wants it.

    registers: name -> declared bits.  labels: name -> index of the instruction that follows.
    params: symbol -> (offset, bytes).  shared: symbol -> bytes, or None for the dynamic array.
    constants, variables: of the module, as they lie in memory.  places: symbol -> (its space, offset there).
    """

    entry: str = ""
    lines: list[Line] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    registers: dict[str, int] = field(default_factory=dict)
    params: dict[str, tuple[int, int]] = field(default_factory=dict)
    param_bytes: int = 0
    shared: dict[str, int | None] = field(default_factory=dict)
    min_blocks: int = 1
    max_registers: int = 0
    constants: bytearray = field(default_factory=bytearray)
    variables: bytearray = field(default_factory=bytearray)
    places: dict[str, tuple[str, int]] = field(default_factory=dict)


_BITS = {"pred": 1, "b8": 16, "b16": 16, "b32": 32, "f32": 32, "b64": 64, "f64": 64, "b128": 128}
_INSTRUCTION = re.compile(r"(?:@(!?)([%$\w]+)\s+)?([a-z][\w.:]*)\s*(.*?)\s*;")
_PARAM = re.compile(
    r"\.param (?:\.align (\d+) )?\.(\w+) (?:\.ptr (?:\.[a-z]+ )?(?:\.align \d+ )?)?([\w$]+)(?:\[(\d+)\])?,?"
)
_SHARED = re.compile(r"(?:\.extern )?\.shared (?:\.align (\d+) )?\.b8 ([\w$]+)\[(\d*)\];")
_MEMORY = re.compile(r"\.(global|const) \.align (\d+) \.(\w+) ([\w$]+)\[(\d+)\](?: = \{(.*)\})?;")
_ENTRY = re.compile(r"(?:\.visible )?\.entry ([\w$]+)\(")
_SKIPPED = (
    ".version", ".target", ".address_size", ".maxntid", ".reqntid", ".explicitcluster", ".reqnctapercluster", ".loc",
    ".file",
)  # fmt: skip


def read(text: str) -> Text:
    """Raises PtxError naming the first line that is not understood."""
    result = Text()
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("//")[0].strip()
        if line and line not in ("{", "}", ")", "("):
            try:
                _read_line(result, line, number)
            except (ValueError, KeyError) as error:
                raise PtxError(f"line {number}: {line}: {error}") from error
    return result


def _read_line(result: Text, line: str, number: int) -> None:
    if line.endswith(":"):
        result.labels[line[:-1]] = len(result.lines)
    elif line.startswith(".reg"):
        _declare(result, line)
    elif match := _ENTRY.match(line):
        if result.entry:
            raise ValueError("a second entry function")
        result.entry = match[1]
    elif match := _PARAM.fullmatch(line):
        size = int(match[4]) if match[4] else int(re.sub(r"\D", "", match[2])) // 8
        boundary = int(match[1] or size)
        offset = -(-result.param_bytes // boundary) * boundary
        result.params[match[3]] = offset, size
        result.param_bytes = offset + size
    elif match := _SHARED.fullmatch(line):
        result.shared[match[2]] = int(match[3]) if match[3] else None
    elif match := _MEMORY.fullmatch(line):
        space, align, kind, name, count, values = match.groups()
        memory = result.constants if space == "const" else result.variables
        memory.extend(bytes(-len(memory) % int(align)))
        result.places[name] = space, len(memory)
        memory.extend(_initial(kind, int(count), values.split(", ") if values else []))
    elif line.startswith(".minnctapersm"):
        result.min_blocks = int(line.split()[1])
    elif line.startswith(".maxnreg"):
        result.max_registers = int(line.split()[1])
    elif line.startswith(_SKIPPED):
        return
    elif match := _INSTRUCTION.fullmatch(line):
        negated, guard, opcode, operands = match.groups()
        name = Register(guard) if guard else None
        parsed = tuple(_operand(word) for word in _split(operands))
        result.lines.append(Line(number, opcode, parsed, Negated(name) if name and negated else name))
    else:
        raise ValueError("not understood")


def _initial(kind: str, count: int, values: list[str]) -> bytes:
    """The bytes of an array of a type such as "u32" with its first elements given."""
    size = int(re.sub(r"\D", "", kind)) // 8
    words = [int(v[2:], 16) if v[:2] in ("0f", "0d") else int(v, 0) & (1 << 8 * size) - 1 for v in values]
    return b"".join(word.to_bytes(size, "little") for word in words).ljust(count * size, b"\0")


def _declare(result: Text, line: str) -> None:
    _, kind, names = line.rstrip(";").split(maxsplit=2)
    bits = _BITS[kind.lstrip(".")]
    for name, _, count in re.findall(r"([%$\w]+)(<(\d+)>)?", names):
        if count:
            result.registers.update((f"{name}{i}", bits) for i in range(int(count)))
        else:
            result.registers[name] = bits


def _split(text: str) -> list[str]:
    """At commas outside brackets and braces."""
    words, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "[{") - (char in "]}")
        if char == "," and depth == 0:
            words.append(text[start:i])
            start = i + 1
    return [word.strip() for word in [*words, text[start:]] if word.strip()]


def _operand(word: str) -> Operand:
    if word[0] == "{":
        return Vector(tuple(_operand(part) for part in _split(word[1:-1])))
    if word[0] == "[":
        parts = _split(word[1:-1])
        if len(parts) == 2:
            coordinates = _operand(parts[1])
            assert isinstance(coordinates, Vector)
            return TensorCoordinates(_operand(parts[0]), coordinates)
        base, sign, offset = re.fullmatch(r"([^+\-]+|-?\d+)([+-]?)(.*)", parts[0]).groups()  # type: ignore[union-attr]
        inner = _operand(base.strip())
        assert isinstance(inner, (Register, Symbol, Immediate))
        return Address(inner, ("-" if sign == "-" else "") + offset.strip())
    if "|" in word:
        first, second = word.split("|")
        return Pair(_operand(first), _operand(second))
    if word[0] == "!":
        return Negated(Register(word[1:]))
    if word[0] == "%" or word == "_":
        return Register(word)
    return Immediate(word) if word[0] in "-0123456789" else Symbol(word)
