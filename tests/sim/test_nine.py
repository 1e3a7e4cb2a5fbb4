"""The nine planted bugs that an H200 and racecheck were tried on: each is found in every order, with the right message
at the right line. Four of them neither the GPU's results nor racecheck show.

The kernels with all their steps pass without a report under every policy and many seeds.
"""

from __future__ import annotations

import linecache

import pytest
import torch

from pyptx_ops.dsl.sim import POLICIES, Report, SimulationError
from pyptx_ops.simulator import SimulatedKernel, SimulatedLauncher

from . import planted
from .planted import PLANTED

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


# kernel, the step that is left out, kinds of reports, what the message says, what stands in the Python line
NINE = [
    ("neighbours", "barrier", ("race", "uninitialised shared memory"), "shared memory offset", "another's"),
    ("pipeline", "wait for the load", ("race", "copy in flight"), "copy", "reads the stage"),
    ("pipeline", "proxy fence", ("missing proxy fence",), "no fence.proxy.async lies between", "bulk.store"),
    ("pipeline", "barrier behind the store", ("copy in flight", "race"), "a store|a copy", "writes the result"),
    ("refill", "barrier", ("race",), "overwritten by a copy, and nothing orders that", "fills the stage"),
    ("multiply_stored", "proxy fence", ("missing proxy fence",), "wgmma reads B.*no fence.proxy.async", "mma_async"),
    ("multiply_stored", "left alone", ("race",), "wgmma", "overwrites the tile|mma_async"),
    ("multiply_loaded", "wait for the load", ("race", "copy in flight"), "wgmma reads B.*copy", "mma_async"),
    ("exchange", "cluster barrier", ("race", "uninitialised shared memory"), "shared memory", "reads its own|writes to"),
    ("exchange", "barrier at the start", ("CTA not started",), "before anything.*has told", "writes to the other CTA"),
    ("unwaited", "wait for the load", ("exit with work in flight",), "exit|copies", "bulk.load"),
]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name, step, kinds, message, line", NINE, ids=lambda v: v.replace(" ", "_") if isinstance(v, str) and len(v) < 30 else "")  # fmt: skip
def test_a_planted_bug_is_found(name: str, step: str, kinds: tuple[str, ...], message: str, line: str, policy: str) -> None:
    for seed in SEEDS:
        with pytest.raises(SimulationError, match=f"(?s){message}") as raised:
            run(name, PLANTED[name].steps - {step}, policy, seed)
        report = raised.value.report
        print(report)
        assert report.kind in kinds, str(report)
        assert any(word in python_line(report) for word in line.split("|")), str(report)


def python_line(report: Report) -> str:
    """The Python statement that a report is about."""
    assert report.place is not None
    file, _, number = report.place.python.rpartition(":")
    assert file == planted.__file__
    return "".join(linecache.getline(file, int(number) + i) for i in range(3 if "mma" in report.place.ptx else 1))
