"""Every example is short, traces, and assembles cleanly; where there is a Hopper GPU it gives torch's results."""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import examples
from examples.run import compile_ptx, load, on_hopper
from pyptx_ops.ptxas import find_ptxas
from tests.examples import machine

FOLDER = Path(examples.__file__).parent
LADDER = re.findall(r"^    (\w+)  ", examples.__doc__ or "", re.MULTILINE)
MAX_LINES = 120


@pytest.fixture(params=LADDER)
def example(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(f"examples.{request.param}")


def test_the_ladder_lists_every_example() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {*LADDER, "__init__", "run", "edit_triton"}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_short(path: Path) -> None:
    assert path.read_text().count("\n") <= MAX_LINES


@pytest.mark.skipif(find_ptxas() is None, reason="needs ptxas")
def test_assembles_without_a_spill_or_an_advisory(example: ModuleType) -> None:
    image, report = compile_ptx(example.build())
    assert image.startswith(b"\x7fELF")
    assert report is not None
    assert (report.spill_stores, report.spill_loads, report.advisories) == (0, 0, ())


@pytest.mark.skipif(on_hopper(), reason="runs there")
def test_without_a_gpu_it_shows_the_ptx_and_says_so(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / f"{example.__name__.removeprefix('examples.')}.py"), run_name="__main__")
    output = capsys.readouterr().out
    assert example.build().ptx() in output
    assert output.endswith("not run: it needs an H100 or H200 (compute capability 9.0)\n")


@pytest.mark.skipif(not on_hopper(), reason="needs an H100 or H200")
def test_gives_the_results_of_torch(example: ModuleType) -> None:
    example.check(load(example.build()), "cuda")


def test_gives_the_results_of_torch_without_a_gpu(example: ModuleType) -> None:
    example.check(machine.load(example.build()), "cpu")


BUGS = {
    "no wait for the bytes": ("pipelined_gemm", "wait_parity(full.reg() + (stage << 3), phase)", "pass"),
    "no wait for an empty stage": ("pipelined_gemm", "wait_parity(empty.reg() + (stage << 3), phase)", "pass"),
    "no wait for wgmma": ("pipelined_gemm", "ptx.wgmma.wait_group(0)", "pass"),
    "the producer's first phase": ("pipelined_gemm", 'k.var("u32", 1)', 'k.var("u32", 0)'),
    "too many arrivals wanted": ("pipelined_gemm", "empty.at(8 * i), CONSUMER_WARPS", "empty.at(8 * i), 5"),
    "a stage freed too early": ("persistent_gemm", "ring.release(before, one_lane & (block != 0))",
                                "ring.release(ring.empty(), one_lane)"),
    "too few bytes expected": ("tma_copy", "expect_tx(barrier, TILE_BYTES)", "expect_tx(barrier, TILE_BYTES // 2)"),
    "another swizzle": ("one_wgmma", "box=(K, N), swizzle=128", "box=(K, N), swizzle=0"),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_the_machine_sees_a_bug(bug: str) -> None:
    name, right, wrong = BUGS[bug]
    source = (FOLDER / f"{name}.py").read_text()
    assert right in source
    scope: dict[str, Any] = {"__name__": name}
    exec(compile(source.replace(right, wrong), f"{name} with {bug}", "exec"), scope)
    with pytest.raises((AssertionError, KeyError)):
        scope["check"](machine.load(scope["build"]()), "cpu")
