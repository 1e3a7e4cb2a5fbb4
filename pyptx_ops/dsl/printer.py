"""IR to text. A statement with trivia prints as it was read, one without in the canonical layout."""

from __future__ import annotations

from collections.abc import Iterator

from .ir import (
    Address,
    Block,
    Comment,
    Directive,
    Function,
    Immediate,
    Instruction,
    Label,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    Statement,
    Symbol,
    TensorCoordinates,
    Vector,
)

__all__ = ["print_module", "print_operand", "tokens"]


def print_module(module: Module) -> str:
    """The PTX text of a module."""
    return "".join(_print(statement, "") for statement in module.statements) + module.trailing


def print_operand(operand: Operand) -> str:
    """One operand in the canonical layout."""
    if isinstance(operand, (Register, Symbol)):
        return operand.name
    if isinstance(operand, Immediate):
        return operand.text
    if isinstance(operand, Vector):
        return "{" + ", ".join([print_operand(e) for e in operand.elements]) + "}"
    if isinstance(operand, Address):
        base = print_operand(operand.base)
        return f"[{base}+{operand.offset}]" if operand.offset else f"[{base}]"
    if isinstance(operand, Negated):
        return "!" + operand.operand.name
    if isinstance(operand, Pair):
        return f"{print_operand(operand.first)}|{print_operand(operand.second)}"
    if isinstance(operand, TensorCoordinates):
        return f"[{print_operand(operand.map)}, {print_operand(operand.coordinates)}]"
    raise TypeError(f"not an operand: {operand!r}")


def tokens(node: Statement | Operand) -> Iterator[str]:
    """The tokens of a statement or operand in order, without white space or comments."""
    if isinstance(node, (Register, Symbol)):
        yield node.name
    elif isinstance(node, Immediate):
        yield node.text
    elif isinstance(node, Negated):
        yield from ("!", node.operand.name)
    elif isinstance(node, Vector):
        yield "{"
        yield from _separated(node.elements)
        yield "}"
    elif isinstance(node, Pair):
        yield from tokens(node.first)
        yield "|"
        yield from tokens(node.second)
    elif isinstance(node, Address):
        yield "["
        yield from tokens(node.base)
        if node.offset:
            yield from ("+", node.offset)
        yield "]"
    elif isinstance(node, TensorCoordinates):
        yield "["
        yield from _separated((node.map, node.coordinates))
        yield "]"
    elif isinstance(node, Instruction):
        if node.guard is not None:
            yield "@"
            yield from tokens(node.guard)
        yield node.opcode
        yield from _separated(node.operands)
        yield ";"
    elif isinstance(node, Label):
        yield from (node.name, ":")
    elif isinstance(node, Directive):
        yield from node.tokens
    else:
        raise TypeError(f"{type(node).__name__} has no flat token list")


def _separated(operands: tuple[Operand, ...]) -> Iterator[str]:
    for i, operand in enumerate(operands):
        if i:
            yield ","
        yield from tokens(operand)


def _print(node: Statement, indent: str) -> str:
    if isinstance(node, Comment):
        return f"{indent}// {node.text}\n"
    if node.trivia is not None:
        return _print_with_trivia(node)
    if isinstance(node, Instruction):
        guard = ""
        if node.guard is not None:
            guard = f"@{print_operand(node.guard)} "
        operands = ", ".join([print_operand(o) for o in node.operands])
        return f"{indent}{guard}{node.opcode}{' ' if operands else ''}{operands};\n"
    if isinstance(node, Label):
        return f"{node.name}:\n"
    if isinstance(node, Directive):
        return f"{indent}{_canonical(node.tokens)}\n"
    if isinstance(node, Block):
        body = "".join([_print(s, indent + "    ") for s in node.body])
        return f"{indent}{{\n{body}{indent}}}\n"
    return f"\n{_canonical(node.head)}\n{_print(node.body, '')}"


def _canonical(words: tuple[str, ...]) -> str:
    """Directive tokens with one space between words and none around punctuation that binds."""
    text = " ".join(words)
    for mark in (",", ";", ")", "]"):
        text = text.replace(f" {mark}", mark)
    return text.replace("( ", "(").replace(" [", "[").replace("[ ", "[").replace(" < ", "<").replace(" >", ">")


def _print_with_trivia(node: Statement) -> str:
    trivia = node.trivia  # type: ignore[union-attr]
    assert trivia is not None
    if isinstance(node, Block):
        return trivia[0] + "{" + "".join([_print(s, "") for s in node.body]) + trivia[1] + "}"
    if isinstance(node, Function):
        head = "".join([space + word for space, word in zip(trivia, node.head)])
        return head + _print(node.body, "")
    return "".join([space + word for space, word in zip(trivia, tokens(node), strict=True)])
