"""Calls that are timed with a GEMM config of our choice, and which configs a problem can choose from."""

from __future__ import annotations

from benchmarks.timing import Call
from pyptx_ops.dispatch import gemm as host
from pyptx_ops.kernels.configs import GemmConfig
from pyptx_ops.kernels.hopper.tuning import gemm as tuning
from pyptx_ops.kernels.hopper.tuning.gemm import GemmProblem
from pyptx_ops.launch import unbound
from pyptx_ops.trials.forcing import forced

__all__ = ["candidates", "pinned"]


def pinned(call: Call, config: GemmConfig) -> Call:
    """The call with a config that is settled now, so that later calls cost what a call with a cached plan costs."""
    with forced(config):
        call()
        plans = dict(host._plans)

    def run() -> object:
        host._plans.clear()
        host._plans.update(plans)
        try:
            with unbound():
                return call()
        finally:
            host._plans.clear()

    return run


def candidates(problem: GemmProblem) -> list[GemmConfig]:
    """Every config that can compute a problem."""
    return list(tuning.candidates(problem))
