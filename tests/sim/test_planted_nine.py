"""The nine planted bugs that an H200 and racecheck were tried on: each is found in every order, with the right message
at the right line. Four of them neither the GPU's results nor racecheck show.

The kernels with all their steps pass without a report under every policy and many seeds.
"""

from __future__ import annotations

import linecache
from typing import NamedTuple

import pytest
import torch

from pyptx_ops.dsl import Kernel, ptx, special
from pyptx_ops.dsl.sim import POLICIES, Report, SimulationError
from pyptx_ops.simulator import SimulatedKernel, SimulatedLauncher

from . import planted
from .planted import NBYTES, PLANTED, THREADS

SEEDS = range(8)


def run(name: str, steps: frozenset[str], policy: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(result, as it is with all steps)."""
    kernel = PLANTED[name]
    source = kernel.source()
    wanted = kernel.wanted(source).to(torch.int32)
    out = torch.full_like(wanted, -1)
    launcher = SimulatedLauncher(seed, policy, limit=200_000)
    simulated = SimulatedKernel(launcher, kernel.build(steps))
    simulated.launch_on([source, out], (kernel.ctas, 1, 1), source.data_ptr(), out.data_ptr())
    return out, wanted


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", PLANTED)
def test_with_all_steps_a_kernel_passes(name: str, policy: str) -> None:
    for seed in SEEDS:
        out, wanted = run(name, PLANTED[name].steps, policy, seed)
        assert torch.equal(out, wanted)


class Bug(NamedTuple):
    """kinds: of the reports, which depend on the order.  message: what each says.  lines: what is written in the Python
    line that is named."""

    kernel: str
    step: str
    kinds: tuple[str, ...]
    message: str
    lines: str

    def __str__(self) -> str:
        return f"{self.kernel} without {self.step}".replace(" ", "_")


UNSET = "uninitialised shared memory"
LOADED = "is read before it was written|is read while an asynchronous copy that was not waited for writes it"
BUGS = [
    Bug("neighbours", "barrier", ("race", UNSET), "read, and nothing orders that|before it was written", "another's"),
    Bug("pipeline", "wait for the load", ("copy in flight", UNSET), LOADED, "reads the stage"),
    Bug("pipeline", "proxy fence", ("missing proxy fence",), "no fence.proxy.async lies between", "bulk.store"),
    Bug(
        "pipeline", "wait for the store", ("copy in flight",), "written while a store that was not waited for still",
        "writes the result",
    ),
    Bug("refill", "barrier", ("race",), "overwritten by a copy, and nothing orders that after", "fills the stage"),
    Bug("multiply_stored", "proxy fence", ("missing proxy fence",), "wgmma reads B .*no fence.proxy", "mma_async"),
    Bug(
        "multiply_stored", "left alone", ("race",), "nothing orders that after .*(a wgmma of warp|wrote it)",
        "overwrites the tile|mma_async",
    ),
    Bug(
        "multiply_loaded", "wait for the load", ("race", "copy in flight"), "wgmma.*copy|copy.*wgmma",
        "mma_async|bulk.load",
    ),
    Bug("exchange", "cluster barrier", ("race", UNSET), "nothing orders that|before it was written", "reads its own"),
    Bug(
        "exchange", "barrier at the start", ("CTA not started",), "before anything.*has told",
        "writes to the other CTA",
    ),
    Bug("unwaited", "wait for the load", ("exit with work in flight",), "none of its warps has waited", "bulk.load"),
]  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_planted_bug_is_found(bug: Bug, policy: str) -> None:
    for seed in SEEDS:
        with pytest.raises(SimulationError, match=bug.message) as raised:
            run(bug.kernel, PLANTED[bug.kernel].steps - {bug.step}, policy, seed)
        report = raised.value.report
        assert report.kind in bug.kinds, str(report)
        assert any(line in python_line(report) for line in bug.lines.split("|")), str(report)


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_no_bug_is_not_reported(policy: str) -> None:
    """Without the barrier behind the store the next load still comes after it: the thread that waited issues both."""
    for seed in SEEDS:
        out, wanted = run("pipeline", PLANTED["pipeline"].steps - {"barrier behind the store"}, policy, seed)
        assert torch.equal(out, wanted)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("what", ["bulk.store", "mma_async"])
def test_what_is_left_behind_is_found_whenever_it_takes_place(what: str, policy: str) -> None:
    with Kernel("left_behind", block=(THREADS, 1, 1)) as k:
        source, out = k.param("source", "pointer"), k.param("out", "pointer")
        buffer = k.dynamic_shared(128).array("buffer", NBYTES, 128).reg()
        thread = ptx.mov(special("tid.x"), type="u32")
        value = ptx.ld(source + ptx.mul.wide(thread, 4), space="global", type="u32")
        ptx.st(buffer + thread * 4, value, space="shared::cta")
        ptx.fence.proxy.async_(space="shared::cta")
        ptx.bar.sync(0)
        if what == "mma_async":
            planted.product(k, buffer)
        else:
            with k.if_(thread == 0):
                ptx.cp.async_.bulk.store(out, buffer, NBYTES)
                ptx.cp.async_.bulk.commit_group()
        ptx.ret()
    source = torch.zeros(THREADS, dtype=torch.int32)
    for seed in SEEDS:
        simulated = SimulatedKernel(SimulatedLauncher(seed, policy), k)
        with pytest.raises(SimulationError, match="exits.* waited for") as raised:
            simulated.launch_on([source], (1, 1, 1), source.data_ptr(), source.data_ptr())
        report = raised.value.report
        opcode = {"bulk.store": "cp.async.bulk.global", "mma_async": "wgmma.mma_async"}[what]
        assert report.kind == "exit with work in flight" and report.place and report.place.ptx.startswith(opcode)


def python_line(report: Report) -> str:
    """The Python statement that a report is about."""
    assert report.place is not None
    file, _, number = report.place.python.rpartition(":")
    assert file == planted.__file__
    return linecache.getline(file, int(number))
