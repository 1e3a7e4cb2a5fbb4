"""Helpers that expand to several instructions. Nothing else in the DSL does."""

from __future__ import annotations

from collections.abc import Sequence

from .instructions import ptx
from .reg import Pred, Reg
from .trace import current_kernel

__all__ = ["ceil_div", "elect_one", "first_lane", "wait_parity", "warp_inclusive_sum", "zero"]

FULL_MASK = 0xFFFFFFFF


def wait_parity(barrier: Reg, parity: Reg | int) -> None:
    """Wait until the phase of this parity has completed.

    Expands to: label, mbarrier.try_wait.parity, bra.
    """
    k = current_kernel()
    again = k.label("WAIT")
    k.place(again)
    done = ptx.mbarrier.try_wait.parity(barrier, parity)
    k.branch(again, ~done)


def elect_one() -> Pred:
    """True in one lane of a converged warp."""
    elected: Pred = ptx.elect.sync(FULL_MASK)
    return elected


def ceil_div(value: Reg, divisor: int) -> Reg:
    """⌈value / divisor⌉ for a literal divisor, which ptxas turns into shifts or a product: add, div."""
    return (value + (divisor - 1)) // divisor


def warp_inclusive_sum(value: Reg, lane: Reg) -> Reg:
    """Inclusive prefix sum over the 32 lanes: five times shfl, setp, add under a predicate, mov."""
    k = current_kernel()
    total = k.var("u32", value)
    for distance in (1, 2, 4, 8, 16):
        below = ptx.shfl(total, distance, 0, FULL_MASK, mode="up").as_type("u32")
        ptx.add(total, below, out=total, pred=lane >= distance)
    return total


def first_lane(pred: Pred) -> Reg:
    """The lowest lane in which a predicate holds: vote, brev, clz."""
    ballot = ptx.vote.ballot(pred, FULL_MASK)
    zeros: Reg = ptx.clz(ptx.brev(ballot, type="b32"), type="b32")
    return zeros.as_type("u32")


def zero(registers: Sequence[Reg]) -> None:
    """Clear each register: one `mov` each."""
    for register in registers:
        ptx.mov(0.0 if register.type.cls == "float" else 0, type=register.type.name, out=register)
