"""Control flow and warp-wide instructions."""

from __future__ import annotations

from .row import Row

__all__ = ["ROWS"]

ROWS = (
    Row("bra", "bra{.uni}", "target:label", meaning="bra"),
    Row("ret", "ret", meaning="ret"),
    Row("exit", "exit", meaning="exit"),
    Row("shfl", "shfl.sync{.mode!:up|down|bfly|idx}.b32", "=d:b32 a:b32 b:b32 clamp:b32 mask:b32", since="6.0", meaning="shfl"),
    Row("elect.sync", "elect.sync", "=_:u32|p:pred mask:b32", since="8.0", target="sm_90", meaning="elect"),
    Row("setmaxnreg", "setmaxnreg{.action!:inc|dec}.sync.aligned.u32", "#count[24,256,8]", since="8.0", target="a", meaning="setmaxnreg"),
    Row("bar.sync", "bar.sync", "barrier:u32 ?threads:u32", meaning="bar.sync"),
)
