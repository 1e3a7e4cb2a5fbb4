"""The floors of docs/architecture.md: who may import whom, where the environment is read, how long things may get."""

from __future__ import annotations

import ast
import fnmatch
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "pyptx_ops"
ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / PACKAGE).rglob("*.py"))
NATIVE = sorted(path for path in (ROOT / PACKAGE / "csrc").rglob("*") if path.is_file())
KERNEL_WORDS = ("gemm", "rms_norm", "swiglu", "silu", "attention", "torch")

# Modules (globs, relative to the package; the first match counts) -> what they may import besides the standard library:
# modules of the package (globs that take in what is below them), or other packages after a "!". None: anything.
FLOORS: dict[str, tuple[str, ...] | None] = {
    "dsl.types": ("dsl.types", "dsl.ir", "dsl.isa", "dsl.errors"),
    "dsl.ir": ("dsl.types", "dsl.ir", "dsl.isa", "dsl.errors"),
    "dsl.isa": ("dsl.types", "dsl.ir", "dsl.isa", "dsl.errors"),
    "dsl.errors": (),
    "dsl.sim": ("dsl", "_sim"),
    "dsl": ("dsl",),
    "kernels.configs": (),
    "kernels.*.tuning": ("kernels.configs", "kernels.*.tuning"),
    "kernels": ("dsl", "kernels"),
    "settings": (),
    "manifest": ("dsl.types",),
    "ptxas": ("settings",),
    "build": ("kernels", "dsl", "manifest", "ptxas", "settings"),
    "launch": ("manifest", "_launch", "dsl.types", "settings"),
    "dispatch": ("dispatch", "kernels.configs", "kernels.*.tuning", "manifest", "launch", "settings", "!torch"),
    "ops": ("ops", "dispatch", "!torch"),
    "trials": ("trials", "ops", "dispatch", "kernels.configs", "kernels.*.tuning", "launch", "simulator", "!torch"),
    "simulator": ("dsl", "kernels", "launch", "manifest", "!torch"),
    "integrations": ("integrations", "ops", "!torch", "!transformers"),
    "tables": (),
    "__init__": ("ops", "integrations", "simulator"),
    "__main__": None,
    "doctor": None,
    "sim": None,
    "transpile": ("dsl",),
    "check": ("dsl", "tables", "transpile"),
    "demo*": None,
    "bench*": None,
}

MAX_FILE, MAX_FUNCTION = 450, 60  # lines
SLACK = 1.1  # "about"


def module_name(path: Path) -> str:
    """dsl/isa/row.py -> "dsl.isa.row", dsl/__init__.py -> "dsl", __init__.py -> "__init__"."""
    parts = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


MODULES = {module_name(path) for path in SOURCES} | {"_launch", "_sim"}


def matches(module: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(module, pattern) or fnmatch.fnmatchcase(module, pattern + ".*")


def floor_of(module: str) -> str:
    found = next((pattern for pattern in FLOORS if matches(module, pattern)), None)
    assert found, f"{module} stands on no floor: give it one in FLOORS and in docs/architecture.md"
    return found


def imports(tree: ast.AST, path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, wherever it stands: "torch", "/dsl.types" of the package, "/" for itself."""
    package = path.parent.relative_to(ROOT).parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, internal(alias.name)) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *(node.module or "").split("."))).strip(".")
            for alias in node.names:
                deep = internal(f"{base}.{alias.name}")
                yield node.lineno, deep if deep[1:] in MODULES else internal(base)


def internal(name: str) -> str:
    first, _, rest = name.partition(".")
    return f"/{rest}" if first == PACKAGE else name


def violations(text: str, path: Path) -> list[str]:
    floor = floor_of(module_name(path))
    allowed = FLOORS[floor]
    if allowed is None:
        return []
    found = []
    for line, name in imports(ast.parse(text), path):
        if name.startswith("/"):
            ok = any(matches(name[1:], pattern) for pattern in allowed)
            ok = ok or (name == "/" and floor == "integrations")  # they call the public functions
        else:
            top = name.partition(".")[0]
            ok = top in sys.stdlib_module_names or f"!{top}" in allowed
        if not ok:
            found.append(f"{path.relative_to(ROOT)}:{line}: {floor} may not import {name.lstrip('/') or PACKAGE}")
    return found


def environment_reads(tree: ast.AST) -> list[int]:
    names = {"environ", "environb", "getenv", "getenvb", "putenv"}
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            lines += [node.lineno] * (node.attr in names)
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            lines += [node.lineno] * any(alias.name in names for alias in node.names)
    return lines


def ids(path: Path) -> str:
    return path.relative_to(ROOT / PACKAGE).as_posix()


@pytest.mark.parametrize("path", SOURCES, ids=ids)
def test_imports_go_down(path: Path) -> None:
    assert violations(path.read_text(), path) == []


@pytest.mark.parametrize("path", SOURCES, ids=ids)
def test_the_environment_is_read_in_settings_only(path: Path) -> None:
    if module_name(path) != "settings":
        assert environment_reads(ast.parse(path.read_text())) == []


@pytest.mark.parametrize("path", SOURCES, ids=ids)
def test_files_and_functions_stay_short(path: Path) -> None:
    text = path.read_text()
    lines = text.count("\n")
    assert lines <= MAX_FILE * SLACK, f"{lines} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            assert length <= MAX_FUNCTION * SLACK, f"{path.name}:{node.lineno}: {node.name} has {length} lines"


@pytest.mark.parametrize("path", NATIVE, ids=ids)
def test_native_code_needs_libc_and_knows_no_kernel(path: Path) -> None:
    text = path.read_text()
    ours = {other.name for other in NATIVE}
    for header in re.findall(r'#include [<"](.+)[>"]', text):
        assert header in ours | {"Python.h", "dlfcn.h"} or re.fullmatch(r"[a-z_]+", header), header
    code = re.sub(r"//.*", "", text)
    assert not [word for word in KERNEL_WORDS if word in code.lower()]
    assert text.count("\n") <= MAX_FILE * SLACK


def test_importing_the_package_imports_no_integrated_library() -> None:
    code = "import sys, pyptx_ops; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_every_floor_is_in_use() -> None:
    used = {floor_of(module) for module in MODULES - {"_launch", "_sim"}}
    optional = {"bench*", "integrations"}
    assert set(FLOORS) - used <= optional


@pytest.mark.parametrize(
    ("file", "text", "what"),
    [
        ("dsl/types.py", "import torch", "torch"),
        ("dsl/types.py", "from . import trace", "dsl.trace"),
        ("dsl/isa/row.py", "from ..trace import Kernel", "dsl.trace"),
        ("dsl/trace.py", "def f():\n    import numpy.linalg", "numpy.linalg"),
        ("dsl/trace.py", "from ..kernels import ring", "kernels.ring"),
        ("kernels/ring.py", "from pyptx_ops import launch", "launch"),
        ("kernels/configs.py", "from ..dsl import Kernel", "dsl"),
        ("kernels/hopper/tuning/gemm.py", "from .. import gemm", "kernels.hopper.gemm"),
        ("manifest.py", "from .dsl import trace", "dsl.trace"),
        ("build.py", "import pyptx_ops.ops.gemm", "ops.gemm"),
        ("launch.py", "if x:\n    import torch", "torch"),
        ("dispatch/gemm.py", "from ..kernels.hopper.gemm import build", "kernels.hopper.gemm"),
        ("ops/gemm.py", "from ..launch import Kernel", "launch"),
        ("ops/gemm.py", "import pyptx_ops", PACKAGE),
    ],
)
def test_a_breach_is_seen(file: str, text: str, what: str) -> None:
    (breach,) = violations(text, ROOT / PACKAGE / file)
    assert breach.startswith(f"{PACKAGE}/{file}:") and breach.endswith(f"may not import {what}")


@pytest.mark.parametrize("text", ["import os\nos.environ['A']", "import os\nos.getenv('A')", "from os import environ"])
def test_a_read_of_the_environment_is_seen(text: str) -> None:
    assert environment_reads(ast.parse(text)) == [text.count("\n") + 1]


def test_a_module_without_a_floor_is_seen() -> None:
    with pytest.raises(AssertionError, match="cellar stands on no floor"):
        violations("", ROOT / PACKAGE / "cellar.py")
