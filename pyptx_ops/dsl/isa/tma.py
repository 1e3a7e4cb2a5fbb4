"""Asynchronous bulk and tensor copies, and tensor maps."""

from __future__ import annotations

from .row import Row

__all__ = ["ROWS"]

ROWS = (
    Row("prefetch.tensormap", "prefetch.tensormap", "[map]", since="8.0", target="sm_90", meaning="prefetch.tensormap"),
    Row(
        "cp.async.bulk.tensor.load",
        "cp.async.bulk.tensor{.dim!:@dim}{.space:shared::cluster|shared::cta@8.6=shared::cluster}.global.tile"
        ".mbarrier::complete_tx::bytes{.multicast::cluster?mask}{.L2::cache_hint?policy}",
        "[dst] [map,coordinates*$dim] [bar] ?mask:u16 ?policy:b64",
        since="8.0", target="sm_90", meaning="tma.load",
    ),
)  # fmt: skip
