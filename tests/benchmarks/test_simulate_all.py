"""The sweep over policies and seeds, and what it says of kernels that are wrong."""

from __future__ import annotations

import json

import pytest

from benchmarks import simulate_all
from pyptx_ops.trials import rowwise

ONLY = "swiglu_bwd_bf16"


@pytest.mark.parametrize("processes", [1, 2])
def test_the_record(processes: int, tmp_path, capsys) -> None:
    arguments = ["--only", ONLY, "--seeds", "2", "--processes", str(processes), "--out", str(tmp_path)]
    assert simulate_all.main(arguments) == 0
    assert "3 kernels, 24 runs, 0 failed" in capsys.readouterr().out
    (path,) = tmp_path.glob("*-cpu-simulate.json")
    (run,) = json.loads(path.read_text())["runs"]
    (row,) = run["rows"]
    assert (row["kernels"], row["runs"], row["failed"]) == (3, 24, 0) and 0 < row["worst"] <= 1
    assert run["environment"]["cpu"] and run["summary"]["failures"] == []


def test_wrong_values_and_reports_are_failures(monkeypatch: pytest.MonkeyPatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(rowwise, "silu_gradients_excess", lambda *tensors: 1.5)
    assert simulate_all.main(["--only", f"{ONLY}_rows", "--seeds", "1", "--out", str(tmp_path)]) == 1
    assert "policy lazy, seed 0: 1.5 times its error bound" in capsys.readouterr().out
    monkeypatch.setattr(simulate_all, "simulated", raising)
    assert simulate_all.main(["--only", f"{ONLY}_rows", "--seeds", "1", "--out", str(tmp_path)]) == 1
    assert "the report" in capsys.readouterr().out


def raising(*args, **kwargs):
    raise RuntimeError("the report")


def test_no_kernel_is_no_success(tmp_path) -> None:
    assert simulate_all.main(["--only", "nothing", "--out", str(tmp_path)]) == 1
