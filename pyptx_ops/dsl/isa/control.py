"""Control flow and warp-wide instructions."""

from __future__ import annotations

from collections.abc import Mapping

from .row import Row, Value
from .rules import Verdict, fits

__all__ = ["ROWS"]


def _redux(values: Mapping[str, Value]) -> Verdict:
    """Bitwise operations take untyped words, arithmetic ones integers."""
    bitwise = values["op"] in ("and", "or", "xor")
    types = ("b32",) if bitwise else ("u32", "s32")
    return fits(values, types)


ROWS = (
    Row("bra", "bra{.uni}", "target:label"),
    Row("brx.idx", "brx.idx{.uni}", "index:u32 targets:label", "6.0", doc="`targets` names a `.branchtargets`."),
    Row("call", "call{.uni}", "callee:function", "2.0"),
    Row("call", "call{.uni}", "callee:function (arguments) ?prototype:label", "2.0"),
    Row(
        "call", "call{.uni}", "(results) callee:function (arguments) ?prototype:label", "2.0",
        doc="`prototype` names what an address as `callee` may be: a `.callprototype` or `.calltargets`.",
    ),
    Row("ret", "ret{.uni}"),
    Row("exit", "exit"),
    Row("trap", "trap"),
    Row("brkpt", "brkpt"),
    Row("nanosleep", "nanosleep.u32", "duration:u32", "6.3", "sm_70"),
    Row("pmevent", "pmevent", "#event[0,15]", "1.4"),
    Row("griddepcontrol", "griddepcontrol{.action!:launch_dependents|wait}", "", "7.8", "sm_90"),
    Row("setmaxnreg", "setmaxnreg{.action!:inc|dec}.sync.aligned.u32", "#count[24,256,8]", "8.0", "a"),
    Row("elect.sync", "elect.sync", "=_:u32|p:pred mask:b32", "8.0", "sm_90", meaning="elect"),
    Row("shfl", "shfl.sync{.mode!:up|down|bfly|idx}.b32", "=d:b32 a:b32 b:b32 clamp:b32 mask:b32", "6.0"),
    Row(
        "shfl.dual", "shfl.sync{.mode!:up|down|bfly|idx}.b32", "=d:b32|p:pred a:b32 b:b32 clamp:b32 mask:b32", "6.0",
        meaning="shfl", doc="Also returns whether the source lane was in range.",
    ),
    Row("vote", "vote.sync{.mode!:all|any|uni}.pred", "=p:pred a:pred mask:b32", "6.0"),
    Row("vote.ballot", "vote.sync.ballot.b32", "=d:b32 a:pred mask:b32", "6.0"),
    Row("match.any", "match.any.sync{.type:b32|b64}", "=d:b32 a:$type mask:b32", "6.0", "sm_70"),
    Row("match.all", "match.all.sync{.type:b32|b64}", "=d:b32|p:pred a:$type mask:b32", "6.0", "sm_70"),
    Row("activemask", "activemask.b32", "=d:b32", "6.2"),
    Row(
        "redux", "redux.sync{.op!:add|min|max|and|or|xor}{.type:u32|s32|b32}", "=d:$type a:$type mask:b32", "7.0",
        "sm_80", rules=(_redux,),
    ),
    Row(
        "redux", "redux.sync{.op!:min|max}{.abs}{.NaN}{.type:f32}", "=d:$type a:$type mask:b32", "8.6", "sm_100a",
        meaning="redux.float",
    ),
)  # fmt: skip
