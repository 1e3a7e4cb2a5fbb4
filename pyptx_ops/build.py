"""Builds the kernels: config -> trace -> PTX -> ptxas -> cubin, with the manifest beside them.

    python -m pyptx_ops.build [--arch sm_90a] [--jobs N] [--only GLOB] [--force]

Traces run in parallel processes and ptxas under ninja. Both are skipped where nothing changed: a trace where the DSL,
the kernels and the config are the same, an assembly where the PTX and ptxas are.
"""

from __future__ import annotations

import argparse
import fcntl
import fnmatch
import hashlib
import importlib
import importlib.util
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from . import settings
from .dsl.errors import TraceError
from .manifest import KernelRecord, Manifest, ManifestError, write_atomically
from .ptxas import FLAGS, SEARCH_ORDER, Ptxas, PtxasError, Report, find_ptxas, parse_report

__all__ = ["ALLOWED_SPILLS", "FAMILIES", "BuildError", "build", "main"]

FAMILIES = {"sm_90a": "pyptx_ops.kernels.hopper.families"}
"""Architecture -> the module whose FAMILIES lists its kernels."""

ALLOWED_SPILLS: dict[str, str] = {}
"""Kernels (by name, as a glob) that may spill registers, and why that is right. Every other spill fails the build."""

SOURCES = ("dsl/**/*.py", "kernels/**/*.py", "manifest.py", "build.py")  # what a trace and its record depend on
WORK = "build"  # the folder, beside the kernels, of what only the build reads


class BuildError(RuntimeError):
    """A kernel that does not trace, assemble or pass the checks."""


@dataclass(frozen=True)
class Job:
    """One kernel to trace: where its family is, and which of its configs it is."""

    module: str
    arch: str
    family: str
    index: int
    name: str
    key: str  # hash of everything that the trace depends on


def build(
    arch: str = "sm_90a",
    *,
    output: Path | None = None,
    jobs: int | None = None,
    only: str = "*",
    force: bool = False,
    module: str | None = None,
) -> Manifest:
    """Builds every kernel of an architecture and returns the manifest that it wrote.

    output: the folder that gets one folder per architecture.  jobs: processes, by default one per CPU.
    only: build the kernels whose names match this glob and keep the others as they are.
    force: start from nothing.  module: where FAMILIES is, other than FAMILIES[arch].
    Raises BuildError naming each kernel that failed; the manifest then stays what it was.
    """
    if module is None and arch not in FAMILIES:
        raise BuildError(f"wanted an architecture out of {', '.join(FAMILIES)}, got {arch!r}")
    directory = (output or settings.artifacts_directory()) / arch
    every = _jobs(arch, module or FAMILIES[arch])
    chosen = [job for job in every if fnmatch.fnmatchcase(job.name, only)]
    if not chosen:
        raise BuildError(f"no kernel of {arch} is called {only!r}; there are {', '.join(job.name for job in every)}")
    ptxas = find_ptxas()
    if ptxas is None:
        _warn_about_no_ptxas()
    with _alone(directory):
        if force:
            shutil.rmtree(directory / WORK, ignore_errors=True)
        (directory / WORK).mkdir(exist_ok=True)
        records = _make(chosen, arch, directory, ptxas, jobs or os.cpu_count() or 1)
        return _publish(every, records, arch, directory, ptxas)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Waits for another build of the same directory to end."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(chosen: list[Job], arch: str, directory: Path, ptxas: Ptxas | None, jobs: int) -> list[KernelRecord]:
    """Traces and assembles in the work folder; the records, once every kernel has passed."""
    work = directory / WORK
    records = _trace_all(chosen, work, jobs)
    if ptxas is None:
        before = _manifest_before(directory)
        return [_keep_cubin(record, before, directory) for record in records]
    _assemble(ptxas, arch, work, [record.name for record in records], jobs)
    reports = [parse_report((work / f"{record.name}.log").read_text()) for record in records]
    failures = [line for record, report in zip(records, reports, strict=True) for line in _complaints(record, report)]
    if failures:
        raise BuildError("\n".join(failures))
    return [_assembled(record, report) for record, report in zip(records, reports, strict=True)]


def _publish(
    every: list[Job], records: list[KernelRecord], arch: str, directory: Path, ptxas: Ptxas | None
) -> Manifest:
    """Puts the kernels and their manifest where the launcher looks, and removes those that are no more."""
    for record in records:
        for name in (record.ptx, record.cubin):
            made = directory / WORK / name if name else None
            if made and made.is_file():
                _write_if_changed(directory / made.name, made.read_bytes())
    known = _manifest_before(directory) | {record.name: record for record in records}
    kernels = tuple(known[job.name] for job in every if job.name in known)
    manifest = Manifest(arch, ptxas.version if ptxas else None, kernels)
    manifest.save(directory)
    wanted = {name for record in kernels for name in (record.ptx, record.cubin)}
    for path in (*directory.glob("*.ptx"), *directory.glob("*.cubin")):
        if path.name not in wanted:
            path.unlink()
    return manifest


# ----------------------------------------------------------------------------------------------------------- traces


def _jobs(arch: str, module: str) -> list[Job]:
    sources = _hash_of_sources(module)
    jobs = []
    for family in importlib.import_module(module).FAMILIES:
        for index, config in enumerate(family.configs):
            key = hashlib.sha256(f"{sources} {arch} {family.name} {config!r}".encode()).hexdigest()
            jobs.append(Job(module, arch, family.name, index, config.name, key))
    twice = sorted({job.name for job in jobs if [other.name for other in jobs].count(job.name) > 1})
    if twice:
        raise BuildError(f"kernel names used by two configs: {', '.join(twice)}")
    return jobs


def _hash_of_sources(module: str) -> str:
    """A hash of SOURCES and the module that lists the kernels."""
    package = Path(__file__).resolve().parent
    files = sorted(path for pattern in SOURCES for path in package.glob(pattern))
    spec = importlib.util.find_spec(module)
    if spec and spec.origin and Path(spec.origin).resolve() not in files:
        files.append(Path(spec.origin))
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _trace_all(jobs: list[Job], work: Path, processes: int) -> list[KernelRecord]:
    """The records of the kernels, without what ptxas adds; traces only those that changed."""
    cached = [_cached(job, work) for job in jobs]
    todo = [job for job, record in zip(jobs, cached, strict=True) if record is None]
    if len(todo) > 1 and processes > 1:
        fork = multiprocessing.get_context("fork")  # a fresh interpreter would import torch, which a build may not have
        with ProcessPoolExecutor(min(processes, len(todo)), mp_context=fork) as pool:
            outcomes = list(pool.map(_trace, todo))
    else:
        outcomes = [_trace(job) for job in todo]
    fresh: dict[str, KernelRecord] = {}
    failures: dict[str, list[str]] = {}  # cause -> kernels
    for job, (record, ptx, failure) in zip(todo, outcomes, strict=True):
        if record is None:
            failures.setdefault(failure, []).append(job.name)
            continue
        fresh[job.name] = record
        _write_if_changed(work / record.ptx, ptx.encode())
        traced = {"key": job.key, "record": asdict(record)}
        write_atomically(work / f"{job.name}.json", json.dumps(traced).encode())
    if failures:
        raise BuildError("\n".join(f"{_few(names)}: no trace: {cause}" for cause, names in failures.items()))
    return [record or fresh[job.name] for job, record in zip(jobs, cached, strict=True)]


def _cached(job: Job, work: Path) -> KernelRecord | None:
    path = work / f"{job.name}.json"
    if not path.is_file():
        return None
    traced = json.loads(path.read_text())
    if traced["key"] != job.key:
        return None
    record = KernelRecord.from_json(traced["record"])
    ptx = work / record.ptx
    same = ptx.is_file() and hashlib.sha256(ptx.read_bytes()).hexdigest() == record.ptx_sha256
    return record if same else None


def _trace(job: Job) -> tuple[KernelRecord | None, str, str]:
    """(record, PTX, "") of one kernel, or (None, "", what went wrong): an exception may not survive the way back."""
    family = next(item for item in importlib.import_module(job.module).FAMILIES if item.name == job.family)
    config = family.configs[job.index]
    try:
        kernel = family.build(config)
        ptx = kernel.ptx()
    except Exception as error:  # any bug of a kernel body: the build reports it with the kernel's name
        where = "" if isinstance(error, TraceError) else _where(error)  # a TraceError has its own
        return None, "", f"{type(error).__name__}: {error}{where}"
    record = KernelRecord(
        name=job.name,
        family=job.family,
        arch=job.arch,
        config=json.loads(json.dumps(asdict(config))),  # as the manifest will read it back
        entry=kernel.entry,
        params=tuple(kernel.params),
        block=kernel.block,
        cluster=kernel.cluster,
        shared_memory=kernel.dynamic_smem,
        pdl=kernel.pdl,
        ptx=f"{job.name}.ptx",
        ptx_sha256=hashlib.sha256(ptx.encode()).hexdigest(),
    )
    return record, ptx, ""


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _where(error: BaseException) -> str:
    """The innermost line of the traceback outside the DSL: the kernel's own."""
    where, step = "", error.__traceback__
    while step:
        file = step.tb_frame.f_code.co_filename
        if "/dsl/" not in file and not file.startswith("<"):
            where = f" ({file}:{step.tb_lineno})"
        step = step.tb_next
    return where


def _write_if_changed(path: Path, content: bytes) -> None:
    """Leaves an unchanged file alone, so that ninja sees nothing to do."""
    if not path.is_file() or path.read_bytes() != content:
        write_atomically(path, content)


# ------------------------------------------------------------------------------------------------------------ ptxas


def _assemble(ptxas: Ptxas, arch: str, work: Path, names: Iterable[str], jobs: int) -> None:
    """Runs ptxas on the PTX files that changed, under ninja; the output of `ptxas -v` goes to <name>.log."""
    flags = " ".join((*FLAGS, f"--gpu-name={arch}"))
    lines = [
        "rule ptxas",
        # The path is a variable: where ptxas is does not matter, its version does.
        f'  command = "$$PTXAS" {flags} $in --output-file $cubin 2> $log || (cat $log; exit 1)',
        "  description = ptxas $in",
    ]
    for name in names:
        lines += [f"build {name}.cubin | {name}.log: ptxas {name}.ptx | ptxas.version"]
        lines += [f"  cubin = {name}.cubin", f"  log = {name}.log"]
    _write_if_changed(work / "ptxas.version", f"{ptxas.version}\n".encode())
    _write_if_changed(work / "build.ninja", ("\n".join(lines) + "\n").encode())
    command = ["env", f"PTXAS={ptxas.path}", _ninja(), "-j", str(jobs), "-k", "0", "--quiet"]
    done = subprocess.run(command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise BuildError(f"ptxas {ptxas.version} ({ptxas.path}) does not assemble every kernel:\n{done.stdout}")


def _ninja() -> str:
    """The ninja program: of the ninja package in this environment, else on PATH."""
    beside = Path(sys.executable).parent / "ninja"
    found = str(beside) if beside.is_file() else shutil.which("ninja")
    if not found:
        raise BuildError("wanted ninja, found none; `pip install ninja`")
    return found


def _complaints(record: KernelRecord, report: Report) -> list[str]:
    """Why a kernel must not be shipped: spills without a reason, wgmma serialised, setmaxnreg ignored."""
    found = [f"{record.name}: {line}" for line in report.advisories]
    spilled = report.spill_stores or report.spill_loads
    if spilled and not any(fnmatch.fnmatchcase(record.name, glob) for glob in ALLOWED_SPILLS):
        found.append(
            f"{record.name} spills: {report.spill_stores} bytes stored, {report.spill_loads} loaded with "
            f"{report.registers} registers; make it fit, or give the reason in ALLOWED_SPILLS"
        )
    return found


def _assembled(record: KernelRecord, report: Report) -> KernelRecord:
    numbers = {field: value for field, value in asdict(report).items() if field != "advisories"}
    return replace(record, cubin=f"{record.name}.cubin", **numbers)


# --------------------------------------------------------------------------------------------------------- manifest


def _manifest_before(directory: Path) -> dict[str, KernelRecord]:
    """The records of the last build; none where there was no build that this version can read."""
    try:
        return {record.name: record for record in Manifest.load(directory).kernels}
    except ManifestError:
        return {}


def _keep_cubin(record: KernelRecord, before: dict[str, KernelRecord], directory: Path) -> KernelRecord:
    """Without ptxas, the last build's cubin is still right where the PTX is the same."""
    old = before.get(record.name)
    if not old or not old.cubin or old.ptx_sha256 != record.ptx_sha256 or not (directory / old.cubin).is_file():
        return record
    names = ("cubin", "registers", "stack", "spill_stores", "spill_loads", "static_shared_memory")
    return replace(record, **{name: getattr(old, name) for name in names})


def _warn_about_no_ptxas() -> None:
    warnings.warn(
        f"no ptxas found (looked in: {'; '.join(SEARCH_ORDER)}), so the driver will compile the kernels at run time; "
        "`pip install nvidia-cuda-nvcc` and build again",
        RuntimeWarning,
        stacklevel=3,
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pyptx_ops.build", description="Build the kernels.")
    parser.add_argument("--arch", choices=sorted(FAMILIES), action="append", help="by default every one")
    parser.add_argument("--jobs", type=int, help="processes (default: one per CPU)")
    parser.add_argument("--only", default="*", metavar="GLOB", help="the kernels with such names")
    parser.add_argument("--force", action="store_true", help="build again what is up to date")
    parser.add_argument("--output", type=Path, help="where to put them (default: the package's artifacts)")
    options = parser.parse_args(argv)
    for arch in options.arch or sorted(FAMILIES):
        try:
            manifest = build(arch, output=options.output, jobs=options.jobs, only=options.only, force=options.force)
        except (BuildError, PtxasError) as error:
            print(f"build failed for {arch}:\n{error}", file=sys.stderr)
            return 1
        assembled = sum(record.cubin is not None for record in manifest.kernels)
        by = f"ptxas {manifest.ptxas}" if manifest.ptxas else "no ptxas"
        print(f"{arch}: {len(manifest.kernels)} kernels, {assembled} cubins ({by})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
