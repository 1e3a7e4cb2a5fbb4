"""Every example is short, traces, and assembles cleanly; where there is a Hopper GPU it gives torch's results."""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path
from types import ModuleType

import pytest

import examples
from examples.run import compile_ptx, on_hopper
from pyptx_ops.ptxas import find_ptxas

FOLDER = Path(examples.__file__).parent
LADDER = re.findall(r"^    (\w+)  ", examples.__doc__ or "", re.MULTILINE)
MAX_LINES = 120


@pytest.fixture(params=LADDER)
def example(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(f"examples.{request.param}")


def test_the_ladder_lists_every_example() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {*LADDER, "__init__", "run"}


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
    example.check()
