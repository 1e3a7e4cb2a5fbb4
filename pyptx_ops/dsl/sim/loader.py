"""PTX text to a program of the simulator's core: every instruction is decoded by its row of the instruction table.

An instruction whose meaning, modifier or operand the core does not have fails here, with its name and line.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..check import forms_of
from ..errors import Location
from ..ir import Address, Immediate, Instruction, Negated, Operand, Pair, Register, Symbol, TensorCoordinates, Vector
from ..isa.row import Form, Value
from ..types import SPECIAL_REGISTERS
from .operands import ALIASES, REFUSED, in_order
from .ptx import Line, PtxError, Text, read

try:
    from ... import _sim
except ImportError as error:
    raise ImportError(
        "pyptx_ops._sim is not built; run `python setup.py build_ext --inplace` in the source tree"
    ) from error

__all__ = ["Program", "load"]

OPERATIONS = {name: number for number, name in enumerate(_sim.OPERATIONS)}
WORDS = {name: number for number, name in enumerate(_sim.WORDS)}
TYPES = {name: number for number, name in enumerate(_sim.TYPES)}
FLAGS = {
    "ftz": 1, "sat": 2, "NaN": 4, "relu": 8, "trans": 16, "read": 32, "satfinite": 64, "multicast::cluster": 128,
    "relaxed": 256, "xorsign.abs": 512, "shiftamt": 1024, "cc": 2048, "noinc": 4096, "im2col": 8192,
}  # fmt: skip
SPECIALS = {name: number for number, name in enumerate(_sim.SPECIALS)}
CLOCKS = {
    "clock": "lo", "clock64": "lo", "clock_hi": "hi", "globaltimer": "lo", "globaltimer_lo": "lo",
    "globaltimer_hi": "hi",
}  # fmt: skip
NONE, REGISTER, LITERAL = range(3)
HIGH = ".hi"  # the upper half of a register of 128 bits
TYPE_BITS = {"u32": 32, "b32": 32, "u64": 64, "pred": 1}

# Modifiers that change no value and no order that is modelled.
HINTS = frozenset(
    ["weak", "volatile", "cache", "nc", "l1", "l2", "l2evict", "L2::cache_hint", "uni", "cta", "aligned", "level",
     "sem", "scope", "vec", "shape", "num", "dim", "variant", "oob", "noftz", "mmio", "primary", "secondary"]
)  # fmt: skip
STRONG, ACQUIRE, RELEASE, SCOPE_SHIFT = 1, 2, 4, 4
SEMANTICS = {
    "relaxed": STRONG, "acquire": STRONG | ACQUIRE, "release": STRONG | RELEASE,
    "acq_rel": STRONG | ACQUIRE | RELEASE, "sc": STRONG | ACQUIRE | RELEASE,
}  # fmt: skip
SCOPES = {"cta": 1, "cluster": 2, "gpu": 3, "sys": 3}

# The modifiers that an instruction's words carry, as the core reads them; of several the first that is given.
TYPE_WORDS = ("dtype", "type", "src", "atype", "btype")  # the first two that are given
MODIFIER_WORDS = (("rnd",), ("cmp",), ("bool", "dir"), ("space",), ("op", "action", "mode", "half", "field"))
IM2COL_MODES = ("im2col", "im2col_no_offs")
CARRY = Register("CC.CF")  # what .cc writes and addc, subc, madc read
READS_CARRY = ("addc", "subc", "madc")
WRITES_CARRY = ("add.cc", "sub.cc")
REGISTERS_PER_SM = 65536
MEMORY_ALIGN = 256  # of the constants and of the variables of a module


@dataclass(frozen=True)
class Program:
    """A kernel that is ready to run: the core's handle, and what a launch and a report need.

    params: symbol -> (offset, bytes).  lines: PTX line -> its text.
    locations: PTX line -> where in the Python of the kernel it comes from, if that is known.
    """

    name: str
    handle: object
    params: Mapping[str, tuple[int, int]]
    param_bytes: int
    cluster: tuple[int, int, int]
    lines: Mapping[int, str]
    locations: Mapping[int, Location]


def load(
    text: str,
    *,
    block: tuple[int, int, int],
    cluster: tuple[int, int, int] = (1, 1, 1),
    shared_memory: int = 0,
    instructions: Sequence[Instruction] = (),
) -> Program:
    """Decode a module with one kernel.

    block, cluster, shared_memory: as the kernel is launched (threads, CTAs, dynamic bytes).
    instructions: the same kernel's IR in order, for its Python lines.
    Raises PtxError for what the core cannot run.
    """
    parsed = read(text)
    encoder = _Encoder(parsed, shared_memory)
    code = array("q")
    for line in parsed.lines:
        try:
            code.extend(encoder.instruction(line))
        except ValueError as error:
            raise PtxError(f"{parsed.entry}: PTX line {line.number}: {line.opcode}: {error}") from error
    threads = block[0] * block[1] * block[2]
    registers = parsed.max_registers or min(REGISTERS_PER_SM // (threads * parsed.min_blocks) // 8 * 8, 255)
    constants, variables = bytes(parsed.constants), bytes(parsed.variables)
    constants = constants.ljust(-(-len(constants) // MEMORY_ALIGN) * MEMORY_ALIGN, b"\0")
    head = [*block, *cluster, encoder.shared_bytes, shared_memory, len(constants), registers]
    head.append(bool(parsed.max_registers))
    head += [len(encoder.bits), len(encoder.presets) // 3, len(parsed.lines), *encoder.bits, *encoder.presets]
    try:
        handle = _sim.compile((array("q", head) + code).tobytes(), "\n".join(encoder.slots), constants + variables)
    except ValueError as error:
        number, message = error.args
        opcode = next(line.opcode for line in parsed.lines if line.number == number)
        raise PtxError(f"{parsed.entry}: PTX line {number}: {opcode}: {message}") from error
    source = text.splitlines()
    return Program(
        parsed.entry, handle, parsed.params, parsed.param_bytes, cluster,
        {line.number: source[line.number - 1].strip() for line in parsed.lines},
        {line.number: i.location for line, i in zip(parsed.lines, instructions) if i.location is not None},
    )  # fmt: skip


class _Encoder:
    """Gives registers their slots, and writes each instruction as the words that the core reads."""

    def __init__(self, text: Text, dynamic_bytes: int):
        self.text = text
        self.slots: dict[str, int] = {}
        self.bits: list[int] = []
        self.presets: list[int] = []
        self.symbols: dict[str, int] = {}
        text.registers.setdefault(CARRY.name, 1)
        offset = 0
        for name, size in text.shared.items():
            if size is not None:
                self.symbols[name] = offset
                offset += -(-size // 16) * 16
        for name, size in text.shared.items():
            if size is None:
                self.symbols[name] = offset
        self.shared_bytes = offset + dynamic_bytes

    def instruction(self, line: Line) -> list[int]:
        form, values = _decode(line, self.text.registers)
        meaning = _meaning(form, values, line)
        if meaning in ("tma.load", "tma.store", "tma.prefetch") and (mode := values.pop("mode")) != "tile":
            if mode not in IM2COL_MODES:
                raise ValueError(f"the simulator does not have .{mode}")
            values["im2col"] = True
        flags = _flags(form, values)
        guard = line.guard.operand if isinstance(line.guard, Negated) else line.guard
        types = ["b64" if values[name] == "b128" else values[name] for name in TYPE_WORDS if values.get(name)]
        types = [*(*types, None, None)[:2], values.get("btype")]  # b128 is two registers
        words = [OPERATIONS[meaning], *(_number(TYPES, kind) for kind in types)]
        if form.row.meaning == "atom.cas":
            values["op"] = "cas"
        if meaning == "clock":
            values["mode"] = self._clock(line)
        for names in MODIFIER_WORDS:
            given = (values[name] for name in names if values.get(name) and values[name] != "tile")
            words.append(_number(WORDS, next(given, None)))
        words += [flags, *self._sizes(line, values), _order(meaning, values), line.number]
        words += [self._slot(guard.name) if guard else -1, isinstance(line.guard, Negated)]
        named = dict(zip([operand.name for operand in form.operands], line.operands))
        operands = in_order(meaning, named)
        arguments = [run for operand in operands for run in self._runs(operand, meaning)]
        if meaning in WRITES_CARRY or values.get("cc"):
            arguments[0].append(self._one(CARRY))
        if meaning in READS_CARRY:
            arguments.append([self._one(CARRY)])
        words.append(len(arguments))
        for run in arguments:
            words.append(len(run))
            for operand in run:
                words += operand
        return words

    def _sizes(self, line: Line, values: Mapping[str, Value]) -> tuple[int, int, int]:
        """N, M and K of a matrix shape; where a branch goes."""
        if line.opcode.startswith("bra"):
            (target,) = line.operands
            assert isinstance(target, Symbol)
            return self.text.labels[target.name], 0, 0
        shape = re.fullmatch(r"m(\d+)n(\d+)k(\d+)", str(values.get("shape")))
        return (int(shape[2]), int(shape[1]), int(shape[3])) if shape else (0, 0, 0)

    def _runs(self, operand: Operand, meaning: str) -> list[list[list[int]]]:
        if isinstance(operand, Vector):
            return [[word for element in operand.elements for word in self._words(element)]]
        if isinstance(operand, Pair):
            return [[self._one(operand.first), self._one(operand.second)]]
        if isinstance(operand, TensorCoordinates):
            return [[self._one(operand.map)], [self._one(element) for element in operand.coordinates.elements]]
        return [] if meaning == "bra" else [self._words(operand)]

    def _words(self, operand: Operand) -> list[list[int]]:
        """A register of 128 bits is two."""
        one = self._one(operand)
        if isinstance(operand, Register) and self.text.registers.get(operand.name) == 128:
            return [one, [REGISTER, self._slot(operand.name + HIGH), 0, 0, 0]]
        return [one]

    def _one(self, operand: Operand) -> list[int]:
        """kind, slot, negated, value, offset."""
        if isinstance(operand, Negated):
            return [REGISTER, self._slot(operand.operand.name), 1, 0, 0]
        if isinstance(operand, Address):
            kind, slot, negated, value, _ = self._one(operand.base)
            offset = int(operand.offset or "0", 0)
            return [kind, slot, negated, value, offset]
        if isinstance(operand, Register):
            return [NONE, -1, 0, 0, 0] if operand.name == "_" else [REGISTER, self._slot(operand.name), 0, 0, 0]
        if isinstance(operand, Immediate):
            return [LITERAL, -1, 0, _literal(operand.text), 0]
        assert isinstance(operand, Symbol)
        if operand.name in self.text.params:
            return [LITERAL, -1, 0, self.text.params[operand.name][0], 0]
        if operand.name in self.symbols or operand.name in self.text.places:
            return [REGISTER, self._slot(operand.name), 0, 0, 0]
        raise ValueError(f"the simulator does not know the symbol {operand.name}")

    def _slot(self, name: str) -> int:
        found = self.slots.get(name)
        if found is not None:
            return found
        slot = self.slots[name] = len(self.slots)
        if name.removesuffix(HIGH) in self.text.registers:
            self.bits.append(min(self.text.registers[name.removesuffix(HIGH)], 64))
            return slot
        special = name.lstrip("%")
        if name in self.symbols:
            preset, bits = [SPECIALS["shared symbol"], self.symbols[name]], 32
        elif name in self.text.places:
            space, offset = self.text.places[name]
            offset += 0 if space == "const" else -(-len(self.text.constants) // MEMORY_ALIGN) * MEMORY_ALIGN
            preset, bits = [SPECIALS["memory symbol"], offset], 64
        elif special in SPECIALS:
            preset, bits = [SPECIALS[special], 0], TYPE_BITS[SPECIAL_REGISTERS[special]]
        else:
            raise ValueError(f"the simulator does not have the register {name}")
        self.bits.append(bits)
        self.presets += [slot, *preset]
        return slot

    def _clock(self, line: Line) -> str:
        """Which half of the time a `mov` reads."""
        source = line.operands[1]
        assert isinstance(source, Register)
        return CLOCKS[source.name.lstrip("%")]


def _meaning(form: Form, values: Mapping[str, Value], line: Line) -> str:
    """The core's name for what a form does. Raises ValueError where it has none."""
    meaning = ALIASES.get(form.row.meaning, form.row.meaning)
    if meaning.startswith("mov"):
        source = line.operands[1]
        if isinstance(source, Register) and source.name.lstrip("%") in CLOCKS:
            meaning = "clock"
        elif values.get("type") == "b128":
            meaning = "mov.b128"
    if meaning not in OPERATIONS:
        reason = REFUSED.get(form.row.meaning)
        raise ValueError("the simulator has no meaning for this instruction" + (f": {reason}" if reason else ""))
    return meaning


def _number(table: Mapping[str, int], name: Value) -> int:
    if name is None or name is False:
        return 0
    if name not in table:
        raise ValueError(f"the simulator does not have .{name}")
    return table[str(name)]


def _order(meaning: str, values: Mapping[str, Value]) -> int:
    """What an access or a fence orders, as in the core's `Order`, and its scope in the upper bits; 0 says nothing."""
    sem, scope = values.get("sem"), values.get("scope")
    if meaning in ("atom", "red"):
        sem, scope = sem or "relaxed", scope or "gpu"
    elif meaning == "membar":
        sem, scope = "sc", {"cta": "cta", "gl": "gpu", "sys": "sys"}[str(values["level"])]
    elif values.get("volatile"):
        sem, scope = "relaxed", "sys"
    return (SEMANTICS[str(sem)] if sem else 0) | (SCOPES[str(scope)] << SCOPE_SHIFT if scope else 0)


def _decode(line: Line, registers: Mapping[str, int]) -> tuple[Form, dict[str, Value]]:
    """The form of a line: of those with operands of its shape the first whose optional operands have their width."""
    forms = forms_of(line.opcode)
    if not forms:
        raise ValueError("no such instruction form")
    shaped = [form for form in forms if _same_shape(form, line.operands)]
    if not shaped:
        raise ValueError("operands of another shape")
    form = next((form for form in shaped if _same_widths(form, line.operands, registers)), shaped[0])
    values = form.row.match(line.opcode)
    assert values is not None
    return form, values


def _same_widths(form: Form, operands: tuple[Operand, ...], registers: Mapping[str, int]) -> bool:
    """Whether what may be left out is what stands there: a predicate, a size of 32 bits or a cache policy of 64."""
    optional = {spec.name for spec in form.row.specs if spec.optional}
    for wanted, got in zip(form.operands, operands):
        if wanted.name not in optional or wanted.type is None:
            continue
        if isinstance(got, Negated):
            bits = 1
        elif isinstance(got, Register):
            bits = registers.get(got.name, wanted.type.bits)
        else:
            bits = 32
        if bits != wanted.type.bits:
            return False
    return True


def _same_shape(form: Form, operands: tuple[Operand, ...]) -> bool:
    if len(form.operands) != len(operands):
        return False
    for wanted, got in zip(form.operands, operands):
        if wanted.kind == "tensor":
            fits = isinstance(got, TensorCoordinates)
        elif wanted.kind == "address":
            fits = isinstance(got, Address)
        elif wanted.second is not None:
            fits = isinstance(got, Pair)
        elif wanted.count:
            fits = isinstance(got, Vector) and len(got.elements) == wanted.count
        elif isinstance(got, Vector):
            fits = len(got.elements) == 1 and wanted.may_be_braced
        else:
            fits = not isinstance(got, (Pair, Address, TensorCoordinates))
        if not fits:
            return False
    return True


def _flags(form: Form, values: Mapping[str, Value]) -> int:
    known = {"ctype", *TYPE_WORDS, *(name for names in MODIFIER_WORDS for name in names)}
    flags = 0
    for name, value in values.items():
        if not value or name in known or name in HINTS:
            continue
        if name not in FLAGS:
            raise ValueError(f"the simulator does not have .{name if value is True else value}")
        flags |= FLAGS[name]
    if values.get("sem") == "relaxed":
        flags |= FLAGS["relaxed"]
    return flags


def _literal(text: str) -> int:
    """The bits of a literal as a signed 64-bit word."""
    value = int(text[2:], 16) if text[:2] in ("0f", "0d", "0F", "0D") else int(text.rstrip("U"), 0)
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value
