"""The shared-memory plan of a kernel: named pieces at fixed offsets from one aligned base."""

from __future__ import annotations

from .errors import TraceError
from .ir import Address
from .reg import Reg

__all__ = ["SharedPlan", "SharedRef"]


class SharedRef:
    """A piece of shared memory: `base + offset`, `nbytes` long. Usable wherever an address is taken."""

    __slots__ = ("name", "nbytes", "offset", "plan")

    def __init__(self, plan: SharedPlan, name: str, offset: int, nbytes: int):
        self.plan = plan
        self.name = name
        self.offset = offset
        self.nbytes = nbytes

    def __repr__(self) -> str:
        return f"<shared {self.name} at {self.offset}, {self.nbytes} bytes>"

    def address(self) -> Address:
        return self.plan.base.at(self.offset).address()

    def at(self, offset: int, nbytes: int | None = None) -> SharedRef:
        """The part that starts `offset` bytes in. It must lie inside."""
        rest = self.nbytes - offset if nbytes is None else nbytes
        if offset < 0 or rest < 0 or offset + rest > self.nbytes:
            raise TraceError(f"bytes {offset} to {offset + rest} lie outside {self.name}, which has {self.nbytes}")
        return SharedRef(self.plan, f"{self.name}+{offset}" if offset else self.name, self.offset + offset, rest)

    def reg(self) -> Reg:
        """The address in a register: one `add`."""
        return self.plan.base + self.offset


class SharedPlan:
    """Pieces are laid out in the order in which they are declared, each at its alignment."""

    def __init__(self, base: Reg, align: int):
        self.base = base
        self.align = align
        self.nbytes = 0
        self.pieces: list[SharedRef] = []

    def array(self, name: str, nbytes: int, align: int = 16) -> SharedRef:
        """Reserve `nbytes` at a multiple of `align` bytes."""
        if align & (align - 1) or align > self.align:
            raise TraceError(f"{name}: align is a power of two up to {self.align}, got {align}")
        if any(piece.name == name for piece in self.pieces):
            raise TraceError(f"the shared-memory plan already has a piece named {name!r}")
        offset = (self.nbytes + align - 1) // align * align
        self.nbytes = offset + nbytes
        piece = SharedRef(self, name, offset, nbytes)
        self.pieces.append(piece)
        return piece
