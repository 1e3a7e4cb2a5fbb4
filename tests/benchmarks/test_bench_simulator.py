"""The simulator's own benchmark writes what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench_simulator


def test_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_simulator, "CONFIGS", bench_simulator.CONFIGS[-2:])
    assert bench_simulator.main(["--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*-cpu-simulator.json")
    (run,) = json.loads(path.read_text())["runs"]
    assert [row["case"] for row in run["rows"]] == [
        "wgmma m64n256k16 bf16", "gemm 256x256x256 bf16", "rms_norm 256x4096 bf16", "silu_and_mul 256x2048 bf16",
        "2 kernels, 8 schedules each",
    ]  # fmt: skip
    assert all(row["rate"] > 0 and row["instructions"] > 0 for row in run["rows"]) and run["environment"]["cpu"]
    wgmma, gemm, *others = run["rows"][:-1]
    assert wgmma["product_rate"] > 0 and gemm["other_rate"] > gemm["rate"]
    assert all(row["products"] == 0 and row["other_rate"] == row["rate"] for row in others)
