"""One form: what the GPU gave against what the simulator gives. All of them are to give the same bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .forms import Case
from .golden import PER_DIGEST, Golden, digests
from .machines import inputs_of

__all__ = ["Verdict", "compare"]


@dataclass(frozen=True)
class Verdict:
    """outcome: "agrees", "differs", "differs further on", "no meaning", "fails" or "not run".  lanes: what differs."""

    case: Case
    outcome: str
    text: str = ""
    lanes: tuple[str, ...] = ()


def compare(case: Case, golden: Golden, got: np.ndarray[Any, np.dtype[np.uint64]]) -> Verdict:
    """got: (outputs, lanes), as many lanes as were run on the GPU."""
    wanted = golden.outputs[case.name]
    kept = wanted.shape[1]
    apart = (wanted != got[:, :kept]).any(axis=0)
    if apart.any():
        inputs = inputs_of(case, got.shape[1])
        lines = tuple(
            f"lane {lane}: {_hex(inputs[:, lane])} -> {_hex(got[:, lane])}, the GPU gives {_hex(wanted[:, lane])}"
            for lane in np.flatnonzero(apart)
        )
        return Verdict(case, "differs", f"{apart.sum()} of {kept} lanes", lines)
    pairs = zip(digests(got), golden.digests[case.name], strict=True)
    runs = [i for i, (mine, known) in enumerate(pairs) if mine != known]
    if runs:
        return Verdict(case, "differs further on", f"in the runs {runs} of {PER_DIGEST} lanes")
    return Verdict(case, "agrees")


def _hex(words: np.ndarray[Any, np.dtype[np.uint64]]) -> str:
    return " ".join(f"{int(word):x}" for word in words)
