"""``python -m pyptx_ops sim``: what it runs, what it says of a bug, and of what it cannot run."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from pyptx_ops.__main__ import main
from pyptx_ops.trials import rowwise

RIGHT = """
import torch
import pyptx_ops
from pyptx_ops.dsl import Kernel, ptx, special
from pyptx_ops.simulator import launch_kernel


def kernel(shift=2):
    with Kernel("copy", block=(32, 1, 1)) as k:
        x, y = k.param("x", "pointer"), k.param("y", "pointer")
        offset = ptx.mov(special("tid.x"), type="u32") << shift
        ptx.st(y + ptx.cvt(offset, type="u64", src="u32"), ptx.ld(x + ptx.cvt(offset, type="u64", src="u32"),
            space="global", type="f32"), space="global")
        ptx.ret()
    return k


def wrong():
    return kernel(shift=3)


def locked():
    with Kernel("locked", block=(32, 1, 1)) as k:
        lock = k.param("lock", "pointer")
        with k.loop():
            k.break_(ptx.atom.cas(lock, 0, 1, space="global", type="b32") == 0)
        ptx.atom(lock, 0, op="exch", space="global", type="b32")
        ptx.ret()
    return k


def runs():
    x, y = torch.randn(32), torch.empty(32)
    launch_kernel(kernel(), (1, 1, 1), x, y)
    assert torch.equal(x, y)


def ops():
    pyptx_ops.rms_norm(torch.randn(3, 64).bfloat16())


def unequal():
    ops()
    assert 1 == 2, "not what was meant"


def nothing():
    pass
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "kernels.py"
    file.write_text(RIGHT)
    return file


def test_kernels_of_the_package(capsys) -> None:
    assert main(["sim", "swiglu_*_pairs*", "rms_norm_bf16_w8_8x2", "--policy", "eager", "--seeds", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "swiglu_bf16_pairs_256x2", "swiglu_f16_pairs_256x2", "swiglu_bwd_bf16_pairs_256x2",
        "swiglu_bwd_f16_pairs_256x2", "rms_norm_bf16_w8_8x2",
    ]  # fmt: skip
    assert all("10 runs," in line and line.endswith("nothing found") for line in lines)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("gemm_bf16_xk_yk_128x16x64_s5_swap_b2", "40x136x72"),
        ("grouped_gemm_f16_xk_yk_128x16x64_s5_swap_b2", "40x136x72"),
        ("fused_add_rms_norm_f16_w8_32x4", "3x1000"),
        ("swiglu_bf16_strided_256x8", "3x77"),
    ],
)
def test_sizes(name: str, size: str, capsys) -> None:
    assert main(["sim", name, "--size", size, "--policy", "random"]) == 0
    assert f"{name}: 1 runs" in capsys.readouterr().out


def test_wrong_values(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(rowwise, "silu_excess", lambda *tensors: 2.5)
    assert main(["sim", "swiglu_bf16_rows*", "--seed", "7"]) == 1
    told = capsys.readouterr().out
    assert told.startswith("FAILED swiglu_bf16_rows_256x2: 1x8 packed, policy lazy, seed 7\n")
    assert "wrong values: an error of 2.5 times its bound" in told
    assert "again: python -m pyptx_ops sim swiglu_bf16_rows_256x2 --policy lazy --seed 7" in told


@pytest.mark.parametrize("name", ["runs", "ops", "kernel --args f32[32] f32[4,8]"])
def test_functions(name: str, path: Path, capsys) -> None:
    assert main(["sim", *shlex.split(f"{path}:{name}")]) == 0
    assert "4 runs" in capsys.readouterr().out


def test_a_report_names_the_line_and_how_to_repeat_it(path: Path, capsys) -> None:
    assert main(["sim", f"{path}:wrong", "--args", "f32[32]", "f32[32]"]) == 1
    told = capsys.readouterr().out
    assert "copy: out of bounds" in told and f"at {path}:12: PTX line" in told and "lane 16" in told
    again = told.partition("again: python -m pyptx_ops ")[2]
    assert "policy lazy" in told and main(shlex.split(again)) == 1
    assert main(["sim", f"{path}:unequal"]) == 1
    assert "AssertionError: not what was meant" in capsys.readouterr().out


def test_options_of_the_schedule(path: Path, capsys) -> None:
    """A lock between lanes is passed on where they interleave, and what fails is repeated with the same options."""
    source = path.read_text().replace("torch.randn(32)", "torch.zeros(1)")
    path.write_text(source + "\n\ndef run():\n    launch_kernel(locked(), (1, 1, 1), torch.zeros(1))\n")
    assert main(["sim", f"{path}:run", "--interleave", "--seeds", "2", "--limit", "20000"]) == 0
    assert main(["sim", f"{path}:run", "--resident", "3", "--multiprocessors", "2", "--limit", "20000"]) == 1
    told = capsys.readouterr().out
    assert "limit: the launch took more instructions" in told and "--multiprocessors 2 --resident 3" in told
    assert main(["sim", f"{path}:wrong", "--interleave", "--args", "f32[32]", "f32[32]"]) == 1
    assert "--seed 0 --interleave --grid" in capsys.readouterr().out


def test_a_trace_of_the_last_run(path: Path, capsys) -> None:
    out = path.with_name("trace.json")
    assert main(["sim", f"{path}:wrong", "--args", "f32[32]", "f32[32]", "--trace", str(out)]) == 1
    assert "CTA (0, 0, 0)" in out.read_text()


def test_a_module(capsys) -> None:
    arguments = ["--grid", "2,1", "--args", "f32[300]", "f32[300]", "f32[300]", "300"]
    assert main(["sim", "examples.vector_add:build", *arguments]) == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("gemm_bf16_xk_yk_128x100", "no kernel is named 'gemm_bf16_xk_yk_128x100'; near: gemm_bf16_xk_yk_128x1"),
        ("swiglu_bf16_rows_256x2 --size 3", "wants --size rowsxcolumns, got '3'"),
        ("{path}:nothing", "launched no kernel, and returned NoneType"),
        ("{path}:missing", "has no function 'missing'"),
        ("nowhere.py:f", "there is no file nowhere.py"),
        ("no.such.module:f", "no.such.module is not imported"),
        ("{path}:kernel", "copy takes 2 arguments, got 0"),
        ("{path}:kernel --args f32[32] x", "x: a number or a tensor"),
        ("{path}:kernel --args f31[32] 1", "f31[32]: a tensor of bf16"),
        ("{path}:kernel --grid 1,a --args f32[32] f32[32]", "--grid takes up to three numbers"),
    ],
)
def test_what_cannot_be_run(arguments: str, told: str, path: Path, capsys) -> None:
    assert main(["sim", *shlex.split(arguments.format(path=path))]) == 2
    captured = capsys.readouterr()
    assert told in captured.err and not captured.out
