"""IR to text. A statement with trivia prints as it was read, one without in the canonical layout."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, chain

from .ir import (
    Address,
    Arguments,
    Block,
    Comment,
    Directive,
    Expression,
    Function,
    Immediate,
    Instruction,
    Label,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    Sampled,
    Statement,
    Symbol,
    TensorCoordinates,
    Vector,
)

__all__ = ["Words", "print_module", "print_operand", "tokens"]


PIECE = 1 << 12  # tokens


def print_module(module: Module) -> str:
    """The PTX text of a module."""
    pieces: list[str] = []
    out: list[str] = []
    words = Words()
    todo = [(iter(module.statements), "", "")]  # blocks that are open: what is left of them, their end, their indent
    while todo:
        body, end, indent = todo[-1]
        for node in body:
            if len(out) > PIECE:  # few enough that they stay in the cache
                pieces.append("".join(out))
                out.clear()
            if isinstance(node, Instruction) and node.trivia is not None:
                out += _laid_out(node, words)
            elif isinstance(node, (Directive, Label)) and node.trivia is not None:
                flat = node.tokens if isinstance(node, Directive) else (node.name, ":")
                out += chain.from_iterable(zip(node.trivia, flat, strict=True))
            elif isinstance(node, (Block, Function)):
                start, block, end, indent = _opened(node, indent)
                out.append(start)
                todo.append((iter(block.body), end, indent))
                break
            else:
                out.append(_canonical(node, indent))
        else:
            todo.pop()
            out.append(end)
    return "".join([*pieces, *out, module.trailing])


class Words(dict[Operand, tuple[str, ...]]):
    """An operand -> its tokens and a comma."""

    def __missing__(self, operand: Operand) -> tuple[str, ...]:
        words = self[operand] = (*tokens(operand), ",")
        return words

    def of(self, node: Instruction) -> list[str]:
        """The tokens of an instruction."""
        opcode, operands, guard, _, _, split = node
        flat = [opcode, *chain.from_iterable(map(self.__getitem__, operands))]
        if operands:
            flat[-1] = ";"
        else:
            flat.append(";")
        if split:
            flat[:1] = _pieces(opcode, split)
        if guard is not None:
            flat[:0] = ["@", guard.name] if isinstance(guard, Register) else ["@", "!", guard.operand.name]
        return flat


def _laid_out(node: Instruction, words: Words) -> Iterator[str]:
    """An instruction as it was read; where its tokens are other ones than it had, with what stood before it only."""
    flat, trivia = words.of(node), node.trivia
    assert trivia is not None
    if len(flat) != len(trivia):
        return iter((trivia[0], _canonical(node, "")[:-1]))
    return chain.from_iterable(zip(trivia, flat))


def _pieces(opcode: str, split: tuple[int, ...]) -> list[str]:
    return [opcode[end - length : end] for end, length in zip(accumulate(split), split)]


def _opened(node: Block | Function, indent: str) -> tuple[str, Block, str, str]:
    """A block up to its brace, its block, its closing brace, and the indent of what is in it."""
    block = node.body if isinstance(node, Function) else node
    head = ""
    if isinstance(node, Function):
        head = f"\n{_flat(node.head)}\n" if node.trivia is None else ""
        head = head or "".join([space + word for space, word in zip(node.trivia or (), node.head, strict=True)])
        indent = ""
    if block.trivia is not None:
        return head + block.trivia[0] + "{", block, block.trivia[1] + "}", ""
    return f"{head}{indent}{{\n", block, f"{indent}}}\n", indent + "    "


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
        return f"[{base}{operand.plus}{operand.offset}]" if operand.offset else f"[{base}]"
    if isinstance(operand, Negated):
        return "!" + operand.operand.name
    if isinstance(operand, Pair):
        return f"{print_operand(operand.first)}|{print_operand(operand.second)}"
    if isinstance(operand, TensorCoordinates):
        return f"[{print_operand(operand.map)}, {print_operand(operand.coordinates)}]"
    if isinstance(operand, Sampled):
        return f"[{', '.join(map(print_operand, operand))}]"
    if isinstance(operand, Arguments):
        return f"({', '.join(map(print_operand, operand.elements))})"
    if isinstance(operand, Expression):
        return "".join(operand.tokens)
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
            yield from (node.plus, node.offset) if node.plus else (node.offset,)
        yield "]"
    elif isinstance(node, TensorCoordinates):
        yield "["
        yield from _separated((node.map, node.coordinates))
        yield "]"
    elif isinstance(node, Sampled):
        yield "["
        yield from _separated(node)
        yield "]"
    elif isinstance(node, Arguments):
        yield "("
        yield from _separated(node.elements)
        yield ")"
    elif isinstance(node, Expression):
        yield from node.tokens
    elif isinstance(node, Instruction):
        if node.guard is not None:
            yield "@"
            yield from tokens(node.guard)
        yield from _pieces(node.opcode, node.split) if node.split else (node.opcode,)
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


def _canonical(node: Statement, indent: str) -> str:
    """A statement without a body, in the canonical layout."""
    if isinstance(node, Comment):
        return f"{indent}// {node.text}\n"
    if isinstance(node, Instruction):
        guard = ""
        if node.guard is not None:
            guard = f"@{print_operand(node.guard)} "
        operands = ", ".join([print_operand(o) for o in node.operands])
        return f"{indent}{guard}{node.opcode}{' ' if operands else ''}{operands};\n"
    if isinstance(node, Label):
        return f"{node.name}:\n"
    assert isinstance(node, Directive)
    return f"{indent}{_flat(node.tokens)}\n"


def _flat(words: tuple[str, ...]) -> str:
    """Directive tokens with one space between words and none around punctuation that binds."""
    text = " ".join(words)
    for mark in (",", ";", ")", "]"):
        text = text.replace(f" {mark}", mark)
    return text.replace("( ", "(").replace(" [", "[").replace("[ ", "[").replace(" < ", "<").replace(" >", ">")
