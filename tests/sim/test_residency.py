"""How many CTAs run at the same time, and what a kernel may make of that."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import pyptx_ops
from pyptx_ops.dsl import Kernel, ptx, special
from pyptx_ops.dsl.sim import SimulationError
from pyptx_ops.simulator import launch_kernel
from tests.sim.tools import POLICIES, item, launch, thread_index

GRID = 40


def counting(shared: int = 0, threads: int = 32, registers: int | None = None, cluster: int = 1) -> Kernel:
    """Every CTA notes how many others have begun and not ended when it ends, after all of them had some turns."""
    with Kernel("counting", block=(threads, 1, 1), cluster=(cluster, 1, 1), max_registers=registers) as k:
        running, out = k.param("running", "pointer"), k.param("out", "pointer")
        if shared:
            k.dynamic_shared(128).array("unused", shared, 128)
        with k.if_(thread_index() == 0):
            ptx.red(running, 1, op="add", space="global", type="u32")
            for _ in k.range(0, 60):
                ptx.nanosleep(0)
            now = ptx.atom(running, -1, op="add", space="global", type="u32")
            ptx.st(item(out, ptx.mov(special("ctaid.x"), type="u32"), 4), now, space="global")
        ptx.ret()
    return k


def most(kernel: Kernel, **how: int) -> int:
    running, out = torch.zeros(1, dtype=torch.int32), torch.zeros(GRID, dtype=torch.int32)
    with pyptx_ops.simulate(**how):
        launch_kernel(kernel, (GRID, 1, 1), running, out)
    assert running.item() == 0 and (out > 0).all()
    return int(out.max())


@pytest.mark.parametrize("policy", POLICIES)
def test_the_seed_draws_how_many_run_at_once(policy: str) -> None:
    kernel = counting()
    found = Counter(most(kernel, policy=policy, seed=seed, multiprocessors=4) for seed in range(24))
    assert min(found) < GRID // 4 and max(found) > 3 * GRID // 4 and len(found) > 8


@pytest.mark.parametrize("room, what", [
    (2 * 32, {}),  # 64 of 2048 threads: 32 CTAs of a multiprocessor
    (2 * 2, {"threads": 1024}),
    (2 * 2, {"shared": 100 << 10}),
    (2 * 1, {"shared": 226 << 10}),
    (2 * 4, {"threads": 128, "registers": 128}),
    (2, {"shared": 100 << 10, "cluster": 2}),  # clusters
])  # fmt: skip
def test_as_many_as_there_is_room_for(room: int, what: dict[str, int]) -> None:
    kernel, each = counting(**what), what.get("cluster", 1)
    found = {most(kernel, seed=seed, multiprocessors=2) for seed in range(12)}
    assert max(found) <= room * each and (room * each > GRID or max(found) == room * each)
    assert min(found) < max(found) or room == 1


def test_a_number_of_one_s_own() -> None:
    assert [most(counting(), resident=number) for number in (1, 3, 40)] == [1, 3, 40]


def waiting_for_the_next() -> Kernel:
    """CTA 0 waits for a flag that CTA 1 sets."""
    with Kernel("waiting", block=(32, 1, 1)) as k:
        flag = k.param("flag", "pointer")
        cta = ptx.mov(special("ctaid.x"), type="u32")
        with k.if_(thread_index() == 0):
            with k.if_(cta == 1):
                ptx.st(flag, 1, sem="release", scope="gpu", space="global", type="u32")
            with k.else_(), k.loop():
                k.break_(ptx.ld(flag, sem="acquire", scope="gpu", space="global", type="u32") == 1)
        ptx.ret()
    return k


def test_waiting_for_a_cta_that_has_not_started() -> None:
    launch(waiting_for_the_next(), torch.zeros(1), grid=2, resident=2)
    with pytest.raises(SimulationError) as raised:
        launch(waiting_for_the_next(), torch.zeros(1), grid=2, resident=1, limit=10_000)
    report = raised.value.report
    assert report.kind == "limit" and "1 of 2 clusters have not started" in report.message
    assert report.place is not None and report.place.python.startswith(__file__)
