"""A Python DSL for PTX: one call, one instruction.

A kernel is what is called inside its `with` block:

    with Kernel("double", block=(128, 1, 1)) as k:
        data = k.param("data", "pointer")
        index = ptx.mov(special("tid.x"), type="u32")
        address = data + ptx.mul.wide(index, 4)
        ptx.st(address, ptx.ld(address, space="global", type="f32") * 2.0, space="global")
    print(k.ptx())
"""

from __future__ import annotations

from .errors import TraceError
from .instructions import ptx
from .printer import print_module as print
from .reg import Global, NotPred, Pred, Reg, RegArray, Var
from .smem import SharedPlan, SharedRef
from .syntax import PtxSyntaxError, parse, rename
from .text_kernel import TextKernel
from .trace import Kernel, special
from .transpile import run, transpile
from .types import Im2col, Param, TensorMapSpec

__all__ = [
    "Global", "Im2col", "Kernel", "NotPred", "Param", "Pred", "PtxSyntaxError", "Reg", "RegArray", "SharedPlan",
    "SharedRef", "TensorMapSpec", "TextKernel", "TraceError", "Var", "parse", "print", "ptx", "rename", "run",
    "special", "transpile",
]  # fmt: skip
