"""Registers by name: where they are declared, and what renaming one changes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Union

from ..ir import (
    Address,
    Arguments,
    Block,
    Directive,
    Expression,
    Function,
    Instruction,
    Module,
    Negated,
    Pair,
    Register,
    Sampled,
    Statement,
    Symbol,
    TensorCoordinates,
    Vector,
)
from .declarations import Declarator, declaration, head

__all__ = ["declares", "function_name", "registers", "rename"]

NAME = re.compile(r"[A-Za-z][\w$]*|[_$%][\w$]+", re.ASCII)


def registers(node: Union[Directive, Function]) -> tuple[Declarator, ...]:
    """The registers that a `.reg` directive, or the head of a function, declares. None for other directives."""
    if isinstance(node, Function):
        found = head(node.head)
        parts = [p for p in (*found.returns, *found.parameters) if p.space == "reg"]
        return tuple(name for part in parts for name in part.names)
    return declaration(node.tokens).names if node.tokens[0] == ".reg" else ()


def function_name(function: Function) -> str:
    return head(function.head).name


def declares(declarator: Declarator, name: str) -> bool:
    """Whether `name` is the declared register, or one of `name<N>`."""
    if declarator.size is None:
        return declarator.name == name
    number = name[len(declarator.name) :] if name.startswith(declarator.name) else ""
    return number.isdigit() and str(int(number)) == number and int(number) < int(declarator.size)


def rename(module: Module, function: str, old: str, new: str) -> Module:
    """The module with one register of a function renamed: its tokens change and no other one.

    The register is the one that the function's outermost block (or head) declares; where only an inner block declares
    it, that one. A block that declares the name again keeps it. A register out of a range such as `%r<5>` leaves the
    range as it is and is declared beside it. Raises ValueError where there is no such register, where several blocks
    declare it, and where the new name is taken.
    """
    if not NAME.fullmatch(new):
        raise ValueError(f"{new!r} is no PTX identifier")
    places = [i for i, s in enumerate(module.statements) if isinstance(s, Function) and function_name(s) == function]
    if not places:
        raise ValueError(f"the module has no function {function!r} with a body")
    node = module.statements[places[0]]
    assert isinstance(node, Function)
    if any(_mentions(statement, new) for statement in _all(node)):
        raise ValueError(f"{new} is taken in {function}")
    changed: Statement = _renamed(node, _scope(node, old, function), old, new)
    statements = (*module.statements[: places[0]], changed, *module.statements[places[0] + 1 :])
    return module._replace(statements=statements)


def _all(function: Function) -> Iterator[Statement]:
    """The function and the statements in it, at any depth."""
    todo: list[Statement] = [function]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, (Function, Block)):
            todo += node.body.body if isinstance(node, Function) else node.body


def _mentions(node: Statement, name: str) -> bool:
    if isinstance(node, (Directive, Function)):
        words = node.tokens if isinstance(node, Directive) else node.head
        return name in words or any(declares(declarator, name) for declarator in registers(node))
    if not isinstance(node, Instruction):
        return getattr(node, "name", None) == name
    guard = () if node.guard is None else (node.guard,)
    return any(_renamed_operand(operand, name, "") != operand for operand in (*guard, *node.operands))


def _scope(function: Function, name: str, called: str) -> Union[Function, Block]:
    """The node in whose scope the register is declared."""
    if _declared_in(function, name):
        return function
    blocks = [s for s in _all(function) if isinstance(s, Block) and _declared_in(s, name)]
    if len(blocks) != 1:
        what = "no register" if not blocks else f"{len(blocks)} blocks that declare"
        raise ValueError(f"{called} has {what} {name}")
    return blocks[0]


def _declared_in(node: Union[Function, Block], name: str) -> bool:
    body = node.body.body if isinstance(node, Function) else node.body
    own = registers(node) if isinstance(node, Function) else ()
    inner = [declarator for s in body if isinstance(s, Directive) for declarator in registers(s)]
    return any(declares(declarator, name) for declarator in (*own, *inner))


def _renamed(function: Function, scope: Union[Function, Block], old: str, new: str) -> Function:
    """The function with `old` renamed within `scope`, and not within blocks that declare it again."""
    todo = [(function.body, iter(function.body.body), scope is function)]
    done: list[list[Statement]] = [[]]
    while True:
        block, rest, inside = todo[-1]
        for statement in rest:
            if isinstance(statement, Block):
                within = statement is scope or (inside and not _declared_in(statement, old))
                todo.append((statement, iter(statement.body), within))
                done.append([])
                break
            done[-1].append(_renamed_statement(statement, old, new) if inside else statement)
        else:
            todo.pop()
            finished = block._replace(body=tuple(done.pop()))
            if not todo:
                words, trivia = function.head, function.trivia
                if scope is function:
                    words, trivia = _redeclared(words, trivia, registers(function), old, new)
                return Function(words, finished, trivia)
            done[-1].append(finished)


def _renamed_statement(statement: Statement, old: str, new: str) -> Statement:
    if isinstance(statement, Instruction):
        operands = tuple([_renamed_operand(operand, old, new) for operand in statement.operands])
        guard = statement.guard and _renamed_operand(statement.guard, old, new)
        return statement._replace(operands=operands, guard=guard)
    if isinstance(statement, Directive) and statement.tokens[0] == ".reg":
        words, trivia = _redeclared(statement.tokens, statement.trivia, registers(statement), old, new)
        return Directive(words, trivia)
    return statement


def _redeclared(
    words: tuple[str, ...], trivia: tuple[str, ...] | None, names: Sequence[Declarator], old: str, new: str
) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """The tokens of a declaration with the name in them changed, or added after the range that it is of."""
    for declarator in names:
        if not declares(declarator, old):
            continue
        at = declarator.at
        if declarator.size is None:
            return (*words[:at], new, *words[at + 1 :]), trivia
        end = at + 4  # name < N >
        return (*words[:end], ",", new, *words[end:]), trivia and (*trivia[:end], "", " ", *trivia[end:])
    return words, trivia


def _renamed_operand(operand: Any, old: str, new: str) -> Any:
    """The operand with a register's name changed, also in front of a component (`v.x`, `%r1.b0`)."""
    if isinstance(operand, (Register, Symbol)):
        return Register(_renamed_word(operand.name, old, new)) if isinstance(operand, Register) else operand
    if isinstance(operand, Address):
        return operand._replace(base=_renamed_operand(operand.base, old, new))
    if isinstance(operand, (Vector, Arguments)):
        return type(operand)(tuple([_renamed_operand(e, old, new) for e in operand.elements]))
    if isinstance(operand, Expression):
        return Expression(tuple([_renamed_word(word, old, new) for word in operand.tokens]))
    if isinstance(operand, (Negated, Pair, TensorCoordinates, Sampled)):
        return type(operand)(*[_renamed_operand(part, old, new) for part in operand])
    return operand


def _renamed_word(word: str, old: str, new: str) -> str:
    name, dot, component = word.partition(".")
    return new + dot + component if name == old else word
