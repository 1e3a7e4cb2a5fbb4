"""The fifth generation of tensor cores: tensor memory, its copies, and matrix products that accumulate in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .row import COUNTS, Requirement, Row, Rule, Value
from .rules import Verdict, only

__all__ = ["ROWS"]

BLACKWELL: dict[str, Any] = {"since": "8.6", "target": "sm_100a"}
GROUP = "{.group!:cta_group::1|cta_group::2}"
NUM = "{.num!:x1|x2|x4|x8|x16|x32|x64|x128}"
SHAPE, SPLIT = "{.shape!:32x32b|16x64b|16x128b|16x256b}", "{.shape!:16x32bx2}"
WORDS = {"16x128b": 2, "16x256b": 4}  # registers per repetition; 1 of the other shapes
COLUMNS = "columns:u32[32,512,32]"


def _words(values: Mapping[str, Value]) -> int:
    """Registers per lane of a move between tensor memory and registers."""
    return int(str(values["num"])[1:]) * WORDS.get(str(values["shape"]), 1)


def _mask(values: Mapping[str, Value]) -> int:
    """Words with one bit per lane of tensor memory, of one CTA or two."""
    return 4 if values["group"] == "cta_group::1" else 8


COUNTS |= {"tcgen05_words": _words, "tcgen05_mask": _mask}


def _most(values: Mapping[str, Value]) -> Verdict:
    words = _words(values)
    return f"{values['shape']} moves at most 128 registers, got {words}" if words > 128 else None


def _block(values: Mapping[str, Value]) -> Verdict:
    """Which sizes of blocks with one scale each kind has; a size left out, or named by its length, came later."""
    kind, vector = str(values["kind"])[6:], values.get("vector")
    sizes = {
        "mxf8f6f4": (None, "scale_vec::1X", "block32"), "mxf4": (None, "scale_vec::2X", "block32"),
        "mxf4nvf4": ("scale_vec::2X", "scale_vec::4X", "block16", "block32"),
    }[kind]  # fmt: skip
    if vector not in sizes:
        return f"{kind} takes the vector {' or '.join(map(repr, sizes))}, got {vector!r}"
    return Requirement((8, 8) if vector is None or str(vector)[0] == "b" else (8, 7) if kind == "mxf4nvf4" else (8, 6))


COLLECTOR = "{.collector:" + "|".join(f"collector::a::{use}" for use in ("fill", "use", "lastuse", "discard")) + "}"
WEIGHTS = "|".join(f"collector::b{i}::{use}" for i in range(4) for use in ("fill", "use", "lastuse", "discard"))
KIND = "{.kind!:kind::f16|kind::tf32|kind::f8f6f4|kind::i8}"
SCALED = "{.kind!:kind::mxf8f6f4|kind::mxf4|kind::mxf4nvf4}.block_scale"
VECTOR = "{.vector:scale_vec::1X|scale_vec::2X|scale_vec::4X|block16|block32}"
SHIFTED = only("ashift", collector=(None, "collector::a::lastuse", "collector::a::discard"))
SCALES_D = only("scale", kind=("kind::f16", "kind::tf32"))


def _products(sparse: bool, from_tensor_memory: bool) -> tuple[Row, ...]:
    """tcgen05.mma with A in shared or tensor memory, dense or 2:4 sparse."""
    sp, ts = ".sp" if sparse else "", ".ts" if from_tensor_memory else ""
    operands = f"[d] {'[a]' if from_tensor_memory else 'a:b64'} b:b64 {'[metadata] ' if sparse else ''}idesc:b32"
    ashift = "{.ashift}" if from_tensor_memory else ""
    plain = f"tcgen05.mma{sp}{GROUP}{KIND}{ashift}{COLLECTOR}"
    rules: tuple[Rule, ...] = (SCALES_D, SHIFTED) if from_tensor_memory else (SCALES_D,)
    common: dict[str, Any] = {**BLACKWELL, "meaning": f"tcgen05.mma{sp}"}
    common["doc"] = f"A in {'tensor' if from_tensor_memory else 'shared'} memory{', 2:4 sparse' if sparse else ''}."
    return (
        Row(f"tcgen05.mma{sp}{ts}", plain, f"{operands} enable:pred ?#scale[0,15]", rules=rules, **common),
        Row(
            f"tcgen05.mma{sp}{ts}", plain, f"{operands} mask:b32*tcgen05_mask enable:pred ?#scale[0,15]",
            rules=rules, **common,
        ),
        Row(
            f"tcgen05.mma{sp}.block_scale{ts}", f"tcgen05.mma{sp}{GROUP}{SCALED}{VECTOR}{COLLECTOR}",
            f"{operands} [scale_a] [scale_b] enable:pred", rules=(_block,), **common,
        ),
        Row(
            f"tcgen05.mma.ws{sp}{ts}", f"tcgen05.mma.ws{sp}{{.group!:cta_group::1}}{KIND}{{.collector:{WEIGHTS}}}",
            f"{operands} enable:pred ?zero_columns:b64", **common,
        ),
    )  # fmt: skip


ROWS = (
    Row(
        "tcgen05.alloc", f"tcgen05.alloc{GROUP}.sync.aligned{{.space:shared::cta=shared::cta}}.b32",
        f"[slot] {COLUMNS}", **BLACKWELL,
    ),
    Row("tcgen05.dealloc", f"tcgen05.dealloc{GROUP}.sync.aligned.b32", f"address:u32 {COLUMNS}", **BLACKWELL),
    Row("tcgen05.relinquish_alloc_permit", f"tcgen05.relinquish_alloc_permit{GROUP}.sync.aligned", **BLACKWELL),
    Row(
        "tcgen05.ld", f"tcgen05.ld.sync.aligned{SHAPE}{NUM}{{.pack::16b}}.b32", "=d:b32*tcgen05_words [address]",
        rules=(_most,), **BLACKWELL,
    ),
    Row(
        "tcgen05.ld.split", f"tcgen05.ld.sync.aligned{SPLIT}{NUM}{{.pack::16b}}.b32",
        "=d:b32*tcgen05_words [address] #offset", meaning="tcgen05.ld", **BLACKWELL,
    ),
    Row(
        "tcgen05.st", f"tcgen05.st.sync.aligned{SHAPE}{NUM}{{.unpack::16b}}.b32", "[address] value:b32*tcgen05_words",
        rules=(_most,), **BLACKWELL,
    ),
    Row(
        "tcgen05.st.split", f"tcgen05.st.sync.aligned{SPLIT}{NUM}{{.unpack::16b}}.b32",
        "[address] #offset value:b32*tcgen05_words", meaning="tcgen05.st", **BLACKWELL,
    ),
    Row("tcgen05.wait.ld", "tcgen05.wait::ld.sync.aligned", **BLACKWELL),
    Row("tcgen05.wait.st", "tcgen05.wait::st.sync.aligned", **BLACKWELL),
    Row("tcgen05.fence.before_thread_sync", "tcgen05.fence::before_thread_sync", **BLACKWELL),
    Row("tcgen05.fence.after_thread_sync", "tcgen05.fence::after_thread_sync", **BLACKWELL),
    Row(
        "tcgen05.commit",
        f"tcgen05.commit{GROUP}.mbarrier::arrive::one{{.space:shared::cluster}}{{.multicast::cluster?mask}}.b64",
        "[bar] ?mask:u16", **BLACKWELL,
    ),
    Row(
        "tcgen05.cp",
        f"tcgen05.cp{GROUP}{{.shape!:128x256b|4x256b|128x128b|64x128b.warpx2::02_13|64x128b.warpx2::01_23"
        "|32x128b.warpx4}{.format:b8x16.b6x16_p32|b8x16.b4x16_p64}",
        "[address] descriptor:b64", **BLACKWELL,
    ),
    Row("tcgen05.shift", f"tcgen05.shift{GROUP}.down", "[address]", **BLACKWELL),
    *_products(sparse=False, from_tensor_memory=False),
    *_products(sparse=False, from_tensor_memory=True),
    *_products(sparse=True, from_tensor_memory=False),
    *_products(sparse=True, from_tensor_memory=True),
)  # fmt: skip
