"""The manifest: what the build made, as the launcher needs it. One JSON file beside the kernels of an architecture."""

from __future__ import annotations

import difflib
import json
import os
import tempfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from .dsl.types import PARAM_KINDS, Im2col, Param, TensorMapSpec

__all__ = ["FORMAT", "KernelRecord", "Manifest", "ManifestError", "write_atomically"]

FORMAT = 1
FILE = "manifest.json"


class ManifestError(RuntimeError):
    """A manifest that is missing, unreadable or of another format, or a kernel that is not in it."""


@dataclass(frozen=True)
class KernelRecord:
    """One prebuilt kernel. Files are named relative to the manifest; sizes are in bytes.

    config: the fields of the config that the kernel was traced for.  shared_memory: dynamic, per CTA.
    cubin and the numbers after it are None where there was no ptxas.
    """

    name: str
    family: str
    arch: str
    config: dict[str, Any]
    entry: str
    params: tuple[Param, ...]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared_memory: int
    pdl: bool
    ptx: str
    ptx_sha256: str
    cubin: str | None = None
    registers: int | None = None
    stack: int | None = None
    spill_stores: int | None = None
    spill_loads: int | None = None
    static_shared_memory: int | None = None

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> KernelRecord:
        """Raises ManifestError naming the field that is missing, unknown or of a kind that the launcher has not."""
        known = {field.name for field in fields(cls)}
        if data.keys() != known:
            wrong = sorted(data.keys() ^ known)
            raise ManifestError(f"kernel {data.get('name', '?')!r}: fields missing or unknown: {', '.join(wrong)}")
        triples = {name: _triple(data["name"], name, data[name]) for name in ("block", "cluster")}
        return cls(**{**data, **triples, "params": tuple(_param(data["name"], item) for item in data["params"])})


def _triple(kernel: str, field: str, value: list[int]) -> tuple[int, int, int]:
    if len(value) != 3:
        raise ManifestError(f"kernel {kernel!r}: {field} wants 3 sizes, got {value}")
    return value[0], value[1], value[2]


def _param(kernel: str, data: dict[str, Any]) -> Param:
    if data["kind"] not in PARAM_KINDS:
        raise ManifestError(f"kernel {kernel!r} parameter {data['name']!r}: unknown kind {data['kind']!r}")
    spec = data["tensor_map"]
    if spec is not None:
        window = spec["im2col"] and Im2col(**{name: tuple(sizes) for name, sizes in spec["im2col"].items()})
        spec = TensorMapSpec(**{**spec, "box": tuple(spec["box"]), "im2col": window})
    return Param(data["name"], data["kind"], spec)


@dataclass(frozen=True)
class Manifest:
    """The kernels of one architecture. ptxas: the version that assembled them, or None for PTX alone."""

    arch: str
    ptxas: str | None
    kernels: tuple[KernelRecord, ...]

    def __post_init__(self) -> None:
        names = [record.name for record in self.kernels]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ManifestError(f"{self.arch}: kernel names used twice: {', '.join(twice)}")
        object.__setattr__(self, "_by_name", {record.name: record for record in self.kernels})

    def __contains__(self, name: object) -> bool:
        return name in self._records

    @property
    def _records(self) -> dict[str, KernelRecord]:
        records: dict[str, KernelRecord] = self.__dict__["_by_name"]
        return records

    def kernel(self, name: str) -> KernelRecord:
        """The record of a kernel; ManifestError names the closest ones where there is none."""
        if name in self._records:
            return self._records[name]
        near = difflib.get_close_matches(name, self._records, n=3)
        raise ManifestError(
            f"no kernel {name!r} was built for {self.arch} ({len(self.kernels)} were)"
            + (f"; the closest: {', '.join(near)}" if near else "")
        )

    def dumps(self) -> str:
        kernels = [asdict(record) for record in self.kernels]
        document = {"format": FORMAT, "arch": self.arch, "ptxas": self.ptxas, "kernels": kernels}
        return json.dumps(document, indent=1) + "\n"

    @classmethod
    def loads(cls, text: str) -> Manifest:
        try:
            data = json.loads(text)
            if not isinstance(data, dict) or data.get("format") != FORMAT:
                got = data.get("format") if isinstance(data, dict) else type(data).__name__
                raise ManifestError(f"this version reads manifest format {FORMAT}, got {got!r}")
            kernels = tuple(KernelRecord.from_json(item) for item in data["kernels"])
            return cls(data["arch"], data["ptxas"], kernels)
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ManifestError(f"not a manifest: {type(error).__name__}: {error}") from error

    def save(self, directory: Path) -> Path:
        """Writes manifest.json into the directory at once or not at all, and returns its path."""
        path = directory / FILE
        write_atomically(path, self.dumps().encode())
        return path

    @classmethod
    def load(cls, directory: Path) -> Manifest:
        path = directory / FILE
        try:
            return cls.loads(path.read_text())
        except FileNotFoundError as error:
            raise ManifestError(f"no kernels: {path} does not exist; run `python -m pyptx_ops.build`") from error
        except ManifestError as error:
            raise ManifestError(f"{path}: {error}; run `python -m pyptx_ops.build --force`") from error


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file so that a reader sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).chmod(0o644)  # mkstemp makes files private
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
