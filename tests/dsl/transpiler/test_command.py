"""python -m pyptx_ops transpile and check."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyptx_ops import transpile as command
from pyptx_ops.__main__ import main
from pyptx_ops.dsl import run

from .corpus import HEADER, kernel

TWO = f"{HEADER}.func f() {{ ret; }}\n.entry a() {{ ret; }}\n.entry b() {{ call f; frob; }}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kernel.ptx"
    path.write_bytes(TWO.encode() + b"// \xff\n")
    return path


def test_to_a_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = file.with_suffix(".py")
    assert main(["transpile", str(file), "-o", str(out)]) == 0
    assert run(out.read_text()).encode(errors="surrogateescape") == file.read_bytes()
    assert "1 of 4 instructions are not in the table:\n  frob × 1\n" in capsys.readouterr().err
    assert sorted(os.listdir(file.parent)) == ["kernel.ptx", "kernel.py"]


def test_to_standard_output_one_entry(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transpile", str(file), "--name", "a"]) == 0
    text = run(capsys.readouterr().out)
    assert ".entry a" in text and ".func f" in text and ".entry b" not in text


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        (TWO.replace("call f", "call f g"), (), "kernel.ptx:6:21: expected an operator, ',' or ';', got 'g'"),
        (TWO, ("--name", "c"), "no entry 'c'; the file has a, b"),
        (None, (), "No such file"),
    ],
)
def test_nothing_is_written_for_what_is_wrong(
    text: str | None, arguments: tuple[str, ...], says: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = file.with_suffix(".py")
    out.write_text("before")
    file.unlink() if text is None else file.write_text(text)
    assert main(["transpile", str(file), "-o", str(out), *arguments]) == 1
    assert says in capsys.readouterr().err and out.read_text() == "before"


def test_a_file_is_replaced_whole(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = file.with_suffix(".py")
    out.write_text("before")

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(command.os, "replace", fail)
    assert main(["transpile", str(file), "-o", str(out)]) == 1
    assert out.read_text() == "before" and len(os.listdir(file.parent)) == 2


def test_check_says_what_is_needed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = "\t.reg .b32 %r<4>; .reg .b64 %rd<4>;\n\tret;\n\tadd.f32x2 %rd1, %rd2, %rd3;\n\t{\n\tfrob\n;\n}\n\tret;\n"
    file.write_text(kernel(body))
    assert main(["check", str(file)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert [line.split() for line in out[2:5]] == [
        ["add.f32x2", "1", "8.6", "sm_100"], ["frob", "1", "?", "not", "in", "the", "table"],
        ["ret", "2", "1.0", "any"],
    ]  # fmt: skip
    assert out[5:] == [
        f"{file}:8: add.f32x2: needs sm_100, and the target is sm_90a",
        f"{file}:10: frob: the instruction table has no such form",
    ]


def test_check_refuses_operands_that_ptxas_refuses(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrive, inval = "mbarrier.arrive.shared.b64 {}[%r1];", "mbarrier.inval.shared.b64 {}[%r1];"
    text = (
        HEADER
        + ".shared .align 8 .b64 bar;\n.visible .entry k()\n{{\n"
        + "\t.reg .b32 %r<2>;\n\tmov.u32 %r1, bar;\n\t{}\n\t{}\n\tret;\n}}\n"
    )
    file.write_text(text.format(arrive.format(""), inval.format("_, ")))
    assert main(["check", str(file)]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(str(file))]
    assert [line.split(": ")[:2] for line in lines] == [
        [f"{file}:9", "mbarrier.arrive.shared.b64"], [f"{file}:10", "mbarrier.inval.shared.b64"],
    ]  # fmt: skip
    file.write_text(text.format(arrive.format("_, "), inval.format("")))
    assert main(["check", str(file)]) == 0


def test_check_knows_scopes_and_ranges_of_any_size(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = """\
	.reg .b32 %r<4000000000>, x1<3>, y; .reg .b64 %rd<2>;
	mov.u32 %r3999999999, x12; { .reg .b64 y; mov.u64 y, %rd1; } mov.u32 y, 1;
	mov.u32 %r4000000000, 1;
	mov.u32 %r01, 1;
	mov.u64 y, 1;
"""
    file.write_text(kernel(body))
    assert main(["check", str(file)]) == 1
    said = [
        line.removeprefix(f"{file}:") for line in capsys.readouterr().out.splitlines() if line.startswith(str(file))
    ]
    assert said == [
        "8: mov.u32: %r4000000000 is not declared", "9: mov.u32: %r01 is not declared",
        "10: mov.u64: d takes u64, and y is declared b32",
    ]  # fmt: skip
