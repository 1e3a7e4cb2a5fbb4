"""That the problems made for compute-sanitizer reach every kernel, and are right on the reference path."""

from __future__ import annotations

import time

import pytest
import torch

from benchmarks import sanitize
from pyptx_ops.kernels.hopper.families import FAMILIES
from pyptx_ops.kernels.hopper.tuning import gemm as gemm_tuning
from pyptx_ops.kernels.hopper.tuning import norm as norm_tuning
from pyptx_ops.kernels.hopper.tuning import swiglu as swiglu_tuning
from pyptx_ops.launch import current_launcher

TRIALS = list(sanitize.trials())


def test_every_kernel_has_a_trial() -> None:
    assert {config.name for family in FAMILIES for config in family.configs} <= {trial.kernel for trial in TRIALS}


@pytest.mark.parametrize("config", norm_tuning.configs(), ids=lambda config: config.name)
def test_the_selector_takes_a_norm_there(config) -> None:
    problem = norm_tuning.NormProblem(sanitize.norm_hidden(config), config.dtype, config.residual, config.width > 1)
    assert norm_tuning.select(problem) == config
    assert norm_tuning.select(norm_tuning.NormProblem(problem.hidden, config.dtype, config.residual, True)) == config


@pytest.mark.parametrize("config", swiglu_tuning.configs(), ids=lambda config: config.name)
def test_the_selector_takes_a_swiglu_there(config) -> None:
    problem = swiglu_tuning.SwigluProblem(
        sanitize.swiglu_columns(config), config.dtype, config.layout == "pairs", config.layout != "strided"
    )
    assert swiglu_tuning.select(problem) == config


@pytest.mark.parametrize("config", gemm_tuning.configs(), ids=lambda config: config.name)
def test_gemm_problems_are_ragged_and_go_round_the_ring(config) -> None:
    m, n, k = sanitize.gemm_sizes(config)
    assert m % config.tokens and n % config.weights and k % config.tile_k
    assert -(-k // config.tile_k) > config.stages * config.split_k


@pytest.mark.parametrize("trial", TRIALS[::7], ids=lambda trial: f"{trial.kernel} {trial.what}")
def test_trials_are_right_on_the_reference_path(trial) -> None:
    torch.manual_seed(0)
    assert trial.run() <= 1


class Kernels:
    """A launcher that has every kernel."""

    def kernel(self, arch: str, name: str) -> None: ...


def test_what_is_reported() -> None:
    recorder = sanitize.Recorder(Kernels())

    def run(name: str, excess: float):
        return sanitize.Trial(name, "", lambda: current_launcher().kernel("sm_90a", name.rstrip("!")) or excess)

    every = [run("right", 0.5), run("wrong", 3.0), run("another!", 0.5)]
    failures = sanitize.ran(every, recorder, time.monotonic() + 60)
    assert [failure.split(" ")[0] for failure in failures] == ["wrong", "another!"]
    assert recorder.names == {"right", "wrong", "another"}
    (late,) = sanitize.ran(every, recorder, time.monotonic() - 1)
    assert "no time left for 3 of 3" in late
