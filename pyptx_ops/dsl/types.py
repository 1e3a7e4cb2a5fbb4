"""Types: what a register holds, what a kernel parameter is. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PARAM_KINDS", "Im2col", "Param", "SPECIAL_REGISTERS", "TENSOR_MAP_DTYPES", "TYPES", "TensorMapSpec", "Type"]


@dataclass(frozen=True)
class Type:
    """A PTX type: its name without the dot, its width, its class and how a register that holds it is declared.

    cls is "pred", "int" (signed or not), "float", "bits" (untyped) or "packed" (several small floats in one word).
    Instructions of class "bits" take any register of their width; a "bits" or "packed" register fits any instruction
    of its width.
    """

    name: str
    bits: int
    cls: str
    declared: str
    prefix: str

    def __repr__(self) -> str:
        return self.name

    def accepts(self, other: Type) -> bool:
        """Whether an operand of this type may be a register of type `other`."""
        if self is other:
            return True
        if self.bits != other.bits or (self.declared == "b8") != (other.declared == "b8"):
            return False
        if (self.cls == "pred") != (other.cls == "pred"):
            return False
        return self.cls == other.cls or "int" not in (self.cls, other.cls) or "float" not in (self.cls, other.cls)


def _types() -> dict[str, Type]:
    declared = {1: ("pred", "%p"), 8: ("b16", "%rs"), 16: ("b16", "%rs"), 32: ("b32", "%r"), 64: ("b64", "%rd")}
    declared[128] = ("b128", "%rq")
    table = {"pred": Type("pred", 1, "pred", *declared[1])}
    for bits in (8, 16, 32, 64, 128):
        table[f"b{bits}"] = Type(f"b{bits}", bits, "bits", *declared[bits])
        if bits <= 64:
            table[f"u{bits}"] = Type(f"u{bits}", bits, "int", *declared[bits])
            table[f"s{bits}"] = Type(f"s{bits}", bits, "int", *declared[bits])
    table["f32"] = Type("f32", 32, "float", "f32", "%f")
    table["f64"] = Type("f64", 64, "float", "f64", "%fd")
    for name, bits in (("f16", 16), ("bf16", 16), ("tf32", 32), ("f16x2", 32), ("bf16x2", 32)):
        table[name] = Type(name, bits, "packed", *declared[bits])
    for name in ("e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2", "ue8m0x2"):
        table[name] = Type(name, 16, "packed", *declared[16])
    for name in ("u16x2", "s16x2", "e4m3x4", "e5m2x4", "e2m3x4", "e3m2x4"):
        table[name] = Type(name, 32, "packed", *declared[32])
    table["e2m1x4"] = Type("e2m1x4", 16, "packed", *declared[16])
    table["e2m1x2"] = Type("e2m1x2", 8, "packed", "b8", "%rb")
    table["f32x2"] = Type("f32x2", 64, "packed", *declared[64])
    return table


TYPES = _types()


def _special_registers() -> dict[str, str]:
    """Name without the % -> type."""
    words = (
        "laneid warpid nwarpid smid nsmid cluster_ctarank cluster_nctarank clock clock_hi globaltimer_lo globaltimer_hi"
    )
    words += " lanemask_eq lanemask_le lanemask_lt lanemask_ge lanemask_gt"
    words += " total_smem_size dynamic_smem_size aggr_smem_size reserved_smem_offset_begin reserved_smem_offset_end"
    words += " reserved_smem_offset_cap"
    table = dict.fromkeys(words.split(), "u32")
    for name in ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid"):
        table |= {f"{name}.{axis}": "u32" for axis in "xyz"}
    table |= {f"pm{i}": "u32" for i in range(8)} | {f"pm{i}_64": "u64" for i in range(8)}
    table |= {f"envreg{i}": "b32" for i in range(32)}
    return table | {"clock64": "u64", "globaltimer": "u64", "gridid": "u64", "is_explicit_cluster": "pred"}


SPECIAL_REGISTERS = _special_registers()

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
class Im2col:
    """A window of a tensor's spatial dimensions, innermost first: where the filter of a convolution is placed.

    lower: its first place, such as minus the padding.  upper: its last place, counted from the last index of the
    dimension, such as the padding less the filter's reach.  steps: from one place to the next; by default 1.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    steps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.steps:
            object.__setattr__(self, "steps", (1,) * len(self.lower))
        if not 1 <= len(self.lower) == len(self.upper) == len(self.steps) <= 3:
            raise ValueError(f"corners and steps of 1 to 3 dimensions, got {self.lower}, {self.upper}, {self.steps}")


@dataclass(frozen=True)
class TensorMapSpec:
    """What the host needs to encode a tensor map besides the address, sizes and strides of a call.

    dtype: a name in TENSOR_MAP_DTYPES.  box: elements per dimension, innermost first; its length is the rank (1 to 5).
    im2col: the window of a map for im2col copies, whose box is the channels and the pixels of a copy.
    swizzle: 0, 32, 64 or 128 bytes.  l2_promotion: 0, 64, 128 or 256 bytes.
    oob_nan: elements out of bounds read as NaN instead of zero.
    """

    dtype: str
    box: tuple[int, ...]
    swizzle: int = 0
    l2_promotion: int = 128
    oob_nan: bool = False
    im2col: Im2col | None = None

    def __post_init__(self) -> None:
        if self.im2col and len(self.box) != 2:
            raise ValueError(f"the box of an im2col map is its channels and pixels, got {self.box}")

    @property
    def rank(self) -> int:
        return len(self.im2col.lower) + 2 if self.im2col else len(self.box)


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
