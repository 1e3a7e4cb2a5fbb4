"""Every kernel in the manifest once or more, on small problems with ragged edges, for compute-sanitizer.

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1   # else PyTorch's blocks hide what lies out of bounds
    for tool in memcheck racecheck synccheck initcheck; do
        compute-sanitizer --tool $tool --error-exitcode 9 python -m benchmarks.sanitize
    done

The problems are those of `pyptx_ops.trials`. Operands are made and results are checked on the host, so that hardly any
kernels but ours run under the tool.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from benchmarks import harness, products
from pyptx_ops.launch import Kernel, Launcher, default_launcher, use_launcher
from pyptx_ops.manifest import Manifest
from pyptx_ops.trials import Trial, every_trial
from pyptx_ops.trials.inputs import moved

ARCH = "sm_90a"


class Recorder:
    """A launcher that notes which kernels it was asked for."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self.names: set[str] = set()

    def kernel(self, arch: str, name: str) -> Kernel:
        self.names.add(name)
        return self._launcher.kernel(arch, name)

    def manifest(self, arch: str) -> Manifest:
        return self._launcher.manifest(arch)


def checked(trial: Trial, seed: int) -> float:
    """The error over its bound of a trial on the device."""
    inputs = trial.inputs(seed)
    outputs = trial.run(moved(inputs, products.DEVICE))
    return trial.excess(inputs, {name: tensor.cpu() for name, tensor in outputs.items()})


def ran(every: Sequence[Trial], recorder: Recorder, deadline: float) -> list[str]:
    """Runs trials until the deadline (of `time.monotonic`); what went wrong."""
    failures: list[str] = []
    for number, trial in enumerate(every):
        if time.monotonic() > deadline:
            return [
                *failures,
                f"no time left for {len(every) - number} of {len(every)} trials, {trial.kernel} and after",
            ]
        print(f"{trial.kernel}: {trial.what}", file=sys.stderr, flush=True)
        own = Recorder(recorder)
        with use_launcher(own):
            excess = checked(trial, number)
        if trial.kernel not in own.names:
            failures.append(f"{trial.kernel} ({trial.what}): did not run, but {', '.join(own.names) or 'none'}")
        if not excess <= 1:
            failures.append(f"{trial.kernel} ({trial.what}): {excess:.3g} times its error bound")
    return failures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sanitize", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="kernels whose name contains this")
    parser.add_argument("--skip", metavar="TEXT", help="but not those whose name contains this")
    parser.add_argument("--budget", type=float, default=600.0, metavar="S", help="seconds to spend (%(default)s)")
    given = parser.parse_args(arguments)
    if not harness.has_gpu():
        return 2
    began = time.monotonic()
    recorder = Recorder(default_launcher())

    def chosen(name: str) -> bool:
        return given.only in name and not (given.skip and given.skip in name)

    failures = ran([t for t in every_trial() if chosen(t.kernel)], recorder, began + given.budget)
    wanted = {record.name for record in recorder.manifest(ARCH).kernels if chosen(record.name)}
    missed = sorted(wanted - recorder.names)
    failures += [f"{name}: no trial ran it" for name in missed]
    for failure in failures:
        print(f"FAILED {failure}")
    print(f"{len(wanted) - len(missed)} of {len(wanted)} kernels in the manifest ran, {len(failures)} failures")
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if failures or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
