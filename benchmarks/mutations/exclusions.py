"""Mutants that are the original by construction, each with the reason: they are run, and found to be right, but are not
counted among those that are to be found."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from .body import Mutant

__all__ = ["EXCLUSIONS", "Exclusion", "exclusion_of"]


class Exclusion(NamedTuple):
    """name: of the reason.  holds: whether a mutant is one of them."""

    name: str
    reason: str
    holds: Callable[[Mutant], bool]


def exclusion_of(mutant: Mutant) -> Exclusion | None:
    return next((exclusion for exclusion in EXCLUSIONS if exclusion.holds(mutant)), None)


def _stricter_wait(m: Mutant) -> bool:
    """One pending group less; or an earlier wait, past an access that it is not about."""
    if m.kind == "pending":
        return int(m.change.split()[0]) < int(re.findall(r"(\d+);", m.statement)[-1])
    opcode = m.body.statements[m.index].opcode
    return opcode.startswith("barrier.cluster.wait") and bool(re.search(r"earlier, past line \d+: (ld|st)\.", m.change))


def _late_arrival(m: Mutant) -> bool:
    past = re.search(r"later, past line \d+: (cp\.async|stmatrix|ld|st)", m.change)
    return _is(m, "mbarrier.arrive") and bool(past)


def _is(m: Mutant, opcode: str) -> bool:
    return m.body.statements[m.index].opcode.startswith(opcode)


def _only_threads_use(m: Mutant) -> bool:
    """The initialisation that the fence passes is that of the last barrier of a ring's empty ones: it counts warps."""
    if not _is(m, "fence.mbarrier_init") or "earlier" not in m.change:
        return False
    passed = next(s for s in m.body.statements if f"line {s.line}:" in m.change)
    return not passed.text.endswith(", 1;")


def _leading(m: Mutant) -> bool:
    """K-major with a swizzle; or MN-major, of one block of 64 along M or N."""
    if m.kind != "descriptor" or not m.change.startswith("leading offset"):
        return False
    users = _multiplications(m)
    for text, operand in users:
        rows = 64 if operand == 0 else int(re.search(r"m64n(\d+)k", text)[1])  # type: ignore[index]
        transposed = text.rstrip(";").split(", ")[-2 + operand] == "1"
        if transposed and rows > 64:
            return False
    return bool(users)


def _multiplications(m: Mutant) -> list[tuple[str, int]]:
    """The wgmmas that a descriptor's constant goes to, and as which operand: 0 for A, 1 for B."""
    statements = m.body.statements
    carriers = set(statements[m.index].writes)
    found = []
    for s in statements[m.index + 1 :]:
        if s.opcode.startswith("wgmma.mma_async"):
            operands = s.text.partition("}")[2].split(", ")
            found += [(s.text, number) for number in (0, 1) if operands[1 + number] in carriers]
        elif s.opcode.startswith("add.u64") and s.reads & carriers:
            carriers |= s.writes
    return found


def _producers_arrival(m: Mutant) -> bool:
    """Of the producer's warps at the cluster barrier behind their loop."""
    above = [s.opcode for s in m.body.statements[: m.index] if s.opcode.startswith("setmaxnreg")]
    return _is(m, "barrier.cluster.arrive") and bool(above) and ".dec" in above[-1]


def _last_release(m: Mutant) -> bool:
    """Of a kernel that splits K: what follows the loop over K blocks, or a wait that moves past that."""
    arrivals = [s for s in m.body.statements if re.match(r"mbarrier\.arrive\.shared", s.opcode)]
    if "_split" not in m.kernel or len(arrivals) < 2:
        return False
    last = arrivals[-1]
    return (m.line == last.line and m.kind in ("left out", "one path", "moved")) or (
        _is(m, "wgmma.wait") and f"later, past line {last.line}:" in m.change
    )


def _guard_of(m: Mutant) -> str:
    """The instruction that computes the guard of the statement."""
    guard = re.match(r"@!?(%\w+) ", m.statement)
    index = m.body.writer(guard[1], m.index) if guard else None
    return m.body.statements[index].text if index is not None else ""


def _comparison(m: Mutant) -> tuple[str, str, str]:
    """What the statement compares, as the statements that made both sides say it."""
    match = re.fullmatch(r"setp\.\S+ (%\w+), (%\w+), (%?\w+);", m.statement)
    if m.change != "off by one" or match is None:
        return "", "", ""
    sides = [_made(m, name) for name in match.groups()[1:]]
    return match[1], sides[0], sides[1]


def _made(m: Mutant, name: str) -> str:
    index = m.body.writer(name, m.index)
    return m.body.statements[index].text if index is not None else name


def _whole_operand(m: Mutant) -> bool:
    _, left, right = _comparison(m)
    return "[param_per_outer]" in left and "[param_rows]" in right


def _same_value(m: Mutant) -> bool:
    """The warp's sum, by all its lanes; or a block's, once more by a thread past the cluster's number of blocks."""
    if m.change == "without its guard":
        return m.statement.partition(" ")[2].startswith("st.shared.f32") and "setp.eq.u32" in _guard_of(m)
    pred = _comparison(m)[0]
    stores = [s.opcode for s in m.body.statements if s.text.startswith(f"@{pred} ")] if pred else []
    return bool(stores) and all(opcode.startswith("st.shared::cluster") for opcode in stores)


def _empty_turn(m: Mutant) -> bool:
    """The test at the head of a loop over the rest of a row."""
    pred = _comparison(m)[0]
    statements = m.body.statements
    following = statements[m.index + 1]
    return bool(pred) and following.target.startswith("$END") and statements[m.index - 1].label.startswith("$LOOP")


EXCLUSIONS = (
    Exclusion("stricter wait", "it waits for more, or earlier: slower, and as right", _stricter_wait),
    Exclusion(
        "late arrival",
        "an arrival may come later: nothing between waits for it, and bytes may come before they are expected",
        _late_arrival,
    ),
    Exclusion(
        "barrier of the CTA's own",
        "no copy and no other CTA uses this mbarrier, and its threads are ordered by the barrier that follows",
        _only_threads_use,
    ),
    Exclusion("unused offset", "wgmma does not use the leading offset of such a tile", _leading),
    Exclusion(
        "arrival of who exits",
        "threads that have exited are not waited for, and the producer has nothing to tell the cluster",
        _producers_arrival,
    ),
    Exclusion(
        "last release", "a CTA that shares a tile has no other, so its last stage is not loaded again", _last_release
    ),
    Exclusion("one group of rows", "where all rows are in one group, the quotient is 0 either way", _whole_operand),
    Exclusion("same value", "another thread writes the same value to the same place", _same_value),
    Exclusion("empty turn", "one turn more, in which every access is guarded", _empty_turn),
)
