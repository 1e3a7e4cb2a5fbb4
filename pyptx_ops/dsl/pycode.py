"""Python text that ruff and black leave as it is, at 88 columns and more."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Union

__all__ = ["Argument", "Display", "call", "identifier", "quoted"]

WIDTH = 88
ESCAPES = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


class Display(NamedTuple):
    """An argument that is a list or tuple: what stands before it (`out=`), its brackets, its elements."""

    before: str
    brackets: str
    elements: Sequence[str]

    def __str__(self) -> str:
        comma = "," if self.brackets == "()" and len(self.elements) == 1 else ""
        return f"{self.before}{self.brackets[0]}{', '.join(self.elements)}{comma}{self.brackets[1]}"


Argument = Union[str, Display]


def quoted(text: str) -> str:
    """A string literal, of printable characters only, in the quotation marks that need fewer escapes."""
    mark = "'" if text.count('"') > text.count("'") else '"'
    if text.isascii() and text.isprintable() and "\\" not in text and mark not in text:
        return mark + text + mark
    return mark + "".join([_escaped(c, mark) for c in text]) + mark


def _escaped(c: str, mark: str) -> str:
    if c == mark:
        return "\\" + c
    if c in ESCAPES:
        return ESCAPES[c]
    if c.isprintable():
        return c
    code = ord(c)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def call(indent: int, before: str, arguments: Iterable[Argument], after: str = "") -> str:
    """The line `before(arguments)after`, or where it is too long one argument a line."""
    arguments = list(arguments)
    space = " " * indent
    line = f"{space}{before}({', '.join(map(str, arguments))}){after}"
    if len(line) <= WIDTH or not arguments:
        return line
    lines = [f"{space}{before}("]
    for argument in arguments:
        text = f"{space}    {argument},"
        if isinstance(argument, Display) and len(text) > WIDTH:
            lines.append(f"{space}    {argument.before}{argument.brackets[0]}")
            lines += [f"{space}        {element}," for element in argument.elements]
            text = f"{space}    {argument.brackets[1]},"
        lines.append(text)
    lines.append(f"{space}){after}")
    return "\n".join(lines)


def identifier(name: str, taken: set[str]) -> str:
    """A Python name like `name` that is not `taken` yet; it is from now on."""
    base = re.sub(r"\W", "_", name.lstrip("%$"), flags=re.ASCII) or "_"
    if base[0].isdigit() or base.startswith("__"):  # names with two underscores mean something to Python
        base = "r" + base
    if keyword.iskeyword(base):
        base += "_"
    found, number = base, 1
    while found in taken:
        number += 1
        found = f"{base}_{number}"
    taken.add(found)
    return found
