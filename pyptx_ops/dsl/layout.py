"""How instructions are laid out: the white space between their tokens, by a few rules that a file mostly keeps to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["FIELDS", "Style", "slots"]

FIELDS = ("guard", "gap", "comma", "element", "brace", "bracket", "plus", "pair", "paren")
PUNCTUATION = frozenset("@!,;{}[]()+|")


@dataclass(frozen=True)
class Style:
    """White space: `indent` in front of an instruction, `guard` after a guard, `gap` after the opcode, `comma` between
    operands and `element` between those of a vector, `brace`, `bracket` and `paren` inside of these, `plus` and `pair`
    around `+` and `|`."""

    indent: str = "\t"
    guard: str = " "
    gap: str = " "
    comma: str = " "
    element: str = " "
    brace: str = ""
    bracket: str = ""
    plus: str = ""
    pair: str = ""
    paren: str = ""

    def trivia(self, lead: str, tokens: Sequence[str]) -> tuple[str, ...]:
        """What stands in front of each token of an instruction, `lead` in front of the first."""
        return (lead, *[getattr(self, field) if field else "" for field in slots(tokens)[1:]])


def slots(tokens: Sequence[str]) -> tuple[str, ...]:
    """For each token of an instruction the field of Style that says what stands in front of it, "" for nothing."""
    return _slots(tuple([token if token in PUNCTUATION else "" for token in tokens]))


BEFORE = {",": "", ";": "", "}": "brace", "]": "bracket", ")": "paren", "+": "plus", "|": "pair"}
AFTER = {"{": "brace", "[": "bracket", "(": "paren", "+": "plus", "|": "pair"}


@lru_cache(maxsize=4096)
def _slots(skeleton: tuple[str, ...]) -> tuple[str, ...]:
    start = 0
    if skeleton[0] == "@":
        start = 3 if skeleton[1] == "!" else 2
    found = [""] * start + ["guard" if start else ""]
    inside: list[str] = []
    for before, token in zip(skeleton[start:], skeleton[start + 1 :]):
        if len(found) == start + 1:
            field = "" if token == ";" else "gap"
        elif token in BEFORE and not (token in "}])" and before in ("{", "[", "(")):
            field = BEFORE[token]
        elif before == ",":
            field = "element" if inside and inside[-1] == "{" else "comma"
        else:
            field = AFTER.get(before, "") if token not in ("}", "]", ")") else ""
        if token in ("{", "[", "("):
            inside.append(token)
        elif token in ("}", "]", ")") and inside:
            inside.pop()
        found.append(field)
    return tuple(found)
