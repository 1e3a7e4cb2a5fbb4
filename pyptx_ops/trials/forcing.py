"""Calls that run with a GEMM config of our choice instead of the selector's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..dispatch import gemm as host
from ..kernels.configs import GemmConfig
from ..kernels.hopper.tuning.gemm import SMS
from ..launch import unbound

__all__ = ["forced"]


@contextmanager
def forced(config: GemmConfig, workers: int | None = None) -> Iterator[None]:
    """Every gemm and grouped_gemm inside the block runs this config. Plans made there do not outlive it.

    workers: how many CTAs share the tiles of a persistent config, where its own grid shall not decide.
    """
    kept_select, kept_grid, kept_plans = host.select, host.grid, dict(host._plans)
    host._plans.clear()
    host.select = lambda problem, sms=SMS: config  # type: ignore[assignment]
    if workers is not None and config.split_k == 1:
        host.grid = lambda problem, config, sms: workers
    try:
        with unbound():
            yield
    finally:
        host.select, host.grid = kept_select, kept_grid
        host._plans.clear()
        host._plans.update(kept_plans)
