"""Which instruction forms are compared: the rows of the instruction table, each with every choice of its modifiers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

from pyptx_ops.dsl.isa import arithmetic, bits, control, convert
from pyptx_ops.dsl.isa.row import Form, FormError, Operand, Row, Slot, Value
from pyptx_ops.dsl.trace import has_target

__all__ = ["TARGET", "Case", "cases", "left_out"]

TARGET = "sm_90a"
FAMILIES = {"arithmetic": arithmetic.ROWS, "bits": bits.ROWS, "convert": convert.ROWS, "warp": control.ROWS}
ELSEWHERE = {
    "bra": "control flow", "ret": "control flow", "exit": "control flow", "trap": "control flow",
    "brkpt": "control flow", "nanosleep": "no value", "pmevent": "no value", "griddepcontrol": "no value",
    "setmaxnreg": "no value",
}  # fmt: skip
IMMEDIATES = {"event": (0,), "count": (24,), "table": (0x96, 0xE8, 0x1B, 0x40)}


@dataclass(frozen=True, eq=False)
class Case:
    """One instruction form to compare. name: unique, and the seed of its inputs. literals: of its integer operands."""

    name: str
    family: str
    form: Form
    values: Mapping[str, Value]
    literals: Mapping[str, int]

    @property
    def row(self) -> Row:
        return self.form.row

    @property
    def inputs(self) -> list[Operand]:
        return [o for o in self.form.operands if not o.output and o.kind == "value" and o.name not in self.literals]

    @property
    def writes_carry(self) -> bool:
        return self.row.path.endswith(".cc") or bool(self.values.get("cc"))

    @property
    def reads_carry(self) -> bool:
        return self.row.path in ("addc", "subc", "madc")


def cases() -> tuple[Case, ...]:
    """Every form, in the order of the table."""
    return tuple(_collected()[0].values())


def left_out() -> dict[str, str]:
    """The forms that are not compared, and why."""
    return _collected()[1]


@cache
def _collected() -> tuple[dict[str, Case], dict[str, str]]:
    found: dict[str, Case] = {}
    without: dict[str, str] = {}
    for family, rows in FAMILIES.items():
        for row in rows:
            for case in _cases_of(family, row):
                why = _why_not(case.form)
                if why:
                    without[case.name] = why
                else:
                    found.setdefault(case.name, case)
    return found, without


def _why_not(form: Form) -> str:
    if form.row.path in ELSEWHERE:
        return ELSEWHERE[form.row.path]
    if any(o.type and o.type.bits == 128 for o in form.operands):
        return "128-bit registers"
    if any(o.type and o.type.declared == "b8" for o in form.operands):
        return "8-bit registers"
    return ""


def _cases_of(family: str, row: Row) -> Iterator[Case]:
    for choice in product(*[_options(slot) for slot in row.slots]):
        values = dict(zip([slot.name for slot in row.slots], choice))
        try:
            form = row.form(values)
        except FormError:
            continue
        if not has_target(TARGET, form.requirement.target):
            continue
        suffix = "".join(f" {s.name}={values[s.name]}" for s in row.slots if not s.spelled)
        shape = ",".join(f"{o.type.name if o.type else o.kind}{o.count or ''}" for o in form.operands)
        numbers = [o.name for o in form.operands if o.kind == "immediate"]
        for literals in product(*[IMMEDIATES[name] for name in numbers]):
            chosen = dict(zip(numbers, literals))
            shown = "".join(f" {name}={value}" for name, value in chosen.items())
            name = f"{form.opcode} {shape}{suffix}{shown}"
            yield Case(name, family, form, values, chosen | _mask(form))


def _mask(form: Form) -> dict[str, int]:
    """The lanes of a warp-wide instruction: all of them."""
    whole = form.row.path in WARP_WIDE
    return {o.name: 0xFFFFFFFF for o in form.operands if o.name == "mask"} if whole else {}


WARP_WIDE = frozenset(row.path for row in control.ROWS)


def _options(slot: Slot) -> tuple[Value, ...]:
    if slot.is_flag:
        return (True,) if slot.required else (False, True)
    return slot.choices if slot.required or slot.default else (None, *slot.choices)
