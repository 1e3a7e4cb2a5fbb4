"""Fences and mbarriers."""

from __future__ import annotations

from .row import Row

__all__ = ["ROWS"]

ROWS = (
    Row("fence.mbarrier_init", "fence.mbarrier_init.release.cluster", since="8.0", target="sm_90", meaning="fence.mbarrier_init"),
    Row("mbarrier.init", "mbarrier.init{.space:shared::cta=shared::cta}.b64", "[bar] count:u32", since="7.0", target="sm_80", meaning="mbarrier.init"),
    Row(
        "mbarrier.arrive", "mbarrier.arrive{.sem:release|relaxed@8.6}{.scope:cta|cluster}{.space:@smem=shared::cta}.b64",
        "=?state:b64 [bar] ?count:u32", since="7.8", target="sm_90", meaning="mbarrier.arrive",
    ),
    Row(
        "mbarrier.arrive.expect_tx", "mbarrier.arrive.expect_tx{.sem:release|relaxed@8.6}{.scope:cta|cluster}{.space:@smem=shared::cta}.b64",
        "=?state:b64 [bar] bytes:u32", since="8.0", target="sm_90", meaning="mbarrier.arrive.expect_tx",
    ),
    Row(
        "mbarrier.try_wait.parity", "mbarrier.try_wait.parity{.sem:acquire|relaxed@8.6}{.scope:cta|cluster}{.space:shared::cta=shared::cta}.b64",
        "=p:pred [bar] parity:u32 ?hint:u32", since="7.8", target="sm_90", meaning="mbarrier.try_wait.parity",
    ),
)  # fmt: skip
