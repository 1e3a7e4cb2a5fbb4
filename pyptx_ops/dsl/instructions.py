"""`ptx`: every instruction of the table. Editors and mypy read instructions.pyi, which the table generates too."""

from __future__ import annotations

from functools import partial
from typing import Any

from .namespace import build_namespace
from .reg import emit

__all__ = ["ptx"]

ptx: Any = build_namespace()

vars(emit).update(
    add=ptx.add, sub=ptx.sub, mul=ptx.mul.lo, div=ptx.div, rem=ptx.rem, neg=ptx.neg, and_=ptx.and_, or_=ptx.or_,
    xor=ptx.xor, not_=ptx.not_, shl=ptx.shl, shr=ptx.shr, setp=ptx.setp, mov=ptx.mov, ld=ptx.ld, cvta=ptx.cvta,
    cvta_to=ptx.cvta.to, bra=ptx.bra, fadd=partial(ptx.add, rnd="rn"), fsub=partial(ptx.sub, rnd="rn"),
    fmul=partial(ptx.mul, rnd="rn"),
)  # fmt: skip
