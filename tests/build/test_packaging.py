"""The extension's sources against compilers and the driver's own header; what the package asks for."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "pyptx_ops/csrc"
COMPILERS = [compiler for compiler in ("g++", "clang++") if shutil.which(compiler)]
STRUCTS = {
    "CUtensorMap": ["opaque"],
    "CUlaunchAttribute": ["id", "value"],
    "CUlaunchConfig": [
        "gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ", "sharedMemBytes", "hStream", "attrs",
        "numAttrs",
    ],
}  # fmt: skip


def compile_text(compiler: str, text: str, *options: str) -> str:
    """What the compiler says of a source: nothing, if all is well."""
    command = [compiler, "-std=c++17", "-fsyntax-only", "-x", "c++", f"-I{SOURCES}", *options, "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True).stderr


@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_extension_compiles_without_a_warning(compiler: str) -> None:
    python = f"-I{sysconfig.get_path('include')}"
    assert compile_text(compiler, '#include "launch.cpp"', python, "-Wall", "-Wextra", "-Werror") == ""


@pytest.mark.parametrize("compiler", COMPILERS)
def test_our_declarations_are_the_drivers(compiler: str) -> None:
    headers = [path for entry in sys.path for path in Path(entry or ".").glob("nvidia/cu[0-9]*/include/cuda.h")]
    headers += [path for path in [Path("/usr/local/cuda/include/cuda.h")] if path.is_file()]
    if not headers:
        pytest.skip("no cuda.h on this machine")
    ours = (SOURCES / "driver.h").read_text()
    constants = re.findall(r"^\s+(CU\w+) = -?\d+,", ours, re.MULTILINE)
    assert len(constants) > 15
    checks = [f"static_assert(int(ours::{name}) == int(::{name}));" for name in constants]
    for struct, fields in STRUCTS.items():
        checks.append(f"static_assert(sizeof(ours::{struct}) == sizeof(::{struct}));")
        checks.append(f"static_assert(alignof(ours::{struct}) >= alignof(::{struct}));")
        checks += [f"static_assert(offsetof(ours::{struct}, {f}) == offsetof(::{struct}, {f}));" for f in fields]
    text = '#include <cuda.h>\n#include <dlfcn.h>\n#include <cstddef>\nnamespace ours {\n#include "driver.h"\n}\n'
    assert compile_text(compiler, text + "\n".join(checks), f"-I{headers[0].parent}", "-Wno-invalid-offsetof") == ""
    wrong = text + "static_assert(int(ours::CU_JIT_INFO_LOG_BUFFER) == int(::CU_JIT_ERROR_LOG_BUFFER));"
    assert "static assertion failed" in compile_text(compiler, wrong, f"-I{headers[0].parent}")


def test_the_package_needs_torch_and_nothing_else() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dependencies"] == ["torch>=2.9"]
    assert project["project"]["requires-python"] == ">=3.10"
    assert not [name for name in project["build-system"]["requires"] if name.startswith("torch")]
