"""``python -m pyptx_ops <command>``."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    module: str  # has main(arguments) -> exit code
    help: str
    needs: tuple[str, ...] = ()  # packages


COMMANDS = {
    "demo": Command(
        "pyptx_ops.demo", "run two MoE models, ours beside transformers' own code", ("torch", "transformers")
    ),
    "doctor": Command("pyptx_ops.doctor", "tell what is installed and which path each op takes"),
    "build": Command("pyptx_ops.build", "trace and assemble the kernels"),
    "transpile": Command("pyptx_ops.transpile", "PTX to Python that prints the same PTX"),
    "check": Command("pyptx_ops.check", "tell what the instructions of a PTX file need, and what is wrong with them"),
    "sim": Command("pyptx_ops.sim", "run kernels on the simulator and report what they must not do", ("torch",)),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code; 2 for a call that cannot be run."""
    parser = argparse.ArgumentParser(prog="python -m pyptx_ops", description="Prebuilt fused ops for NVIDIA Hopper.")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.help, add_help=False)
    chosen, rest = parser.parse_known_args(arguments)
    command = COMMANDS[chosen.command]
    missing = [package for package in command.needs if importlib.util.find_spec(package) is None]
    if missing:
        print(
            f"{chosen.command} needs {' and '.join(missing)}, not installed here: pip install 'pyptx_ops[demo]'",
            file=sys.stderr,
        )
        return 2
    code: int = importlib.import_module(command.module).main(rest)
    return code


if __name__ == "__main__":
    sys.exit(main())
