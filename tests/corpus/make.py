"""Writes the files in made/: what our own kernels and nvcc give. python -m tests.corpus.make

hard/ (which ptxas takes) and odd/ (which it does not all take) are written by hand.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from pyptx_ops.kernels.hopper.families import FAMILIES

HERE = Path(__file__).parent
VARIANTS = {
    "O3_sm_75": ("-arch=sm_75",),
    "O3_sm_90a": ("-arch=sm_90a",),
    "O3_sm_100a": ("-arch=sm_100a",),
    "O0_sm_80": ("-arch=sm_80", "-Xcicc", "-O0"),
    "G_sm_90a": ("-arch=sm_90a", "-G"),
    "lineinfo_sm_90a": ("-arch=sm_90a", "-lineinfo"),
    "rdc_sm_90a": ("-arch=sm_90a", "-rdc=true"),
}


def write(name: str, text: str) -> None:
    (HERE / "made").mkdir(exist_ok=True)
    (HERE / "made" / name).write_bytes(text.encode())


def ours() -> None:
    """The first config of each family."""
    for family in FAMILIES:
        write(f"ours_{family.name}.ptx", family.build(family.configs[0]).ptx())


def nvcc() -> None:
    compiler = shutil.which("nvcc")
    if compiler is None:
        raise SystemExit("wanted nvcc on the path")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "program.cu"
        source.write_text((HERE / "program.cu").read_text())
        for variant, flags in VARIANTS.items():
            subprocess.run([compiler, "-ptx", *flags, "program.cu", "-o", "out.ptx"], cwd=folder, check=True)
            text = (Path(folder) / "out.ptx").read_bytes().decode()
            write(f"nvcc_{variant}.ptx", text.replace(folder, "/tmp/corpus"))


if __name__ == "__main__":
    ours()
    nvcc()
