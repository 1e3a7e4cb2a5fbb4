"""PTX to Python that gives the same PTX back: `run(transpile(text)) == text`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Union

from . import ir
from .calls import Scope, call_of
from .layout import Style, slots
from .printer import Words, print_module
from .pycode import Argument, Display, call, quoted
from .syntax.declarations import Declaration, declaration, head
from .syntax.parser import parse
from .types import TYPES

__all__ = ["Transpiled", "run", "transpile", "transpiled"]

STYLES = 8  # at most; what is laid out otherwise is said where it stands
DEEPEST = 12  # blocks within `with`: Python nests 20
NAMES = ("Source", "Style", "lit", "ptx", "special", "symbol")
Constraints = dict[str, str]


@dataclass(frozen=True)
class Transpiled:
    """`python`: the program. `raw`: the opcodes that went through `raw`, how often, of how many `instructions`."""

    python: str
    instructions: int
    raw: Counter[str]


def transpile(ptx: Union[str, ir.Module], file: str = "<ptx>") -> str:
    """The Python that prints the module, one call per instruction. Raises PtxSyntaxError for text that is no PTX."""
    return transpiled(ptx, file).python


def transpiled(ptx: Union[str, ir.Module], file: str = "<ptx>") -> Transpiled:
    """`transpile`, and what it had to leave to `raw`."""
    return _Writer(parse(ptx if isinstance(ptx, str) else print_module(ptx), file)).result()


def run(python: str) -> str:
    """The PTX that a transpiled program makes."""
    scope: dict[str, object] = {"__name__": "transpiled"}
    exec(compile(python, "<transpiled>", "exec"), scope)
    text: str = scope["m"].ptx()  # type: ignore[attr-defined]
    return text


def _walk(statements: tuple[ir.Statement, ...]) -> Iterator[tuple[str, ir.Statement]]:
    """("open" or "close", function or block) and ("", any other statement), in the order of the text."""
    todo: list[tuple[ir.Statement | None, Iterator[ir.Statement]]] = [(None, iter(statements))]
    while todo:
        owner, rest = todo[-1]
        for node in rest:
            if isinstance(node, (ir.Function, ir.Block)):
                yield "open", node
                body = node.body.body if isinstance(node, ir.Function) else node.body
                todo.append((node, iter(body)))
                break
            yield "", node
        else:
            todo.pop()
            if owner is not None:
                yield "close", owner


@lru_cache(maxsize=4096)
def _constraints(trivia: tuple[str, ...], places: tuple[str, ...]) -> Constraints | None:
    """What a style must say to lay an instruction out like this, or None where no style does."""
    found: Constraints = {}
    for field, space in zip(places, trivia):
        if (field and found.setdefault(field, space) != space) or (space and not field):
            return None
    return found


class _Styles:
    """The styles of a file: few, each of which lays out many instructions."""

    def __init__(self, module: ir.Module, newline: str, words: Words):
        self.newline = newline
        counts: Counter[tuple[tuple[str, ...], tuple[str, ...]]] = Counter()
        for _, node in _walk(module.statements):
            if isinstance(node, ir.Instruction) and not node.split:
                counts[node.trivia or ("",), slots(words.of(node))] += 1
        found: list[Constraints] = []
        for (trivia, places), _ in counts.most_common():
            wanted = self.wanted(trivia, places)
            if wanted is None:
                continue
            for style in found:
                if all(style.get(field, space) == space for field, space in wanted.items()):
                    style.update(wanted)
                    break
            else:
                if len(found) < STYLES:
                    found.append(dict(wanted))
        self.styles = [Style(**style) for style in found] or [Style()]

    def wanted(self, trivia: tuple[str, ...], places: tuple[str, ...]) -> Constraints | None:
        inner = _constraints(trivia[1:], places[1:])
        indent = trivia[0].rpartition(self.newline)
        if inner is None or not indent[1] or indent[2].strip(" \t"):
            return inner
        return {"indent": indent[2], **inner}

    def index(self, wanted: Constraints, current: int) -> int:
        """The style that says this, preferably the current one; -1 for none."""
        return next((i for i in (current, *range(len(self.styles))) if self._says(i, wanted)), -1)

    def _says(self, index: int, wanted: Constraints) -> bool:
        style = self.styles[index]
        return all(getattr(style, field) == space for field, space in wanted.items())


@dataclass
class _Directive:
    """A directive that is written already, in case that a comment follows on its line."""

    at: int  # in the program's lines
    before: str
    text: str


class _Writer:
    def __init__(self, module: ir.Module):
        self.module = module
        self.words = Words()
        self.newline = "\r\n" if _uses_crlf(module) else "\n"
        self.styles = _Styles(module, self.newline, self.words)
        self.style = 0
        self.names = [f"style_{i}" if i else "plain" for i in range(len(self.styles.styles))]
        self.lines: list[str] = []
        self.indent = 0
        self.scope = Scope()
        self.opened: list[bool] = []  # for each block that is open: within `with`?
        self.directive: _Directive | None = None
        self.started = False
        self.count = 0
        self.raw: Counter[str] = Counter()

    def result(self) -> Transpiled:
        for event, node in _walk(self.module.statements):
            if event == "open":
                self._open(node)
            elif event == "close":
                self._close(node)
            elif isinstance(node, ir.Instruction):
                self._instruction(node)
            elif isinstance(node, ir.Label):
                self._label(node)
            else:
                assert isinstance(node, ir.Directive)
                self._directive(node)
        self._lead(self.module.trailing, "")
        return Transpiled(self._program(), self.count, self.raw)

    def _program(self) -> str:
        arguments: list[Argument] = ["plain"] if self.styles.styles[0] != Style() else []
        arguments += [f"newline={quoted(self.newline)}"] if self.newline != "\n" else []
        made = [call(0, f"{name} = Style", _differences(s)) for name, s in zip(self.names, self.styles.styles)]
        made = made if arguments[:1] == ["plain"] or len(made) > 1 else []
        body = "\n".join([*made, call(0, "m = Source", arguments), *self.lines])
        used = [name for name in NAMES if f"{name}(" in body or f"{name}." in body]
        imports = f"from pyptx_ops.dsl.source import {', '.join(used)}"
        return f'{imports}\n\n{body}\n\nif __name__ == "__main__":\n    m.write()\n'

    def _write(self, before: str, *arguments: Argument, after: str = "") -> None:
        self.lines.append(call(self.indent, before, arguments, after))

    # -- layout ----------------------------------------------------------------------------------------------------

    def _lead(self, lead: str, indent: str | None) -> str:
        """Write what stands in front of a statement on lines of its own; return the rest: `indent`, if given."""
        parts = lead.split(self.newline)
        first, self.started, directive, self.directive = not self.started, True, self.directive, None
        if (len(parts) == 1 and not first) or (indent is not None and parts[-1] != indent):
            self._write("m.lead", quoted(lead))
            return ""
        if not first and parts[0]:
            if directive is not None and "/*" not in parts[0]:
                self._rewrite(directive, parts[0])
            else:
                self._write("m.trailing", quoted(parts[0]))
        blank = 0
        for line in parts[0 if first else 1 : -1]:
            if line:
                self._blank(blank)
                blank = -1
                self._write("m.line", quoted(line))
            blank += 1
        self._blank(blank)
        return parts[-1]

    def _blank(self, count: int) -> None:
        if count > 0:
            self._write("m.blank", *([str(count)] if count > 1 else []))

    def _rewrite(self, directive: _Directive, trailing: str) -> None:
        lines = [quoted(line) for line in (directive.text + trailing).split(self.newline)]
        self.lines[directive.at] = call(self.indent, directive.before, lines)

    # -- statements ------------------------------------------------------------------------------------------------

    def _instruction(self, node: ir.Instruction) -> None:
        self.count += 1
        trivia = node.trivia or ("",)
        words = self.words.of(node)
        found = call_of(node, self.scope)
        if found is None:
            self.raw[node.opcode] += 1
            text = self._lead(trivia[0], None) + _joined(words, ("", *trivia[1:]))
            self._write("m.raw", quoted(text))
            return
        wanted = None if node.split else self.styles.wanted(trivia, slots(words))
        index = -1 if wanted is None else self.styles.index(wanted, self.style)
        style = self.styles.styles[self.style if index < 0 else index]
        self._lead(trivia[0], style.indent)
        if index < 0:
            split = [Display("split=", "()", [str(n) for n in node.split])] if node.split else []
            self._write("m.spaced", *map(quoted, trivia[1:]), *split)
        elif index != self.style:
            self.style = index
            self.lines.append(f"{' ' * self.indent}m.style = {self.names[index]}")
        for name, symbol in self.scope.unbound:
            self._write(f"{name} = symbol", quoted(symbol))
        self.scope.unbound.clear()
        self._write(found.function, *found.arguments)

    def _label(self, node: ir.Label) -> None:
        lead, before = node.trivia or ("", "")
        self._lead(lead, "")
        if before:
            self._write("m.spaced", quoted(before))
        self._write("m.place", quoted(node.name))

    def _directive(self, node: ir.Directive) -> None:
        trivia = node.trivia or ("",) * len(node.tokens)
        text = self._lead(trivia[0], None) + _joined(node.tokens, ("", *trivia[1:]))
        before = "m.directive"
        if node.tokens[0] == ".reg" and self.opened:
            found = declaration(node.tokens)
            if _plain(found):
                names = [self._declare(found, i) for i in range(len(found.names))]
                before = f"{', '.join(names)} = m.reg"
        self.directive = _Directive(len(self.lines), before, text)
        self._rewritten(before, text)

    def _rewritten(self, before: str, text: str) -> None:
        self._write(before, *[quoted(line) for line in text.split(self.newline)])

    def _declare(self, found: Declaration, index: int) -> str:
        name = found.names[index]
        word = found.type
        return self.scope.declare(name.name, name.size, TYPES["e2m1x2" if word == ".b8" else word[1:]])

    # -- blocks ----------------------------------------------------------------------------------------------------

    def _open(self, node: ir.Statement) -> None:
        self.scope.enter()
        if isinstance(node, ir.Function):
            trivia, (before, _) = node.trivia or (), node.body.trivia or ("", "")
            text = self._lead(trivia[0], None) + _joined(node.head, ("", *trivia[1:])) + before
            found = head(node.head)
            self.scope.start({"m", *NAMES, *self.names})
            parts = [p for p in (*found.returns, *found.parameters) if p.space == "reg"]
            names = [self._declare(p, i) for p in parts for i in range(len(p.names))]
            after = f" as {Display('', '()', names)}:" if names else ":"
            self._write("with m.function", *[quoted(line) for line in text.split(self.newline)], after=after)
            inside = True
        else:
            assert isinstance(node, ir.Block) and node.trivia is not None
            self._lead(node.trivia[0], self.styles.styles[self.style].indent)
            inside = len(self.opened) < DEEPEST
            self._write("with m.scope" if inside else "m.open", after=":" if inside else "")
        self.indent += 4 if inside else 0
        self.opened.append(inside)
        self.empty = len(self.lines)

    def _close(self, node: ir.Statement) -> None:
        self.scope.leave()
        block = node.body if isinstance(node, ir.Function) else node
        assert isinstance(block, ir.Block) and block.trivia is not None
        self._lead(block.trivia[1], "" if isinstance(node, ir.Function) else self.styles.styles[self.style].indent)
        inside = self.opened.pop()
        if not inside:
            self._write("m.close")
            return
        if len(self.lines) == self.empty:
            self.lines.append(" " * self.indent + "pass")
        self.indent -= 4


def _plain(found: Declaration) -> bool:
    """Whether the registers have a type that the DSL knows: no vectors."""
    return len(found.words) == 2 and found.type[1:] in TYPES and all(not n.dimensions for n in found.names)


def _joined(words: tuple[str, ...] | list[str], trivia: tuple[str, ...]) -> str:
    return "".join([space + word for space, word in zip(trivia, words)])


def _differences(style: Style) -> list[Argument]:
    """The keywords that make a style."""
    values = [(f.name, getattr(style, f.name), f.default) for f in fields(style)]
    return [f"{name}={quoted(value)}" for name, value, default in values if value != default]


def _uses_crlf(module: ir.Module) -> bool:
    for _, node in _walk(module.statements):
        trivia = node.trivia if not isinstance(node, ir.Comment) else None
        for space in trivia or ():
            if "\n" in space:
                return "\r\n" in space
    return False
