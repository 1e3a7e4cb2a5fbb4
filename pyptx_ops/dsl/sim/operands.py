"""The order in which the core takes the operands of an instruction whose forms have different ones."""

from __future__ import annotations

from collections.abc import Mapping

from ..ir import Immediate, Operand, Register

__all__ = ["in_order"]

ABSENT = Register("_")

# meaning -> names of operands, in the core's order; "name=text" is a literal where the form does not have the operand
ORDER = {
    "wgmma": "d a b scale_d scale_a=1 scale_b=1 trans_a=0 trans_b=0",
}


def in_order(meaning: str, named: Mapping[str, Operand]) -> list[Operand]:
    """The operands of a form by name, as the core takes them: in their own order where it is always the same."""
    if meaning not in ORDER:
        return list(named.values())
    operands = []
    for entry in ORDER[meaning].split():
        name, _, default = entry.partition("=")
        operands.append(named.get(name, Immediate(default) if default else ABSENT))
    return operands
