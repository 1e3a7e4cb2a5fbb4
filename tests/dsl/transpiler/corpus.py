"""PTX files to hold the laws against: the ones of tests/corpus, and an archive that PYPTX_CORPUS may name."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pyptx_ops.ptxas import find_ptxas

FOLDER = Path(__file__).parents[2] / "corpus"
FILES = sorted(FOLDER.rglob("*.ptx"))
ARCHIVE = os.environ.get("PYPTX_CORPUS")
ARCHIVED = sorted(Path(ARCHIVE).rglob("*.ptx")) if ARCHIVE else []
HEADER = ".version 8.8\n.target sm_90a\n.address_size 64\n"


def read(path: Path) -> str:
    """The text of a file, its line ends as they are; bytes that are no UTF-8 survive."""
    return path.read_bytes().decode(errors="surrogateescape")


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def kernel(body: str) -> str:
    return f"{HEADER}.visible .entry k()\n{{\n{body}}}\n"


def takes(text: str, target: str, folder: Path) -> str:
    """What ptxas says against a text, "" if it takes it. Old PTX aside, external names may stay open."""
    ptxas = find_ptxas()
    if ptxas is None:
        pytest.skip("needs ptxas")
    source = folder / "module.ptx"
    source.write_bytes(text.encode())
    command = [str(ptxas.path), f"-arch={target}", str(source), "-o", str(folder / "module.cubin")]
    command += [] if ".version 1." in text else ["-c"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stderr if done.returncode else ""
