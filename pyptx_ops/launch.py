"""Launchers: from a kernel's name to something that launches.

    kernel = current_launcher().kernel("sm_90a", config.name)
    kernel.launch(device, stream, grid_x, grid_y, grid_z, *args)

`CudaLauncher` is the one for GPUs. Another machine, such as a simulator, stands behind the same protocol and is put in
place with `use_launcher`.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from . import settings
from .dsl.types import TENSOR_MAP_DTYPES, Param
from .manifest import KernelRecord, Manifest

try:
    from . import _launch
    from ._launch import BoundCalls, DriverNotFound, LaunchError
except ImportError as error:  # a source tree in which nothing was built: what needs no GPU still works
    _extension_error: ImportError | None = error

    class LaunchError(RuntimeError):  # type: ignore[no-redef]
        """A driver call failed."""

    class DriverNotFound(LaunchError):  # type: ignore[no-redef]
        """No CUDA driver library."""

    class BoundCalls:  # type: ignore[no-redef]
        """Calls bound to launches."""
else:
    _extension_error = None

__all__ = [
    "BoundCalls", "CudaLauncher", "DriverNotFound", "Kernel", "LaunchError", "Launcher", "bound_calls", "can_bind",
    "current_launcher", "default_launcher", "device_count", "driver_version", "may_bind", "param_spec",
    "simulated_multiprocessors", "unbound", "use_launcher",
]  # fmt: skip


class Kernel(Protocol):
    """A kernel that is ready to launch on any device of its architecture. Safe from several threads."""

    @property
    def name(self) -> str: ...

    def launch(self, device: int, stream: int, grid_x: int, grid_y: int, grid_z: int, /, *args: int | float) -> None:
        """Enqueues one grid; a grid with a zero dimension is none.

        device: its ordinal.  stream: its handle, 0 for the default one.
        args: one value per parameter; per tensor map of rank r its address, r sizes (elements, innermost first) and
        r - 1 strides (bytes, of dimensions 1 to r - 1).
        Raises TypeError or OverflowError for values that do not fit, LaunchError for what the driver refuses.
        """

    def prepare(self, device: int, /) -> None:
        """Loads the kernel on a device ahead of its first launch there."""

    def attributes(self, device: int, /) -> dict[str, int]:
        """registers, local_bytes, shared_bytes (static), max_threads, binary_version."""


class Launcher(Protocol):
    """A machine that runs prebuilt kernels."""

    def kernel(self, arch: str, name: str) -> Kernel:
        """The kernel of that name; ManifestError where it was not built."""

    def manifest(self, arch: str) -> Manifest:
        """What was built for an architecture; ManifestError where nothing was."""


def param_spec(param: Param) -> tuple[object, ...]:
    """A parameter as `Library.kernel` takes it: names become the driver's numbers."""
    spec = param.tensor_map
    if spec is None:
        return param.name, param.kind
    dtype, size = TENSOR_MAP_DTYPES[spec.dtype]
    swizzle = {0: 0, 32: 1, 64: 2, 128: 3}[spec.swizzle]
    l2_promotion = {0: 0, 64: 1, 128: 2, 256: 3}[spec.l2_promotion]
    words = param.name, param.kind, dtype, size, spec.box, swizzle, l2_promotion, int(spec.oob_nan)
    window = spec.im2col
    return (*words, (*window.lower, *window.upper, *window.steps)) if window else words


class CudaLauncher:
    """Loads each kernel's cubin on first use, or its PTX where there is no cubin, and keeps it for the process.

    artifacts: the directory that the build wrote; by default the package's own.  driver: the library to load.
    """

    def __init__(self, artifacts: Path | None = None, driver: str | None = None):
        self._artifacts = artifacts or settings.artifacts_directory()
        self._driver_path = driver or settings.driver_path()
        self._driver: _launch.Driver | None = None
        self._manifests: dict[str, Manifest] = {}
        self._kernels: dict[tuple[str, str], Kernel] = {}
        self._lock = threading.RLock()

    @property
    def driver(self) -> _launch.Driver:
        """The CUDA driver, found on first use. Raises DriverNotFound."""
        with self._lock:
            if self._driver is None:
                if _extension_error is not None:
                    raise DriverNotFound(
                        f"pyptx_ops._launch is not built ({_extension_error}); "
                        "run `python setup.py build_ext --inplace` in the source tree"
                    ) from _extension_error
                self._driver = _launch.Driver(self._driver_path)
            return self._driver

    def manifest(self, arch: str) -> Manifest:
        with self._lock:
            if arch not in self._manifests:
                self._manifests[arch] = Manifest.load(self._artifacts / arch)
            return self._manifests[arch]

    def kernel(self, arch: str, name: str) -> Kernel:
        kernel = self._kernels.get((arch, name))
        if kernel is None:
            with self._lock:
                kernel = self._kernels.get((arch, name)) or self._load(self.manifest(arch).kernel(name))
                self._kernels[arch, name] = kernel
        return kernel

    def _load(self, record: KernelRecord) -> Kernel:
        return self.driver.load(self._image(record), record.name).kernel(
            record.entry,
            tuple(param_spec(param) for param in record.params),
            record.block,
            record.cluster,
            record.shared_memory,
            record.pdl,
        )

    def _image(self, record: KernelRecord) -> bytes:
        """The cubin, or the PTX where there is no cubin that this driver takes."""
        ptxas, driver = self.manifest(record.arch).ptxas, self.driver.version()
        file = record.cubin
        if file is None:
            _warn_about_ptx(record.arch, "were built without ptxas", "`pip install nvidia-cuda-nvcc` and build again")
        elif ptxas and int(ptxas.partition(".")[0]) > driver[0]:  # drivers take cubins of their own major version
            why = f"were assembled by ptxas {ptxas} and the driver is of CUDA {driver[0]}.{driver[1]}"
            _warn_about_ptx(record.arch, why, "update the driver, or set PYPTX_PTXAS to an older one and build again")
            file = None
        return (self._artifacts / record.arch / (file or record.ptx)).read_bytes()


_warned: set[str] = set()


def _warn_about_ptx(arch: str, why: str, remedy: str) -> None:
    if arch in _warned:
        return
    _warned.add(arch)
    warnings.warn(
        f"the kernels for {arch} {why}, so the driver compiles each one once per process; {remedy}",
        RuntimeWarning,
        stacklevel=5,
    )


_lock = threading.Lock()
_default: CudaLauncher | None = None
_used: list[Launcher] = []


def default_launcher() -> CudaLauncher:
    """The process's CUDA launcher."""
    global _default
    if _default is None:
        with _lock:
            _default = _default or CudaLauncher()
    return _default


def current_launcher() -> Launcher:
    """The launcher in use: that of the innermost `use_launcher`, else the default one. Key caches of kernels by it."""
    return _used[-1] if _used else default_launcher()


def simulated_multiprocessors() -> int | None:
    """How many the launcher in use simulates, if it runs kernels on CPU tensors; None for a GPU's."""
    return getattr(_used[-1], "multiprocessors", None) if _used else None


@contextmanager
def use_launcher(launcher: Launcher) -> Iterator[Launcher]:
    """Puts a launcher in place for the whole process, autograd's threads included, until the block ends."""
    _used.append(launcher)
    _forget_bound_calls()
    try:
        yield launcher
    finally:
        _used.remove(launcher)
        _forget_bound_calls()


_bound: list[BoundCalls] = []
_unbound = 0


def can_bind() -> bool:
    """Whether there is an extension that binds calls."""
    return _extension_error is None


def bound_calls(**options: Any) -> BoundCalls:
    """A table of bound calls, for the life of the process; it is emptied whenever another launcher is put in place.

    options: see `_launch.BoundCalls`.
    """
    table = BoundCalls(**options)
    _bound.append(table)
    return table


def may_bind(kernel: Kernel) -> TypeGuard[_launch.Kernel]:
    """Whether calls may be bound to a kernel: one of the driver's, outside of `unbound`."""
    return not _unbound and isinstance(kernel, _launch.Kernel)


@contextmanager
def unbound() -> Iterator[None]:
    """Inside the block every call is planned: nothing is bound, and nothing that was. Process-wide."""
    global _unbound
    _unbound += 1
    _forget_bound_calls()
    try:
        yield
    finally:
        _unbound -= 1


def _forget_bound_calls() -> None:
    for table in _bound:
        table.clear()


def driver_version() -> tuple[int, int]:
    """(major, minor) of the CUDA version that the driver supports. Raises DriverNotFound."""
    return default_launcher().driver.version()


def device_count() -> int:
    """The GPUs that the driver sees. Raises DriverNotFound."""
    return default_launcher().driver.device_count()
