"""``python -m pyptx_ops doctor``: what is installed, what was built, and which path each op takes on each device.

It works with anything missing: what cannot be told is reported as such, and the exit code is 0.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import platform
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pyptx_ops
from pyptx_ops import settings
from pyptx_ops.build import FAMILIES
from pyptx_ops.launch import CudaLauncher
from pyptx_ops.manifest import Manifest, ManifestError
from pyptx_ops.ptxas import SEARCH_ORDER, find_ptxas
from pyptx_ops.tables import table

KERNELS = {  # op -> its kernels: their names begin with this and the dtype
    "gemm": "gemm",
    "gemm_swiglu": "gemm_swiglu",
    "grouped_gemm": "grouped_gemm",
    "grouped_gemm_swiglu": "grouped_gemm_swiglu",
    "rms_norm": "rms_norm",
    "fused_add_rms_norm": "fused_add_rms_norm",
    "fused_add_rms_norm_": "fused_add_rms_norm",
    "silu_and_mul": "swiglu",
    "silu_and_mul_bwd": "swiglu_bwd",
    "swiglu": "swiglu",
    "swiglu_bwd": "swiglu_bwd",
}

Rows = list[tuple[str, str]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the report; always returns 0."""
    parser = argparse.ArgumentParser(prog="python -m pyptx_ops doctor", description="What is installed and what runs.")
    parser.parse_args(arguments)
    print(report())
    return 0


def report() -> str:
    """The report as text."""
    sections: list[tuple[str, Callable[[], str]]] = [
        ("software", lambda: _list(_software())),
        ("launcher", lambda: _list(_launcher())),
        ("ptxas", lambda: _list(_ptxas())),
        ("kernels", _kernels),
        ("devices", _devices),
        ("ops", _ops),
    ]
    return "\n\n".join(f"{title}\n{_indent(_guarded(section))}" for title, section in sections)


def _guarded(section: Callable[[], str]) -> str:
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            text = section()
    except Exception as error:  # a doctor reports what is broken
        return f"cannot tell: {type(error).__name__}: {error}"
    return "\n".join([text, *(f"warning: {warning.message}" for warning in caught)])


def _list(rows: Rows) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows)


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def _software() -> Rows:
    rows = [
        ("pyptx_ops", f"{pyptx_ops.__version__}, {Path(pyptx_ops.__file__).parent}"),
        ("python", f"{platform.python_version()}, {platform.platform()}"),
        ("torch", _torch()),
    ]
    return rows + [(name, _version(name)) for name in ("transformers", "triton")]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _torch() -> str:
    if not _has_torch():
        return "not installed: the ops need it, the DSL and the build do not"
    import torch

    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    return f"{torch.__version__}, {built}, CUDA {'available' if torch.cuda.is_available() else 'not available'}"


def _launcher() -> Rows:
    extension = importlib.util.find_spec("pyptx_ops._launch")
    if extension is None:
        return [("extension", "not built: python setup.py build_ext --inplace")]
    rows = [("extension", str(extension.origin)), ("calls", _calls()), ("library", settings.driver_path())]
    try:
        driver = CudaLauncher().driver
        major, minor = driver.version()
        devices = driver.device_count()
    except Exception as error:
        return [*rows, ("driver", f"not usable: {error}")]
    return [*rows, ("driver", f"supports CUDA {major}.{minor}, sees {devices} device{'s' if devices != 1 else ''}")]


def _calls() -> str:
    if not _has_torch():
        return "unknown without torch"
    from pyptx_ops.dispatch import bound

    return "repeated ones skip Python" if bound.binds() else "each goes through Python; torch 2.10 would spare that"


def _ptxas() -> Rows:
    found = find_ptxas()
    if found is None:
        return [("found", f"none; looked for {', '.join(SEARCH_ORDER)}; pip install nvidia-cuda-nvcc brings one")]
    return [("found", f"{found.version}, from {found.source}"), ("path", str(found.path))]


def _manifests() -> dict[str, Manifest | str]:
    """By architecture: what was built, or what is wrong with it."""
    directory = settings.artifacts_directory()
    manifests: dict[str, Manifest | str] = {}
    for folder in sorted(path for path in directory.glob("*") if path.is_dir()):
        try:
            manifests[folder.name] = Manifest.load(folder)
        except ManifestError as error:
            manifests[folder.name] = str(error)
    return manifests


def _kernels() -> str:
    directory, manifests = settings.artifacts_directory(), _manifests()
    if not manifests:
        return f"none in {directory}: python -m pyptx_ops build"
    return "\n".join([str(directory), *(f"{arch}  {_built(manifest)}" for arch, manifest in manifests.items())])


def _built(manifest: Manifest | str) -> str:
    if isinstance(manifest, str):
        return manifest
    cubins = sum(record.cubin is not None for record in manifest.kernels)
    families = Counter(record.family for record in manifest.kernels)
    by = f"ptxas {manifest.ptxas}" if manifest.ptxas else "no ptxas: the driver compiles the PTX on first use"
    names = ", ".join(f"{count} {family}" for family, count in sorted(families.items()))
    form = "cubins" if cubins == len(manifest.kernels) else f"{cubins} cubins, the rest PTX"
    return f"{len(manifest.kernels)} kernels ({names}) as {form}; {by}"


def _torch_devices() -> list[Any]:
    import torch

    return [torch.device("cpu"), *(torch.device("cuda", i) for i in range(torch.cuda.device_count()))]


def _devices() -> str:
    if not _has_torch():
        return "unknown without torch"
    import torch

    rows: list[list[object]] = []
    for device in _torch_devices():
        if device.type == "cpu":
            rows.append(["cpu", platform.processor() or platform.machine(), None, None, None])
        else:
            found = torch.cuda.get_device_properties(device)
            capability = f"{found.major}.{found.minor}"
            memory = f"{found.total_memory / 2**30:.0f} GiB"
            rows.append([str(device), found.name, capability, found.multi_processor_count, memory])
    return table(["device", "name", "capability", "SMs", "memory"], rows)


def _ops() -> str:
    if not _has_torch():
        return "unavailable without torch"
    from pyptx_ops import dispatch

    manifests = _manifests()
    rows = []
    for device in _torch_devices():
        route = dispatch.route(device)
        for op, kind in KERNELS.items():
            path: str = route.path
            why = route.why
            if route.arch is not None and path == "kernel":
                path, why = _kernel_path(manifests.get(route.arch), kind, why)
            rows.append([op, str(device), path, why])
    served = ", ".join(str(dtype).removeprefix("torch.") for dtype in dispatch.KERNEL_DTYPES)
    return (
        table(["op", "device", "path", "why"], rows) + f"\nkernels serve {served}; other dtypes take the reference path"
    )


def _kernel_path(manifest: Manifest | str | None, kind: str, why: str) -> tuple[str, str]:
    if isinstance(manifest, Manifest):
        built = _of_kind(kind, (record.name for record in manifest.kernels))
        families = importlib.import_module(FAMILIES[manifest.arch]).FAMILIES
        missing = _of_kind(kind, (config.name for family in families for config in family.configs)) - built
        lacking = f", but {len(missing)} more were not built: python -m pyptx_ops build" if missing else ""
        if built:
            return "kernel", f"{why}; {len(built)} {kind}_* to choose from{lacking}"
    return "error", f"{why}, but no {kind}_* was built: python -m pyptx_ops build"


def _of_kind(kind: str, names: Iterable[str]) -> set[str]:
    return {name for name in names if re.match(rf"{kind}_b?f16_", name)}
