"""Finding ptxas, running it, reading what it says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import settings

__all__ = ["Ptxas", "PtxasError", "Report", "SEARCH_ORDER", "assemble", "find_ptxas", "parse_report"]

SEARCH_ORDER = (
    "the PYPTX_PTXAS variable",
    "the nvidia-cuda-nvcc package",
    "a CUDA toolkit (CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda)",
    "Triton's own",
)
FLAGS = ("--verbose", "--warn-on-spills")
DEFAULT_TOOLKIT = Path("/usr/local/cuda")


class PtxasError(RuntimeError):
    """ptxas is not where the user says, does not run, or refuses the PTX."""


@dataclass(frozen=True)
class Ptxas:
    """A ptxas that runs. version: "13.0.88", say.  source: which of SEARCH_ORDER it came from."""

    path: Path
    version: str
    source: str


@dataclass(frozen=True)
class Report:
    """What `ptxas -v` says of one kernel, in registers per thread and bytes. advisories: its "(C75xx)" lines."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    static_shared_memory: int
    advisories: tuple[str, ...]


def _candidates() -> Iterator[tuple[str, Path]]:
    override, wheel, toolkit, triton = SEARCH_ORDER
    chosen = settings.ptxas_path()
    if chosen:
        yield override, chosen
    entries = [Path(entry) for entry in dict.fromkeys(sys.path) if entry]
    for entry in entries:
        yield from ((wheel, path) for path in sorted(entry.glob("nvidia/cu[0-9]*/bin/ptxas"), reverse=True))
        yield wheel, entry / "nvidia/cuda_nvcc/bin/ptxas"
    home = settings.cuda_home()
    if home:
        yield toolkit, home / "bin/ptxas"
    on_path = shutil.which("ptxas")
    if on_path:
        yield toolkit, Path(on_path)
    yield toolkit, DEFAULT_TOOLKIT / "bin/ptxas"
    for entry in entries:
        yield from ((triton, path) for path in sorted(entry.glob("triton/backends/nvidia/bin/ptxas*")))


def find_ptxas() -> Ptxas | None:
    """The first ptxas in SEARCH_ORDER that runs, or None; warns of those that do not.

    Raises PtxasError where the user names one that does not run.
    """
    for source, path in _candidates():
        named = source == SEARCH_ORDER[0]
        if named and not path.is_file():
            raise PtxasError(f"PYPTX_PTXAS names {path}, which is no file")
        try:
            if path.is_file():
                return Ptxas(path, _version(path), source)
        except PtxasError as error:
            if named:
                raise
            warnings.warn(f"{error}; looking further", RuntimeWarning, stacklevel=2)
    return None


def _version(path: Path) -> str:
    try:
        output = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise PtxasError(f"{path} does not run: {error}") from error
    found = re.search(r"\bV(\d+\.\d+\.\d+)", output)
    if not found:
        raise PtxasError(f"{path} --version names no version: {output!r}")
    return found[1]


def assemble(ptxas: Ptxas, ptx: str, arch: str, output: Path) -> Report:
    """Assembles PTX text into a cubin at `output`. Raises PtxasError with ptxas's own words where it refuses."""
    command = [str(ptxas.path), *FLAGS, f"--gpu-name={arch}", "-", "--output-file", str(output)]
    done = subprocess.run(command, input=ptx, capture_output=True, text=True)
    if done.returncode:
        raise PtxasError(f"ptxas {ptxas.version} refuses the PTX of {output.stem} for {arch}:\n{done.stderr}")
    return parse_report(done.stderr)


def parse_report(log: str) -> Report:
    """Reads the numbers of a log of `ptxas -v` on a file with one entry. Raises PtxasError where they are not there."""

    def number(pattern: str, absent: int | None = None) -> int:
        found = re.search(pattern, log)
        if found:
            return int(found[1])
        if absent is None:
            raise PtxasError(f"nothing like {pattern!r} in the output of ptxas -v:\n{log}")
        return absent

    return Report(
        registers=number(r"Used (\d+) registers"),
        stack=number(r"(\d+) bytes stack frame", 0),
        spill_stores=number(r"(\d+) bytes spill stores", 0),
        spill_loads=number(r"(\d+) bytes spill loads", 0),
        static_shared_memory=number(r"(\d+) bytes smem", 0),
        advisories=tuple(line.strip() for line in log.splitlines() if re.search(r"\(C75\d\d\)", line)),
    )
