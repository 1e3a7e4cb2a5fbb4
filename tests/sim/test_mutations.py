"""A sample of the mutants of `benchmarks.mutations`, of every kind and every family: the simulator finds them.

The whole of it is a benchmark, `python -m benchmarks.mutations`.
"""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path

import pytest

from benchmarks.mutations.body import Mutant, body_of
from benchmarks.mutations.exclusions import EXCLUSIONS, exclusion_of
from benchmarks.mutations.kinds import KINDS, mutants
from benchmarks.mutations.running import outcome_of
from benchmarks.mutations.sweep import EXPECTED, EXPLANATIONS, KERNELS, Result, family_of, problems, summary
from pyptx_ops.ptxas import assemble, find_ptxas
from pyptx_ops.simulator import traced
from pyptx_ops.trials import CONFIGS

SAMPLED = 3  # of each kind and family
SYNCHRONISES = re.compile(r"(mbarrier|wgmma|bar|barrier|fence|setmaxnreg|cp|elect|mapa|griddepcontrol)\.")


@cache
def every_mutant() -> dict[tuple[str, str], list[Mutant]]:
    """By family and kind."""
    found: dict[tuple[str, str], list[Mutant]] = {}
    for name in KERNELS:
        for mutant in mutants(body_of(name)):
            found.setdefault((family_of(name), mutant.kind), []).append(mutant)
    return found


def explained(mutant: Mutant) -> bool:
    return exclusion_of(mutant) is not None or any(e.holds(mutant) for e in EXPLANATIONS)


FAMILIES = dict.fromkeys(map(family_of, KERNELS))


@pytest.mark.parametrize("family", FAMILIES)
def test_mutants_are_found(family: str) -> None:
    """Of each kind, by a report that is about it, or by values."""
    kinds = [kind for of, kind in every_mutant() if of == family]
    for kind in kinds:
        choice = [mutant for mutant in every_mutant()[family, kind] if not explained(mutant)]
        for mutant in random.Random(f"{family} {kind}").sample(choice, min(SAMPLED, len(choice))):
            killed = outcome_of(mutant).killed
            assert killed, f"{mutant.kernel}: {mutant.what} survives"
            assert killed in EXPECTED[kind], f"{mutant.kernel}: {mutant.what} is found as {killed}"
    assert kinds


@pytest.mark.parametrize("exclusion", EXCLUSIONS, ids=lambda e: e.name)
def test_what_is_excluded_is_right(exclusion: object) -> None:
    """Each reason holds for some mutants, and these pass as the original does."""
    those = [m for group in every_mutant().values() for m in group if exclusion_of(m) is exclusion]
    assert those
    mutant = random.Random(0).choice(those)
    assert not outcome_of(mutant).killed, f"{mutant.kernel}: {mutant.what}"


def test_every_instruction_that_synchronises_is_in_a_kernel_that_is_mutated() -> None:
    """So a kernel of a new form has to be added to the list."""

    def opcodes(name: str) -> set[str]:
        words = {line.strip().removeprefix("@").partition(" ") for line in traced(name).ptx().splitlines()}
        names = {word[2].partition(" ")[0] if word[0].startswith(("%", "!")) else word[0] for word in words}
        return {re.sub(r"\.m64n\d+k", ".", name.rstrip(";")) for name in names if SYNCHRONISES.match(name)}

    of_mutated = set().union(*map(opcodes, KERNELS))
    for config in CONFIGS:
        if "_f16_" not in config.name:
            assert opcodes(config.name) <= of_mutated, config.name
    assert {family_of(config.name) for config in CONFIGS} <= set(FAMILIES)


def test_every_kind_of_change_is_made() -> None:
    made = {kind for _, kind in every_mutant()}
    assert made == set(EXPECTED) == {*KINDS, "moved"}


def test_a_move_takes_along_what_it_needs_and_stays_in_its_path() -> None:
    """An arrival passes the wait before it, with the predicate that is computed between; a wait moves as its loop."""
    kernel = "gemm_bf16_xk_yk_128x128x64_s6"
    moves = {m.what: [text for text, _ in m.statements] for m in every_mutant()["gemm", "moved"] if m.kernel == kernel}
    (arrival,) = (v for k, v in moves.items() if "@%p16 mbarrier.arrive" in k and "earlier" in k)
    at = next(i for i, text in enumerate(arrival) if text.startswith("@%p16 mbarrier.arrive"))
    assert arrival[at - 1].startswith("and.pred %p16") and "wgmma.wait_group" in arrival[at + 1]
    (wait,) = (v for k, v in moves.items() if "%p13, [" in k and "later" in k)
    at = next(i for i, text in enumerate(wait) if text.startswith("mbarrier.try_wait") and "%p13" in text)
    assert wait[at - 1] + wait[at + 1] == f"{wait[at - 1]}@!%p13 bra {wait[at - 1][:-1]};"
    assert "wgmma.mma_async" in wait[at - 2]
    original = sorted(s.text for s in body_of(kernel).statements)
    assert all(sorted(texts) == original for texts in moves.values())


def test_reports_of_mutants_name_the_kernel_s_lines() -> None:
    (mutant,) = (
        m for m in every_mutant()["gemm", "left out"] if m.kernel == KERNELS[0] and "wgmma.fence" in m.statement
    )
    report = outcome_of(mutant).report
    assert report is not None and report.place is not None and report.kind == "missing wgmma.fence"
    assert re.search(r"kernels/hopper/gemm\.py:\d+$", report.place.python)
    assert re.fullmatch(r"pyptx_ops/kernels/hopper/gemm\.py:\d+", mutant.python)


def test_a_summary_tells_what_ought_not_to_be() -> None:
    def result(killed: str, excluded: str = "", explanation: str = "") -> Result:
        return Result("gemm_bf16_x", "bytes", "line 1", "", killed, excluded, explanation)

    good = [result("deadlock")] * 40 + [result("", explanation="why"), result("", excluded="stricter wait")]
    assert list(problems(good)) == []
    assert summary(good)["all"] == {
        "mutants": 41, "by report": 40, "by value": 0, "survived": 1, "excluded": 1, "killed": 0.9756,
    }  # fmt: skip
    bad = [result("tensor map"), result(""), result("deadlock", excluded="stricter wait")]
    wanted = ("found as tensor map", "survived", "excluded (stricter wait), but found: deadlock", "gemm: 50.0%")
    assert all(word in line for word, line in zip(wanted, problems(bad), strict=True))


def test_without_its_registers_a_consumer_spills(tmp_path: Path) -> None:
    """What explains the survivors: ptxas keeps to the registers of the launch."""
    ptxas = find_ptxas()
    if ptxas is None:
        pytest.skip("no ptxas")
    name = "gemm_bf16_xk_ymn_128x256x64_s4"
    (mutant,) = (m for m in every_mutant()["gemm", "left out"] if m.kernel == name and "setmaxnreg.inc" in m.statement)
    as_is, without = (assemble(ptxas, ptx, "sm_90a", tmp_path / "k.cubin") for ptx in (traced(name).ptx(), mutant.ptx))
    assert without.registers == as_is.registers == 168
    assert as_is.spill_stores == 0 < without.spill_stores
