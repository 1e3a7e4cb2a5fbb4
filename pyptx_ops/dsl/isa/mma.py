"""Matrix instructions: wgmma, mma.sync, ldmatrix, stmatrix."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .row import COUNTS, Row, Value

__all__ = ["ROWS"]


def accumulator_registers(values: Mapping[str, Value]) -> int:
    """Registers per thread of a wgmma accumulator: N/2, or N/4 where two f16 share one."""
    n = int(re.findall(r"n(\d+)k", str(values["shape"]))[0])
    return n // 4 if values["dtype"] == "f16" else n // 2


COUNTS["accumulator"] = accumulator_registers

SHAPES_K16 = "|".join(f"m64n{n}k16" for n in range(8, 257, 8))

ROWS = (
    Row("wgmma.fence", "wgmma.fence.sync.aligned", since="8.0", target="sm_90a", meaning="wgmma.fence"),
    Row("wgmma.commit_group", "wgmma.commit_group.sync.aligned", since="8.0", target="sm_90a", meaning="wgmma.commit_group"),
    Row("wgmma.wait_group", "wgmma.wait_group.sync.aligned", "#pending[0,255]", since="8.0", target="sm_90a", meaning="wgmma.wait_group"),
    Row(
        "wgmma.mma_async", f"wgmma.mma_async.sync.aligned{{.shape!:{SHAPES_K16}}}{{.dtype!:f32|f16}}{{.atype!:f16|bf16}}{{.btype!:f16|bf16}}",
        "+d:b32*accumulator a:b64 b:b64 scale_d:pred #scale_a[-1,1,2] #scale_b[-1,1,2] #trans_a[0,1] #trans_b[0,1]",
        since="8.0", target="sm_90a", meaning="wgmma",
    ),
    Row("stmatrix", "stmatrix.sync.aligned.m8n8{.num!:x1|x2|x4}{.trans}{.space:shared|shared::cta=shared::cta}.b16", "[addr] value:b32*$num", since="7.8", target="sm_90", meaning="stmatrix"),
)  # fmt: skip
