"""The sweep of mutants: its table and its record."""

from __future__ import annotations

import json

import pytest

from benchmarks.mutations import sweep
from benchmarks.mutations.__main__ import main

ONLY = "swiglu_bf16_pairs"


def test_the_record(tmp_path, capsys) -> None:
    assert main(["--only", ONLY, "--out", str(tmp_path)]) == 0
    assert "swiglu: 100.0% of 12 found, 0 by their values only" in capsys.readouterr().out
    (path,) = tmp_path.glob("*-cpu-mutations.json")
    (run,) = json.loads(path.read_text())["runs"]
    (row,) = run["rows"]
    assert row == {
        "case": "swiglu: bounds", "mutants": 12, "by report": 12, "by value": 0, "survived": 0, "excluded": 0,
    }  # fmt: skip
    assert run["summary"]["survivors"] == [] and run["arguments"]["kernels"] == ["swiglu_bf16_pairs_256x2"]


def test_a_survivor_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path, capsys) -> None:
    original = sweep.outcome_of
    monkeypatch.setattr(sweep, "outcome_of", lambda mutant: original(mutant, schedules=()))
    assert main(["--only", ONLY, "--out", str(tmp_path)]) == 1
    assert "off by one: survived" in capsys.readouterr().out
