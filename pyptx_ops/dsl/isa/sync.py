"""Barriers, fences and mbarriers."""

from __future__ import annotations

from typing import Any

from .row import Row
from .rules import together

__all__ = ["ROWS"]

BARRIER = "barrier:u32[0,15]"
THREADS = "threads:u32[32,1024,32]"
LOCAL = "{.space:shared|shared::cta=shared::cta}"
WAIT = "{.sem:acquire@8.0@sm_90|relaxed@8.6@sm_90}{.scope:cta|cluster}" + LOCAL
RELAXED = "{.sem:relaxed}{.scope:cta|cluster}{.space:shared|@smem=shared::cta}"
COUNT, BYTES = "?count:u32[1,1048575]", "bytes:u32[0,1048575]"
ORDER = together("sem", "scope")
HOPPER: dict[str, Any] = {"since": "8.0", "target": "sm_90"}


def _arrival(op: str, tail: str, since: str) -> tuple[Row, Row]:
    """At a barrier of this CTA, which gives its state back, and at one of another CTA, which does not."""
    path, spelling = "mbarrier." + op, "mbarrier." + op + "{.sem:release|relaxed@8.6}{.scope:cta|cluster}"
    common: dict[str, Any] = {"target": "sm_90", "rules": (ORDER,), "meaning": path}
    return (
        Row(path, spelling + LOCAL + ".b64", "=?state:b64 [bar] " + tail, since=since, **common),
        Row(path, spelling + "{.space!:shared::cluster}.b64", "=_:b64 [bar] " + tail, "8.0", **common),
    )


ROWS = (
    Row("bar.sync", "bar{.cta@7.8}.sync", f"{BARRIER} ?{THREADS}"),
    Row("bar.arrive", "bar{.cta@7.8}.arrive", f"{BARRIER} {THREADS}", "2.0"),
    Row("bar.red.popc", "bar{.cta@7.8}.red.popc.u32", f"=d:u32 {BARRIER} a:pred", "2.0", meaning="bar.red"),
    Row("bar.red.popc", "bar{.cta@7.8}.red.popc.u32", f"=d:u32 {BARRIER} {THREADS} a:pred", "2.0", meaning="bar.red"),
    Row("bar.red", "bar{.cta@7.8}.red{.op!:and|or}.pred", f"=p:pred {BARRIER} a:pred", "2.0"),
    Row("bar.red", "bar{.cta@7.8}.red{.op!:and|or}.pred", f"=p:pred {BARRIER} {THREADS} a:pred", "2.0"),
    Row("bar.warp.sync", "bar.warp.sync", "mask:b32", "6.0"),
    Row("barrier.sync", "barrier{.cta@7.8}.sync{.aligned}", f"{BARRIER} ?{THREADS}", "6.0", meaning="bar.sync"),
    Row("barrier.arrive", "barrier{.cta@7.8}.arrive{.aligned}", f"{BARRIER} {THREADS}", "6.0", meaning="bar.arrive"),
    Row(
        "barrier.red.popc", "barrier{.cta@7.8}.red.popc{.aligned}.u32", f"=d:u32 {BARRIER} a:pred", "6.0",
        meaning="bar.red",
    ),
    Row(
        "barrier.red.popc", "barrier{.cta@7.8}.red.popc{.aligned}.u32", f"=d:u32 {BARRIER} {THREADS} a:pred", "6.0",
        meaning="bar.red",
    ),
    Row(
        "barrier.red", "barrier{.cta@7.8}.red{.op!:and|or}{.aligned}.pred", f"=p:pred {BARRIER} a:pred", "6.0",
        meaning="bar.red",
    ),
    Row(
        "barrier.red", "barrier{.cta@7.8}.red{.op!:and|or}{.aligned}.pred", f"=p:pred {BARRIER} {THREADS} a:pred",
        "6.0", meaning="bar.red",
    ),
    Row("barrier.cluster.arrive", "barrier.cluster.arrive{.sem:release@8.0|relaxed@8.0}{.aligned}", "", "7.8", "sm_90"),
    Row("barrier.cluster.wait", "barrier.cluster.wait{.sem:acquire@8.0}{.aligned}", "", "7.8", "sm_90"),
    Row("membar", "membar{.level!:cta|gl|sys}", "", "1.4"),
    Row(
        "fence", "fence{.sem:sc|acq_rel|acquire@8.6@sm_90|release@8.6@sm_90}{.scope!:cta|gpu|sys|cluster@7.8@sm_90}",
        "", "6.0", "sm_70",
    ),
    Row("fence.sync_restrict", "fence.acquire.sync_restrict::shared::cluster.cluster", "", "8.6", "sm_90"),
    Row(
        "fence.sync_restrict.release", "fence.release.sync_restrict::shared::cta.cluster", "", "8.6", "sm_90",
        meaning="fence.sync_restrict",
    ),
    Row("fence.mbarrier_init", "fence.mbarrier_init.release.cluster", "", "8.0", "sm_90"),
    Row("fence.proxy.alias", "fence.proxy.alias", "", "7.5", "sm_70"),
    Row("fence.proxy.async", "fence.proxy.async{.space:global|@smem}", "", "8.0", "sm_90"),
    Row(
        "fence.proxy.async_generic.acquire",
        "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster", "", "8.6", "sm_90",
        meaning="fence.proxy.async_generic",
    ),
    Row(
        "fence.proxy.async_generic.release", "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster",
        "", "8.6", "sm_90", meaning="fence.proxy.async_generic",
    ),
    Row(
        "fence.proxy.tensormap.acquire", "fence.proxy.tensormap::generic.acquire{.scope!:@scope}",
        "[map] #bytes[128,128]", "8.3", "sm_90",
    ),
    Row("fence.proxy.tensormap.release", "fence.proxy.tensormap::generic.release{.scope!:@scope}", "", "8.3", "sm_90"),
    Row("mbarrier.init", f"mbarrier.init{LOCAL}.b64", "[bar] count:u32[1,1048575]", "7.0", "sm_80"),
    Row("mbarrier.inval", f"mbarrier.inval{LOCAL}.b64", "[bar]", "7.0", "sm_80"),
    *_arrival("arrive", COUNT, since="7.8"),
    *_arrival("arrive.expect_tx", BYTES, since="8.0"),
    Row(
        "mbarrier.arrive.noComplete", f"mbarrier.arrive.noComplete{{.sem:release}}{{.scope:cta}}{LOCAL}.b64",
        "=state:b64 [bar] count:u32[1,1048575]", "7.0", "sm_80", rules=(ORDER,),
    ),
    *_arrival("arrive_drop", COUNT, since="7.8"),
    *_arrival("arrive_drop.expect_tx", BYTES, since="8.0"),
    Row(
        "mbarrier.arrive_drop.noComplete",
        f"mbarrier.arrive_drop.noComplete{{.sem:release}}{{.scope:cta}}{LOCAL}.b64",
        "=state:b64 [bar] count:u32[1,1048575]", "7.0", "sm_80", rules=(ORDER,),
    ),
    Row("mbarrier.expect_tx", f"mbarrier.expect_tx{RELAXED}.b64", "[bar] " + BYTES, rules=(ORDER,), **HOPPER),
    Row("mbarrier.complete_tx", f"mbarrier.complete_tx{RELAXED}.b64", "[bar] " + BYTES, rules=(ORDER,), **HOPPER),
    Row(
        "mbarrier.test_wait", f"mbarrier.test_wait{WAIT}.b64", "=p:pred [bar] state:b64", "7.0", "sm_80",
        rules=(ORDER,),
    ),
    Row(
        "mbarrier.test_wait.parity", f"mbarrier.test_wait.parity{WAIT}.b64", "=p:pred [bar] parity:u32[0,1]", "7.1",
        "sm_80", rules=(ORDER,),
    ),
    Row(
        "mbarrier.try_wait", f"mbarrier.try_wait{WAIT}.b64", "=p:pred [bar] state:b64 ?hint:u32", "7.8", "sm_90",
        rules=(ORDER,),
    ),
    Row(
        "mbarrier.try_wait.parity", f"mbarrier.try_wait.parity{WAIT}.b64", "=p:pred [bar] parity:u32[0,1] ?hint:u32",
        "7.8", "sm_90", rules=(ORDER,),
    ),
    Row("mbarrier.pending_count", "mbarrier.pending_count.b64", "=d:u32 state:b64", "7.0", "sm_80"),
)  # fmt: skip
