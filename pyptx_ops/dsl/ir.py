"""The frozen tree that a trace builds, and that a parser can build from text.

A statement may carry `trivia`: the white space and comments in front of each of its tokens, and nothing else of the
source. With trivia a statement prints as it was read; without it, in the canonical layout. So an edited operand changes
its own tokens only, and nothing stores source lines.
"""

from __future__ import annotations

from typing import NamedTuple, Union

from .errors import Location

__all__ = [
    "Address", "Arguments", "Block", "Comment", "Directive", "Expression", "Function", "Immediate", "Instruction",
    "Label", "Location", "Module", "Negated", "Operand", "Pair", "Register", "Sampled", "Statement", "Symbol",
    "TensorCoordinates", "Vector",
]  # fmt: skip


class Register(NamedTuple):
    """A register, a special register (`%tid.x`) or the sink `_`."""

    name: str


class Symbol(NamedTuple):
    """A label, parameter or variable named by an operand."""

    name: str


class Immediate(NamedTuple):
    """A literal, spelled as it is printed: `16`, `0x10`, `0f3F800000`."""

    text: str


class Negated(NamedTuple):
    """`!p`: the complement of a predicate operand."""

    operand: Register


class Vector(NamedTuple):
    """`{a, b, …}`."""

    elements: tuple[Operand, ...]


class Pair(NamedTuple):
    """`d|p`: two destinations of one instruction."""

    first: Operand
    second: Operand


class Expression(NamedTuple):
    """A constant expression, or anything else between two commas that has no node of its own, as its tokens."""

    tokens: tuple[str, ...]


class Address(NamedTuple):
    """`[base]`, `[base+offset]`, or with plus "" `[base-8]`; the offset is kept as it is spelled, "" for none."""

    base: Union[Register, Symbol, Immediate, Expression]
    offset: str = ""
    plus: str = "+"


class TensorCoordinates(NamedTuple):
    """`[map, {c0, c1, …}]`: a tensor map and where in the tensor a box starts."""

    map: Operand
    coordinates: Vector


class Sampled(NamedTuple):
    """`[texture, sampler, {c0, c1, …}]`."""

    texture: Operand
    sampler: Operand
    coordinates: Vector


class Arguments(NamedTuple):
    """`(a, b, …)`: what a call passes or gets back."""

    elements: tuple[Operand, ...]


Operand = Union[
    Register, Symbol, Immediate, Negated, Vector, Pair, Address, TensorCoordinates, Sampled, Arguments, Expression
]


Trivia = Union[tuple[str, ...], None]


class Instruction(NamedTuple):
    """`@guard opcode operands;` with the opcode spelled in full, modifiers included.

    split: the lengths of the opcode's pieces, where white space tears it apart.
    """

    opcode: str
    operands: tuple[Operand, ...]
    guard: Union[Register, Negated, None] = None
    location: Union[Location, None] = None
    trivia: Trivia = None
    split: tuple[int, ...] = ()


class Label(NamedTuple):
    name: str
    trivia: Trivia = None


class Comment(NamedTuple):
    """A comment line that a kernel asked for. A parser keeps comments as trivia instead."""

    text: str


class Directive(NamedTuple):
    """A directive that ends in `;` or stands on a line of its own, as its tokens."""

    tokens: tuple[str, ...]
    trivia: Trivia = None


class Block(NamedTuple):
    """`{ … }`. `trivia` holds what stands before each brace."""

    body: tuple[Statement, ...]
    trivia: Trivia = None


class Function(NamedTuple):
    """A function: the tokens of its head (linkage, name, parameters, directives) and its body."""

    head: tuple[str, ...]
    body: Block
    trivia: Trivia = None


Statement = Union[Instruction, Label, Comment, Directive, Block, Function]


class Module(NamedTuple):
    """A translation unit. `trailing` is the trivia after the last token."""

    statements: tuple[Statement, ...]
    trailing: str = ""
