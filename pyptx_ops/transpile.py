"""``python -m pyptx_ops transpile kernel.ptx [-o kernel.py] [--name entry]``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .dsl import ir, parse
from .dsl import print as print_ptx
from .dsl.syntax.names import function_name
from .dsl.transpile import transpiled

__all__ = ["main", "only_entry", "read", "write"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the Python of a PTX file. 1, and nothing is written: no such file, no PTX, or no such entry."""
    parser = argparse.ArgumentParser(prog="python -m pyptx_ops transpile", description="PTX to Python that prints it.")
    parser.add_argument("file", type=Path)
    parser.add_argument("-o", "--out", type=Path, help="the file to write; standard output if not given")
    parser.add_argument("--name", help="of the entry functions, keep this one only")
    options = parser.parse_args(arguments)
    try:
        text = read(options.file)
        if options.name is not None:
            text = print_ptx(only_entry(parse(text, str(options.file)), options.name))
        result = transpiled(text, str(options.file))
        if options.out is None:
            sys.stdout.write(result.python)
        else:
            write(options.out, result.python)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if result.raw:
        print(f"{result.raw.total()} of {result.instructions} instructions are not in the table:", file=sys.stderr)
        print(*[f"  {opcode} × {count}" for opcode, count in result.raw.most_common()], sep="\n", file=sys.stderr)
    return 0


def read(path: Path) -> str:
    """The text of a file, whatever its bytes are."""
    return path.read_bytes().decode(errors="surrogateescape")


def only_entry(module: ir.Module, name: str) -> ir.Module:
    """The module without its other entry functions. Raises ValueError where there is no such entry."""
    entries = {i: function_name(s) for i, s in enumerate(module.statements) if _is_entry(s)}  # type: ignore[arg-type]
    if name not in entries.values():
        raise ValueError(f"no entry {name!r}; the file has {', '.join(entries.values()) or 'none'}")
    keep = [s for i, s in enumerate(module.statements) if entries.get(i, name) == name]
    return module._replace(statements=tuple(keep))


def _is_entry(statement: ir.Statement) -> bool:
    return isinstance(statement, ir.Function) and ".entry" in statement.head


def write(path: Path, text: str) -> None:
    """The whole file or nothing: what was there stays until the new text is complete."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
