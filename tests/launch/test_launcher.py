"""CudaLauncher: from a manifest to kernels, each loaded once, on top of the recording driver."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from pyptx_ops import launch
from pyptx_ops.dsl.types import TENSOR_MAP_DTYPES, Param, TensorMapSpec
from pyptx_ops.launch import CudaLauncher, current_launcher, default_launcher, param_spec, use_launcher
from pyptx_ops.manifest import KernelRecord, Manifest, ManifestError

from .conftest import StubDriver

RECORD = KernelRecord(
    name="scale", family="scale", arch="sm_90a", config={}, entry="entry", params=(Param("n", "u32"),),
    block=(64, 1, 1), cluster=(2, 1, 1), shared_memory=512, pdl=True, ptx="scale.ptx", ptx_sha256="0",
    cubin="scale.cubin",
)  # fmt: skip


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    """Two kernels: one assembled, one PTX alone."""
    directory = tmp_path / "sm_90a"
    Manifest("sm_90a", "12.9.86", (RECORD, replace(RECORD, name="late", cubin=None))).save(directory)
    (directory / "scale.cubin").write_text("4")
    (directory / "scale.ptx").write_text("8")
    return tmp_path


def test_a_kernel_launches_as_its_record_says(stub: StubDriver, artifacts: Path) -> None:
    kernel = CudaLauncher(artifacts, str(stub.path)).kernel("sm_90a", "scale")
    kernel.launch(0, 3, 4, 1, 1, 7)
    assert stub.launched() == {
        "device": "0", "grid": "4,1,1", "block": "64,1,1", "shared": "512", "stream": "3", "attributes": "4:2,1,1;6:1",
        "params": "07000000",
    }  # fmt: skip


def test_a_kernel_is_loaded_once(stub: StubDriver, artifacts: Path) -> None:
    launcher = CudaLauncher(artifacts, str(stub.path))
    start, seen = threading.Barrier(8), []

    def work() -> None:
        start.wait()
        seen.append(launcher.kernel("sm_90a", "scale"))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8 and len(set(map(id, seen))) == 1
    assert len(stub.calls("cuLibraryLoadData")) == 1


def test_without_a_cubin_the_driver_gets_ptx_and_one_warning_says_so(
    stub: StubDriver, artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_warned", set())
    launcher = CudaLauncher(artifacts, str(stub.path))
    with pytest.warns(RuntimeWarning, match=r"sm_90a were built without ptxas.*pip install nvidia-cuda-nvcc") as caught:
        kernel = launcher.kernel("sm_90a", "late")
        CudaLauncher(artifacts, str(stub.path)).kernel("sm_90a", "late")
    assert len(caught) == 1
    kernel.launch(0, 0, 1, 1, 1, 7)
    assert len(stub.launched()["params"]) == 16  # the size that the PTX file asked for


@pytest.mark.parametrize(("ptxas", "taken"), [("12.0.1", "cubin"), ("12.9.86", "cubin"), ("13.0.88", "ptx")])
def test_a_cubin_of_a_newer_major_version_is_not_for_this_driver(
    stub: StubDriver, artifacts: Path, monkeypatch: pytest.MonkeyPatch, ptxas: str, taken: str
) -> None:
    monkeypatch.setattr(launch, "_warned", set())
    Manifest("sm_90a", ptxas, (RECORD,)).save(artifacts / "sm_90a")
    launcher = CudaLauncher(artifacts, str(stub.path))  # a driver of CUDA 12.8
    wanted = r"assembled by ptxas 13\.0\.88 and the driver is of CUDA 12\.8, .*; update the driver, or set PYPTX_PTXAS"
    with pytest.warns(RuntimeWarning, match=wanted) if taken == "ptx" else nullcontext():
        launcher.kernel("sm_90a", "scale").launch(0, 0, 1, 1, 1, 7)
    assert len(stub.launched()["params"]) == {"cubin": 8, "ptx": 16}[taken]


def test_an_unknown_kernel_names_the_closest(stub: StubDriver, artifacts: Path) -> None:
    with pytest.raises(ManifestError, match=r"no kernel 'scal' was built for sm_90a \(2 were\); the closest: scale"):
        CudaLauncher(artifacts, str(stub.path)).kernel("sm_90a", "scal")


def test_an_architecture_without_kernels_says_how_to_build(stub: StubDriver, artifacts: Path) -> None:
    with pytest.raises(ManifestError, match=r"sm_100a/manifest.json does not exist; run `python -m pyptx_ops.build`"):
        CudaLauncher(artifacts, str(stub.path)).kernel("sm_100a", "scale")


def test_the_manifest_is_read_without_a_driver(artifacts: Path) -> None:
    launcher = CudaLauncher(artifacts, "libnothing.so.9")
    assert launcher.manifest("sm_90a").kernel("scale") == RECORD
    with pytest.raises(launch.DriverNotFound, match=r"libnothing\.so\.9"):
        launcher.kernel("sm_90a", "scale")


def test_another_launcher_takes_the_place_of_the_default(artifacts: Path) -> None:
    first, second = CudaLauncher(artifacts), CudaLauncher(artifacts)
    assert current_launcher() is default_launcher() is default_launcher()
    with use_launcher(first) as used:
        assert used is first is current_launcher()
        with pytest.raises(ZeroDivisionError), use_launcher(second):
            assert current_launcher() is second
            raise ZeroDivisionError
        seen: list[object] = []
        thread = threading.Thread(target=lambda: seen.append(current_launcher()))
        thread.start()
        thread.join()
        assert seen == [first]  # autograd's threads see it too
    assert current_launcher() is default_launcher()


def test_settings_choose_driver_and_artifacts(
    stub: StubDriver, artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYPTX_ARTIFACTS", str(artifacts))
    monkeypatch.setenv("PYPTX_DRIVER", str(stub.path))
    monkeypatch.setattr(launch, "_default", None)
    assert launch.driver_version() == (12, 8)
    assert launch.device_count() == 2
    assert default_launcher().kernel("sm_90a", "scale").name == "entry"


@pytest.mark.parametrize("dtype", sorted(TENSOR_MAP_DTYPES))
def test_names_of_tensor_maps_become_the_drivers_numbers(dtype: str) -> None:
    spec = TensorMapSpec(dtype, (16, 2), swizzle=32, l2_promotion=64, oob_nan=True)
    number, size = TENSOR_MAP_DTYPES[dtype]
    wanted = ("x", "tensor_map", number, size, (16, 2), 1, 1, 1)
    assert param_spec(Param("x", "tensor_map", spec)) == wanted
    assert param_spec(Param("x", "f32")) == ("x", "f32")
