"""What declarations and heads of functions say, read from their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .errors import Unexpected

__all__ = ["Declaration", "Declarator", "Head", "declaration", "head", "is_declaration"]

LINKAGE = frozenset([".extern", ".visible", ".weak", ".common"])
SPACES = frozenset([".reg", ".param", ".local", ".shared", ".global", ".const", ".sreg", ".tex"])
ARGUED = ((".attribute", "("), (".const", "["), (".global", "["))  # in brackets: a bank of old
CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}


class Declarator(NamedTuple):
    """One declared name: the token `at` which it stands, N of `name<N>`, its dimensions, the tokens after `=`."""

    name: str
    at: int
    size: str | None
    dimensions: tuple[str, ...]
    initial: tuple[str, ...]


class Declaration(NamedTuple):
    """`words` (linkage, space, alignment, type, …) and the names declared with them."""

    words: tuple[str, ...]
    names: tuple[Declarator, ...]

    @property
    def space(self) -> str:
        return next(word[1:] for word in self.words if word in SPACES)

    @property
    def type(self) -> str:
        """The last word: ".b32", ".f32", ".texref"."""
        return self.words[-1]


class Head(NamedTuple):
    """`linkage .entry|.func (returns) name (parameters) directives`. `at` is the name's token."""

    linkage: tuple[str, ...]
    kind: str
    returns: tuple[Declaration, ...]
    name: str
    at: int
    parameters: tuple[Declaration, ...]
    directives: tuple[str, ...]


def is_name(word: str) -> bool:
    return word[:1].isalpha() or word[:1] in ("_", "$", "%")


def is_declaration(tokens: Sequence[str]) -> bool:
    return tokens[0] in SPACES or tokens[0] in LINKAGE or tokens[0] == ".attribute"


def declaration(tokens: Sequence[str]) -> Declaration:
    """A declaration with its semicolon. Raises Unexpected."""
    found, end = _declaration(tokens, 0, ";")
    if end + 1 < len(tokens):
        raise Unexpected(end + 1, "the end of the declaration")
    return found


def _declaration(tokens: Sequence[str], at: int, ends: str) -> tuple[Declaration, int]:
    """The declaration at `at`, and which of the tokens `ends` it ends at."""
    at, words = _words(tokens, at)
    names: list[Declarator] = []
    while True:
        name, at = _declarator(tokens, at)
        names.append(name)
        if at < len(tokens) and tokens[at] == "," and "," not in ends:
            at += 1
        elif at < len(tokens) and tokens[at] in ends:
            return Declaration(words, tuple(names)), at
        else:
            raise Unexpected(at, " or ".join(f"'{end}'" for end in dict.fromkeys("," + ends)))


def _words(tokens: Sequence[str], at: int) -> tuple[int, tuple[str, ...]]:
    """The dotted words, with their arguments, in front of the names."""
    start = at
    spaced = False
    while at < len(tokens) and tokens[at][:1] == ".":
        word = tokens[at]
        spaced = spaced or word in SPACES
        at += 1
        if word == ".align":
            if not tokens[at][:1].isdigit():
                raise Unexpected(at, "an alignment")
            at += 1
        elif (word, tokens[at]) in ARGUED:
            at = closing(tokens, at) + 1
    if not spaced or at - start < 2:
        raise Unexpected(at, "a type" if spaced else "a state space such as .param")
    return at, tuple(tokens[start:at])


def _declarator(tokens: Sequence[str], at: int) -> tuple[Declarator, int]:
    if not is_name(tokens[at]):
        raise Unexpected(at, "a name")
    name, place, at = tokens[at], at, at + 1
    size = None
    if tokens[at] == "<":
        if not tokens[at + 1].isdigit():
            raise Unexpected(at + 1, "how many registers")
        if tokens[at + 2] != ">":
            raise Unexpected(at + 2, "'>'")
        size, at = tokens[at + 1], at + 3
    dimensions: list[str] = []
    while at < len(tokens) and tokens[at] == "[":
        end = closing(tokens, at)
        dimensions.append("".join(tokens[at + 1 : end]))
        at = end + 1
    start = at
    if at < len(tokens) and tokens[at] == "=":
        at = _initial(tokens, at + 1)
        if at == start + 1:
            raise Unexpected(at, "an initial value")
    return Declarator(name, place, size, tuple(dimensions), tuple(tokens[start + 1 : at])), at


def _initial(tokens: Sequence[str], at: int) -> int:
    """Where an initial value ends: at a comma or semicolon outside brackets."""
    while at < len(tokens) and tokens[at] not in (",", ";"):
        at = closing(tokens, at) if tokens[at] in ("(", "{", "[") else at
        at += 1
    return at


def closing(tokens: Sequence[str], at: int) -> int:
    """Where the bracket at `at` closes."""
    open_ = [CLOSING[tokens[at]]]
    for i in range(at + 1, len(tokens)):
        word = tokens[i]
        if word == open_[-1]:
            open_.pop()
            if not open_:
                return i
        elif word in ("(", "[", "{"):
            open_.append(CLOSING[word])
        elif word in (")", "]", "}"):
            raise Unexpected(i, f"'{open_[-1]}'")
    raise Unexpected(len(tokens) - 1, f"'{open_[-1]}'")


def head(tokens: Sequence[str]) -> Head:
    """The head of a function, up to its body or semicolon, which `tokens` does not hold. Raises Unexpected."""
    tokens = [*tokens, "", ""]
    at = 0
    while tokens[at] in LINKAGE or tokens[at] == ".attribute":
        at = closing(tokens, at + 1) + 1 if tokens[at + 1] == "(" else at + 1
    linkage, kind = tuple(tokens[:at]), tokens[at]
    if kind not in (".entry", ".func"):
        raise Unexpected(at, ".entry or .func")
    at += 1
    while kind == ".func" and tokens[at] == ".attribute":
        at = closing(tokens, at + 1) + 1
    returns, at = _parameters(tokens, at) if tokens[at] == "(" and kind == ".func" else ((), at)
    place = at
    if not is_name(tokens[at]):
        raise Unexpected(at, "the function's name")
    parameters, at = _parameters(tokens, at + 1) if tokens[at + 1] == "(" else ((), at + 1)
    rest = tokens[at:-2]
    if rest and rest[0][:1] != ".":
        raise Unexpected(at, "a directive or '{'")
    for i, word in enumerate(rest):
        if not (word[:1] in '.,()"' or word[:1].isdigit() or rest[i - 1] in ("(", ".pragma")):
            raise Unexpected(at + i, "'{'")
    return Head(linkage, kind, returns, tokens[place], place, parameters, tuple(rest))


def _parameters(tokens: Sequence[str], at: int) -> tuple[tuple[Declaration, ...], int]:
    """The declarations in the parentheses that open at `at`, and where they end."""
    found: list[Declaration] = []
    if tokens[at + 1] == ")":
        return (), at + 2
    while tokens[at] != ")":
        parameter, at = _declaration(tokens, at + 1, ",)")
        found.append(parameter)
    return tuple(found), at + 1
