"""Triton's kernel with one instruction changed gives torch's result, and the check would see another change."""

from __future__ import annotations

import difflib

import pytest

from examples import edit_triton
from examples.run import compile_ptx, load, on_hopper
from pyptx_ops.dsl import Param, TensorMapSpec, TextKernel
from pyptx_ops.ptxas import find_ptxas
from pyptx_ops.simulator import launch_kernel


def on_the_simulator(kernel: TextKernel) -> None:
    edit_triton.check(lambda grid, *args: launch_kernel(kernel, grid, *args), "cpu")


def test_one_instruction_is_another() -> None:
    before, after = edit_triton.PTX.read_text(), edit_triton.build().ptx()
    changed = [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[0] in "+-"]
    assert changed == ["- \tfma.rn.f32 \t%r3, %r6, %r1, %r2;", "+ \tfma.rn.sat.f32 \t%r3, %r6, %r1, %r2;"]


@pytest.mark.skipif(on_hopper(), reason="the simulator is for machines without")
def test_it_runs_on_the_simulator(capsys: pytest.CaptureFixture[str]) -> None:
    edit_triton.main()
    assert "launched on the simulator, equal to torch's result" in capsys.readouterr().out


@pytest.mark.parametrize("other", ["fma.rn.f32", "fma.rz.sat.f32"])
def test_another_instruction_is_seen(other: str) -> None:
    kernel = edit_triton.build()
    with pytest.raises(AssertionError):
        on_the_simulator(kernel.edited(kernel.text.replace("fma.rn.sat.f32", other)))


@pytest.mark.skipif(not on_hopper(), reason="needs an H100 or H200")
def test_it_runs_on_a_gpu() -> None:
    edit_triton.check(load(edit_triton.build()), "cuda")


@pytest.mark.skipif(find_ptxas() is None, reason="needs ptxas")
def test_it_assembles() -> None:
    image, _ = compile_ptx(edit_triton.build())
    assert image.startswith(b"\x7fELF")


HEAD = ".version 8.8\n.target sm_90a\n"
ENTRY = ".entry k(.param .u64 .ptr .global a, .param .s32 n, .param .align 64 .b8 map[128])"


def test_what_a_text_says_of_its_kernel() -> None:
    spec = TensorMapSpec("bf16", (64, 64))
    text = f"{HEAD}{ENTRY}\n.reqntid 64, 2\n.reqnctapercluster 2\n{{ ret; }}"
    kernel = TextKernel.read(text, dynamic_smem=512, tensor_maps={"map": spec})
    assert kernel.params == (Param("a", "pointer"), Param("n", "i32"), Param("map", "tensor_map", spec))
    assert (kernel.entry, kernel.target, kernel.block, kernel.cluster) == ("k", "sm_90a", (64, 2, 1), (2, 1, 1))
    assert kernel.dynamic_smem == 512 and kernel.ptx() == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD, "wanted one entry function, got none"),
        (f"{HEAD}.entry a() {{ }} .entry b() {{ }}", "got a, b"),
        (f"{HEAD}.entry k() {{ }}", "block= is missing"),
        (f"{HEAD}{ENTRY} .reqntid 1 {{ }}", "map is declared .param .align 64 .b8"),
        (".entry k() .reqntid 1 { }", "no .target"),
    ],
)
def test_a_text_that_cannot_be_launched(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TextKernel.read(text)
