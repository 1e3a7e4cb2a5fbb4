"""The benchmark of tracing writes what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench_trace


def test_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_trace, "SIZES", (1000, 3000))
    monkeypatch.setattr(bench_trace, "ROUNDS", 1)
    assert bench_trace.main(["--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*-cpu-trace.json")
    (run,) = json.loads(path.read_text())["runs"]
    assert [row["case"] for row in run["rows"]] == ["1000 instructions", "3000 instructions"]
    for size, row in zip((1000, 3000), run["rows"]):
        assert 0.9 * size < row["instructions"] < 1.3 * size and row["trace"] > 0 and row["print"] > 0
