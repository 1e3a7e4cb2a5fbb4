"""Sample calls of every instruction row: each choice of each slot at least once, and random combinations."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from pyptx_ops.dsl.isa.row import Form, FormError, Row, Slot
from pyptx_ops.dsl.trace import Kernel

EXTRA = 40
TRIES = 3000


def options(slot: Slot) -> tuple[Any, ...]:
    """The values that a slot's keyword takes."""
    if slot.is_flag:
        return (True,) if slot.required else (False, True)
    return slot.choices if slot.required or slot.default else (None, *slot.choices)


def draw(row: Row, rng: random.Random, fixed: dict[str, Any]) -> tuple[Form, dict[str, Any], frozenset[str]] | None:
    """A random form with these slots fixed, or None where the draw breaks a rule."""
    values: dict[str, Any] = {}
    for slot in row.slots:
        choices = options(slot)
        plain = choices[0] in (None, False) and rng.random() < 0.6
        values[slot.name] = fixed.get(slot.name, choices[0] if plain else rng.choice(choices))
    optional = [s.name for s in row.specs if s.optional]
    given = frozenset(n for n in optional if fixed.get(n, rng.random() < 0.3))
    try:
        return row.form(values, given), values, given
    except FormError:
        return None


def samples(row: Row) -> Iterator[tuple[Form, dict[str, Any], frozenset[str]]]:
    """Forms that cover every choice and every optional operand, then random ones. Each choice must be reached."""
    rng = random.Random(row.spelling)
    wanted = [(s.name, c) for s in row.slots for c in options(s)] + [(s.name, True) for s in row.specs if s.optional]
    reached: set[tuple[str, Any]] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    goals = [*wanted, *[None] * EXTRA]
    for goal in goals:
        if goal in reached:
            continue
        for _ in range(TRIES if goal else 20):
            drawn = draw(row, rng, dict([goal]) if goal else {})
            if drawn:
                break
        else:
            if goal is None:
                continue
            raise AssertionError(f"{row.path}: no form of {row.spelling!r} has {goal[0]}={goal[1]!r}")
        form, values, given = drawn
        reached |= set(values.items()) | {(n, True) for n in given}
        if (form.opcode, given) not in seen:
            seen.add((form.opcode, given))
            yield drawn


class Arguments:
    """Operands of any kind for one kernel: registers are reused, so that a module stays small."""

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.made: dict[str, list[Any]] = {}

    def reg(self, type_name: str, index: int = 0, role: str = "in") -> Any:
        pool = self.made.setdefault(f"{type_name} {role}", [])
        while len(pool) <= index:
            pool.append(self.kernel.reg(type_name))
        return pool[index]

    def vector(self, type_name: str, count: int, role: str = "in") -> list[Any]:
        return [self.reg(type_name, i, role) for i in range(count)]

    def of(self, form: Form) -> tuple[list[Any], dict[str, Any]]:
        """(positional, optional by name) for a form."""
        positional: list[Any] = []
        optional: dict[str, Any] = {}
        for operand in form.operands:
            if operand.output:
                continue
            values = [self._one(operand, form.opcode)]
            if operand.kind == "tensor":
                values.append(self.vector("s32", operand.count))
            if operand.spec.optional:
                optional[operand.name] = values[0]
            else:
                positional += values
        return positional, optional

    def _one(self, operand: Any, opcode: str) -> Any:
        bounds = operand.bounds
        if operand.kind in ("address", "tensor"):
            in_tensor_memory = opcode.startswith("tcgen05.") and not opcode.startswith("tcgen05.commit")
            return self.reg("u32" if in_tensor_memory else "u64")
        if operand.kind == "immediate":
            return bounds[1] if bounds else 1
        if operand.kind == "label":
            return "$END"
        if operand.count:
            return self.vector(operand.type.name, operand.count, operand.spec.role)
        if bounds:
            return bounds[1]
        return self.reg(operand.type.name)
