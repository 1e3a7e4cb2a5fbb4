"""A family of small kernels for the tests of the build."""

from __future__ import annotations

from dataclasses import dataclass

from pyptx_ops.dsl import Kernel, ptx, special
from pyptx_ops.kernels.family import Family


@dataclass(frozen=True)
class ScaleConfig:
    factor: float
    block: int = 128

    @property
    def name(self) -> str:
        return f"scale_{int(self.factor)}_{self.block}"


def scale(config: ScaleConfig) -> Kernel:
    with Kernel(config.name, block=(config.block, 1, 1)) as k:
        data = k.param("data", "pointer")
        address = data + ptx.mul.wide(ptx.mov(special("tid.x"), type="u32"), 4)
        ptx.st(address, ptx.ld(address, space="global", type="f32") * config.factor, space="global")
        ptx.ret()
    return k


FAMILIES = (Family("scale", (ScaleConfig(2.0), ScaleConfig(3.0), ScaleConfig(2.0, 256)), scale),)
