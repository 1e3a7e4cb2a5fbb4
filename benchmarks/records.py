"""Dated records of measurements: one JSON file per day, GPU and subject, to which every run is appended."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import pyptx_ops
from pyptx_ops.manifest import write_atomically

__all__ = ["RESULTS", "Run", "append", "environment", "load", "short_name"]

FORMAT = 1
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Run:
    """One run of one subject. rows: what was measured, one dict per figure.  summary: what follows from them."""

    subject: str
    environment: dict[str, Any]
    arguments: dict[str, Any]
    rows: list[dict[str, Any]]
    summary: dict[str, Any] = field(default_factory=dict)


def environment(commit: str | None = None) -> dict[str, Any]:
    """Where and with what a run happens. commit: of the sources, where they are not in a git checkout."""
    cuda = torch.cuda.is_available()
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "gpu": torch.cuda.get_device_name() if cuda else None,
        "cpu": _processor(),
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") if cuda else None,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "package": pyptx_ops.__version__,
        "commit": commit or _commit(),
    }


def short_name(environment: Mapping[str, Any]) -> str:
    """Of its GPU: "h200"."""
    return str(environment["gpu"]).split()[-1].lower()


def append(run: Run, directory: Path = RESULTS) -> Path:
    """Adds a run to its file, at once or not at all, also while others do the same. Returns the file's path."""
    gpu = run.environment["gpu"]
    device = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") if gpu else "cpu"
    path = directory / f"{run.environment['date'][:10]}-{device}-{run.subject}.json"
    directory.mkdir(parents=True, exist_ok=True)
    lock = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runs = [*load(path), run] if path.exists() else [run]
        document = {"format": FORMAT, "runs": [asdict(one) for one in runs]}
        write_atomically(path, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())
    finally:
        os.close(lock)
    return path


def load(path: Path) -> list[Run]:
    """The runs of a file, oldest first. Raises ValueError for a file of another format."""
    document = json.loads(path.read_text())
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"{path}: not a record of format {FORMAT}")
    return [Run(**run) for run in document["runs"]]


def _commit() -> str | None:
    """The commit of the sources, marked where they differ from it."""
    root = str(Path(__file__).resolve().parent.parent)
    commit = _output("git", "-C", root, "rev-parse", "--short=12", "HEAD")
    if commit and _output("git", "-C", root, "status", "--porcelain", "--untracked-files=no"):
        return f"{commit}-dirty"
    return commit


def _processor() -> str:
    """The CPU's name, as its maker gives it, where the system tells."""
    try:
        told = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        told = None
    return told[1] if told else platform.processor() or platform.machine()


def _output(*command: str) -> str | None:
    """The first line that a command prints, or None where it does not exist or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    lines: Sequence[str] = done.stdout.splitlines()
    return lines[0].strip() if done.returncode == 0 and lines else None
