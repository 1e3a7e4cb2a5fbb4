"""Text to the frozen tree of `dsl.ir`, with every token and all trivia."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..ir import Block, Directive, Function, Instruction, Label, Module, Negated, Operand, Register, Statement
from .declarations import Declarator, declaration, head, is_declaration
from .errors import Unexpected
from .lexer import Tokens
from .operands import Leaves, operands

__all__ = ["parse"]

FUNCTION = frozenset([".entry", ".func"])
LINKAGE = frozenset([".extern", ".visible", ".weak", ".common"])


class _Incomplete(Exception):
    """The window ends within a statement."""


@dataclass
class _Open:
    """A brace that is open: the head of its function ((), () for a plain block), what stands before the brace."""

    head: tuple[str, ...]
    head_trivia: tuple[str, ...]
    before: str
    outside: list[Statement]
    registers: list[str] = field(default_factory=list)


def parse(text: str, file: str = "<ptx>") -> Module:
    """The module that `text` says: `print(parse(text)) == text`. Raises PtxSyntaxError, which names `file`."""
    collecting = gc.isenabled()
    gc.disable()  # what is made here lives on and has no cycles, and walking it again and again halves the speed
    try:
        return _Parser(text, file).module()
    finally:
        if collecting:
            gc.enable()


class _Parser:
    def __init__(self, text: str, file: str):
        self.tokens = Tokens(text, file)
        self.leaves = Leaves()
        self.layouts: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.statements: list[Statement] = []
        self.open: list[_Open] = []
        self.special = {
            ".version": self._flat(1), ".address_size": self._flat(1), ".target": self._target, ".file": self._file,
            ".loc": self._loc, ".section": self._section, "{": self._block, "}": self._close,
            ";": self._flat(0),
        }  # fmt: skip

    def module(self) -> Module:
        tokens = self.tokens
        at = 0
        while True:
            try:
                while tokens.words[at]:
                    at = self._statement(at)
            except _Incomplete:
                pass
            except Unexpected as found:
                if found.at < len(tokens.words) - 1 or tokens.complete:
                    raise tokens.error(min(found.at, len(tokens.words) - 1), found.wanted) from None
            if tokens.complete:
                break
            tokens.more(at)
            at = 0
        if self.open:
            raise tokens.error(len(tokens.words) - 1, "'}'")
        return Module(tuple(self.statements), tokens.trivia[at])

    def _statement(self, at: int) -> int:
        """Read the statement at `at` and return where the next one starts."""
        words = self.tokens.words
        first = words[at]
        if special := self.special.get(first):
            return special(at)
        if first[0] == ".":
            return self._directive(at)
        if not self.open:
            raise Unexpected(at, "a directive")
        if words[at + 1] == ":":
            self.statements.append(Label(first, self._layout(at, at + 2)))
            return at + 2
        return self._instruction(at)

    def _layout(self, start: int, end: int) -> tuple[str, ...]:
        """The trivia of these tokens: one tuple for all statements that are laid out alike."""
        trivia = tuple(self.tokens.trivia[start:end])
        return self.layouts.setdefault(trivia, trivia)

    def _end(self, at: int) -> int:
        """The semicolon that ends the statement at `at`."""
        try:
            return self.tokens.words.index(";", at)
        except ValueError:
            if not self.tokens.complete:
                raise _Incomplete from None
            raise Unexpected(len(self.tokens.words) - 1, "';'") from None

    # -- instructions ----------------------------------------------------------------------------------------------

    def _instruction(self, start: int) -> int:
        end = self._end(start)
        words = self.tokens.words
        at = start
        guard: Register | Negated | None = None
        if words[at] == "@":
            negated = words[at + 1] == "!"
            at += 3 if negated else 2
            register = self.leaves.find(words[at - 1])
            if register is None or at > end:
                raise Unexpected(at - 1, "a predicate")
            guard = Register(register[0])
            guard = Negated(guard) if negated else guard
        opcode = words[at]
        if not opcode[0].isalpha():
            raise Unexpected(at, "an instruction")
        at += 1
        split: tuple[int, ...] = ()
        if words[at][0] == "." and words[at][1:2] not in "0123456789":
            first = at - 1
            while words[at][0] == ".":
                at += 1
            split = tuple(map(len, words[first:at]))
            opcode = "".join(words[first:at])
        found = self._operands(at, end) if at < end else ()
        layout = self._layout(start, end + 1)
        self.statements.append(Instruction(opcode, found, guard, None, layout, split))
        return end + 1

    def _operands(self, at: int, end: int) -> tuple[Operand, ...]:
        span = self.tokens.words[at:end]
        leaves = self.leaves
        if len(span) % 2 and span[1::2].count(",") == len(span) // 2:
            try:
                return tuple([leaves[word] for word in span[::2]])
            except KeyError:
                pass
        try:
            return operands(span, leaves)
        except Unexpected as found:
            raise Unexpected(at + found.at, found.wanted) from None

    # -- directives ------------------------------------------------------------------------------------------------

    def _add(self, start: int, end: int) -> int:
        """The tokens up to `end` as a directive."""
        self.statements.append(Directive(tuple(self.tokens.words[start:end]), self._layout(start, end)))
        return end

    def _directive(self, at: int) -> int:
        """One that ends in a semicolon, or a function."""
        words = self.tokens.words
        kind = at
        while words[kind] in LINKAGE or words[kind] == ".attribute":
            kind = self._closing(kind + 1) + 1 if words[kind] == ".attribute" else kind + 1
        if words[kind] in FUNCTION:
            return self._function(at)
        end = self._end(at)
        span = words[at : end + 1]
        if is_declaration(span):
            try:
                names = declaration(span).names
            except Unexpected as found:
                raise Unexpected(at + found.at, found.wanted) from None
            if span[0] == ".reg":
                self._declare(names)
        return self._add(at, end + 1)

    def _declare(self, declared: Sequence[Declarator]) -> None:
        """Registers that are not named like registers are known from here to the end of the block."""
        names = [name.name + ("<" if name.size else "") for name in declared if name.name[0] != "%"]
        if names and self.open:
            self.open[-1].registers += names
            self.leaves.declare(names, 1)

    def _closing(self, at: int) -> int:
        """The parenthesis that closes the one at `at`."""
        words = self.tokens.words
        if words[at] != "(":
            raise Unexpected(at, "'('")
        depth = 0
        while words[at]:
            depth += (words[at] == "(") - (words[at] == ")")
            if not depth:
                return at
            at += 1
        raise Unexpected(at, "')'")

    def _flat(self, count: int) -> Callable[[int], int]:
        """A directive of this many further tokens, all numbers."""

        def read(at: int) -> int:
            self._numbers(at + 1, count)
            return self._add(at, at + 1 + count)

        return read

    def _numbers(self, at: int, count: int) -> int:
        words = self.tokens.words
        for i in range(at, at + count):
            if not words[i] or not (words[i][0].isdigit() or words[i][0] == "-"):
                raise Unexpected(i, "a number")
        return at + count

    def _listed(self, at: int) -> bool:
        """Whether a comma follows. The window must show it."""
        if not self.tokens.words[at] and not self.tokens.complete:
            raise _Incomplete
        return self.tokens.words[at] == ","

    def _target(self, start: int) -> int:
        at = start + 1
        while True:
            if not self.tokens.words[at][:1].isalpha():
                raise Unexpected(at, "a target such as sm_90a")
            at += 1
            if not self._listed(at):
                return self._add(start, at)
            at += 1

    def _file(self, start: int) -> int:
        at = self._numbers(start + 1, 1)
        if self.tokens.words[at][:1] != '"':
            raise Unexpected(at, "a file name in quotation marks")
        at += 1
        while self._listed(at):
            at = self._numbers(at + 1, 1)
        return self._add(start, at)

    def _loc(self, start: int) -> int:
        """`.loc file line column[, function_name label[+offset], inlined_at file line column]`."""
        words = self.tokens.words
        at = self._numbers(start + 1, 3)
        while self._listed(at):
            at += 1
            if words[at] == "function_name":
                at += 2
                at = self._numbers(at + 1, 1) if words[at] == "+" else at
            elif words[at] == "inlined_at":
                at = self._numbers(at + 1, 3)
            else:
                raise Unexpected(at, "function_name or inlined_at")
        return self._add(start, at)

    def _section(self, start: int) -> int:
        """`.section name { … }`, whose data are tokens."""
        words = self.tokens.words
        if words[start + 1][:1] not in (".", '"') and not words[start + 1][:1].isalpha():
            raise Unexpected(start + 1, "the section's name")
        if words[start + 2] != "{":
            raise Unexpected(start + 2, "'{'")
        try:
            return self._add(start, words.index("}", start) + 1)
        except ValueError:
            if not self.tokens.complete:
                raise _Incomplete from None
            raise Unexpected(len(words) - 1, "'}'") from None

    # -- blocks ----------------------------------------------------------------------------------------------------

    def _function(self, start: int) -> int:
        """A head with its body's brace, or a prototype."""
        words = self.tokens.words
        end = start
        while words[end] not in ("{", ";", "}"):
            if not words[end]:
                raise Unexpected(end, "'{' or ';'")
            end += 1
        try:
            found = head(words[start:end])
        except Unexpected as error:
            raise Unexpected(min(start + error.at, end), error.wanted) from None
        if words[end] == "}":
            raise Unexpected(end, "'{' or ';'")
        if words[end] == ";":
            return self._add(start, end + 1)
        opened = _Open(tuple(words[start:end]), self._layout(start, end), self.tokens.trivia[end], self.statements)
        self.open.append(opened)
        self.statements = []
        parameters = [part for part in (*found.returns, *found.parameters) if part.space == "reg"]
        self._declare([name for part in parameters for name in part.names])
        return end + 1

    def _block(self, at: int) -> int:
        if not self.open:
            raise Unexpected(at, "a directive")
        self.open.append(_Open((), (), self.tokens.trivia[at], self.statements))
        self.statements = []
        return at + 1

    def _close(self, at: int) -> int:
        if not self.open:
            raise Unexpected(at, "a directive")
        opened = self.open.pop()
        if opened.registers:
            self.leaves.declare(opened.registers, -1)
        block = Block(tuple(self.statements), (opened.before, self.tokens.trivia[at]))
        self.statements = opened.outside
        self.statements.append(Function(opened.head, block, opened.head_trivia) if opened.head else block)
        return at + 1
