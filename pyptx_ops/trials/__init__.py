"""Small problems that exercise every kernel of the package: inputs from a seed, the call, and the error over its bound.

    for trial in trials_of(config):
        inputs = trial.inputs(seed=0)
        outputs = trial.run(inputs)
        assert trial.excess(inputs, outputs) <= 1

`trials_of` gives the smallest one first. Inputs are made on the CPU; they may be moved before the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from ..kernels.configs import GemmConfig, RmsNormConfig, SwigluConfig
from ..kernels.hopper.tuning import gemm as gemm_tuning
from ..kernels.hopper.tuning import norm as norm_tuning
from ..kernels.hopper.tuning import swiglu as swiglu_tuning
from .gemm import GemmTrial, gemm_trials
from .gemm_swiglu import GemmSwigluTrial, gemm_swiglu_trials
from .rowwise import NormTrial, SwigluTrial, norm_trials, swiglu_trials

__all__ = [
    "CONFIGS",
    "GemmSwigluTrial",
    "GemmTrial",
    "NormTrial",
    "SwigluTrial",
    "Trial",
    "every_trial",
    "poisoned",
    "trials_of",
]

CONFIGS: tuple[Any, ...] = (*gemm_tuning.configs(), *norm_tuning.configs(), *swiglu_tuning.configs())


class Trial(Protocol):
    """A problem that runs one kernel. what: its sizes and options, which tell it from the kernel's other trials."""

    @property
    def kernel(self) -> str: ...

    @property
    def what(self) -> str: ...

    def inputs(self, seed: int) -> dict[str, Tensor | None]: ...

    def run(self, inputs: dict[str, Tensor | None]) -> dict[str, Tensor]: ...

    def excess(self, inputs: dict[str, Tensor | None], outputs: dict[str, Tensor]) -> float:
        """The largest error over its bound: at most 1 for right outputs."""


def trials_of(config: Any) -> Iterator[Trial]:
    if isinstance(config, GemmConfig) and config.swiglu:
        yield from gemm_swiglu_trials(config)
        return
    makers: dict[type, Any] = {GemmConfig: gemm_trials, RmsNormConfig: norm_trials, SwigluConfig: swiglu_trials}
    yield from makers[type(config)](config)


def every_trial() -> Iterator[Trial]:
    for config in CONFIGS:
        yield from trials_of(config)


@contextmanager
def poisoned() -> Iterator[None]:
    """Inside the block new tensors hold NaN: an output that a kernel leaves out is seen."""
    kept = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(kept[0], warn_only=kept[1])
