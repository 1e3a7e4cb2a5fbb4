"""What runs a form: a GPU with the assembled kernels, or the simulator."""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pyptx_ops.dsl.sim import load, run
from pyptx_ops.launch import Kernel, default_launcher

from .forms import Case
from .inputs import draw
from .kernels import SCRATCH_ROWS, THREADS, outputs, sources, trace
from .modules import read_index

__all__ = ["Gpu", "Machine", "Simulator", "inputs_of"]

Words = np.ndarray[Any, np.dtype[np.uint64]]


def inputs_of(case: Case, lanes: int) -> Words:
    """(operands, lanes) words; one row of zeros where nothing is taken."""
    rows = [draw(case, given, lanes) for given in sources(case)]
    return np.stack(rows or [np.zeros(lanes, np.uint64)])


class Machine(Protocol):
    def run(self, case: Case, lanes: int) -> Words:
        """What the form gives for its inputs: (outputs, lanes) words."""


class Gpu:
    """Launches prebuilt kernels; torch holds the memory."""

    def __init__(self, directory: Path):
        self._directory = directory
        self._index = read_index(directory)
        self._library = cache(self._load)

    def _load(self, file: str) -> Any:
        return default_launcher().driver.load((self._directory / file).read_bytes(), file)

    def run(self, case: Case, lanes: int) -> Words:
        return self.run_on(case, inputs_of(case, lanes))

    def run_on(self, case: Case, inputs: Words) -> Words:
        """On these inputs, (operands, lanes)."""
        import torch

        file, entry = self._index[case.name]
        params = (("source", "pointer"), ("out", "pointer"), ("stride", "u64"))
        kernel: Kernel = self._library(file).kernel(entry, params, (THREADS, 1, 1))
        count = inputs.shape[1]
        lanes = -(-count // THREADS) * THREADS
        padded = np.pad(inputs, ((0, 0), (0, lanes - count)))
        source = torch.from_numpy(padded.view(np.int64)).cuda()
        out = torch.zeros(len(outputs(case)) + SCRATCH_ROWS, lanes, dtype=torch.int64, device="cuda")
        stream = torch.cuda.current_stream().cuda_stream
        kernel.launch(0, stream, lanes // THREADS, 1, 1, source.data_ptr(), out.data_ptr(), 8 * lanes)
        result: Words = out.cpu().numpy().view(np.uint64)[:-SCRATCH_ROWS, :count]
        return result


class Simulator:
    """Raises PtxError for a form without a meaning, SimulationError for one that fails."""

    def run(self, case: Case, lanes: int) -> Words:
        return self.run_on(case, inputs_of(case, lanes))

    def run_on(self, case: Case, inputs: Words) -> Words:
        """On these inputs, (operands, lanes)."""
        kernel = trace(case, "form")
        program = load(kernel.ptx(), block=kernel.block)
        count = inputs.shape[1]
        lanes = -(-count // THREADS) * THREADS
        source = np.ascontiguousarray(np.pad(inputs, ((0, 0), (0, lanes - count))))
        out = np.zeros((len(outputs(case)) + SCRATCH_ROWS, lanes), dtype=np.uint64)
        segments = [(array.ctypes.data, array.nbytes) for array in (source, out)]
        params = struct.pack("<QQQ", source.ctypes.data, out.ctypes.data, 8 * lanes)
        run(program, (lanes // THREADS, 1, 1), params, (), segments)
        return out[:-SCRATCH_ROWS, :count]
