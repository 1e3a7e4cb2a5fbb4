"""Bugs planted in a shipped GEMM: each is found, named and placed. Edits keep the number of instructions."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

import pyptx_ops
from pyptx_ops import simulator
from pyptx_ops.dispatch import gemm as gemm_host
from pyptx_ops.dsl.ir import Function, Instruction
from pyptx_ops.dsl.sim import SimulationError, load
from pyptx_ops.dsl.sim.ptx import PtxError
from pyptx_ops.kernels.hopper.tuning import gemm as gemm_tuning

CONFIG = next(c for c in gemm_tuning.configs() if c.name == "gemm_bf16_xk_yk_128x128x64_s6")
SPLIT = next(c for c in gemm_tuning.configs() if c.name == "gemm_bf16_xk_yk_128x16x64_s5_swap_split2_b2")
NOTHING = "fence.acq_rel.cta;"
ORDERS = [("lazy", 0), ("eager", 0), ("reverse", 0), ("random", 1)]
Edit = Callable[[str], str]


def replace(pattern: str, new: str, which: int = 0) -> Edit:
    """The statement number `which` that contains `pattern` becomes `new`; {0} is what was there, {1}… its groups."""

    def edit(text: str) -> str:
        lines = text.splitlines()
        found = [i for i, line in enumerate(lines) if re.search(pattern, line)]
        match = re.search(pattern, lines[found[which]])
        assert match is not None
        lines[found[which]] = new.format(lines[found[which]].strip(), *match.groups())
        return "\n".join(lines)

    return edit


def run(monkeypatch: pytest.MonkeyPatch, edit: Edit, order: tuple[str, int], config=CONFIG) -> None:
    def edited(kernel):
        (function,) = (s for s in kernel.module().statements if isinstance(s, Function))
        instructions = [s for s in function.body.body if isinstance(s, Instruction)]
        return load(
            edit(kernel.ptx()),
            block=kernel.block,
            cluster=kernel.cluster,
            shared_memory=kernel.dynamic_smem,
            instructions=instructions,
        )

    monkeypatch.setattr(simulator, "program_of", edited)
    monkeypatch.setattr(gemm_host, "select", lambda problem, sms: config)
    gemm_host._plans.clear()
    a, b = torch.randn(200, 600).bfloat16(), torch.randn(200, 600).bfloat16()
    with pyptx_ops.simulate(policy=order[0], seed=order[1], multiprocessors=1, limit=3_000_000):
        pyptx_ops.gemm(a, b.t())


def caught(monkeypatch: pytest.MonkeyPatch, edit: Edit, order: tuple[str, int], config=CONFIG) -> SimulationError:
    with pytest.raises(SimulationError) as raised:
        run(monkeypatch, edit, order, config)
    report = raised.value.report
    assert report.place is None or report.place.python.partition(":")[0].endswith(".py"), "no Python line"
    return raised.value


TRY_WAIT = r"mbarrier\.try_wait\.parity\.shared::cta\.b64 (%p\d+), (\[.*\]), (%r\d+);"
EMPTY, FULL = 0, 1  # the producer's wait stands before the consumer's


@pytest.mark.parametrize("order", ORDERS, ids=lambda o: o[0])
class TestEveryOrderFinds:
    def test_the_kernel_itself_right(self, monkeypatch, order):
        run(monkeypatch, lambda text: text, order)

    @pytest.mark.parametrize("more", [16, -16, 1])
    def test_wrong_transaction_bytes(self, monkeypatch, order, more):
        edit = replace(r"(mbarrier\.arrive\.expect_tx.*), 32768;", f"{{1}}, {32768 + more};")
        error = caught(monkeypatch, edit, order)
        assert error.report.kind == "deadlock" and "ring.py" in str(error)
        assert f"0 of 1 arrivals and {more} bytes are missing" in str(error)

    def test_a_missing_arrival(self, monkeypatch, order):
        """The consumers never release a stage: the producer waits for the first one for ever."""
        edit = lambda text: re.sub(r"@%p\d+ mbarrier\.arrive\.shared::cta\.b64 _, .*;", NOTHING, text)  # noqa: E731
        error = caught(monkeypatch, edit, order)
        assert error.report.kind == "deadlock" and "8 of 8 arrivals" in str(error)

    def test_a_consumer_that_waits_for_the_wrong_parity(self, monkeypatch, order):
        edit = replace(TRY_WAIT, "mbarrier.try_wait.parity.shared::cta.b64 {1}, {2}, 1;", FULL)
        assert caught(monkeypatch, edit, order).report.kind in (
            "copy in flight", "uninitialised shared memory", "deadlock", "race",
        )  # fmt: skip

    def test_one_arrival_too_many(self, monkeypatch, order):
        edit = replace(r"mbarrier\.init.*(\[%r\d+\+\d+\]), 8;", "mbarrier.init.shared::cta.b64 {1}, 7;")
        error = caught(monkeypatch, edit, order)
        assert error.report.kind in ("barrier misuse", "copy in flight", "race", "deadlock")

    def test_no_wgmma_fence(self, monkeypatch, order):
        error = caught(monkeypatch, replace(r"wgmma\.fence", NOTHING), order)
        assert error.report.kind == "missing wgmma.fence" and "gemm.py" in str(error)

    def test_no_wait_for_the_last_group(self, monkeypatch, order):
        error = caught(monkeypatch, replace(r"wgmma\.wait_group\.sync\.aligned 0", NOTHING), order)
        assert error.report.kind == "accumulator in flight" and "wait_group comes first" in str(error)

    def test_a_barrier_that_was_not_initialised(self, monkeypatch, order):
        error = caught(monkeypatch, replace(r"mbarrier\.init", NOTHING, 2), order)
        assert error.report.kind == "barrier misuse" and "was not initialised" in str(error)

    def test_a_store_out_of_bounds(self, monkeypatch, order):
        edit = replace(r"mul\.wide\.u32 (%rd\d+), (%r\d+), (%r\d+);", "mov.u64 {1}, 1099511627776;", -1)
        assert caught(monkeypatch, edit, order).report.kind == "out of bounds"

    def test_a_misaligned_copy(self, monkeypatch, order):
        edit = replace(r"add\.u32 (%r\d+), (%r\d+), 16384;", "add.u32 {1}, {2}, 16392;")
        assert caught(monkeypatch, edit, order).report.kind == "misaligned"

    def test_a_loop_without_end(self, monkeypatch, order):
        edit = replace(r"add\.u32 (%r\d+), \1, 1;", NOTHING, -1)
        assert caught(monkeypatch, edit, order).report.kind in ("limit", "deadlock", "accumulator in flight")


@pytest.mark.parametrize("order", [("lazy", 0), ("reverse", 0), ("random", 1)], ids=lambda o: o[0])
def test_no_wait_for_the_copies(monkeypatch, order):
    """Seen wherever copies take their time."""
    edit = replace(TRY_WAIT, "setp.eq.u32 {1}, 0, 0;", FULL)
    assert caught(monkeypatch, edit, order).report.kind in ("copy in flight", "uninitialised shared memory", "race")


def test_a_register_that_was_never_written(monkeypatch):
    error = caught(monkeypatch, replace(r"ld\.param\.u32 (%r\d+), \[param_k\]", NOTHING), ("lazy", 0))
    assert error.report.kind == "uninitialised register" and "%r2 is read before it was written" in str(error)


def test_an_unknown_instruction_is_refused_by_name_and_line(monkeypatch):
    edit = replace(r"wgmma\.fence", "brkpt;")
    with pytest.raises(PtxError, match=r"PTX line \d+: brkpt: .*no meaning.*no debugger"):
        run(monkeypatch, edit, ("lazy", 0))
