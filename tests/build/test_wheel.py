"""The wheel: that all of the package is in it, and that it works away from the sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from pyptx_ops import settings
from pyptx_ops.manifest import Manifest
from pyptx_ops.trials.bounds import product_excess

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pyptx_ops"
SUFFIXES = (".py", ".pyi", ".typed")

# Away from the sources: the typed functions and the ops, on the reference path and on simulated kernels.
USE = """
import sys
import torch
import pyptx_ops
from pyptx_ops.launch import CudaLauncher

print(pyptx_ops.__file__)
a, b = torch.load(sys.argv[1])
results = [pyptx_ops.gemm(a, b)]
with pyptx_ops.simulate():
    results.append(torch.ops.pyptx.gemm(a, b))
torch.save(results, sys.argv[2])
print(len(CudaLauncher().manifest("sm_90a").kernels))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by setup.py from the sources; the extensions, compiled before, are taken as they are."""
    extensions = sorted(PACKAGE.glob("_*.abi3.so"))
    if len(extensions) < 2 or "PYPTX_ARTIFACTS" in os.environ:
        pytest.skip("the package was not built in its source tree")
    folder = tmp_path_factory.mktemp("wheel")
    library = folder / "lib" / PACKAGE.name
    library.mkdir(parents=True)
    for extension in extensions:
        shutil.copy(extension, library)
    command = [
        sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(folder),
        "build", "--build-base", str(folder), "--build-lib", str(library.parent),
        "bdist_wheel", "--bdist-dir", str(folder / "unpacked"), "--dist-dir", str(folder),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def files(folder: Path) -> set[str]:
    """Sources, types and markers of a package, relative to it."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix in SUFFIXES}


def test_its_name_says_where_it_works(wheel: Path) -> None:
    assert wheel.name.startswith("pyptx_ops-") and "-cp310-abi3-" in wheel.name


def test_it_has_every_file(installed: Path) -> None:
    assert files(installed / "pyptx_ops") == files(PACKAGE)
    assert (installed / "pytest_pyptx.py").is_file()
    assert {"py.typed", "_launch.pyi", "_sim.pyi", "dsl/instructions.pyi"} <= files(PACKAGE)
    top = {path.name for path in installed.iterdir() if path.suffix != ".dist-info"}
    assert top == {"pyptx_ops", "pytest_pyptx.py"}


def test_it_has_every_kernel(installed: Path) -> None:
    folder = installed / "pyptx_ops" / "artifacts" / "sm_90a"
    built = Manifest.load(settings.artifacts_directory() / "sm_90a")
    packed = Manifest.load(folder)
    assert packed == built and packed.kernels
    named = {name for record in packed.kernels for name in (record.ptx, record.cubin) if name}
    assert {path.name for path in folder.iterdir()} == named | {"manifest.json"}
    assert all((folder / name).stat().st_size for name in named)


def test_it_works_elsewhere(installed: Path, tmp_path: Path) -> None:
    a, b = torch.randn(33, 40).bfloat16(), torch.randn(40, 24).bfloat16()
    torch.save((a, b), tmp_path / "in.pt")
    command = [sys.executable, "-W", "error", "-c", USE, str(tmp_path / "in.pt"), str(tmp_path / "out.pt")]
    environment = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    where, kernels = done.stdout.splitlines()
    assert Path(where).parent == installed / "pyptx_ops" and int(kernels) > 100
    reference, kernel = torch.load(tmp_path / "out.pt")
    assert product_excess(reference, a, b) <= 1 and product_excess(kernel, a, b) <= 1
