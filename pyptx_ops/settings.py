"""Every environment variable that the package reads, and where it looks for files."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["VARIABLES", "artifacts_directory", "cuda_home", "driver_path", "ptxas_path"]

VARIABLES = {
    "PYPTX_ARTIFACTS": "the directory of prebuilt kernels, instead of the one in the package",
    "PYPTX_DRIVER": "the CUDA driver library to load, instead of libcuda.so.1",
    "PYPTX_PTXAS": "the ptxas to build with, before every other",
    "CUDA_HOME": "a CUDA toolkit to take ptxas from",
    "CUDA_PATH": "the same, where CUDA_HOME is not set",
}


def _get(name: str) -> str | None:
    """The value of a variable in VARIABLES, or None where it is unset or empty."""
    if name not in VARIABLES:
        raise KeyError(f"{name} is not listed in settings.VARIABLES")
    return os.environ.get(name) or None


def artifacts_directory() -> Path:
    """Where the build puts kernels and the launcher finds them: one folder per architecture."""
    chosen = _get("PYPTX_ARTIFACTS")
    return Path(chosen) if chosen else Path(__file__).resolve().parent / "artifacts"


def driver_path() -> str:
    """What dlopen gets for the CUDA driver."""
    return _get("PYPTX_DRIVER") or "libcuda.so.1"


def ptxas_path() -> Path | None:
    """The ptxas that the user names, if any."""
    chosen = _get("PYPTX_PTXAS")
    return Path(chosen) if chosen else None


def cuda_home() -> Path | None:
    """The CUDA toolkit that the user names, if any."""
    chosen = _get("CUDA_HOME") or _get("CUDA_PATH")
    return Path(chosen) if chosen else None
