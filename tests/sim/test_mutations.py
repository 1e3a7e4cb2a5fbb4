"""Every synchronising instruction of shipped GEMMs is left out or changed in turn: the simulator finds it.

What survives is explained: without `setmaxnreg.inc` ptxas keeps the consumers within the registers of the launch, which
spills but computes the same; and where the split kernel's producer does not arrive at the cluster barrier, it exits
soon, which counts as an arrival.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch

import pyptx_ops
from pyptx_ops import simulator
from pyptx_ops.dispatch import gemm as gemm_host
from pyptx_ops.dsl.sim import Program, SimulationError, load
from pyptx_ops.kernels.configs import GemmConfig
from pyptx_ops.kernels.hopper.tuning import gemm as gemm_tuning

NAMES = ("gemm_bf16_xk_yk_128x128x64_s6", "gemm_bf16_xk_yk_128x16x64_s5_swap_split2_b2")
CONFIGS = [c for c in gemm_tuning.configs() if c.name in NAMES]
F32, BF16 = torch.float32, torch.bfloat16  # of the result: each has an epilogue of its own
RUNS = [
    (200, "lazy", 0, BF16), (1200, "lazy", 0, F32), (200, "random", 1, BF16), (1200, "random", 2, F32),
    (1200, "eager", 0, BF16),
]  # fmt: skip
SYNCHRONISES = re.compile(r"(@!?%p\d+ )?(mbarrier\.|wgmma\.(fence|commit|wait)|bar\.|barrier\.|fence\.|setmaxnreg)")
EXPLAINED = ("setmaxnreg.inc", "barrier.cluster.arrive")
NOTHING = "fence.acq_rel.cta;"


def mutants(text: str) -> Iterator[tuple[str, str]]:
    """(what was changed, the changed text)."""
    lines = text.splitlines()
    for i, line in enumerate(lines):
        statement = line.strip()
        if SYNCHRONISES.match(statement):
            for new in changes(statement):
                yield f"line {i + 1}: {statement} -> {new}", "\n".join([*lines[:i], new, *lines[i + 1 :]])


def changes(statement: str) -> Iterator[str]:
    """Left out; parities fixed; bytes, counts and pending groups off by one."""
    if wait := re.match(r"mbarrier\.try_wait\S* (%p\d+), (\[.*\]), (%r\d+);", statement):
        yield f"setp.eq.u32 {wait[1]}, 0, 0;"
        yield from (statement.replace(f"{wait[3]};", f"{parity};") for parity in (0, 1))
        return
    yield NOTHING
    if match := re.match(r"(mbarrier\.arrive\.expect_tx.*), (\d+);", statement):
        yield from (f"{match[1]}, {int(match[2]) + more};" for more in (16, -16))
    if match := re.match(r"(mbarrier\.init.*), (\d+);", statement):
        yield from (f"{match[1]}, {count};" for count in (int(match[2]) - 1, int(match[2]) + 1) if count)
    if match := re.match(r"wgmma\.wait_group\.sync\.aligned (\d+);", statement):
        yield f"wgmma.wait_group.sync.aligned {int(match[1]) + 1};"


def found(config: GemmConfig, program: Program, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a run is stopped, or gives a wrong result."""
    monkeypatch.setattr(simulator, "program_of", lambda kernel: program)
    m, n = config.tokens + config.tokens // 2, config.weights + 40
    for k, policy, order, dtype in RUNS:
        gemm_host._plans.clear()
        a, b = torch.randint(-3, 4, (m, k)).bfloat16(), torch.randint(-3, 4, (n, k)).bfloat16()
        try:
            with pyptx_ops.simulate(policy=policy, seed=order, multiprocessors=1, limit=3_000_000):
                out = pyptx_ops.gemm(a, b.t(), out_dtype=dtype)
        except SimulationError:
            return True
        if not torch.equal(out, (a.float() @ b.float().t()).to(dtype)):
            return True
    return False


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.name)
def test_mutants_are_found(config: GemmConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_host, "select", lambda problem, sms: config)
    kernel = simulator.traced(config.name)
    total, survivors = 0, []
    for what, text in mutants(kernel.ptx()):
        program = load(text, block=kernel.block, cluster=kernel.cluster, shared_memory=kernel.dynamic_smem)
        total += 1
        if not found(config, program, monkeypatch):
            survivors.append(what)
    unexplained = [what for what in survivors if not any(word in what for word in EXPLAINED)]
    assert total > 40
    assert not unexplained, "\n".join(unexplained)
    assert len(survivors) <= 0.05 * total
