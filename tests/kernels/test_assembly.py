"""Every config of the memory-bound kernels assembles, and keeps what it holds in registers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyptx_ops.kernels.hopper.families import FAMILIES
from pyptx_ops.ptxas import Report, assemble, find_ptxas
from tests.kernels.machines import traced

CONFIGS = [config for family in FAMILIES if family.name in ("rms_norm", "swiglu") for config in family.configs]
PTXAS = find_ptxas()
REGISTERS = 65536  # of an SM


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    folder: Path = tmp_path_factory.mktemp("cubins")
    texts = {config.name: traced(config.name).ptx() for config in CONFIGS}
    with ThreadPoolExecutor(2) as pool:
        assert PTXAS is not None
        done = pool.map(lambda name: assemble(PTXAS, texts[name], "sm_90a", folder / f"{name}.cubin"), texts)
        return dict(zip(texts, done, strict=True))


@pytest.mark.skipif(PTXAS is None, reason="needs ptxas")
@pytest.mark.parametrize("name", [config.name for config in CONFIGS])
def test_assembles_without_spills(reports: dict[str, Report], name: str) -> None:
    report = reports[name]
    assert (report.spill_stores, report.spill_loads, report.stack) == (0, 0, 0)
    assert report.registers * 1024 <= REGISTERS, "at least 1024 threads are resident"


def test_few_kernels() -> None:
    assert len(CONFIGS) <= 48
