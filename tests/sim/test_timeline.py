"""The trace of a run: what a viewer wants, slices that do not overlap within a track, and every wait with its end."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import pyptx_ops
from pyptx_ops import simulator
from pyptx_ops.dsl.sim import POLICIES, SimulationError, Timeline, load
from pyptx_ops.kernels.hopper.tuning import gemm as tuning
from pyptx_ops.trials.forcing import forced

CONFIG = next(c for c in tuning.configs() if c.name == "gemm_bf16_xk_yk_128x128x64_s6")


def traced(path: Path, policy: str) -> tuple[dict[str, Any], int]:
    a, b = torch.randn(200, 520).bfloat16(), torch.randn(520, 128).bfloat16()
    with pyptx_ops.simulate(policy=policy, seed=3, trace=path) as machine:
        with forced(CONFIG, 1):
            pyptx_ops.gemm(a, b.t().contiguous().t())
        pyptx_ops.rms_norm(a)
    return json.loads(path.read_text()), machine.executed


@pytest.mark.parametrize("policy", POLICIES)
def test_a_trace(policy: str, tmp_path: Path) -> None:
    document, executed = traced(tmp_path / "trace.json", policy)
    assert "logical time" in document["otherData"]["time"]
    names = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in document["traceEvents"] if e["ph"] == "M"}
    slices = [e for e in document["traceEvents"] if e["ph"] == "X"]
    assert len(names) + len(slices) == len(document["traceEvents"])
    rows = defaultdict(list)
    for s in slices:
        assert s.keys() == {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"}
        assert s["dur"] >= 1 and 0 <= s["ts"] <= executed and s["ts"] + s["dur"] <= executed + 1
        rows[s["pid"], s["tid"]].append((s["ts"], s["ts"] + s["dur"]))
        assert ("thread_name", s["pid"], s["tid"]) in names and ("process_name", s["pid"], 0) in names
        assert s["cat"] == "run" or s["args"]["ptx"].startswith("line ")
    for row in rows.values():
        row.sort()
        assert all(end <= begin for (_, end), (begin, _) in pairwise(row))
    assert sum(s["dur"] for s in slices if s["cat"] == "run") == executed
    kinds = defaultdict(list)
    for s in slices:
        kinds[s["cat"]].append(s)
    tiles, blocks = 2, 9
    assert len(kinds["load"]) == tiles * blocks * 2 and not kinds["store"]
    assert all("of 16384 bytes at +" in s["name"] for s in kinds["load"])
    assert len(kinds["wgmma"]) == tiles * blocks * 8, "a group per K block and consumer warp"
    waits = [s for s in kinds["wait"] if "mbarrier" in s["name"]]
    assert waits and all(s["args"]["python"].split(":")[0].endswith("ring.py") for s in waits)
    assert {name for (kind, _, _), name in names.items() if kind == "thread_name"} >= {
        "warp 0", "warp 8", "copies", "wgmma of warp 0",
    }  # fmt: skip
    processes = [name for (kind, _, _), name in names.items() if kind == "process_name"]
    assert processes[0] == f"launch 0: {CONFIG.name}, CTA (0, 0, 0)" and processes[-1].startswith("launch 1: rms_norm")


def test_waits_of_a_deadlock_are_in_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They end where the run does; the trace is written although it ended in a report."""
    kernel = simulator.traced(CONFIG.name)
    text = re.sub(r"(expect_tx.*), 32768;", r"\1, 32784;", kernel.ptx())
    program = load(text, block=kernel.block, cluster=kernel.cluster, shared_memory=kernel.dynamic_smem)
    monkeypatch.setattr(simulator, "program_of", lambda kernel: program)
    with pytest.raises(SimulationError, match="deadlock"):
        traced(tmp_path / "trace.json", "lazy")
    slices = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    last = max(s["ts"] + s["dur"] for s in slices)
    open_waits = [s for s in slices if s["cat"] == "wait" and s["ts"] + s["dur"] >= last - 1]
    assert len(open_waits) >= 9, "the producer and eight warps of consumers"


def test_nothing_is_gathered_without_a_trace() -> None:
    assert json.loads(Timeline().json())["traceEvents"] == []
    with pyptx_ops.simulate() as machine:
        pyptx_ops.rms_norm(torch.randn(2, 64).bfloat16())
    assert machine.timeline is None
