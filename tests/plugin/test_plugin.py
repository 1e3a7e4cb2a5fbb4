"""The pytest plug-in: one run per schedule, reports instead of tracebacks, and no cost where it is not used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pyptx_ops.simulator  # noqa: F401  # once: runs within this process would register its ops again

ROOT = Path(__file__).parents[2]
PLUGIN = ("-p", "pytest_pyptx", "-p", "no:cacheprovider")

KERNEL = """
import pytest, torch
from pyptx_ops.dsl import Kernel, ptx, special
from pyptx_ops.simulator import launch_kernel


def build(factor):
    with Kernel("numbers", block=(32, 1, 1)) as k:
        out = k.param("out", "pointer")
        thread = ptx.mov(special("tid.x"), type="u32")
        ptx.st(out + ptx.mul.wide(thread, factor), thread, space="global")
        ptx.ret()
    return k


def run(factor):
    out = torch.empty(32, dtype=torch.int32)
    launch_kernel(build(factor), (1, 1, 1), out)
    return out
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.syspath_prepend(ROOT)
    return pytester


def test_a_run_per_schedule(project: pytest.Pytester) -> None:
    project.makepyfile(
        KERNEL
        + """
seen = []

@pytest.mark.pyptx_simulate(policies=("lazy", "random"), seeds=[3, 5], multiprocessors=2)
def test_marked():
    assert run(4).tolist() == list(range(32))

@pytest.mark.pyptx_simulate(policies="eager", seeds=2, multiprocessors=7, resident=3, interleave=True)
@pytest.mark.parametrize("factor", [4])
def test_machine(pyptx_simulate, factor):
    run(factor)
    assert pyptx_simulate.executed > 0 and pyptx_simulate.policy == "eager"
    assert (pyptx_simulate.multiprocessors, pyptx_simulate.resident, pyptx_simulate.interleave) == (7, 3, True)

def test_fixture_alone(pyptx_simulate):
    seen.append(pyptx_simulate.policy)

def test_all_policies_were_seen():
    assert seen == ["lazy", "eager", "reverse", "random"]
"""
    )
    result = project.runpytest(*PLUGIN, "-v")
    result.assert_outcomes(passed=4 + 2 + 4 + 1)
    result.stdout.fnmatch_lines(["*test_marked*random-5*PASSED*"])


def test_a_report_is_shown_without_a_traceback(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    path = project.makepyfile(
        KERNEL
        + """
@pytest.mark.pyptx_simulate(policies="reverse")
def test_wrong():
    x = 1
    run(8)

@pytest.mark.pyptx_simulate(policies="reverse")
def test_other_failures_are_as_ever():
    assert run(4)[3] == 4

@pytest.mark.pyptx_simulate(policies="reverse")
def test_expected():
    with pytest.raises(RuntimeError, match="out of bounds"):
        run(8)
"""
    )
    monkeypatch.setenv("COLUMNS", "250")
    result = project.runpytest(*PLUGIN, "-rf")
    result.assert_outcomes(failed=2, passed=1)
    line = path.read_text().splitlines().index("    run(8)") + 1
    result.stdout.fnmatch_lines(
        [
            f"*{line}>  run(8)",
            "*>  launch_kernel(build(factor), (1, 1, 1), out)",
            "E   numbers: out of bounds: a store of 4 bytes*",
            f"E     at {path}:10: PTX line *: st.global*",
            f"{path.name}:{line}: numbers: out of bounds*",
            "*>       assert run(4)[[]3[]] == 4",
            "FAILED *test_wrong[[]reverse-0[]] - numbers: out of bounds*",
        ]
    )
    result.stdout.no_fnmatch_line("*simulator.py*")


@pytest.mark.parametrize("mark", ["policies='slow'", "seeds=0", "policies=()", "'lazy'"])
def test_a_mark_that_makes_no_sense(mark: str, project: pytest.Pytester) -> None:
    project.makepyfile(f"import pytest\n@pytest.mark.pyptx_simulate({mark})\ndef test_it(): pass\n")
    result = project.runpytest(*PLUGIN)
    assert result.ret != 0
    (result.stdout if "policies=some of" in result.stdout.str() else result.stderr).fnmatch_lines(
        ["*pyptx_simulate(policies=some of lazy, eager, reverse, random, seeds=a count*"]
    )


def test_other_projects_do_not_pay(project: pytest.Pytester) -> None:
    """Neither the package nor torch is imported; the marker is known."""
    project.makepyfile(
        """
import sys

def test_nothing_was_imported():
    assert "pytest_pyptx" in sys.modules
    assert not {"torch", "pyptx_ops", "pyptx_ops._sim"} & set(sys.modules)
"""
    )
    project.runpytest_subprocess(*PLUGIN, "-p", "no:benchmark", "--strict-markers").assert_outcomes(passed=1)
    code = "import sys, pytest; before = set(sys.modules); import pytest_pyptx; print(len(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(run.stdout) <= 2
