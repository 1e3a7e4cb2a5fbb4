"""Running mutants on small problems of their kernels, and what becomes of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor

from pyptx_ops.dispatch import norm as norm_host
from pyptx_ops.dsl.sim import Report, SimulationError
from pyptx_ops.kernels.configs import GemmConfig, RmsNormConfig, SwigluConfig
from pyptx_ops.launch import unbound, use_launcher
from pyptx_ops.simulator import SimulatedKernel, SimulatedLauncher
from pyptx_ops.trials import CONFIGS, GemmSwigluTrial, GemmTrial, NormTrial, SwigluTrial, Trial, poisoned, trials_of

from .body import Mutant

__all__ = ["SCHEDULES", "Outcome", "outcome_of"]

SCHEDULES = (("lazy", 0), ("random", 1), ("eager", 0), ("reverse", 0), ("random", 2), ("random", 3))
MULTIPROCESSORS = 4
GROUPS = 70  # more than a warp looks at in two turns
ODD = 83  # accesses of a row: no divisor of a block's
TAIL = {8: 2, 1: 8}  # accesses of a turn of a wide row, by their width
LONGER, LEAST_LIMIT = 4, 50_000  # a run is endless after so many times the instructions of the original, or so many


@dataclass(frozen=True)
class Outcome:
    """Of a mutant. report: the first one.  excess: the largest error over its bound of the runs without one."""

    report: Report | None
    excess: float
    runs: int

    @property
    def killed(self) -> str:
        """By what: the kind of the report, "wrong value", or "" for a survivor."""
        return self.report.kind if self.report else "" if self.excess <= 1 else "wrong value"


class _Launcher(SimulatedLauncher):
    """Gives the mutant in the place of its kernel."""

    def __init__(self, mutant: Mutant, seed: int, policy: str, limit: int):
        super().__init__(seed, policy, MULTIPROCESSORS, limit)
        self.mutant, self.program, self.params = mutant, mutant.program(), mutant.params

    def kernel(self, arch: str, name: str) -> SimulatedKernel:
        kernel = super().kernel(arch, name)
        if name != self.mutant.kernel:
            raise RuntimeError(f"{name} is launched, not {self.mutant.kernel}")
        kernel.program, kernel.params = self.program, self.params
        return kernel


def outcome_of(mutant: Mutant, schedules: Sequence[tuple[str, int]] = SCHEDULES) -> Outcome:
    """Runs every problem under every schedule, up to the first report."""
    launcher = _Launcher(mutant, 0, "lazy", 0)
    worst, runs = 0.0, 0
    for policy, seed in schedules:
        for trial, inputs, limit in problems(mutant.kernel):
            launcher.policy, launcher.seed, launcher.limit = policy, seed, limit
            runs += 1
            try:
                with use_launcher(launcher), poisoned():
                    outputs = trial.run(inputs)
            except SimulationError as error:
                return Outcome(error.report, worst, runs)
            excess = trial.excess(inputs, outputs)
            worst = max(worst, math.inf if math.isnan(excess) else excess)
    return Outcome(None, worst, runs)


Problem = tuple[Trial, dict[str, Tensor | None], int]


@cache
def problems(kernel: str) -> tuple[Problem, ...]:
    """The trials of a kernel with more of our own, those with most turns of its ring first: inputs and limits."""
    (config,) = (config for config in CONFIGS if config.name == kernel)
    return tuple(_prepared([*_own(config), *reversed(list(trials_of(config)))]))


def _prepared(trials: Iterable[Trial]) -> Iterator[Problem]:
    for trial in trials:
        inputs = trial.inputs(0)
        machine = SimulatedLauncher(multiprocessors=MULTIPROCESSORS)
        with use_launcher(machine), poisoned():
            trial.run(inputs)
        yield trial, inputs, max(LONGER * machine.executed, LEAST_LIMIT)


def _own(config: Any) -> Iterator[Trial]:
    """Problems that reach what the trials of every config leave out: rings that wrap, an edge in every access."""
    if isinstance(config, GemmConfig):
        yield from _gemms(config)
    if isinstance(config, RmsNormConfig):
        yield AnyRows(NormTrial(config, config.rows + 1, config.team // 2 * config.width, form="sliced"))
        for access in range(config.vectors + config.wide * TAIL[config.width]):
            hidden = (access * config.team + config.team // 2) * config.width
            yield AnyRows(NormTrial(config, config.rows + 1, hidden))
            yield AnyRows(NormTrial(config, config.rows + 1, hidden, "fp32"))
    if isinstance(config, SwigluConfig):
        for access in range(config.unroll):
            rows = access * config.block // ODD + 1
            if config.layout == "pairs":
                yield SwigluTrial(config, rows, ODD * config.width)
            else:
                yield SwigluTrial(config, rows, ODD * config.width, "apart", used=rows - 1)


def _gemms(config: GemmConfig) -> Iterator[GemmTrial]:
    """The ring wraps also where a CTA has one tile; a warp looks at groups more than twice."""
    depth = 3 * config.stages * config.split_k * config.tile_k + 24
    many = tuple(index * 7 % 5 for index in range(GROUPS))
    make, columns = (GemmSwigluTrial, 48) if config.swiglu else (GemmTrial, 24)
    if config.ragged_k:
        yield GemmTrial(config, config.tile_m + 8, 24, depth + 5, counts=(depth, 5), workers=1)
        yield GemmTrial(config, 16, 24, sum(many), counts=many, workers=2)
    elif config.grouped:
        yield make(config, 14, columns, depth, counts=(9, 5), workers=1)
        yield make(config, sum(many), columns, 24, counts=many, workers=2)
    else:
        yield make(config, config.tokens + 8, columns, depth, workers=1)


@dataclass(frozen=True)
class AnyRows:
    """A norm over rows that the selector would give another config, with more blocks than there are rows."""

    trial: NormTrial

    @property
    def kernel(self) -> str:
        return self.trial.kernel

    @property
    def what(self) -> str:
        return self.trial.what

    def inputs(self, seed: int) -> dict[str, Tensor | None]:
        return self.trial.inputs(seed)

    def run(self, inputs: dict[str, Tensor | None]) -> dict[str, Tensor]:
        with _norm_forced(self.trial.config), unbound():
            return self.trial.run(inputs)

    def excess(self, inputs: dict[str, Tensor | None], outputs: dict[str, Tensor]) -> float:
        return self.trial.excess(inputs, outputs)


@contextmanager
def _norm_forced(config: RmsNormConfig) -> Iterator[None]:
    select, grid = norm_host.select, norm_host.grid

    def larger(rows: int, config: RmsNormConfig) -> tuple[int, int]:
        x, y = grid(rows, config)
        return x + config.cluster, y

    norm_host._plans.clear()
    norm_host.select, norm_host.grid = (lambda problem: config), larger
    try:
        yield
    finally:
        norm_host.select, norm_host.grid = select, grid
        norm_host._plans.clear()
