"""Moving a synchronising instruction past the nearest one that it orders, earlier or later in its own path.

A move stays within the path: it passes whole `if` blocks, and goes neither into one, nor out of the one around it, nor
over the edge of a loop. What an instruction that moves up needs to be computed moves with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .body import Body, Mutant

__all__ = ["moved", "unit_at"]

SHARED = r"(?:ld|st|red|atom)\.(?:volatile\.)?shared|ldmatrix|stmatrix"
ASYNC = r"cp\.async|wgmma\.mma_async"
# What moves, and what it orders.
NEIGHBOURS = [
    (r"fence\.mbarrier_init", rf"mbarrier\.|bar\.sync|barrier\.cluster|{ASYNC}"),
    (r"fence\.", rf"{SHARED}|{ASYNC}|bar|mbarrier"),
    (r"wgmma\.fence", r"wgmma\.(?:mma_async|wait)|mbarrier\.try_wait"),
    (r"wgmma\.commit", r"wgmma\.(?:mma_async|wait)"),
    (r"wgmma\.wait", r"wgmma\.(?:mma_async|commit)|mbarrier\.arrive|cvt|st\.|add\.rn"),
    (r"cp\.async.*\.(?:commit|wait)_group", rf"cp\.async|{SHARED}|bar"),
    (r"mbarrier\.(?:try|test)_wait", rf"{SHARED}|{ASYNC}|mbarrier\.arrive"),
    (r"mbarrier\.(?:arrive|expect|complete)", rf"{SHARED}|{ASYNC}|wgmma\.wait|mbarrier"),
    (r"bar(?:rier)?\.", rf"{SHARED}|{ASYNC}|mbarrier|barrier\.cluster|setmaxnreg"),
]


def unit_at(body: Body, index: int) -> tuple[int, int]:
    """The statements [first, end) that are one: a wait for an mbarrier with its loop, else the statement alone."""
    if not re.match(r"mbarrier\.(try|test)_wait", body.statements[index].opcode):
        return index, index + 1
    label, branch = body.statements[index - 1], body.statements[index + 1]
    assert label.label and branch.target == label.label, "a wait is a loop of three statements"
    return index - 1, index + 2


def moved(body: Body, index: int) -> Iterator[Mutant]:
    opcode = body.statements[index].opcode
    pattern = next((re.compile(others) for which, others in NEIGHBOURS if re.match(which, opcode)), None)
    if pattern is None:
        return
    first, end = unit_at(body, index)
    for change, order in (("later", _later(body, first, end, pattern)), ("earlier", _earlier(body, first, pattern))):
        if order is None:
            continue
        passed, indices = order
        if change == "earlier":
            indices = _with_unit(indices, first, end)
        statements = tuple((body.statements[i].text, body.statements[i].line) for i in indices)
        past = body.statements[passed]
        yield Mutant(body, "moved", index, f"moved {change}, past line {past.line}: {past.opcode}", statements)


def _with_unit(indices: list[int], first: int, end: int) -> list[int]:
    """The rest of a unit follows its first statement."""
    rest = [i for i in indices if not first < i < end]
    at = rest.index(first)
    return [*rest[:at], *range(first, end), *rest[at + 1 :]]


def _region_below(body: Body, index: int) -> int | None:
    """The index of the label at which the `if` that starts at a branch ends; None where it is no such block."""
    end = body.where(body.statements[index].target)
    position = index
    while position < end:
        target = body.statements[position].target
        if target:
            there = body.where(target)
            if there < index:
                return None
            end = max(end, there)
        position += 1
    return end


def _region_above(body: Body, index: int) -> int | None:
    """The index of the branch at which the `if` that ends at a label starts; None where it is no such block."""
    start = position = index
    while position >= start:
        label = body.statements[position].label
        if label:
            sources = body.branches_to(label)
            if any(source > index for source in sources):
                return None
            start = min([start, *sources])
        position -= 1
    leaves = any(s.target and body.where(s.target) < start for s in body.statements[start:index])
    return start if start < index and not leaves else None


def _later(body: Body, first: int, end: int, pattern: re.Pattern[str]) -> tuple[int, list[int]] | None:
    """(the statement that is passed, the new order of statements)."""
    unit = body.statements[first:end]
    reads, writes = (frozenset().union(*(getattr(s, side) for s in unit)) for side in ("reads", "writes"))
    index = end
    while index < len(body.statements):
        s = body.statements[index]
        passed = [index]
        if s.label:
            return None
        if s.target:
            stop = _region_below(body, index) if s.guarded else None
            if stop is None:
                return None
            passed = list(range(index, stop + 1))
        if any(body.statements[i].writes & (reads | writes) or body.statements[i].reads & writes for i in passed):
            return None
        found = next((i for i in passed if pattern.match(body.statements[i].opcode)), None)
        index = passed[-1] + 1
        if found is not None:
            return found, [*range(first), *range(end, index), *range(first, end), *range(index, len(body.statements))]
    return None


def _earlier(body: Body, first: int, pattern: re.Pattern[str]) -> tuple[int, list[int]] | None:
    """The same, upwards; only the first statement of the unit is placed."""
    with_it, needs, makes = [first], set(body.statements[first].reads), set(body.statements[first].writes)
    if body.statements[first].label:  # a wait: what it reads is in the next statement
        needs, makes = set(body.statements[first + 1].reads), set(body.statements[first + 1].writes)
    index = first - 1
    while index >= 0:
        s = body.statements[index]
        passed = [index]
        if s.target:
            return None
        if s.label:
            start = _region_above(body, index)
            if start is None:
                return None
            passed = list(range(start, index + 1))
        found = next((i for i in passed if pattern.match(body.statements[i].opcode)), None)
        if s.writes & needs and found is None and len(passed) == 1:
            with_it.append(index)
            needs |= s.reads
            makes |= s.writes
        elif any(body.statements[i].writes & (needs | makes) or body.statements[i].reads & makes for i in passed):
            return None
        index = passed[0] - 1
        if found is not None:
            chosen = sorted(with_it)
            rest = [i for i in range(len(body.statements)) if i not in with_it]
            at = rest.index(passed[0])
            return found, [*rest[:at], *chosen, *rest[at:]]
    return None
