"""The instruction table against ptxas: what it admits assembles, at the PTX version and target that it states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pyptx_ops.dsl import Kernel, ptx
from pyptx_ops.dsl.check import check_module, forms_of
from pyptx_ops.dsl.isa import ROWS
from pyptx_ops.dsl.isa.row import Form, Row
from pyptx_ops.dsl.namespace import python_name
from pyptx_ops.dsl.trace import LOWEST_VERSION, has_target

from .ptx import assemble, instructions, join
from .samples import Arguments, samples

ACCEPTED = sorted((Path(__file__).parent / "accepted").glob("*.ptx"))
PER_KERNEL, WIDE_PER_KERNEL = 24, 4  # few enough that ptxas finds registers without optimisation

WIDE = ("wgmma.mma_async", "tcgen05.ld", "tcgen05.st")
DECLARED = ("brx.idx", "call", "st.param")  # what takes names that a module declares: tests/dsl/transpiler

Sample = tuple[Row, Form, dict[str, Any], frozenset[str]]


@cache
def sampled() -> tuple[Sample, ...]:
    return tuple((row, *sample) for row in ROWS if row.meaning not in DECLARED for sample in samples(row))


def function(path: str) -> Callable[..., Any]:
    node: Any = ptx
    for word in path.split("."):
        node = getattr(node, python_name(word))
    return node


def trace(chunk: list[Sample], target: str, name: str) -> Kernel:
    with Kernel(name, target=target, block=(128, 1, 1), min_blocks=1) as k:
        args = Arguments(k)
        for row, form, values, _ in chunk:
            positional, optional = args.of(form)
            before = len(k)
            function(row.path)(*positional, **optional, **{python_name(n): v for n, v in values.items()})
            assert len(k) == before + 1, f"{row.path}: one call, one instruction"
        k.place("$END")
    return k


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_every_form_assembles_at_the_version_it_states(target: str, tmp_path: Path) -> None:
    groups: dict[tuple[int, int], list[Sample]] = {}
    for sample in sampled():
        form = sample[1]
        if has_target(target, form.requirement.target):
            groups.setdefault(max(form.requirement.version, LOWEST_VERSION[target]), []).append(sample)
    assert sum(map(len, groups.values())) > 2000
    for version, group in groups.items():
        for pairs in (False, True):  # a function works for one CTA or for pairs of them
            assemble_all([s for s in group if is_for_pairs(s) == pairs], target, version, tmp_path)


def is_for_pairs(sample: Sample) -> bool:
    return sample[2].get("group") == "cta_group::2"


def assemble_all(group: list[Sample], target: str, version: tuple[int, int], folder: Path) -> None:
    wide = [s for s in group if s[0].path.startswith(WIDE)]
    rest = [s for s in group if not s[0].path.startswith(WIDE)]
    chunks = [rest[i : i + PER_KERNEL] for i in range(0, len(rest), PER_KERNEL)]
    chunks += [wide[i : i + WIDE_PER_KERNEL] for i in range(0, len(wide), WIDE_PER_KERNEL)]
    kernels = [trace(chunk, target, f"k{i}") for i, chunk in enumerate(chunks)]
    if kernels:
        assemble(join(kernels, "{}.{}".format(*version)), target, folder)
    for kernel in kernels:
        assert check_module(kernel.module()) == []


def test_a_spelling_is_read_back_to_its_row() -> None:
    for row, form, _, _ in sampled():
        values = row.match(form.opcode)
        assert values is not None, f"{row.path} does not read {form.opcode}"
        shapes = [
            [(o.name, o.kind, o.type, o.count) for o in f.operands] for f in forms_of(form.opcode) if f.row is row
        ]
        assert [(o.name, o.kind, o.type, o.count) for o in form.operands] in shapes


@pytest.mark.parametrize("path", ACCEPTED, ids=lambda p: p.stem)
def test_accepted_ptx_is_in_the_table(path: Path) -> None:
    seen = 0
    for instruction, _ in instructions(path.read_text()):
        forms = forms_of(instruction.opcode)
        assert any(len(f.operands) == len(instruction.operands) for f in forms), instruction
        seen += 1
    assert seen >= 3


def test_rows_are_unique_and_name_what_simulates_them() -> None:
    assert max(Counter((r.path, r.spelling, r.operands) for r in ROWS).values()) == 1
    assert all(r.meaning for r in ROWS)


def test_a_needed_target_is_refused_elsewhere() -> None:
    wrong = 0
    for row, form, values, _ in sampled():
        for target in ("sm_90", "sm_90a", "sm_100", "sm_100a"):
            if has_target(target, form.requirement.target) or form.requirement.target in ("sm_50",):
                continue
            with Kernel("k", target=target) as k:
                positional, optional = Arguments(k).of(form)
                with pytest.raises(Exception, match=f"needs .*target is {target}"):
                    function(row.path)(*positional, **optional, **{python_name(n): v for n, v in values.items()})
                wrong += 1
                assert len(k) == 0
            break
    assert wrong > 300
