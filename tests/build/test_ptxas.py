"""Where ptxas is found, and what is read out of what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyptx_ops import ptxas
from pyptx_ops.ptxas import SEARCH_ORDER, Ptxas, PtxasError, Report, assemble, find_ptxas, parse_report

PTX = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry kernel(.param .u64 out)
{
    .reg .b64 %rd<2>;
    .shared .align 16 .b8 buffer[512];
    mov.u64 %rd0, buffer;
    ld.param.u64 %rd1, [out];
    st.global.u64 [%rd1], %rd0;
    ret;
}
"""
LOG = """ptxas info    : 0 bytes gmem
ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    48 bytes stack frame, 44 bytes spill stores, 40 bytes spill loads
ptxas info    : Used 168 registers, used 2 barriers, 48 bytes cumulative stack size, 1024 bytes smem
"""


def program(path: Path, version: str = "13.1.2") -> Path:
    """A ptxas that only knows its version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release 13.1, V{version}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without ptxas: nothing in its environment `site`, its `bin` on PATH or its `default` toolkit."""
    for name in ("PYPTX_PTXAS", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("sys.path", [str(tmp_path / "site")])
    monkeypatch.setattr(ptxas, "DEFAULT_TOOLKIT", tmp_path / "default")
    return tmp_path


def test_the_order_of_search(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_ptxas() is None
    override, wheel, toolkit, triton = SEARCH_ORDER
    steps = [  # the last resort first: each one takes the place of those before it
        (triton, "site/triton/backends/nvidia/bin/ptxas-blackwell", {}),
        (triton, "site/triton/backends/nvidia/bin/ptxas", {}),
        (toolkit, "default/bin/ptxas", {}),
        (toolkit, "bin/ptxas", {}),
        (toolkit, "toolkit/bin/ptxas", {"CUDA_PATH": "toolkit"}),
        (toolkit, "home/bin/ptxas", {"CUDA_HOME": "home"}),
        (wheel, "site/nvidia/cuda_nvcc/bin/ptxas", {}),
        (wheel, "site/nvidia/cu13/bin/ptxas", {}),
        (override, "mine", {"PYPTX_PTXAS": "mine"}),
    ]
    for source, place, variables in steps:
        path = program(empty / place)
        for name, value in variables.items():
            monkeypatch.setenv(name, str(empty / value))
        assert find_ptxas() == Ptxas(path, "13.1.2", source)


def test_a_named_ptxas_that_is_not_there_is_an_error(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(empty / "bin/ptxas")
    monkeypatch.setenv("PYPTX_PTXAS", str(empty / "nothing"))
    with pytest.raises(PtxasError, match="PYPTX_PTXAS names .*nothing, which is no file"):
        find_ptxas()


@pytest.mark.parametrize(
    "script, message",
    [("exit 3", r"ptxas does not run: .*exit status 3"), ("echo hello", r"ptxas --version names no version: 'hello")],
)
def test_a_ptxas_that_does_not_run(empty: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str) -> None:
    """The next one in the order is taken, with a warning; one that the user names must run."""
    path = program(empty / "bin/ptxas")
    path.write_text(f"#!/bin/sh\n{script}\n")
    with pytest.warns(RuntimeWarning, match=rf"{message}.*; looking further"):
        assert find_ptxas() is None
    last = program(empty / "site/triton/backends/nvidia/bin/ptxas")
    with pytest.warns(RuntimeWarning, match="looking further"):
        assert find_ptxas() == Ptxas(last, "13.1.2", SEARCH_ORDER[-1])
    monkeypatch.setenv("PYPTX_PTXAS", str(path))
    with pytest.raises(PtxasError, match=message):
        find_ptxas()


def test_the_report_is_read() -> None:
    advisory = LOG.splitlines()[1]
    assert parse_report(LOG) == Report(168, 48, 44, 40, 1024, (advisory,))


def test_a_log_without_numbers_is_an_error() -> None:
    with pytest.raises(PtxasError, match="Used .* registers"):
        parse_report("ptxas info    : 0 bytes gmem\n")


def test_assemble(tmp_path: Path) -> None:
    found = find_ptxas()
    if found is None:
        pytest.skip("no ptxas on this machine")
    report = assemble(found, PTX, "sm_90a", tmp_path / "kernel.cubin")
    assert (tmp_path / "kernel.cubin").read_bytes().startswith(b"\x7fELF")
    assert report.registers > 0 and (report.spill_stores, report.static_shared_memory) == (0, 512)
    with pytest.raises(PtxasError, match=r"refuses the PTX of kernel for sm_90a:\n(.*\n)*.*line 5.*'frob'"):
        assemble(found, PTX.replace("{\n", "{ frob.x y;\n"), "sm_90a", tmp_path / "kernel.cubin")
