"""What a row of the instruction table says, and how its spelling and operands are read.

**Spelling.** Literal text and slots in braces, in the order in which PTX wants them:

| written | Python keyword | meaning |
|---|---|---|
| `{.sat}` | `sat=False` | a flag; `{.ftz!}` is one that the row cannot do without |
| `{.rnd:rn\\|rz}` | `rnd=None` | one of the choices, or nothing |
| `{.space:global\\|shared::cta=global}` | `space="global"` | the default is spelled out; None leaves the slot out |
| `{.type:@int}` with operands of `$type` | `type=None` | inferred from the operands when it is not given |
| `{.shape!:m64n8k16}` | `shape` | must be given |
| `{.L2::cache_hint?policy}` | – | spelled if and only if the operand `policy` is given |
| `{~num:2\\|4=2}` | `num="2"` | not spelled: settles operands only |

`@name` stands for a set of choices in CHOICES. A choice may end in `@8.6` (PTX version) or `@sm_90a` (target), or both,
when it needs more than its row does. What one slot cannot say alone (two slots that go together, a shape that a type
does not have) is a function in `rules`, which sees every modifier and the optional operands that are given: it returns
None, what is wrong, or the Requirement of that combination.

**Operands.** Words separated by spaces, in PTX order:

| written | meaning |
|---|---|
| `a:u32`, `a:$type`, `a:$type^2` | a register or literal of that type; `^2`: twice the width; or a name in DERIVED |
| `a~$type` | the register may be wider |
| `a:u32[0,15]` | literals lie within these bounds (and step); the upper one may be a function in COUNTS |
| `=d:u32` | a destination: returned, in a fresh register or in `out=` |
| `=d:u32\\|p:pred` | two destinations, `d\\|p`; `=_\\|p:pred` has the sink as its first |
| `=?d:b64` | a destination that is the sink `_` unless `out=` names a register |
| `+d:f32*N` | a register that is read and written, so the caller passes it |
| `a:b32*4`, `a:$type*$vec`, `a:b32*count` | a vector `{…}`: a number, a slot's number, or a function in COUNTS |
| `#n` | an integer literal; `#n[0,255,8]` with bounds and a step |
| `[a]` | an address: a register, `reg.at(bytes)`, a shared-memory reference, a parameter or global |
| `[map,c*$dim]` | a tensor map and its coordinates |
| `a:label` | a label, function or global name |
| `a:function` | a function's name, or a register that holds its address |
| `(a)` | what a call passes or gets back, in parentheses |
| `?x:…` | may be left out |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Union

from ..types import TYPES, Type

__all__ = ["CHOICES", "COUNTS", "DERIVED", "Form", "FormError", "OperandSpec", "Requirement", "Row", "Slot"]

Value = Union[str, bool, None]

CHOICES: dict[str, str] = {
    "int": "u16|u32|u64|s16|s32|s64",
    "int32": "u32|s32",
    "bits": "b16|b32|b64",
    "float": "f32|f64",
    "half": "f16|bf16",
    "half2": "f16x2|bf16x2",
    "word": "b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64",
    "data": "b8|u8|s8|b16|b32|b64|b128@8.3|u16|u32|u64|s16|s32|s64|f32|f64",
    "frnd": "rn|rz|rm|rp",
    "cmp": "eq|ne|lt|le|gt|ge|lo|ls|hi|hs|equ|neu|ltu|leu|gtu|geu|num|nan",
    "scope": "cta|cluster|gpu|sys",
    "vec": "v2|v4",
    "smem": "shared::cta|shared::cluster",
    "l1": "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate",
    "l2evict": "L2::evict_last|L2::evict_normal|L2::evict_first",
    "l2size": "L2::64B|L2::128B|L2::256B",
    "dim": "1d|2d|3d|4d|5d",
}

COUNTS: dict[str, Callable[[Mapping[str, Value]], int]] = {}
DERIVED: dict[str, Callable[[Mapping[str, Value]], str]] = {}


class FormError(ValueError):
    """A modifier or operand that the row does not take."""


@dataclass(frozen=True, order=True)
class Requirement:
    """The lowest PTX version, and the target, that a form needs. `target` is "sm_90", "sm_90a", … or "a" (any a)."""

    version: tuple[int, int] = (1, 0)
    target: str = "sm_50"

    def with_(self, other: Requirement | None) -> Requirement:
        """Both: the higher version, and the other target where it names one."""
        if other is None:
            return self
        return Requirement(max(self.version, other.version), self.target if other.target == "sm_50" else other.target)


@dataclass(frozen=True)
class Slot:
    """A place in a spelling: a keyword of the Python function."""

    name: str
    choices: tuple[str, ...]
    default: Value
    required: bool
    operand: str | None
    needs: Mapping[str, Requirement]
    spelled: bool = True

    @property
    def is_flag(self) -> bool:
        return not self.choices

    def spell(self, value: Value, given: frozenset[str]) -> str:
        """The text of this slot for a keyword's value."""
        if self.operand is not None:
            return f".{self.name}" if self.operand in given else ""
        if self.is_flag:
            if not isinstance(value, bool):
                raise FormError(f"{self.name} is a flag and takes True or False, got {value!r}")
            if self.required and not value:
                raise FormError(f"{self.name}=True is compulsory here")
            return f".{self.name}" if value else ""
        if value is None and not self.required:
            return ""
        if value not in self.choices:
            raise FormError(f"{self.name} takes {' or '.join(map(repr, self.choices))}, got {value!r}")
        return f".{value}" if self.spelled else ""


@dataclass(frozen=True)
class OperandSpec:
    """One operand: `kind` is "value", "immediate", "address", "tensor", "label", "function" or "arguments"."""

    name: str
    kind: str
    type: str = ""
    count: str = ""
    role: str = "in"
    optional: bool = False
    sink: bool = False
    wider: bool = False
    second: tuple[str, str] | None = None
    bounds: tuple[int, Union[int, str], int] | None = None


@dataclass(frozen=True, eq=False)
class Operand:
    """An operand of one form, with its type and count settled. `count` 0 is a scalar, outside braces.

    `takes` names the register types that may stand for an input scalar; `fresh` is the type of
    the register that a destination gets when the caller gives none.
    """

    spec: OperandSpec
    name: str
    kind: str
    type: Type | None
    second: Type | None
    count: int
    output: bool
    bounds: tuple[int, int, int] | None
    takes: frozenset[str]
    fresh: Type | None
    element: Operand | None = None

    @property
    def may_be_braced(self) -> bool:
        """Whether one element may stand in braces: where it could be a vector."""
        return self.count == 0 and self.spec.count == "$vec"


@dataclass(frozen=True, eq=False)
class Form:
    """A row with its modifiers settled: the opcode as it is printed, and what each operand must be."""

    row: Row
    opcode: str
    operands: tuple[Operand, ...]
    requirement: Requirement


Rule = Callable[[Mapping[str, Value]], Union[str, Requirement, None]]
"""Sees the modifiers and given operands of a form; returns what is wrong, what it needs, or None."""

NAMES = ("label", "function")
_SLOT = re.compile(r"\{([.~][^{}]+)\}")
_SPEC = re.compile(
    r"(?P<optional>\?)?(?P<role>[=+])?(?P<sink>\?)?(?P<name>\w+)(?P<sep>[:~])(?P<type>[$\w^]+)"
    r"(?:\*(?P<count>[$\w]+))?(?:\|(?P<second>\w+):(?P<second_type>[$\w]+))?(?:\[(?P<bounds>[-\w,]+)\])?$"
)


@dataclass(frozen=True)
class Row:
    """One instruction form.

    path: its Python name.  since, target: the lowest PTX version and target that have it.
    meaning: the key under which a simulator finds its effect, `path` if not given.
    """

    path: str
    spelling: str
    operands: str = ""
    since: str = "1.0"
    target: str = "sm_50"
    meaning: str = ""
    doc: str = ""
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "meaning", self.meaning or self.path)

    @cached_property
    def segments(self) -> tuple[Union[str, Slot], ...]:
        """The spelling as literal texts and slots, in order."""
        parts: list[Union[str, Slot]] = []
        end = 0
        for match in _SLOT.finditer(self.spelling):
            if match.start() > end:
                parts.append(self.spelling[end : match.start()])
            parts.append(_parse_slot(match.group(1)))
            end = match.end()
        if end < len(self.spelling):
            parts.append(self.spelling[end:])
        return tuple(parts)

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """The slots that are keywords of the Python function."""
        return tuple(s for s in self.segments if isinstance(s, Slot) and s.operand is None)

    @cached_property
    def specs(self) -> tuple[OperandSpec, ...]:
        return tuple(_parse_operand(word) for word in self.operands.split())

    @cached_property
    def requirement(self) -> Requirement:
        return Requirement(_version(self.since), self.target)

    def form(self, values: Mapping[str, Value], given: frozenset[str] = frozenset()) -> Form:
        """The form for the keywords `values` and the optional operands `given`. Raises FormError."""
        opcode = ""
        need = self.requirement
        for segment in self.segments:
            if isinstance(segment, str):
                opcode += segment
                continue
            value = values.get(segment.name, segment.default) if segment.operand is None else None
            text = segment.spell(value, given)
            opcode += text
            if text:
                need = need.with_(segment.needs.get(str(value) if segment.choices else segment.name))
        full = {s.name: values.get(s.name, s.default) for s in self.slots} | dict.fromkeys(given, True)
        for rule in self.rules:
            verdict = rule(full)
            if isinstance(verdict, str):
                raise FormError(verdict)
            need = need.with_(verdict)
        operands = tuple(_settle(spec, full) for spec in self.specs if not spec.optional or spec.name in given)
        return Form(self, opcode, operands, need)

    def match(self, opcode: str) -> dict[str, Value] | None:
        """The keyword values with which this row spells `opcode`, or None. Operand-bound slots come back as flags."""
        return _match(self.segments, opcode)


def _match(segments: tuple[Union[str, Slot], ...], text: str) -> dict[str, Value] | None:
    if not segments:
        return {} if not text else None
    head, rest = segments[0], segments[1:]
    if isinstance(head, str):
        return _match(rest, text[len(head) :]) if text.startswith(head) else None
    if not head.spelled:
        found = _match(rest, text)
        return None if found is None else {head.name: head.default, **found}
    if head.is_flag:
        spelled: tuple[str, ...] = (head.name,)
    else:
        spelled = head.choices
    for choice in sorted(spelled, key=len, reverse=True):
        if text.startswith("." + choice):
            found = _match(rest, text[len(choice) + 1 :])
            if found is not None:
                return {head.name: True if head.is_flag else choice, **found}
    if not head.required:
        found = _match(rest, text)
        if found is not None:
            return {head.name: False if head.is_flag else None, **found}
    return None


def _version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


def _parse_slot(text: str) -> Slot:
    shown, text = text[0] == ".", text[1:]
    if ":" not in text.replace("::", ""):
        text, need = _annotation(text)
        name, _, operand = text.partition("?")
        required, name = name.endswith("!"), name.rstrip("!")
        return Slot(name, (), False, required, operand or None, {name: need} if need else {})
    name, choices = re.split(r"(?<!:):(?!:)", text, maxsplit=1)
    required = name.endswith("!")
    name = name.rstrip("!")
    choices, _, default = choices.partition("=")
    words: list[str] = []
    needs: dict[str, Requirement] = {}
    for choice in choices.split("|"):
        expanded = CHOICES[choice[1:]].split("|") if choice.startswith("@") else [choice]
        for word in expanded:
            word, need = _annotation(word)
            words.append(word)
            if need:
                needs[word] = need
    inferred = name == "type" and not default
    return Slot(name, tuple(words), default or None, required or inferred, None, needs, shown)


def _annotation(word: str) -> tuple[str, Requirement | None]:
    word, *marks = word.split("@")
    if not marks:
        return word, None
    version, target = (1, 0), "sm_50"
    for mark in marks:
        if mark[0].isdigit():
            version = _version(mark)
        else:
            target = mark
    return word, Requirement(version, target)


def _parse_operand(word: str) -> OperandSpec:
    optional = word.startswith("?")
    bare = word.lstrip("?")
    if bare.startswith("#"):
        name, _, bounds = bare[1:].rstrip("]").partition("[")
        return OperandSpec(name, "immediate", optional=optional, bounds=_bounds(bounds))
    if bare.startswith("["):
        inner = bare.strip("[]")
        if "," in inner:
            name, coordinates = inner.split(",")
            coordinate_name, count = coordinates.split("*")
            return OperandSpec(name, "tensor", "s32", count, optional=optional, second=(coordinate_name, "s32"))
        return OperandSpec(inner, "address", optional=optional)
    if bare.startswith("("):
        return OperandSpec(bare.strip("()"), "arguments", optional=optional)
    match = _SPEC.match(word)
    if match is None:
        raise ValueError(f"operand {word!r} is not written as the table wants it")
    role = {"=": "out", "+": "inout", None: "in"}[match["role"]]
    second = (match["second"], match["second_type"]) if match["second"] else None
    kind = match["type"] if match["type"] in NAMES else "value"
    return OperandSpec(
        match["name"], kind, match["type"], match["count"] or "", role,
        bool(match["optional"]), bool(match["sink"]), match["sep"] == "~", second, _bounds(match["bounds"]),
    )  # fmt: skip


def _bounds(text: str | None) -> tuple[int, Union[int, str], int] | None:
    if not text:
        return None
    low, high, *step = text.split(",")
    return int(low), high if high in COUNTS else int(high), int(step[0]) if step else 1


def _settle(spec: OperandSpec, values: Mapping[str, Value]) -> Operand:
    settled = _settle_type(spec.type, values) if spec.type and spec.kind not in NAMES else None
    second = _settle_type(spec.second[1], values) if spec.second else None
    bounds = None
    if spec.bounds is not None:
        low, high, step = spec.bounds
        bounds = low, COUNTS[high](values) if isinstance(high, str) else high, step
    count = _settle_count(spec.count, values)
    takes = frozenset(_registers(settled, spec.wider)) if settled else frozenset[str]()
    output = spec.role == "out"
    simple = not count and spec.kind == "value" and second is None
    fresh = settled if output and simple and not spec.sink and spec.name != "_" else None
    if simple:
        return Operand(spec, spec.name, spec.kind, settled, second, 0, output, bounds, takes, fresh)
    element = Operand(spec, spec.name, spec.kind, settled, None, 0, False, bounds, takes, None)
    return Operand(spec, spec.name, spec.kind, settled, second, count, output, bounds, frozenset(), fresh, element)


def _registers(wanted: Type, wider: bool) -> Iterator[str]:
    """The register types that fit where `wanted` is taken."""
    for name, other in TYPES.items():
        if wanted.accepts(other) or (wider and other.bits > wanted.bits):
            yield name


def _settle_type(text: str, values: Mapping[str, Value]) -> Type:
    if text in DERIVED:
        text = DERIVED[text](values)
    text, _, factor = text.partition("^")
    name = str(values[text[1:]]) if text.startswith("$") else text
    if factor:
        name = f"{name[0]}{int(name[1:]) * int(factor)}"
    if name not in TYPES:
        raise FormError(f"no register holds the type {name!r}")
    return TYPES[name]


def _settle_count(text: str, values: Mapping[str, Value]) -> int:
    if not text:
        return 0
    if text.isdigit():
        return int(text)
    if text.startswith("$"):
        value = values[text[1:]]
        return int("".join(c for c in str(value) if c.isdigit())) if value is not None else 0
    return COUNTS[text](values)
