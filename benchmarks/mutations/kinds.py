"""The mutations of a kernel: what is done to which statements.

| kind | what is done |
|---|---|
| left out | a fence, wait, commit, arrival, barrier, initialisation or register reallocation is gone |
| moved | the same, past the nearest instruction that it orders, earlier or later |
| one path | an arrival or barrier is skipped by one warp, or the first time |
| parity | a wait's parity is always 0, always 1, or the other one |
| bytes | an expected byte count is 16 more or less |
| count | an initial count of arrivals is one more or less |
| pending | a wait leaves one group more, or one less, pending |
| swizzle | another swizzle of a tensor map, or in a matrix descriptor |
| descriptor | a descriptor's stride or leading offset, its step along K, or whether an operand is transposed |
| scope | what holds for the cluster holds for the CTA, or orders nothing; another CTA's address becomes one's own |
| every lane | what one elected lane does, all do |
| exchange | a shuffle is gone, or takes from another distance |
| bounds | a load or store has no guard, or a comparison is off by one; of the row-wise kernels |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from pyptx_ops.dsl.desc import SWIZZLE_CODE
from pyptx_ops.kernels.configs import WARP

from .body import COUNTER, Body, Mutant, Statement
from .moves import moved, unit_at

__all__ = ["KINDS", "mutants"]

UNIT = 16  # bytes of a transaction
ORDERS = (
    r"mbarrier\.|wgmma\.(?:fence|commit|wait)|bar\.|barrier\.|fence\.|setmaxnreg|cp\.async.*\.(?:commit|wait)_group"
)
SKIPPABLE = r"mbarrier\.arrive|bar\.sync|barrier\.cluster\.arrive"
LAYOUT_SHIFT, STRIDE_SHIFT, LEADING_SHIFT = 62, 32, 16  # fields of a matrix descriptor
FIELD = 0x3FFF
Change = tuple[str, list[str]]  # what is done, and the statements that stand there then


def mutants(body: Body) -> Iterator[Mutant]:
    """Every mutant of a kernel, in the order of its statements."""
    for index, statement in enumerate(body.statements):
        for kind, make in KINDS.items():
            first, end = unit_at(body, index) if statement.opcode.startswith("mbarrier") else (index, index + 1)
            for change, texts in make(body, index, statement):
                yield Mutant(body, kind, index, change, _replaced(body, first, end, texts))
        if re.match(ORDERS, statement.opcode):
            yield from moved(body, index)
    yield from _tensor_maps(body)


def _replaced(body: Body, first: int, end: int, texts: list[str]) -> tuple[tuple[str, int], ...]:
    kept = [(s.text, s.line) for s in body.statements]
    line = next((s.line for s in body.statements[first:end] if s.opcode), 0)
    return (*kept[:first], *((text, line) for text in texts), *kept[end:])


def _tensor_maps(body: Body) -> Iterator[Mutant]:
    statements = _replaced(body, 0, 0, [])
    first = next(i for i, s in enumerate(body.statements) if s.opcode)
    for param in body.kernel.params:
        if param.tensor_map is not None:
            for nbytes in SWIZZLE_CODE:
                if nbytes != param.tensor_map.swizzle:
                    yield Mutant(body, "swizzle", first, f"swizzle {nbytes}", statements, (param.name, nbytes))


def left_out(body: Body, index: int, s: Statement) -> Iterator[Change]:
    if re.match(ORDERS, s.opcode):
        yield "left out", []


def one_path(body: Body, index: int, s: Statement) -> Iterator[Change]:
    if not re.match(SKIPPABLE, s.opcode):
        return
    skip = f"$SKIP_{index}"
    jump = [f"@%q0 bra {skip};", s.text, f"{skip}:"]
    if not _of_one_warp(body, index):
        yield "skipped by warp 0", ["mov.u32 %s0, %tid.x;", f"setp.lt.u32 %q0, %s0, {WARP};", *jump]
    guard = s.text.partition(" ")[0] + " " if s.guarded else ""
    counted = [f"setp.eq.u32 %q0, {COUNTER}, 0;", f"{guard}add.u32 {COUNTER}, {COUNTER}, 1;"]
    yield "skipped the first time", [*counted, *jump]


def _of_one_warp(body: Body, index: int) -> bool:
    """Whether the producer's warp alone comes here: behind the release of registers, before their allocation."""
    above = [s.opcode for s in body.statements[:index] if s.opcode.startswith("setmaxnreg")]
    return bool(above) and ".dec" in above[-1]


def parity(body: Body, index: int, s: Statement) -> Iterator[Change]:
    if wait := re.fullmatch(r"(mbarrier\.(?:try|test)_wait\S* %\w+, \[.*\]), (%\w+);", s.text):
        label, branch = body.statements[index - 1].text, body.statements[index + 1].text
        yield from ((f"parity {value}", [label, f"{wait[1]}, {value};", branch]) for value in (0, 1))
        yield "the other parity", [f"xor.b32 %s0, {wait[2]}, 1;", label, f"{wait[1]}, %s0;", branch]


def nbytes(body: Body, index: int, s: Statement) -> Iterator[Change]:
    if match := re.fullmatch(r"(.*mbarrier\.(?:arrive\.)?expect_tx.*), (\d+);", s.text):
        yield from ((f"{more:+d} bytes", [f"{match[1]}, {int(match[2]) + more};"]) for more in (UNIT, -UNIT))


def count(body: Body, index: int, s: Statement) -> Iterator[Change]:
    if match := re.fullmatch(r"(.*mbarrier\.init.*), (\d+);", s.text):
        counts = (int(match[2]) + more for more in (1, -1))
        yield from ((f"count {value}", [f"{match[1]}, {value};"]) for value in counts if value)


def pending(body: Body, index: int, s: Statement) -> Iterator[Change]:
    if match := re.fullmatch(r"(.*wait_group(?:\.read)?(?:\.sync\.aligned)?) (\d+);", s.text):
        counts = (int(match[2]) + more for more in (1, -1))
        yield from ((f"{value} pending", [f"{match[1]} {value};"]) for value in counts if value >= 0)


def descriptor_of(s: Statement) -> tuple[str, int] | None:
    """The statement that adds the constant part of a matrix descriptor to its start: what precedes it, and it."""
    match = re.fullmatch(r"(or\.b64 %\w+, %\w+), (\d+);", s.text)
    return (match[1], int(match[2])) if match and int(match[2]) >> LAYOUT_SHIFT else None


def swizzle(body: Body, index: int, s: Statement) -> Iterator[Change]:
    if found := descriptor_of(s):
        rest, constant = found
        for size, code in SWIZZLE_CODE.items():
            if code != constant >> LAYOUT_SHIFT:
                bits = constant & (1 << LAYOUT_SHIFT) - 1 | code << LAYOUT_SHIFT
                yield f"descriptor: swizzle {size}", [f"{rest}, {bits};"]


def descriptor(body: Body, index: int, s: Statement) -> Iterator[Change]:
    if found := descriptor_of(s):
        rest, constant = found
        for name, shift in (("stride", STRIDE_SHIFT), ("leading offset", LEADING_SHIFT)):
            value = constant >> shift & FIELD
            for other in (value * 2, value // 2):
                bits = constant & ~(FIELD << shift) | other << shift
                yield f"{name} {other << 4} instead of {value << 4}", [f"{rest}, {bits};"]
    elif match := re.fullmatch(r"(add\.u64 (%\w+), %\w+), (\d+);", s.text):
        used = [o for o in body.statements[index + 1 :] if match[2] in o.reads]
        if used and used[0].opcode.startswith("wgmma.mma_async"):
            steps = (int(match[3]) * 2, int(match[3]) // 2)
            yield from ((f"step {step << 4} bytes", [f"{match[1]}, {step};"]) for step in steps)
    elif match := re.fullmatch(r"(wgmma\.mma_async.*), (\d), (\d);", s.text):
        a, b = int(match[2]), int(match[3])
        yield from ((f"transposed {x}, {y}", [f"{match[1]}, {x}, {y};"]) for x, y in ((1 - a, b), (a, 1 - b)))


def scope(body: Body, index: int, s: Statement) -> Iterator[Change]:
    if s.opcode.startswith("barrier.cluster.arrive") and ".relaxed" not in s.opcode:
        base, aligned = "barrier.cluster.arrive", ".aligned" if ".aligned" in s.opcode else ""
        yield "relaxed", [f"{base}.relaxed{aligned};"]
    elif s.opcode.startswith("fence.mbarrier_init"):
        yield "fence.acq_rel.cta", ["fence.acq_rel.cta;"]
    elif match := re.fullmatch(r"mapa\.\S+ (%\w+), (%\w+), \S+;", s.text):
        yield "one's own", [f"mov.u32 {match[1]}, {match[2]};"]
    elif s.opcode.endswith(".cluster") and re.match(r"fence|mbarrier|ld|st|red|atom", s.opcode):
        yield "of the CTA", [s.text.replace(".cluster", ".cta")]


def every_lane(body: Body, index: int, s: Statement) -> Iterator[Change]:
    if match := re.fullmatch(r"elect\.sync _\|(%\w+), .*;", s.text):
        yield "every lane", [f"setp.eq.u32 {match[1]}, 0, 0;"]


def exchange(body: Body, index: int, s: Statement) -> Iterator[Change]:
    if match := re.fullmatch(r"(shfl\.sync\.(bfly|up)\.b32 (%\w+), (%\w+)), (\d+), (.*);", s.text):
        yield "left out", [f"mov.b32 {match[3]}, {match[4]};"]
        yield "twice the distance", [f"{match[1]}, {2 * int(match[5]) % WARP}, {match[6]};"]


ROW_WISE = ("rms_norm", "fused_add_rms_norm", "swiglu")
OFF_BY_ONE = {".lt.": ".le.", ".gt.": ".ge.", ".ge.": ".gt.", ".le.": ".lt."}


def bounds(body: Body, index: int, s: Statement) -> Iterator[Change]:
    if not body.name.startswith(ROW_WISE):
        return
    if s.guarded and re.match(r"(ld|st)\.(global|shared)", s.opcode):
        yield "without its guard", [s.text.partition(" ")[2]]
    if s.opcode.startswith("setp.") and s.opcode[4:8] in OFF_BY_ONE:
        yield "off by one", [s.text.replace(s.opcode[4:8], OFF_BY_ONE[s.opcode[4:8]], 1)]


KINDS: dict[str, Callable[[Body, int, Statement], Iterator[Change]]] = {
    "left out": left_out, "one path": one_path, "parity": parity, "bytes": nbytes, "count": count, "pending": pending,
    "swizzle": swizzle, "descriptor": descriptor, "scope": scope, "every lane": every_lane, "exchange": exchange,
    "bounds": bounds,
}  # fmt: skip
"""Besides "moved": the changes of a statement of each kind."""
