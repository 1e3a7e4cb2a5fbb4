"""Whether the kernels give the same bits on a GPU and on the simulator: every kernel, on the problems of its trials.

    python -m benchmarks.same_bits --run --out DIR      # on a Hopper GPU: answers to DIR
    python -m benchmarks.same_bits --compare DIR        # anywhere: simulates the same problems and compares
    python -m benchmarks.same_bits --keep DIR           # the hashes of DIR's answers, for tests/sim/golden

Inputs come from seeds and are hashed on both sides. Of each answer DIR holds a hash, of small ones also the bits, so
that a difference can be told in units of the last place. Each kernel runs on every problem with normal numbers, on two
with exponents far apart, and on two with infinities, NaN, zeros and subnormal numbers.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import lzma
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import harness, products, records
from pyptx_ops.launch import default_launcher
from pyptx_ops.tables import table
from pyptx_ops.trials import CONFIGS, Trial, poisoned, trials_of
from pyptx_ops.trials.inputs import bits, digest, moved

SEED = 1
KEPT_BYTES = 4096  # outputs up to this size are kept as they are
POLICIES = ("random", "lazy", "eager", "reverse")
FILE = "same_bits.json"
ARCH = "sm_90a"
FINGERPRINT = 16  # digits of a hash
Fingerprints = tuple[tuple[str, str], ...]  # of each kernel


def cases() -> Iterator[tuple[str, Trial]]:
    """(name, problem), the same on every machine."""
    for config in CONFIGS:
        trials: list[Any] = list(trials_of(config))
        trials += [replace(trial, values=values) for values in ("spread", "special") for trial in trials[1:3]]
        for trial in trials:
            yield f"{trial.kernel}: {trial.what}", trial


def run(only: str) -> dict[str, Any]:
    """Every case on the GPU, twice."""
    answers: dict[str, Any] = {}
    for name, trial in cases():
        if only not in name:
            continue
        inputs = trial.inputs(SEED)
        with poisoned():
            first, second = (trial.run(moved(inputs, products.DEVICE)) for _ in range(2))
        outputs = {key: tensor.cpu() for key, tensor in first.items()}
        answers[name] = {
            "inputs": digest(inputs),
            "repeats": digest(outputs) == digest(second),
            "right": trial.excess(inputs, outputs) <= 1 if "spread" not in name and "special" not in name else None,
            "outputs": {key: _packed(tensor) for key, tensor in outputs.items()},
        }
    return answers


def fingerprint(ptx: str) -> str:
    return hashlib.sha256(ptx.encode()).hexdigest()[:FINGERPRINT]


def _packed(tensor: Tensor) -> dict[str, str]:
    packed = {"digest": digest({"": tensor})}
    if tensor.nbytes <= KEPT_BYTES:
        packed["bits"] = base64.b85encode(zlib.compress(bits(tensor), 9)).decode()
    return packed


def _unpacked(packed: dict[str, str], like: Tensor) -> Tensor | None:
    if "bits" not in packed:
        return None
    raw = bytearray(zlib.decompress(base64.b85decode(packed["bits"])))
    return torch.frombuffer(raw, dtype=like.dtype).view(like.shape) if raw else torch.empty_like(like)


@dataclass
class Tally:
    """Of one kind of answer. ulps: the largest difference in units of the last place, where the bits were kept."""

    compared: int = 0
    same: int = 0
    ulps: int = 0
    elements: int = 0
    elements_off: int = 0
    differing: list[str] = field(default_factory=list)


def kind_of(trial: Trial, output: str) -> str:
    """What is told apart: the outputs of each family, and split K."""
    family = trial.kernel.partition("_bf16")[0].partition("_f16")[0]
    return f"{output} of {family}" + (", split K" if "_split" in trial.kernel else "")


@cache
def ran(kernel: str, fingerprints: Fingerprints) -> bool:
    """Whether a GPU ran this kernel's PTX."""
    from pyptx_ops.simulator import traced

    return dict(fingerprints).get(kernel) == fingerprint(traced(kernel).ptx())


def compare(document: dict[str, Any], only: str) -> tuple[dict[str, Tally], list[str]]:
    """Simulates what a GPU has answered: what is the same, and what is wrong."""
    from pyptx_ops.trials.simulated import simulated

    fingerprints = tuple(document["kernels"].items())
    tallies: dict[str, Tally] = {}
    wrong = []
    for number, (name, trial) in enumerate(cases()):
        if only not in name or not ran(trial.kernel, fingerprints):
            continue
        answer = document["answers"].get(name)
        if answer is None or answer["inputs"] != digest(trial.inputs(SEED)):
            wrong.append(f"{name}: {'no answer' if answer is None else 'made from other inputs'}")
            continue
        if not answer["repeats"] or answer["right"] is False:
            wrong.append(f"{name}: the GPU's answer {'is wrong' if answer['repeats'] else 'changes from run to run'}")
        outputs = simulated(trial, SEED, policy=POLICIES[number % len(POLICIES)]).outputs
        for key, tensor in outputs.items():
            tally = tallies.setdefault(kind_of(trial, key), Tally())
            _count(tally, name, answer["outputs"][key], tensor)
    return tallies, wrong


def kept(document: dict[str, Any]) -> dict[str, Any]:
    """Of a document the hashes: enough to say whether bits are the same."""
    answers = {
        name: {"inputs": answer["inputs"], "outputs": {key: one["digest"] for key, one in answer["outputs"].items()}}
        for name, answer in document["answers"].items()
    }
    return {**document, "answers": answers}


def _count(tally: Tally, name: str, packed: dict[str, str], tensor: Tensor) -> None:
    tally.compared += 1
    if packed["digest"] == digest({"": tensor}):
        tally.same += 1
        return
    tally.differing.append(name)
    theirs = _unpacked(packed, tensor)
    if theirs is not None:
        off = ulps(theirs, tensor)
        tally.ulps = max(tally.ulps, int(off.max()))
        tally.elements += off.numel()
        tally.elements_off += int((off > 0).sum())


def ulps(one: Tensor, other: Tensor) -> Tensor:
    """How many numbers of their dtype two tensors are apart, element by element; int64."""
    integers = {2: torch.int16, 4: torch.int32}[one.element_size()]

    def place(tensor: Tensor) -> Tensor:
        raw = tensor.contiguous().view(integers).long()
        return torch.where(raw < 0, -(raw & torch.iinfo(integers).max), raw)

    return (place(one) - place(other)).abs()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_bits", description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--run", action="store_true", help="on this machine's GPU")
    what.add_argument("--compare", type=Path, metavar="DIR", help="with the answers of a GPU")
    what.add_argument("--keep", type=Path, metavar="DIR", help="the hashes of these answers")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains this")
    parser.add_argument("--out", type=Path, default=records.RESULTS, metavar="DIR", help="for what is written")
    parser.add_argument("--commit", help="of the sources, where they are not in a git checkout")
    given = parser.parse_args(arguments)
    if given.compare:
        return _compare(given.compare, given)
    if given.keep:
        document = kept(json.loads((given.keep / FILE).read_text()))
        path = given.out / f"same_bits_{records.short_name(document['environment'])}.json.xz"
        path.write_bytes(lzma.compress(json.dumps(document).encode()))
        return 0
    if not harness.has_gpu():
        return 2
    answers = run(given.only)
    given.out.mkdir(parents=True, exist_ok=True)
    kernels = {record.name: record.ptx_sha256[:FINGERPRINT] for record in default_launcher().manifest(ARCH).kernels}
    environment = records.environment(given.commit)
    document = {"environment": environment, "seed": SEED, "kernels": kernels, "answers": answers}
    path = given.out / FILE
    path.write_text(json.dumps(document, indent=0) + "\n")
    bad = [name for name, answer in answers.items() if not answer["repeats"] or answer["right"] is False]
    for name in bad:
        print(f"FAILED {name}")
    print(f"{len(answers)} cases, {len(bad)} wrong or unsteady; {path}, {path.stat().st_size} bytes")
    return 1 if bad or not answers else 0


def _compare(directory: Path, given: argparse.Namespace) -> int:
    document = json.loads((directory / FILE).read_text())
    tallies, wrong = compare(document, given.only)
    rows: list[dict[str, Any]] = [
        {
            "case": kind,
            "answers": t.compared,
            "same_bits": t.same,
            "worst_ulps": t.ulps,
            "elements_off": f"{t.elements_off} of {t.elements}",
        }
        for kind, t in sorted(tallies.items())
    ]
    print(table(("answer", "compared", "same bits", "ulps", "off"), [list(row.values()) for row in rows]))
    for kind, tally in tallies.items():
        wrong += [f"{name}: other bits ({kind})" for name in tally.differing]
    for text in wrong:
        print(f"FAILED {text}")
    fingerprints = tuple(document["kernels"].items())
    unasked = [config.name for config in CONFIGS if given.only in config.name and not ran(config.name, fingerprints)]
    if unasked:
        print(f"the GPU was not asked for {len(unasked)} kernels as they are now: {', '.join(unasked)}")
    run_ = records.Run(
        "same-bits", {**document["environment"], "simulated": records.environment(given.commit)}, {"only": given.only},
        rows, {"failures": wrong, "unasked": unasked},
    )  # fmt: skip
    print(f"record: {records.append(run_, given.out)}")
    return 1 if wrong or not tallies else 0


if __name__ == "__main__":
    sys.exit(main())
