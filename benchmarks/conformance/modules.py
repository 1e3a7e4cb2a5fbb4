"""The forms' kernels, assembled: some tens of them per cubin, and an index."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyptx_ops import ptxas

from .forms import TARGET, Case, cases
from .kernels import joined, trace

__all__ = ["DIRECTORY", "build", "read_index"]

DIRECTORY = Path(__file__).resolve().parents[2] / ".build" / "conformance"
INDEX = "index.json"
PER_MODULE = 64


def build(directory: Path = DIRECTORY, processes: int = 1) -> int:
    """Traces and assembles every form; returns the bytes written. Raises PtxasError."""
    found = ptxas.find_ptxas()
    if found is None:
        raise ptxas.PtxasError(f"no ptxas: looked for {', '.join(ptxas.SEARCH_ORDER)}")
    directory.mkdir(parents=True, exist_ok=True)
    for stale in directory.glob("*.cubin"):
        stale.unlink()
    everything = cases()
    chunks = [everything[i : i + PER_MODULE] for i in range(0, len(everything), PER_MODULE)]

    def one(number: int) -> dict[str, tuple[str, str]]:
        return _module(found, directory, number, chunks[number])

    index: dict[str, tuple[str, str]] = {}
    with ThreadPoolExecutor(processes) as pool:
        for part in pool.map(one, range(len(chunks))):
            index |= part
    (directory / INDEX).write_text(json.dumps(index))
    return sum(path.stat().st_size for path in directory.iterdir())


def _module(tool: ptxas.Ptxas, directory: Path, number: int, chunk: Sequence[Case]) -> dict[str, tuple[str, str]]:
    kernels = [trace(case, f"form_{i}") for i, case in enumerate(chunk)]
    file = f"forms_{number}.cubin"
    ptxas.assemble(tool, joined(kernels), TARGET, directory / file)
    return {case.name: (file, kernel.entry) for case, kernel in zip(chunk, kernels)}


def read_index(directory: Path = DIRECTORY) -> dict[str, tuple[str, str]]:
    """Form -> (file, entry)."""
    data: dict[str, list[str]] = json.loads((directory / INDEX).read_text())
    return {name: (file, entry) for name, (file, entry) in data.items()}
