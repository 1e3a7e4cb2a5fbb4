"""The outputs of a run in one small file: the first lanes of every form, and digests of many more."""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["LANES", "PER_DIGEST", "WIDE", "Golden", "digests"]

FORMAT = 1
LANES = 64  # kept
WIDE = 4096  # run, and digested
PER_DIGEST = 512
DIGEST = 8  # bytes

Words = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass
class Golden:
    """What a machine gave. environment: where and when.  outputs: form -> (outputs, lanes).  bits: of each output.
    failures: form -> what went wrong."""

    environment: Mapping[str, Any]
    lanes: int = LANES
    outputs: dict[str, Words] = field(default_factory=dict)
    bits: dict[str, list[int]] = field(default_factory=dict)
    digests: dict[str, list[bytes]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, bits: Sequence[int], words: Words) -> None:
        """Keeps the first lanes, and the digests of all."""
        self.outputs[name], self.bits[name] = words[:, : self.lanes], list(bits)
        self.digests[name] = digests(words)

    def narrowed(self, lanes: int) -> Golden:
        """With fewer lanes kept."""
        return replace(self, lanes=lanes, outputs={name: words[:, :lanes] for name, words in self.outputs.items()})

    def save(self, path: Path) -> None:
        head = {"format": FORMAT, "environment": dict(self.environment), "lanes": self.lanes, "failures": self.failures,
                "forms": {name: [bits, name in self.digests] for name, bits in self.bits.items()}}  # fmt: skip
        blob = b"".join(
            _packed(row, bits) for name, words in self.outputs.items() for row, bits in zip(words, self.bits[name])
        )
        blob += b"".join(digest for found in self.digests.values() for digest in found)
        path.write_bytes(lzma.compress(json.dumps(head).encode() + b"\n" + blob))

    @classmethod
    def load(cls, path: Path) -> Golden:
        """Raises ValueError for a file of another format."""
        line, _, blob = lzma.decompress(path.read_bytes()).partition(b"\n")
        head = json.loads(line)
        if head["format"] != FORMAT:
            raise ValueError(f"{path}: not of format {FORMAT}")
        golden, at = cls(head["environment"], head["lanes"], failures=head["failures"]), 0
        for name, (bits, _) in head["forms"].items():
            rows = []
            for width in bits:
                size = golden.lanes * width // 8
                rows.append(_unpacked(blob[at : at + size], width))
                at += size
            golden.outputs[name], golden.bits[name] = np.stack(rows), bits
        for name in (name for name, (_, digested) in head["forms"].items() if digested):
            golden.digests[name] = [blob[at + i * DIGEST :][:DIGEST] for i in range(WIDE // PER_DIGEST)]
            at += WIDE // PER_DIGEST * DIGEST
        return golden


def digests(words: Words) -> list[bytes]:
    """Of each run of PER_DIGEST lanes."""
    parts = (np.ascontiguousarray(words[:, i : i + PER_DIGEST]) for i in range(0, words.shape[1], PER_DIGEST))
    return [hashlib.blake2b(part.tobytes(), digest_size=DIGEST).digest() for part in parts]


def _packed(row: Words, bits: int) -> bytes:
    if bits == 1:
        return np.packbits(row.astype(np.uint8), bitorder="little").tobytes()
    return row.astype(f"<u{bits // 8}").tobytes()


def _unpacked(data: bytes, bits: int) -> Words:
    if bits == 1:
        return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").astype(np.uint64)
    return np.frombuffer(data, f"<u{bits // 8}").astype(np.uint64)
