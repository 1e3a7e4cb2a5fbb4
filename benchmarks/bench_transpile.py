"""How fast PTX is parsed, printed and transpiled, on one core, in MB of PTX per second.

    python -m benchmarks.bench_transpile [--corpus DIR] [--out DIR]

Over the files of a folder together (tests/corpus if none is given) and over one file of 50 MB. Times are processor
time, the best of several runs (of the large file one), everything in memory; what is printed is compared with the text.
A record is appended.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import records
from pyptx_ops import dsl
from pyptx_ops.dsl.transpile import transpiled
from pyptx_ops.tables import table

CORPUS = Path(__file__).parents[1] / "tests" / "corpus"
RUNS = 3
LARGE = 50_000_000  # bytes
HEADER = ".version 8.8\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{\n"
REGISTERS = "\t.reg .b32 %r<99>;\n\t.reg .b64 %rd<9>;\n"


def best(run: Callable[[], Any], runs: int) -> tuple[float, Any]:
    """Processor seconds of the quickest run, and what it returned."""
    times = []
    for _ in range(runs):
        began = time.process_time()
        result = run()
        times.append(time.process_time() - began)
    return min(times), result


def measured(name: str, texts: Sequence[str], runs: int) -> dict[str, Any]:
    size = sum(len(text.encode(errors="surrogateescape")) for text in texts)
    parsing, modules = best(lambda: [dsl.parse(text) for text in texts], runs)
    printing, printed = best(lambda: [dsl.print(module) for module in modules], runs)
    assert printed == list(texts)
    transpiling, results = best(lambda: [transpiled(text) for text in texts], runs)
    instructions = sum(result.instructions for result in results)
    raw = sum(result.raw.total() for result in results)
    rates = {"parse": parsing, "print": printing, "transpile": transpiling}
    return {
        "case": name, "files": len(texts), "MB": round(size / 1e6, 2), "instructions": instructions, "raw": raw,
        **{what: round(size / 1e6 / seconds, 2) for what, seconds in rates.items()},
    }  # fmt: skip


def large(size: int) -> str:
    """One function of about `size` bytes."""
    lines = [
        f"\tadd.s32 \t%r{i % 97}, %r{i % 89}, {i};\n"
        f"\tld.global.v2.b32 \t{{%r1, %r{i % 83}}}, [%rd{i % 8}+{i % 512 * 4}];\n"
        for i in range(size // 80)
    ]
    return HEADER + REGISTERS + "".join(lines) + "\tret;\n}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--out", type=Path, default=records.RESULTS)
    parser.add_argument("--large", type=int, default=LARGE)
    options = parser.parse_args(arguments)
    paths = sorted(options.corpus.rglob("*.ptx"))
    if not paths:
        print(f"no .ptx files under {options.corpus}", file=sys.stderr)
        return 1
    texts = [path.read_bytes().decode(errors="surrogateescape") for path in paths]
    rows = [measured(f"{len(texts)} files", texts, RUNS), measured("one file", [large(options.large)], 1)]
    keys = list(rows[0])
    print(table(keys, [[row[key] for key in keys] for row in rows]))
    run = records.Run("transpile", records.environment(), {"runs": RUNS, "cores": 1}, rows)
    print(f"record: {records.append(run, options.out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
