"""pytest plug-in: tests that run Hopper kernels on the simulator, once under each schedule.

    @pytest.mark.pyptx_simulate(policies=("lazy", "random"), seeds=3)
    def test_product():
        pyptx_ops.gemm(a, b)  # a, b on the CPU

policies, seeds: every policy by default, and one seed; seeds is a count or the seeds themselves. What else is given
goes to `pyptx_ops.simulate`. The fixture `pyptx_simulate` is the machine; it may be asked for without the mark.
A report of the simulator is shown as it is, with the lines of the test's file, instead of a traceback into the package.

This file stands outside the package, and imports it in the fixture only: pytest loads it in every project's run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr
from _pytest._io import TerminalWriter

NAME = "pyptx_simulate"
POLICIES = ("lazy", "eager", "reverse", "random")


def pytest_configure(config: pytest.Config) -> None:
    text = f"{NAME}(policies=…, seeds=1, **options): run the test's kernels on pyptx_ops' simulator, once per schedule"
    config.addinivalue_line("markers", text)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker(NAME)
    if mark is None and NAME not in metafunc.fixturenames:
        return
    if NAME not in metafunc.fixturenames:
        metafunc.fixturenames.append(NAME)
    found = schedules(mark)
    metafunc.parametrize(NAME, found, indirect=True, ids=[f"{s['policy']}-{s['seed']}" for s in found])


def schedules(mark: pytest.Mark | None) -> list[dict[str, Any]]:
    """The arguments of `simulate` for each run of a test. Raises UsageError for a mark that makes no sense."""
    options = dict(mark.kwargs) if mark else {}
    policies: str | Sequence[str] = options.pop("policies", POLICIES)
    policies = (policies,) if isinstance(policies, str) else policies
    seeds = options.pop("seeds", 1)
    seeds = range(seeds) if isinstance(seeds, int) else seeds
    unknown = [policy for policy in policies if policy not in POLICIES]
    if unknown or (mark and mark.args) or not policies or not list(seeds):
        wanted = f"{NAME}(policies=some of {', '.join(POLICIES)}, seeds=a count or numbers, **options)"
        raise pytest.UsageError(f"{wanted}, got {mark.args if mark else ''} {mark.kwargs if mark else ''}")
    return [{"policy": policy, "seed": seed, **options} for policy in policies for seed in seeds]


@pytest.fixture
def pyptx_simulate(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The simulated machine under which the test runs; `executed` counts its warp instructions."""
    from pyptx_ops.simulator import simulate

    with simulate(**request.param) as machine:
        yield machine


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome: Any = yield
    reports = sys.modules.get("pyptx_ops.dsl.sim.report")
    if reports is None or call.excinfo is None or not call.excinfo.errisinstance(reports.SimulationError):
        return
    calls = [
        (entry.lineno + 1, str(entry.statement).strip())
        for entry in call.excinfo.traceback
        if Path(entry.path) == item.path
    ]
    result: pytest.TestReport = outcome.get_result()
    if result.failed:
        path = os.path.relpath(item.path, item.config.invocation_params.dir)
        result.longrepr = Shown(str(call.excinfo.value), path, calls)


class Shown(TerminalRepr):
    """A report of the simulator in the place of a traceback."""

    def __init__(self, text: str, path: str, calls: Sequence[tuple[int, str]]):
        """calls: the lines of the test's file that led there, and what stands there."""
        self.text, self.calls = text, calls
        self.reprcrash = ReprFileLocation(path, calls[0][0] if calls else 0, text.splitlines()[0])

    def toterminal(self, tw: TerminalWriter) -> None:
        for number, source in self.calls:
            tw.line(f"{number:>4}>  {source}")
        for line in self.text.splitlines():
            tw.line(f"E   {line}", red=True)
        tw.line()
        self.reprcrash.toterminal(tw)
