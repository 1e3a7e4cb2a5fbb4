"""A module written statement by statement, as the transpiler writes it: every instruction, and the layout of a file."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Union

from . import trace
from .errors import TraceError, user_location
from .instructions import ptx
from .ir import Block, Directive, Function, Instruction, Label, Module, Register, Statement
from .layout import Style
from .printer import print_module, tokens
from .reg import Literal, Pred, Reg, symbol
from .syntax.declarations import Declaration, declaration, head
from .syntax.lexer import Tokens
from .syntax.parser import parse
from .trace import Kernel, special
from .types import TYPES, Type

__all__ = ["Registers", "Source", "Style", "lit", "ptx", "register_type", "special", "symbol"]

lit = Literal
PREFIX = "_new"


def register_type(word: str) -> Type:
    """The type of registers declared `.b32`, …; 8-bit registers hold what is packed in 8 bits."""
    return TYPES["e2m1x2" if word == ".b8" else word[1:]]


class Registers(Sequence[Any]):
    """The registers of a range such as `%r<5>`: `r[1]` is `%r1`, `r[1:3]` a list of two."""

    def __init__(self, source: Source, name: str, type: Type, size: int):
        self.source = source
        self.name = name
        self.type = type
        self.size = size
        self.made: dict[int, Reg] = {}

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.size))]
        if not 0 <= index < self.size:
            raise IndexError(f"{self.name}<{self.size}> has no register {index}")
        if index not in self.made:
            self.made[index] = self.source.named(f"{self.name}{index}", self.type)
        return self.made[index]


class Source(Kernel):
    """The text of a module. Instructions that are called within `function` go into its body, in order.

    `style` lays out the instructions that follow. Each statement starts a line; `line`, `blank` and `trailing` put
    comments and empty lines before it, `lead` says exactly what stands there, `spaced` what stands between its tokens.
    `ptx()` is the text. Registers that an instruction returns because no `out=` names one are declared by themselves.
    """

    def __init__(self, style: Style | None = None, newline: str = "\n"):
        super().__init__("source")
        self.style = style or Style()
        self.newline = newline
        self.raw_instructions = 0
        self._lines: list[str] = []
        self._lead: str | None = None
        self._spaced: tuple[tuple[str, ...], tuple[int, ...]] | None = None
        self._frames: list[tuple[list[Statement], str, tuple[str, ...], tuple[str, ...]]] = []
        self._fresh: dict[str, int] = {}

    # -- layout ----------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """A line of its own, with nothing but comments: its text, without the end of the line."""
        self._lines.append(text)

    def blank(self, count: int = 1) -> None:
        """Empty lines."""
        self._lines += [""] * count

    def trailing(self, text: str) -> None:
        """What follows the last statement on its line."""
        if not self._lines:
            self._lines.append("")
        self._lines[0] += text

    def lead(self, text: str) -> None:
        """Exactly what stands in front of the next statement, or of the end."""
        self._lead = text

    def spaced(self, *trivia: str, split: tuple[int, ...] = ()) -> None:
        """What stands in front of each further token of the next statement, and a torn opcode's parts' lengths."""
        self._spaced = trivia, split

    def _start(self, indent: str) -> str:
        lead = self._lead if self._lead is not None else self.newline.join([*self._lines, indent])
        self._lead = None
        self._lines = [""]
        return lead

    # -- statements ------------------------------------------------------------------------------------------------

    def append(self, statement: Statement) -> None:
        if not self._frames:
            raise TraceError("an instruction stands in a function: call it within `with source.function(…):`")
        if isinstance(statement, Instruction) and statement.trivia is None:
            lead = self._start(self.style.indent)
            if self._spaced is not None:
                (trivia, split), self._spaced = self._spaced, None
                statement = statement._replace(trivia=(lead, *trivia), split=split)
            else:
                statement = statement._replace(trivia=self.style.trivia(lead, tuple(tokens(statement))))
        self._statements.append(statement)

    def place(self, label: str) -> None:
        """A label."""
        (trivia, _), self._spaced = self._spaced or (("",), ()), None
        self._statements.append(Label(label, (self._start(""), *trivia)))

    def raw(self, text: str) -> None:
        """An instruction that the table does not have, as text."""
        body = parse(f".entry k(){{{text}}}").statements[0].body.body  # type: ignore[union-attr]
        if len(body) != 1 or not isinstance(body[0], Instruction):
            raise TraceError(f"raw takes one instruction with its semicolon, got {text!r}")
        self.raw_instructions += 1
        instruction: Instruction = body[0]
        trivia = instruction.trivia or ("",)
        lead = self._start("") + trivia[0]
        self.append(instruction._replace(trivia=(lead, *trivia[1:]), location=user_location()))

    def directive(self, *lines: str) -> None:
        """A directive, as its lines; what follows its last token on the line may be a comment."""
        words, trivia, trailing = self._read(lines)
        self._statements.append(Directive(words, trivia))
        self.trailing(trailing)

    def reg(self, *lines: str) -> Any:
        """A `.reg` directive. Its registers come back: one, or a tuple of them; a range as `Registers`."""
        words, trivia, trailing = self._read(lines)
        self._statements.append(Directive(words, trivia))
        self.trailing(trailing)
        made = self._declared(declaration(words))
        return made[0] if len(made) == 1 else tuple(made)

    def _read(self, lines: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        read = Tokens(self.newline.join(lines), "<source>")
        while not read.complete:
            read.more(0)
        read.trivia[0] = self._start("") + read.trivia[0]
        return tuple(read.words[:-1]), tuple(read.trivia[:-1]), read.trivia[-1]

    def named(self, name: str, type: Type) -> Reg:
        """A register that the text declares."""
        return (Pred if type.bits == 1 else Reg)(Register(name), type, self)

    def _declared(self, found: Declaration) -> list[Union[Reg, Registers]]:
        type = register_type(found.type)
        return [
            self.named(n.name, type) if n.size is None else Registers(self, n.name, type, int(n.size))
            for n in found.names
        ]

    def fresh(self, type: Type) -> Reg:
        """A new register, which is declared where the function ends."""
        number = self._fresh.get(type.prefix, 0)
        self._fresh[type.prefix] = number + 1
        return self.named(f"{type.prefix}{PREFIX}{number}", type)

    def require(self, form: object) -> None:
        """Any form: `check` says what a module needs."""

    # -- bodies ----------------------------------------------------------------------------------------------------

    @contextmanager
    def function(self, *lines: str) -> Iterator[Any]:
        """A function with its head's lines, up to the brace; the registers among its parameters come back."""
        words, trivia, before = self._read(lines)
        found = head(words)
        parameters = [p for p in (*found.returns, *found.parameters) if p.space == "reg"]
        token = trace._current.set(self)
        collecting = gc.isenabled()
        gc.disable()
        self._enter(before, words, trivia)
        try:
            yield tuple(reg for p in parameters for reg in self._declared(p))
        finally:
            trace._current.reset(token)
            if collecting:
                gc.enable()
        for prefix, count in self._fresh.items():
            declared = (".reg", "." + trace.DECLARED[prefix], prefix + PREFIX, "<", str(count), ">", ";")
            lead = self.newline + self.style.indent
            self._statements.insert(0, Directive(declared, (lead, " ", " ", "", "", "", "")))
        self._fresh = {}
        self.close("")

    @contextmanager
    def scope(self) -> Iterator[None]:
        """`{ … }`."""
        self.open()
        yield
        self.close()

    def open(self) -> None:
        """`{`: where blocks lie too deep for Python's `with`."""
        self._enter(self._start(self.style.indent), (), ())

    def close(self, indent: str | None = None) -> None:
        """`}`."""
        end = self._start(self.style.indent if indent is None else indent)
        outside, before, words, trivia = self._frames.pop()
        block = Block(tuple(self._statements), (before, end))
        self._statements = outside
        self._statements.append(Function(words, block, trivia) if words else block)

    def _enter(self, before: str, words: tuple[str, ...], trivia: tuple[str, ...]) -> None:
        self._frames.append((self._statements, before, words, trivia))
        self._statements = []
        self._lines = [""]

    # -- the result ------------------------------------------------------------------------------------------------

    def module(self) -> Module:
        if self._frames:
            raise TraceError(f"{len(self._frames)} blocks are still open")
        end = self._lead if self._lead is not None else self.newline.join([*self._lines, ""])
        return Module(tuple(self._statements), end)

    def ptx(self) -> str:
        """The text of the module."""
        return print_module(self.module())

    def write(self) -> None:
        """The text to standard output, byte for byte."""
        sys.stdout.buffer.write(self.ptx().encode(errors="surrogateescape"))
