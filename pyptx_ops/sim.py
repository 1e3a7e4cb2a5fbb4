"""``python -m pyptx_ops sim``: kernels on the simulator, without a GPU.

What to run is a kernel of the package, by its name or a pattern ('gemm_bf16*', 'rms_norm_*'), on problems around its
tile edges, or a function of yours, as module:function or path.py:function, which takes no arguments and

* runs what shall be simulated: the package's ops on CPU tensors, or `pyptx_ops.simulator.launch_kernel`, or
* returns a `pyptx_ops.dsl.Kernel`, which --grid and --args say how to launch: numbers, and random tensors such as
  'bf16[64,128]', which stand for pointers and tensor maps.

Exit status: 0 where nothing was found, 1 at a report or wrong values, 2 for what cannot be run.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import importlib
import importlib.util
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pyptx_ops.dsl import Kernel
from pyptx_ops.dsl.sim import POLICIES, Lints, SimulationError
from pyptx_ops.dsl.sim.ptx import PtxError
from pyptx_ops.simulator import launch_kernel, simulate
from pyptx_ops.tables import table
from pyptx_ops.trials import CONFIGS, Trial, trials_of
from pyptx_ops.trials.inputs import Source
from pyptx_ops.trials.simulated import simulated

SIZES = ("rows", "columns", "hidden", "depth")  # of trials, in the order in which --size gives them
LINTS_SHOWN = 20
SMS = 4  # multiprocessors of the simulated device
OPTIONS = ("multiprocessors", "resident", "interleave", "limit", "trace")  # that go to `simulate` as they are
DTYPES = {
    "bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64,
    "u8": torch.uint8, "s32": torch.int32, "s64": torch.int64,
}  # fmt: skip


class CannotRunError(Exception):
    """A target or an option that makes no sense; the message says which."""


class Problem(NamedTuple):
    """run: (seed, options of `simulate`) -> warp instructions executed."""

    what: str
    run: Callable[..., int]


@dataclass(frozen=True)
class Job:
    """A kernel, or a function, and what is simulated of it under every schedule."""

    name: str
    problems: tuple[Problem, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    policies = POLICIES if given.policy == "all" else (given.policy,)
    schedules = list(product(range(given.seed, given.seed + given.seeds), policies))
    failed = 0
    try:
        for target in given.targets:
            for job in jobs(target, given):
                failed += not simulate_job(job, target, schedules, given)
    except (CannotRunError, PtxError) as error:
        print(f"sim: {error}", file=sys.stderr)
        return 2
    return 1 if failed else 0


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m pyptx_ops sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = result.add_argument
    add("targets", nargs="+", metavar="KERNEL", help="a name, a pattern, module:function or path.py:function")
    add("--policy", choices=(*POLICIES, "all"), default="all", help="when copies and wgmma take place (%(default)s)")
    add("--seeds", type=int, default=1, metavar="N", help="schedules of each policy (%(default)s)")
    add("--seed", type=int, default=0, metavar="S", help="the first seed (%(default)s)")
    add("--size", metavar="AxB[xC]", help="rows x columns (x depth) of one problem instead of the kernel's own")
    add("--multiprocessors", type=int, default=SMS, metavar="N", help="that the ops plan for (%(default)s)")
    add("--limit", type=int, default=200_000_000, metavar="N", help="warp instructions of a launch (%(default)s)")
    add("--resident", type=int, default=0, metavar="N", help="clusters that run at once (drawn from the seed)")
    add("--interleave", action="store_true", help="lanes of a warp that have diverged take turns")
    add("--trace", metavar="FILE", help="a timeline of the last run, for Perfetto: ui.perfetto.dev")
    add("--lint", action="store_true", help="count bank conflicts and sectors of accesses, the worst first")
    add("--grid", default="1", metavar="X[,Y[,Z]]", help="CTAs, for a function that returns a kernel")
    add("--args", nargs="*", default=[], metavar="ARG", help="its arguments: numbers, and tensors like f32[100]")
    return result


def simulate_job(job: Job, target: str, schedules: Sequence[tuple[int, str]], given: argparse.Namespace) -> bool:
    """Runs every problem of a job under every schedule, up to the first failure, and tells what came of it."""
    executed, lints = 0, Lints()
    for problem, (seed, policy) in product(job.problems, schedules):
        options = {name: getattr(given, name) for name in OPTIONS}
        options |= {"policy": policy, "lint": lints if given.lint else False}
        try:
            executed += problem.run(seed, **options)
        except (SimulationError, AssertionError, RuntimeError) as error:
            told = str(error) if isinstance(error, SimulationError) else f"{type(error).__name__}: {error}"
            print(f"FAILED {job.name}{problem.what}, policy {policy}, seed {seed}")
            print("\n".join(f"  {line}" for line in told.splitlines()))
            print(f"  again: {_again(job, target, seed, policy, given)}")
            return False
    runs = len(job.problems) * len(schedules)
    print(f"{job.name}: {runs} runs, {executed} warp instructions, nothing found")
    if given.lint:
        print(lint_table(lints))
    return True


def lint_table(lints: Lints) -> str:
    """The accesses that took more than the least, and what the others did."""
    worse = [access for access in lints.accesses if access.excess]
    rows = [
        [
            a.kind,
            a.runs,
            f"{a.done} {a.unit}",
            a.least,
            f"{a.ratio:.2f}",
            a.place.python or a.kernel,
            a.place.line,
            a.place.ptx,
        ]
        for a in worse[:LINTS_SHOWN]
    ]
    text = f"{len(lints.accesses) - len(worse)} of {len(lints.accesses)} accesses took no more than the least"
    if not rows:
        return text
    header = ("memory", "runs", "took", "least", "ratio", "at", "line", "PTX")
    return "\n".join(
        [table(header, rows), *([f"and {len(worse) - len(rows)} more"] if worse[len(rows) :] else []), text]
    )


def _again(job: Job, target: str, seed: int, policy: str, given: argparse.Namespace) -> str:
    """The command that repeats a failure."""
    words = [target if ":" in target else job.name, "--policy", policy, "--seed", str(seed)]
    words += ["--size", given.size] if given.size else []
    words += ["--multiprocessors", str(given.multiprocessors)] if given.multiprocessors != SMS else []
    words += ["--resident", str(given.resident)] if given.resident else []
    words += ["--interleave"] if given.interleave else []
    words += ["--grid", given.grid, "--args", *given.args] if given.args else []
    return shlex.join(["python", "-m", "pyptx_ops", "sim", *words])


def jobs(target: str, given: argparse.Namespace) -> Iterator[Job]:
    if ":" in target:
        yield Job(target, (Problem("", _function_run(target, given)),))
        return
    configs = [config for config in CONFIGS if fnmatch.fnmatchcase(config.name, target)]
    if not configs:
        names = [config.name for config in CONFIGS]
        near = [name for name in names if target in name][:3] or difflib.get_close_matches(target, names, 3, 0.4)
        raise CannotRunError(f"no kernel is named {target!r}; near: {', '.join(near) or 'none'}")
    for config in configs:
        trials = trials_of(config) if given.size is None else [sized(config, given.size)]
        yield Job(config.name, tuple(Problem(f": {trial.what}", _trial_run(trial)) for trial in trials))


def sized(config: Any, size: str) -> Trial:
    """The first trial of a config in other sizes."""
    trial: Any = list(trials_of(config))[1]
    names = [name for name in SIZES if name in {field.name for field in fields(trial)}]
    if not re.fullmatch("x".join([r"[1-9]\d*"] * len(names)), size):
        raise CannotRunError(f"{config.name} wants --size {'x'.join(names)}, got {size!r}")
    values: dict[str, Any] = dict(zip(names, map(int, size.split("x")), strict=True))
    if getattr(trial, "counts", ()):
        rows = values["rows"]
        values["counts"] = (rows // 2, 0, rows - rows // 2 - rows // 8)
    changed: Trial = replace(trial, **values)
    return changed


def _trial_run(trial: Trial) -> Callable[..., int]:
    def run(seed: int, **options: Any) -> int:
        outcome = simulated(trial, seed, **options)
        if not outcome.excess <= 1:
            raise AssertionError(f"wrong values: an error of {outcome.excess:.3g} times its bound")
        return outcome.executed

    return run


def _function_run(target: str, given: argparse.Namespace) -> Callable[..., int]:
    function = _function(target)

    def run(seed: int, **options: Any) -> int:
        torch.manual_seed(seed)
        with simulate(seed=seed, **options) as machine:
            made = function()
            if isinstance(made, Kernel):
                _launch(made, target, seed, given)
        if not machine.launches:
            raise CannotRunError(f"{target} launched no kernel, and returned {type(made).__name__}, no Kernel")
        return machine.executed

    return run


def _launch(kernel: Kernel, target: str, seed: int, given: argparse.Namespace) -> None:
    source = Source(target, seed)
    values = [_argument(text, source) for text in given.args]
    try:
        launch_kernel(kernel, _grid(given.grid), *values)
    except (TypeError, ValueError, OverflowError) as error:
        raise CannotRunError(f"--args: {error}") from error


def _function(target: str) -> Callable[[], object]:
    place, _, name = target.rpartition(":")
    if not place.endswith(".py"):
        try:
            module = importlib.import_module(place)
        except ImportError as error:
            raise CannotRunError(f"{place} is not imported: {error}") from error
    elif not Path(place).is_file():
        raise CannotRunError(f"there is no file {place}")
    else:
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise CannotRunError(f"{place} has no function {name!r}")
    return function


def _grid(text: str) -> tuple[int, int, int]:
    if not re.fullmatch(r"\d+(,\d+){0,2}", text):
        raise CannotRunError(f"--grid takes up to three numbers, such as 4,1,1; got {text!r}")
    x, y, z = [*map(int, text.split(",")), 1, 1][:3]
    return x, y, z


def _argument(text: str, source: Source) -> torch.Tensor | int | float:
    """A number, or a random tensor, which holds small numbers if its elements are integers."""
    if match := re.fullmatch(r"(\w+)\[(\d+(?:,\d+)*)\]", text):
        if match[1] not in DTYPES:
            raise CannotRunError(f"{text}: a tensor of {', '.join(DTYPES)} is taken")
        return source.numbers([int(size) for size in match[2].split(",")], torch.float32).to(DTYPES[match[1]])
    try:
        return float(text) if re.search(r"[.e]", text) else int(text, 0)
    except ValueError as error:
        raise CannotRunError(f"{text}: a number or a tensor such as bf16[64,128] is taken") from error
