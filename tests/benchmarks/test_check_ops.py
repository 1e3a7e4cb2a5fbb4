"""The checks of the ops, on a CPU's reference path, and what they say of ops that are wrong."""

from __future__ import annotations

import math
import time

import pytest
import torch

import pyptx_ops
from benchmarks import check_ops, products
from benchmarks.check_cases import Check, checks, gathered_excess, grouped_check, norm_check, packed_check
from benchmarks.check_gated import gated_checks, gemm_swiglu_check, grouped_gemm_swiglu_check
from pyptx_ops.trials.bounds import grouped_excess

SMALL = 20_000
ALL = [*checks(), *gated_checks()]
EVERY = [check for check in ALL if check.elements <= SMALL]


def soon() -> float:
    return time.monotonic() + 60


@pytest.mark.parametrize("op", sorted({check.op for check in EVERY}))
def test_the_reference_passes(op: str) -> None:
    tallies, left_out = check_ops.tallied([check for check in EVERY if check.op == op][::37], soon())
    assert left_out == 0 and {dtype for _, dtype in tallies} == {"bfloat16", "float16"}
    for tally in tallies.values():
        assert tally.failures == [] and 0 < tally.worst <= 1


def test_names_are_unique() -> None:
    names = [(check.op, check.dtype, check.name) for check in ALL]
    assert len(set(names)) == len(names)


def test_wrong_values_errors_and_late_checks_are_told() -> None:
    def refuses() -> float:
        raise ValueError("no such tile")

    every = [Check("op", torch.bfloat16, name, 1, run) for name, run in (
        ("right", lambda: 0.5), ("wrong", lambda: 2.0), ("lost", lambda: math.inf), ("nan", lambda: math.nan),
        ("refused", refuses),
    )]  # fmt: skip
    tallies, left_out = check_ops.tallied(every, soon())
    (tally,) = tallies.values()
    assert (tally.checks, tally.worst, tally.at, left_out) == (5, 2.0, "wrong", 0)
    assert [text.split(":")[0] for text in tally.failures] == ["wrong", "lost", "nan", "refused"]
    assert check_ops.tallied(every, time.monotonic() - 1) == ({}, 5)


def test_what_the_checks_catch(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(op):
        def run(*args, **kwargs):
            out = op(*args, **kwargs).clone()
            out[-1, -1] = 7
            return out

        return run

    for name, check in (
        ("grouped_gemm", grouped_check((3, 0, 4), 8, 16, 2, True, torch.bfloat16, bias=False, wide=False)),
        ("gemm_swiglu", gemm_swiglu_check((5, 16, 24), "NT", torch.bfloat16, True, True)),
        ("grouped_gemm_swiglu", grouped_gemm_swiglu_check((3, 0, 4), 8, 16, 2, True, torch.bfloat16, False, False)),
        ("rms_norm", norm_check("rms_norm", 5, 40, torch.bfloat16, "x", 0.0, True)),
        ("silu_and_mul", packed_check(5, 40, torch.bfloat16, interleaved=True)),
    ):
        torch.manual_seed(0)
        assert check.run() <= 1
        with monkeypatch.context() as patch:
            patch.setattr(pyptx_ops, name, wrong(getattr(pyptx_ops, name)))
            assert check.run() > 1


def test_gathered_products_agree_with_the_loop() -> None:
    a, b, bias = products.operand(9, 8), products.operand(32, 8).view(4, 8, 8), products.operand(4, 8)
    offs = products.offs_of(torch.tensor([2, 0, 5, 0]))
    out = pyptx_ops.grouped_gemm(a, b, offs, bias)
    assert gathered_excess(out, a, b, offs, bias) == pytest.approx(grouped_excess(out, a, b, offs, bias))
