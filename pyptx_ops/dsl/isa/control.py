"""Control flow and warp-wide instructions."""

from __future__ import annotations

from collections.abc import Mapping

from .row import Row, Value
from .rules import Verdict

__all__ = ["ROWS"]


def _redux(values: Mapping[str, Value]) -> Verdict:
    """Bitwise operations take untyped words, arithmetic ones integers."""
    bitwise = values["op"] in ("and", "or", "xor")
    types = ("b32",) if bitwise else ("u32", "s32")
    return None if values["type"] in types else f"{values['op']} takes the types {', '.join(types)}, got {values['type']}"


ROWS = (
    Row("bra", "bra{.uni}", "target:label", meaning="bra"),
    Row("call", "call{.uni}", "function:label", since="2.0", meaning="call", doc="A function without parameters and result."),
    Row("ret", "ret{.uni}", meaning="ret"),
    Row("exit", "exit", meaning="exit"),
    Row("trap", "trap", meaning="trap"),
    Row("brkpt", "brkpt", meaning="brkpt"),
    Row("nanosleep", "nanosleep.u32", "duration:u32", since="6.3", target="sm_70", meaning="nanosleep"),
    Row("pmevent", "pmevent", "#event[0,15]", since="1.4", meaning="pmevent"),
    Row("griddepcontrol", "griddepcontrol{.action!:launch_dependents|wait}", since="7.8", target="sm_90", meaning="griddepcontrol"),
    Row("setmaxnreg", "setmaxnreg{.action!:inc|dec}.sync.aligned.u32", "#count[24,256,8]", since="8.0", target="a", meaning="setmaxnreg"),
    Row("elect.sync", "elect.sync", "=_:u32|p:pred mask:b32", since="8.0", target="sm_90", meaning="elect"),
    Row("shfl", "shfl.sync{.mode!:up|down|bfly|idx}.b32", "=d:b32 a:b32 b:b32 clamp:b32 mask:b32", since="6.0", meaning="shfl"),
    Row("shfl.dual", "shfl.sync{.mode!:up|down|bfly|idx}.b32", "=d:b32|p:pred a:b32 b:b32 clamp:b32 mask:b32", since="6.0", meaning="shfl", doc="Also returns whether the source lane was in range."),
    Row("vote", "vote.sync{.mode!:all|any|uni}.pred", "=p:pred a:pred mask:b32", since="6.0", meaning="vote"),
    Row("vote.ballot", "vote.sync.ballot.b32", "=d:b32 a:pred mask:b32", since="6.0", meaning="vote.ballot"),
    Row("match.any", "match.any.sync{.type:b32|b64}", "=d:b32 a:$type mask:b32", since="6.0", target="sm_70", meaning="match.any"),
    Row("match.all", "match.all.sync{.type:b32|b64}", "=d:b32|p:pred a:$type mask:b32", since="6.0", target="sm_70", meaning="match.all"),
    Row("activemask", "activemask.b32", "=d:b32", since="6.2", meaning="activemask"),
    Row("redux", "redux.sync{.op!:add|min|max|and|or|xor}{.type:u32|s32|b32}", "=d:$type a:$type mask:b32", since="7.0", target="sm_80", rules=(_redux,), meaning="redux"),
    Row("redux", "redux.sync{.op!:min|max}{.abs}{.NaN}{.type:f32}", "=d:$type a:$type mask:b32", since="8.6", target="sm_100a", meaning="redux.float"),
)  # fmt: skip
