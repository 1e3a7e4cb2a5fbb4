"""A trial on the simulator, under a schedule."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from ..simulator import simulate
from . import Trial, poisoned

__all__ = ["Outcome", "simulated"]


class Outcome(NamedTuple):
    """excess: the largest error over its bound, at most 1.  executed: warp instructions."""

    outputs: dict[str, Tensor]
    excess: float
    executed: int


def simulated(trial: Trial, seed: int, **options: Any) -> Outcome:
    """Runs the trial's kernel on the simulator.

    seed: of the inputs, and of the schedule.  options: of `simulate`.
    Raises SimulationError at a report, and RuntimeError where another kernel ran.
    """
    inputs = trial.inputs(seed)
    with simulate(seed=seed, **options) as machine, poisoned():
        outputs = trial.run(inputs)
    if set(machine.launches) != {trial.kernel}:
        raise RuntimeError(f"{trial.kernel} ({trial.what}): {', '.join(machine.launches) or 'no kernel'} ran instead")
    return Outcome(outputs, trial.excess(inputs, outputs), machine.executed)
