"""Every shipped kernel on the simulator, on several problems and schedules: within the bounds of its arithmetic,
without a report."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pyptx_ops
from pyptx_ops import dispatch
from pyptx_ops.dsl.sim import POLICIES
from pyptx_ops.trials import CONFIGS, trials_of
from pyptx_ops.trials.simulated import simulated

SCHEDULES = 8


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_kernels(config: Any, seed: int) -> None:
    """Each policy twice, with other problems, the second time with lanes that take turns."""
    trials = list(trials_of(config))
    for number in range(SCHEDULES):
        trial, policy = trials[number % len(trials)], POLICIES[number % len(POLICIES)]
        interleave = number >= len(POLICIES)
        excess = simulated(trial, seed + number, policy=policy, interleave=interleave).excess
        assert excess <= 1, f"{trial.what}, {policy}, seed {seed + number}: {excess} times the bound"


def test_a_kernel_that_did_not_run_is_told() -> None:
    trial = next(trials_of(CONFIGS[0]))

    class Other:
        kernel, what = "another", trial.what
        inputs, run, excess = trial.inputs, trial.run, trial.excess

    with pytest.raises(RuntimeError, match=f"another .*: {trial.kernel} ran instead"):
        simulated(Other(), 0)


def test_the_same_seed_gives_the_same_bits() -> None:
    a, b = torch.randn(70, 200).bfloat16(), torch.randn(200, 64).bfloat16()
    results, instructions = [], []
    for seed in (5, 5, 6):
        with pyptx_ops.simulate(policy="random", seed=seed) as launcher:
            results.append(pyptx_ops.gemm(a, b))
        instructions.append(launcher.executed)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    assert instructions[0] == instructions[1] > 0


def test_outside_the_block_and_for_other_dtypes_the_reference_runs() -> None:
    a = torch.randn(4, 8)
    with pyptx_ops.simulate() as launcher:
        assert torch.equal(pyptx_ops.gemm(a, a.t()), a @ a.t())
        assert (dispatch.route("cpu").path, dispatch.route("cpu").arch) == ("kernel", "sm_90a")
    assert dispatch.route("cpu").path == "reference"
    pyptx_ops.gemm(a.bfloat16(), a.t().bfloat16())
    assert launcher.executed == 0 and not launcher.launches


def test_memory_that_is_not_the_launch_s_own_is_out_of_bounds() -> None:
    """Also where other tensors are alive there."""
    memory = torch.zeros(64, 64).bfloat16()
    x, y = memory[:8, :8].clone(), memory[8:16, :8]
    with pyptx_ops.simulate() as launcher:
        kernel = launcher.kernel("sm_90a", "rms_norm_bf16_w8_8x2")
        values = (0, 1e-5, 0.0, 1, 0, 8, 2**63 - 1, 2, 1, 1 / 8, 0, 16, 0, 128)
        kernel.launch_on([x, y], (1, 1, 1), x.data_ptr(), y.data_ptr(), *values)
        with pytest.raises(pyptx_ops.dsl.sim.SimulationError, match="out of bounds"):
            kernel.launch_on([x], (1, 1, 1), x.data_ptr(), y.data_ptr(), *values)
