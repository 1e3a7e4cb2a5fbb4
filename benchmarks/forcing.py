"""Calls that run with a GEMM config of our choice instead of the selector's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.timing import Call
from pyptx_ops.dispatch import gemm as host
from pyptx_ops.kernels.configs import GemmConfig
from pyptx_ops.kernels.hopper.tuning import gemm as tuning
from pyptx_ops.kernels.hopper.tuning.gemm import GemmProblem
from pyptx_ops.launch import unbound

__all__ = ["candidates", "forced", "pinned"]


@contextmanager
def forced(config: GemmConfig, workers: int | None = None) -> Iterator[None]:
    """Every gemm and grouped_gemm inside the block runs this config. Plans made there do not outlive it.

    workers: how many CTAs share the tiles of a persistent config, where its own grid shall not decide.
    """
    kept_select, kept_grid, kept_plans = host.select, host.grid, dict(host._plans)
    host._plans.clear()
    host.select = lambda problem, sms=tuning.SMS: config  # type: ignore[assignment]
    if workers is not None and config.split_k == 1:
        host.grid = lambda problem, config, sms: workers
    try:
        with unbound():
            yield
    finally:
        host.select, host.grid = kept_select, kept_grid
        host._plans.clear()
        host._plans.update(kept_plans)


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

    def fits(config: GemmConfig) -> bool:
        majors = (config.y_major, config.x_major) if config.swap else (config.x_major, config.y_major)
        return (
            config.dtype == problem.dtype
            and config.grouped == (problem.groups > 0)
            and majors == (problem.token_major, problem.weight_major)
        )

    return [config for config in tuning.configs() if fits(config)]
