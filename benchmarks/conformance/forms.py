"""Which instruction forms are compared: the rows of the instruction table, each with every choice of its modifiers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

from pyptx_ops.dsl.isa import arithmetic, atomic, bits, control, convert, mma
from pyptx_ops.dsl.isa.row import Form, FormError, Operand, Row, Slot, Value
from pyptx_ops.dsl.trace import has_target

__all__ = ["TARGET", "Case", "cases", "left_out"]

TARGET = "sm_90a"
FAMILIES = {"arithmetic": arithmetic.ROWS, "bits": bits.ROWS, "convert": convert.ROWS, "warp": control.ROWS,
            "atomic": atomic.ROWS, "matrix": mma.ROWS}  # fmt: skip
ELSEWHERE = {
    "bra": "control flow", "ret": "control flow", "exit": "control flow", "trap": "control flow",
    "brkpt": "control flow", "nanosleep": "no value", "pmevent": "no value", "griddepcontrol": "no value",
    "setmaxnreg": "no value", "red.async": "completes at an mbarrier", "st.async": "completes at an mbarrier",
    "multimem.ld_reduce": "several GPUs", "multimem.red": "several GPUs", "multimem.st": "several GPUs",
    "wgmma.fence": "no value", "wgmma.commit_group": "no value", "wgmma.wait_group": "no value",
}  # fmt: skip
IMMEDIATES = {"event": (0,), "count": (24,), "pending": (0,), "selector": (0,), "scale_a": (1,), "scale_b": (1, -1),
              "trans_a": (0, 1), "trans_b": (0, 1), "table": (0x96, 0xE8, 0x1B, 0x40)}  # fmt: skip


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
    def kind(self) -> str:
        """What the instruction works on: registers alone ("plain"), or memory of one sort or another."""
        word = self.row.path.partition(".")[0]
        return {"atom": "atomic", "red": "atomic", "ldmatrix": "matrix", "stmatrix": "matrix"}.get(
            word, word if word == "wgmma" else "plain"
        )

    @property
    def inputs(self) -> list[Operand]:
        """The operands with values of their own; the descriptors of wgmma follow from its tiles."""
        free = [o for o in self.form.operands if not o.output and o.kind == "value" and o.name not in self.literals]
        return [o for o in free if self.kind != "wgmma" or o.count]

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
    if any(o.kind in ("label", "function") for o in form.operands):
        return "control flow"
    if any(o.type and o.type.bits == 128 for o in form.operands):
        return "128-bit registers"
    if re.search(r"\.sp\b", form.row.path):
        return "sparse matrices"
    if form.row.path.startswith("wgmma") and "m64n8k" not in form.opcode:
        return "as with 8 columns"
    if any(o.type and o.type.declared == "b8" for o in form.operands):
        return "8-bit registers"
    return ""


def _cases_of(family: str, row: Row) -> Iterator[Case]:
    for choice in product(*[_options(slot) for slot in row.slots]):
        values = dict(zip([slot.name for slot in row.slots], choice))
        if any(values.get(name) not in few for name, few in ENOUGH.items()):
            continue
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
            yield Case(name, family, form, values, chosen | _uniform(form))


def _uniform(form: Form) -> dict[str, int]:
    """Operands that all lanes share: the lanes of a warp-wide instruction (all of them), whether wgmma adds to D."""
    fixed = {"scale_d": 1} | ({"mask": 0xFFFFFFFF} if form.row.path in WARP_WIDE else {})
    return {o.name: fixed[o.name] for o in form.operands if o.name in fixed}


# Of these modifiers some choices stand for all: they change no value, or the value alike.
ENOUGH: dict[str, tuple[Value, ...]] = {"sem": (None,), "scope": (None,), "space": (None, "global", "shared::cta")}
WARP_WIDE = frozenset(row.path for row in control.ROWS)


def _options(slot: Slot) -> tuple[Value, ...]:
    if slot.is_flag:
        return (True,) if slot.required else (False, True)
    return slot.choices if slot.required or slot.default else (None, *slot.choices)
