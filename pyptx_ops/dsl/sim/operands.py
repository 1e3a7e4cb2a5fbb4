"""Which meanings of rows are one to the core, which it does not have, and in what order it takes operands."""

from __future__ import annotations

from collections.abc import Mapping

from ..ir import Immediate, Operand, Register

__all__ = ["ALIASES", "REFUSED", "in_order"]

# Meanings of rows that are one operation of the core.
ALIASES = {
    "ldu": "ld", "atom.half": "atom", "atom.vector": "atom", "atom.cas": "atom", "red.half": "red", "red.vector": "red",
    "prefetch": "hint", "prefetchu": "hint", "applypriority": "hint", "createpolicy.fractional": "createpolicy",
    "createpolicy.range": "createpolicy", "createpolicy.cvt": "createpolicy", "bulk.prefetch": "hint",
    "tma.load_im2col": "tma.load", "tma.store_im2col": "tma.store", "tma.prefetch_im2col": "tma.prefetch",
    "tma.reduce_im2col": "tma.store", "tma.reduce": "tma.store",
    "bulk.reduce": "bulk.store", "bulk.reduce.shared": "bulk.shared",
}  # fmt: skip

# Meanings that the core does not have, and why.
REFUSED = {
    "wgmma.sp": "sparse operands are not modelled",
    "mma.sp": "sparse operands are not modelled",
    "multimem.ld_reduce": "one device is modelled, and no multicast addresses",
    "multimem.red": "one device is modelled, and no multicast addresses",
    "multimem.st": "one device is modelled, and no multicast addresses",
    "brkpt": "there is no debugger to stop for",
}

ABSENT = Register("_")

# meaning -> names of operands, in the core's order; "name=text" is a literal where the form does not have the operand
ORDER = {
    "clock": "d",
    "tma.load": "dst map size bar mask source offsets",
    "tma.store": "src map",
    "tma.prefetch": "dst map size bar mask source offsets",
    "bulk.load": "dst src coordinates size bar mask",
    "bulk.store": "src dst coordinates size",
    "bulk.shared": "dst global coordinates size bar mask src",
    "cp.async": "dst src size src_size ignore",
    "tensormap.replace": "map ordinal=0 value",
    "wgmma": "d a b scale_d scale_a=1 scale_b=1 trans_a=0 trans_b=0",
}


def in_order(meaning: str, named: Mapping[str, Operand]) -> list[Operand]:
    """The operands of a form by name, as the core takes them: in their own order where it is always the same."""
    if meaning not in ORDER:
        return list(named.values())
    operands = []
    for entry in ORDER[meaning].split():
        name, _, default = entry.partition("=")
        operands.append(named.get(name, Immediate(default) if default else ABSENT))
    return operands
