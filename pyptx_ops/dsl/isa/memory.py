"""Loads, stores, caches, atomics."""

from __future__ import annotations

from .row import Row

__all__ = ["ROWS"]

ROWS = (
    Row(
        "ld", "ld{.space:param|global|const|shared|@smem|local}{.nc}{.l1:@l1}{.l2:@l2size}{.vec:@vec}{.type!:@data}",
        "=d~$type*$vec [addr]", meaning="ld",
    ),
    Row(
        "st", "st{.space:global|shared|@smem|local}{.l1:@l1}{.vec:@vec}{.type:@data}",
        "[addr] value~$type*$vec", meaning="st",
    ),
    Row("cvta", "cvta.to{.space!:global|shared|const|local|param@7.7}.u64", "=d:u64 a:u64", meaning="cvta.to"),
)  # fmt: skip
