from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyptx_ops import _launch

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "pyptx_ops/csrc"


class StubDriver:
    """The recording driver: `driver` is ours on top of it, the rest steers it."""

    def __init__(self, path: Path):
        self.path = path
        self.library = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL)
        self.library.stub_log.restype = ctypes.c_char_p
        self.library.stub_reset()
        self.driver = _launch.Driver(str(path))

    def calls(self, name: str = "") -> list[str]:
        """The calls recorded so far, of one function or of all."""
        lines = self.library.stub_log().decode().splitlines()
        return [line for line in lines if not name or line.split()[0] == name]

    def fail(self, call: str, code: int) -> None:
        self.library.stub_fail(call.encode(), code)

    def kernel(self, params: tuple[tuple[object, ...], ...], **launch: object) -> _launch.Kernel:
        """A kernel of the fake driver, which records its parameters by their sizes."""
        sizes = {"tensor_map": 128, "u32": 4, "i32": 4, "f32": 4}
        image = " ".join(str(sizes.get(str(param[1]), 8)) for param in params)
        return self.driver.load(image.encode(), "image").kernel("entry", params, **{"block": (128, 1, 1)} | launch)

    def launched(self) -> dict[str, str]:
        """The fields of the last launch."""
        return dict(field.split("=") for field in self.calls("cuLaunchKernelEx")[-1].split()[2:])


@pytest.fixture(scope="session")
def stub_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    assert compiler, "these tests need a C++ compiler, as the extension did"
    path = tmp_path_factory.mktemp("stub") / "libcuda_stub.so"
    command = [
        compiler,
        "-std=c++17",
        "-shared",
        "-fPIC",
        f"-I{SOURCES}",
        str(HERE / "stub_driver.cpp"),
        "-o",
        str(path),
    ]
    subprocess.run(command, check=True)
    return path


@pytest.fixture
def stub(stub_path: Path) -> Iterator[StubDriver]:
    driver = StubDriver(stub_path)
    yield driver
    driver.library.stub_reset()
