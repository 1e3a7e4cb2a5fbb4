"""Types: what a register holds, what a kernel parameter is. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Param", "TensorMapSpec", "PARAM_KINDS", "TENSOR_MAP_DTYPES"]

PARAM_KINDS = ("pointer", "u32", "i32", "u64", "i64", "f32", "f64", "tensor_map")

TENSOR_MAP_DTYPES = {
    # name: (driver enum CUtensorMapDataType, bytes per element)
    "u8": (0, 1),
    "u16": (1, 2),
    "u32": (2, 4),
    "i32": (3, 4),
    "u64": (4, 8),
    "i64": (5, 8),
    "f16": (6, 2),
    "f32": (7, 4),
    "f64": (8, 8),
    "bf16": (9, 2),
    "f32_ftz": (10, 4),
    "tf32": (11, 4),
    "tf32_ftz": (12, 4),
}


@dataclass(frozen=True)
class TensorMapSpec:
    """What the host needs to encode a tiled tensor map besides the address, sizes and strides of a call.

    dtype: a name in TENSOR_MAP_DTYPES.  box: elements per dimension, innermost first; its length is the rank (1 to 5).
    swizzle: 0, 32, 64 or 128 bytes.  l2_promotion: 0, 64, 128 or 256 bytes.
    oob_nan: elements out of bounds read as NaN instead of zero.
    """

    dtype: str
    box: tuple[int, ...]
    swizzle: int = 0
    l2_promotion: int = 128
    oob_nan: bool = False

    @property
    def rank(self) -> int:
        return len(self.box)


@dataclass(frozen=True)
class Param:
    """One kernel parameter: its name, its kind (one of PARAM_KINDS) and, for a tensor map, its description."""

    name: str
    kind: str
    tensor_map: TensorMapSpec | None = None

    @property
    def values(self) -> int:
        """How many Python values a launch takes for this parameter."""
        return 2 * self.tensor_map.rank if self.tensor_map else 1
