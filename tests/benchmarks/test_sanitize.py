"""What the run under compute-sanitizer reports."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from benchmarks import products, sanitize
from pyptx_ops.launch import current_launcher
from pyptx_ops.trials import every_trial


class Kernels:
    """A launcher that has every kernel."""

    def kernel(self, arch: str, name: str) -> None: ...


@dataclass
class Pretended:
    kernel: str
    error: float
    what: str = ""

    def inputs(self, seed: int) -> dict:
        return {}

    def run(self, inputs: dict) -> dict:
        current_launcher().kernel("sm_90a", self.kernel.rstrip("!"))
        return {}

    def excess(self, inputs: dict, outputs: dict) -> float:
        return self.error


def test_what_is_reported() -> None:
    recorder = sanitize.Recorder(Kernels())
    every = [Pretended("right", 0.5), Pretended("wrong", 3.0), Pretended("another!", 0.5)]
    failures = sanitize.ran(every, recorder, time.monotonic() + 60)
    assert [failure.split(" ")[0] for failure in failures] == ["wrong", "another!"]
    assert recorder.names == {"right", "wrong", "another"}
    (late,) = sanitize.ran(every, recorder, time.monotonic() - 1)
    assert "no time left for 3 of 3" in late


@pytest.mark.parametrize("trial", list(every_trial())[::101], ids=lambda trial: f"{trial.kernel} {trial.what}")
def test_trials_are_right_on_the_reference_path(trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "DEVICE", "cpu")
    assert sanitize.checked(trial, 0) <= 1
