"""Builds the extension and the kernels; everything else is in pyproject.toml.

The build needs no torch: the kernels are built by a process in which `pyptx_ops` is a bare package.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
SIMULATOR = "pyptx_ops/csrc/sim"
BUILD_KERNELS = """
import sys, types
package = types.ModuleType("pyptx_ops")
package.__path__ = [sys.argv[1]]
sys.modules["pyptx_ops"] = package
from pyptx_ops.build import main
sys.exit(main(sys.argv[2:]))
"""


class BuildKernels(build_py):
    """build_py, with the kernels built in the source tree first: they are package data."""

    def run(self) -> None:
        subprocess.run([sys.executable, "-c", BUILD_KERNELS, str(ROOT / "pyptx_ops")], check=True, cwd=ROOT)
        self.__dict__.pop("data_files", None)  # setuptools may have listed the package data before they were there
        super().run()


class BuildExtension(build_ext):
    """build_ext, for a compiler that needs no CUDA toolkit."""

    def build_extensions(self) -> None:
        for extension in self.extensions:
            common = ["-std=c++17", "-O2", "-fvisibility=hidden", "-Wall", "-Wextra"]
            extension.extra_compile_args = common + extension.extra_compile_args
        super().build_extensions()


setup(
    ext_modules=[
        Extension(
            "pyptx_ops._launch",
            sources=["pyptx_ops/csrc/launch.cpp"],
            depends=[str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("pyptx_ops/csrc/*.h"))],
            define_macros=[("Py_LIMITED_API", "0x030A0000")],
            libraries=["dl"],
            language="c++",
            py_limited_api=True,
        ),
        Extension(
            "pyptx_ops._sim",
            sources=[str(path.relative_to(ROOT)) for path in sorted(ROOT.glob(f"{SIMULATOR}/*.cpp"))],
            depends=[str(path.relative_to(ROOT)) for path in sorted(ROOT.glob(f"{SIMULATOR}/*.h"))],
            define_macros=[("Py_LIMITED_API", "0x030A0000")],
            extra_compile_args=["-O3", "-ffp-contract=off"],
            language="c++",
            py_limited_api=True,
        ),
    ],
    cmdclass={"build_py": BuildKernels, "build_ext": BuildExtension},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
