"""Rules that rows share: what modifiers say about each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Union

from .row import DERIVED, Requirement, Rule, Value

__all__ = ["compare", "fits", "forbid", "narrow_vectors", "only", "system_b128", "together", "wide_vectors"]

Verdict = Union[str, Requirement, None]

UNSIGNED_COMPARISONS = ("lo", "ls", "hi", "hs")
ORDERED = ("eq", "ne", "lt", "le", "gt", "ge")


def together(*names: str) -> Rule:
    """All of these, or none."""

    def rule(values: Mapping[str, Value]) -> Verdict:
        given = [n for n in names if values.get(n)]
        return None if len(given) in (0, len(names)) else f"{' and '.join(names)} go together"

    return rule


def only(name: str, **wanted: tuple[Value, ...]) -> Rule:
    """`name` may be given only where each of these modifiers has one of these values."""

    def rule(values: Mapping[str, Value]) -> Verdict:
        if values.get(name):
            for other, choices in wanted.items():
                if values.get(other) not in choices:
                    return f"{name} goes with {other} {' or '.join(map(repr, choices))}, got {values.get(other)!r}"
        return None

    return rule


def forbid(name: str, *others: str) -> Rule:
    """`name` excludes each of these."""

    def rule(values: Mapping[str, Value]) -> Verdict:
        clash = [o for o in others if values.get(name) and values.get(o)]
        return f"{name} excludes {' and '.join(clash)}" if clash else None

    return rule


def compare(values: Mapping[str, Value]) -> Verdict:
    """Which comparisons a type has: untyped bits only (in)equality, lo ls hi hs unsigned, equ … nan floating."""
    kind, cmp = str(values["type"]), values["cmp"]
    floating = kind.startswith(("f", "bf"))
    if cmp in ORDERED:
        known = floating or kind[0] != "b" or cmp in ("eq", "ne")
        return None if known else f"{kind} has eq and ne only, got {cmp}"
    if cmp in UNSIGNED_COMPARISONS:
        return None if kind[0] == "u" else f"{cmp} compares unsigned integers, not {kind}"
    return None if floating else f"{cmp} compares floating types, not {kind}"


def fits(values: Mapping[str, Value], types: tuple[str, ...]) -> Verdict:
    """Whether the operation takes the type."""
    kind = values["type"]
    return None if kind in types else f"{values['op']} takes the types {', '.join(types)}, got {kind}"


def system_b128(values: Mapping[str, Value]) -> Verdict:
    """128 bits at system scope came later."""
    late = values["type"] == "b128" and (values.get("scope") == "sys" or values.get("mmio"))
    return Requirement((8, 4)) if late else None


def wide_vectors(values: Mapping[str, Value]) -> Verdict:
    """Vectors are at most 128 bits, 256 in global memory from sm_100 on; L2 eviction words go with 256 only."""
    vec, bits = str(values.get("vec") or "v1"), int("".join(c for c in str(values["type"]) if c.isdigit()))
    total = int(vec[1:]) * bits
    if bits == 128 and vec != "v1":
        return "b128 has no vector form"
    if total <= 128:
        if vec == "v8":
            return "v8 takes 32-bit elements"
        return "l2evict goes with 256-bit vectors" if values.get("l2evict") else None
    if total > 256 or values.get("space") not in ("global", None):
        return f"{vec} of {bits}-bit elements exceeds the vector width"
    return Requirement((8, 8), "sm_100")


def narrow_vectors(values: Mapping[str, Value]) -> Verdict:
    """Vectors of at most 128 bits."""
    verdict = wide_vectors(values)
    return "vectors have at most 128 bits" if isinstance(verdict, Requirement) else verdict


def _part(values: Mapping[str, Value]) -> str:
    """One of `num` equal parts of a word; 8-bit parts live in .b8 registers."""
    bits = int(str(values["type"])[1:]) // int(str(values["num"]))
    return "e2m1x2" if bits == 8 else f"b{bits}"


DERIVED["part"] = _part
