"""The operands of an instruction, from its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

from ..ir import (
    Address,
    Arguments,
    Expression,
    Immediate,
    Negated,
    Operand,
    Pair,
    Register,
    Sampled,
    Symbol,
    TensorCoordinates,
    Vector,
)
from .errors import Unexpected

__all__ = ["Leaf", "Leaves", "operands"]

Leaf = Union[Register, Symbol, Immediate]
CLOSING = {"(": ")", "[": "]", "{": "}"}
STOP = (";",) * 4  # so that a look ahead stays in the list
DEEPEST = 50


class Leaves(dict[str, Leaf]):
    """A token -> the one node for it. A token that is no operand of its own raises KeyError.

    Registers whose names are without a % are known where they are declared.
    """

    def __init__(self) -> None:
        self._declared: dict[str, int] = {}

    def __missing__(self, token: str) -> Leaf:
        first = token[:1]
        leaf: Leaf
        if first == "%" or token == "_":
            if token == "%":
                raise KeyError(token)
            leaf = Register(token)
        elif first.isdigit() or (first in "-." and len(token) > 1 and token[1] in "0123456789."):
            leaf = Immediate(token)
        elif first.isalpha() or first in "_$":
            leaf = Register(token) if self._declared and self._is_register(token.partition(".")[0]) else Symbol(token)
        else:
            raise KeyError(token)
        self[token] = leaf
        return leaf

    def find(self, token: str) -> Leaf | None:
        try:
            return self[token]
        except KeyError:
            return None

    def _is_register(self, name: str) -> bool:
        start = len(name.rstrip("0123456789"))
        return name in self._declared or any(name[:i] + "<" in self._declared for i in range(start, len(name)))

    def declare(self, names: Sequence[str], change: int) -> None:
        """Registers named like symbols, ranges as "x<", come into scope (change 1) or leave it (-1)."""
        for name in names:
            self._declared[name] = self._declared.get(name, 0) + change
            if not self._declared[name]:
                del self._declared[name]
        self.clear()


def operands(words: list[str], leaves: Leaves) -> tuple[Operand, ...]:
    """The operands between an opcode and its semicolon. Raises Unexpected."""
    n = len(words)
    words = [*words, *STOP]
    found: list[Operand] = []
    at = 0
    while True:
        node, at = _operand(words, at, leaves)
        found.append(node)
        if at >= n:
            return tuple(found)
        if words[at] != ",":
            raise Unexpected(at, "',' or ';'")
        at += 1


def _operand(words: list[str], at: int, leaves: Leaves) -> tuple[Operand, int]:
    """The operand at `at` and where it ends. Plain forms first; what is not plain goes to `_general`."""
    word, after = words[at], words[at + 1]
    try:
        if after in ",;":
            return leaves[word], at + 1
        if word == "[":
            third = words[at + 2]
            if third == "]":
                return Address(leaves[after]), at + 3
            if third == "+" and words[at + 4] == "]":
                return Address(leaves[after], leaves[words[at + 3]][0]), at + 5
            if words[at + 3] == "]" and third[0] == "-":
                return Address(leaves[after], leaves[third][0], ""), at + 4
        elif word == "{":
            end = words.index("}", at)
            if words[at + 2 : end : 2].count(",") * 2 + 1 == end - at - 1:
                return Vector(tuple([leaves[w] for w in words[at + 1 : end : 2]])), end + 1
    except (KeyError, ValueError):
        pass
    return _general(words, at, leaves, 0)


def _general(words: list[str], at: int, leaves: Leaves, depth: int) -> tuple[Operand, int]:
    """Any operand."""
    if depth > DEEPEST:
        raise Unexpected(at, f"brackets at most {DEEPEST} deep in an operand")
    word = words[at]
    if word == "{":
        elements, end = _list(words, at, leaves, depth)
        return Vector(elements), end
    if word == "[":
        return _bracketed(words, at, leaves, depth)
    end = _end(words, at)
    span = words[at:end]
    if not span:
        raise Unexpected(at, "an operand")
    if word == "(" and not depth and end == _closing(words, at) + 1:
        elements, end = _list(words, at, leaves, depth)
        return Arguments(elements), end
    first, last = leaves.find(word), leaves.find(span[-1])
    if len(span) == 1 and first is not None:
        return first, end
    if len(span) == 2 and word == "!" and isinstance(last, Register):
        return Negated(last), end
    if len(span) == 3 and span[1] == "|" and isinstance(first, Register) and isinstance(last, Register):
        return Pair(first, last), end
    return Expression(tuple(_checked(span, at))), end


def _list(words: list[str], at: int, leaves: Leaves, depth: int) -> tuple[tuple[Operand, ...], int]:
    """The operands in the brackets that open at `at`, and where they end."""
    close = CLOSING[words[at]]
    found: list[Operand] = []
    at += 1
    if words[at] == close:
        return (), at + 1
    while True:
        node, at = _general(words, at, leaves, depth + 1)
        found.append(node)
        if words[at] == close:
            return tuple(found), at + 1
        if words[at] != ",":
            raise Unexpected(at, f"',' or '{close}'")
        at += 1


def _bracketed(words: list[str], at: int, leaves: Leaves, depth: int) -> tuple[Operand, int]:
    """`[map, {…}]`, `[texture, sampler, {…}]`, or an address that is an expression."""
    end = _closing(words, at)
    if "," not in words[at:end]:
        return Address(Expression(tuple(_checked(words[at + 1 : end], at + 1)))), end + 1
    elements, after = _list(words, at, leaves, depth)
    last = elements[-1]
    if isinstance(last, Vector):
        if len(elements) == 2:
            return TensorCoordinates(elements[0], last), after
        if len(elements) == 3:
            return Sampled(elements[0], elements[1], last), after
    return Address(Expression(tuple(words[at + 1 : end]))), end + 1


def _closing(words: list[str], at: int) -> int:
    """Where the bracket at `at` closes."""
    open_: list[str] = []
    for i in range(at, len(words)):
        word = words[i]
        if word in CLOSING:
            open_.append(CLOSING[word])
        elif word in (")", "]", "}"):
            if word != open_.pop():
                break
            if not open_:
                return i
        elif word == ";":
            break
    raise Unexpected(min(i, len(words) - len(STOP)), "closed brackets")


def _end(words: list[str], at: int) -> int:
    """Where the operand at `at` ends: at a comma or bracket of what is around it."""
    while True:
        word = words[at]
        if word in CLOSING:
            at = _closing(words, at)
        elif word in (",", ";", ")", "]", "}"):
            return at
        at += 1


def _checked(span: list[str], at: int) -> list[str]:
    """The tokens of an expression: names and numbers never stand side by side."""
    if not span:
        raise Unexpected(at, "an operand")
    before = False
    for i, word in enumerate(span):
        named = word[0].isalnum() or word[0] in "_$" or (word[0] in "%." and len(word) > 1)
        if named and before:
            raise Unexpected(at + i, "an operator, ',' or ';'")
        before = named
    return span
