"""The benchmarks' own logic, with a clock that needs no GPU and workloads small enough for a CPU."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from benchmarks import (
    bench_gemm,
    bench_gemm_swiglu,
    bench_grouped_backward,
    bench_grouped_gemm,
    bench_overhead,
    bench_rms_norm,
    bench_swiglu,
    cases,
    check_ops,
    forcing,
    harness,
    products,
    records,
    sanitize,
    timing,
    tune,
)
from benchmarks.cases import GemmCase, GroupedCase, NormCase, SwigluCase
from benchmarks.timing import Call
from pyptx_ops.dispatch import gemm as host
from pyptx_ops.kernels.hopper.tuning import gemm as tuning
from pyptx_ops.trials.bounds import grouped_excess, product_excess
from tests.benchmarks.conftest import FakeClock


def workload(ours: Call, peers: dict[str, Call], excess: float = 0.5) -> harness.Workload:
    return harness.Workload("case", ours, peers, lambda: excess, 6.0, "TF/s", 3000)


class TestCases:
    def test_names_are_unique(self) -> None:
        every = [*cases.GEMM, *cases.GROUPED, *cases.NORM, *cases.SWIGLU]
        names = [(type(case), case.name) for case in every]
        assert len(set(names)) == len(names)
        assert (len(cases.GEMM), len(cases.GROUPED), len(cases.NORM), len(cases.SWIGLU)) == (35, 36, 9, 7)

    @pytest.mark.parametrize("case", cases.GROUPED, ids=lambda case: case.name)
    def test_counts_share_out_the_rows(self, case: GroupedCase) -> None:
        counts = case.counts()
        assert counts.shape == (case.groups,) and int(counts.sum()) == case.rows
        assert torch.equal(counts, case.counts())
        assert (counts.max() - counts.min() <= 1) == (case.skew == 0)


class TestInterleaved:
    def test_calls_take_turns_and_medians_come_out(self) -> None:
        clock = FakeClock()
        times = iter([1.0, 2.0, 9.0] * 100)
        calls = {"a": lambda: 4.0, "b": lambda: next(times)}
        medians = timing.interleaved(calls, clock, 0.0)
        assert medians["a"] == 4.0 and medians["b"] in (1.0, 2.0, 9.0)
        assert clock.order[0::2] == [calls["a"]] * (len(clock.order) // 2)

    @pytest.mark.parametrize("seconds, rounds", [(0.0, timing.MIN_ROUNDS), (10e-6, 10), (1.0, timing.MAX_ROUNDS)])
    def test_rounds_fit_into_the_time(self, seconds: float, rounds: int) -> None:
        clock = FakeClock()
        timing.interleaved({"a": lambda: 1.0}, clock, seconds)
        assert clock.rounds[-1] == rounds


class TestMeasure:
    def test_a_wrong_answer_is_not_timed(self) -> None:
        clock = FakeClock()
        for excess in (1.5, math.inf, math.nan):
            with pytest.raises(ValueError, match="error bound"):
                harness.measure(workload(lambda: 1.0, {}, excess), clock, 0.0)
        assert not clock.order

    def test_a_peer_that_refuses_is_named(self) -> None:
        def refuses() -> float:
            raise RuntimeError("only multiples of 16")

        one = workload(lambda: 2.0, {"fast": lambda: 1.0, "picky": refuses})
        rows = harness.rows_of(one, harness.measure(one, FakeClock(), 0.0), 2.0)
        assert [row["peer"] for row in rows] == [harness.OURS, "fast", "picky"]
        assert (rows[0]["us"], rows[0]["rate"], rows[0]["ratio"], rows[0]["of_copy"]) == (2.0, 3.0, 1.0, 0.75)
        assert (rows[1]["ratio"], rows[2]["us"]) == (0.5, None) and "multiples of 16" in rows[2]["error"]
        assert "x0.50" in harness._line(rows)

    def test_summary(self) -> None:
        rows = [
            {"case": case, "peer": "p", "us": 1.0, "ratio": ratio, "kind": kind}
            for case, ratio, kind in (("a", 2.0, "x"), ("b", 0.5, "y"), ("c", 8.0, "x"))
        ]
        summary = harness.summary_of(rows, "kind")
        assert [(line["cases"], line["n"], line["geomean"], line["at"]) for line in summary] == [
            ("all", 3, 2.0, "b"), ("x", 2, 4.0, "a"), ("y", 1, 0.5, "b"),
        ]  # fmt: skip


class TestProducts:
    @pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
    def test_gemm_workloads(self, layout: str) -> None:
        one = bench_gemm.workload(GemmCase(33, 17, 40, layout))
        assert one.excess() <= 1
        assert harness.measure(one, FakeClock(), 0.0).keys() == {harness.OURS, "cuBLAS"}
        assert bench_gemm.with_bias(GemmCase(33, 17, 40)).excess() <= 1

    def test_grouped_workloads(self) -> None:
        one = bench_grouped_gemm.workload(GroupedCase("tiny", 5, 37, 24, 16, 1.0))
        assert one.excess() <= 1
        assert len(harness.measure(one, FakeClock(), 0.0)) >= 3

    @pytest.mark.parametrize("case", [GemmCase(33, 34, 40), GroupedCase("tiny", 5, 37, 24, 16, 1.0)], ids=str)
    def test_gated_workloads(self, case) -> None:
        (one,) = bench_gemm_swiglu.workloads(case)
        assert one.excess() <= 1
        assert len(harness.measure(one, FakeClock(), 0.0, compiled=False)) == 3

    @pytest.mark.parametrize("which", [bench_grouped_backward.dgrad, bench_grouped_backward.wgrad])
    def test_grouped_gradients(self, which) -> None:
        one = which(GroupedCase("tiny", 5, 37, 24, 16, 1.0))
        assert one.excess() <= 1
        assert len(harness.measure(one, FakeClock(), 0.0)) >= 2

    def test_a_wrong_element_is_seen(self) -> None:
        a, b = products.operand(40, 24), products.operand(24, 8)
        out = a @ b
        assert product_excess(out, a, b) <= 1
        out[39, 7] += 1
        assert product_excess(out, a, b) > 1
        assert product_excess(out[:39], a, b) == math.inf

    def test_a_row_past_the_groups_is_seen(self) -> None:
        a, b = products.operand(9, 8), products.operand(16, 8).view(2, 8, 8)
        offs = products.offs_of(torch.tensor([4, 3]))
        out = torch.cat((a[:4] @ b[0], a[4:7] @ b[1], torch.zeros(2, 8, dtype=a.dtype)))
        assert grouped_excess(out, a, b, offs) <= 1
        out[8, 0] = math.nan
        assert grouped_excess(out, a, b, offs) == math.inf


class TestRowwise:
    @pytest.mark.parametrize(
        "one",
        [
            lambda: bench_rms_norm.norm_workload(NormCase(5, 72)),
            lambda: bench_rms_norm.add_norm_workload(NormCase(5, 72)),
            lambda: bench_swiglu.packed_workload(SwigluCase(5, 40)),
            lambda: bench_swiglu.swiglu_workload(SwigluCase(5, 40)),
        ],
    )
    def test_workloads(self, one) -> None:
        workload = one()
        assert workload.excess() <= 1
        assert harness.measure(workload, FakeClock(), 0.0, compiled=False).keys() >= {harness.OURS, "torch"}

    @pytest.mark.parametrize("mode", bench_overhead.MODES)
    def test_overhead(self, mode: str) -> None:
        found = list(bench_overhead.workloads(mode))
        assert len(found) == (7 if mode == "requires_grad" else 10)
        calls = []
        for workload in found:
            admitted, refused = harness.admitted(workload)
            assert len(admitted) == 2 and not refused
            calls += [bench_overhead.Timed(workload, name, call) for name, call in admitted.items()]
        bench_overhead.take_turns(calls, batch=1, seconds=0.0)
        rows = bench_overhead.rows_of(calls)
        assert [row["ratio"] for row in rows[::2]] == [1.0] * len(found)
        assert all(0 < row["us_fast"] <= row["us"] for row in rows)


class TestForcing:
    @pytest.mark.parametrize("case", [*cases.GEMM[::9], *cases.GROUPED[::9]], ids=lambda case: case.name)
    def test_candidates_include_the_choice(self, case: GemmCase | GroupedCase) -> None:
        groups = case.groups if isinstance(case, GroupedCase) else 0
        rows = case.rows if isinstance(case, GroupedCase) else case.m
        problem = tuning.GemmProblem(rows, case.n, case.k, "bf16", "k", "k", groups)
        found = forcing.candidates(problem)
        assert tuning.select(problem) in found
        assert len({tune.short(config) for config in found}) == len(found)

    def test_the_selector_is_put_back(self) -> None:
        select, config = host.select, tuning.configs()[0]
        problem = tuning.GemmProblem(1, 1, 1, "bf16", "k", "k")
        with forcing.forced(config):
            assert host.select(problem, 132) is config
        assert host.select is select


def test_tuning_rows() -> None:
    for case in (GemmCase(16, 64, 64), GroupedCase("tiny", 4, 32, 24, 16, 0.0)):
        rows = list(tune.readings(tune.trials(case), FakeClock(), 0.0))
        assert "chosen" not in rows[0] and sum(row.get("chosen", False) for row in rows) == 1
        assert len(tune.line_of(rows)) == len(tune.HEADERS)


class TestRecords:
    def run(self, **changes: object) -> records.Run:
        here = records.environment("abc")
        return replace(records.Run("op", here, {}, [{"case": "a", "us": 1.5}], {}), **changes)

    def test_round_trip(self, tmp_path) -> None:
        first, second = self.run(), self.run(summary={"x": 1})
        path = records.append(first, tmp_path)
        assert records.append(second, tmp_path) == path
        assert records.load(path) == [first, second]
        assert path.name == f"{first.environment['date'][:10]}-{'cpu' if not first.environment['gpu'] else 'x'}-op.json"

    def test_a_number_that_json_has_not_changes_nothing(self, tmp_path) -> None:
        path = records.append(self.run(), tmp_path)
        before = path.read_text()
        with pytest.raises(ValueError, match="JSON"):
            records.append(self.run(rows=[{"us": math.nan}]), tmp_path)
        assert path.read_text() == before

    def test_another_format_is_refused(self, tmp_path) -> None:
        path = tmp_path / "x.json"
        path.write_text(json.dumps({"format": 0}))
        with pytest.raises(ValueError, match="format 1"):
            records.load(path)

    def test_environment(self) -> None:
        assert records.environment("abc")["commit"] == "abc"
        assert {"date", "gpu", "driver", "torch", "package"} <= records.environment().keys()


MAINS = [
    m.main
    for m in (
        bench_gemm,
        bench_gemm_swiglu,
        bench_grouped_gemm,
        bench_grouped_backward,
        bench_rms_norm,
        bench_swiglu,
        bench_overhead,
        tune,
        check_ops,
        sanitize,
    )
]


@pytest.mark.parametrize("main", MAINS)
def test_command_lines(main, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["--help"])
    assert done.value.code == 0 and "--budget" in capsys.readouterr().out
    if not torch.cuda.is_available():
        assert main([]) == 2
        assert "need" in capsys.readouterr().err


class TestEndToEnd:
    """The command lines from their options to their records, on a GPU that is not there."""

    def record(self, main, tmp_path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[records.Run, str]:
        assert main(["--out", str(tmp_path), "--commit", "abc", *options]) == 0
        (path,) = tmp_path.iterdir()
        (run,) = records.load(path)
        assert run.environment["commit"] == "abc" and path.name[10:].startswith("-nvidia-fake-80gb-")
        return run, capsys.readouterr().out

    @pytest.mark.parametrize(
        "module, name, small, peers",
        [
            (bench_gemm, "GEMM", (GemmCase(9, 16, 24), GemmCase(200, 16, 24)), {"cuBLAS"}),
            (bench_grouped_gemm, "GROUPED", (GroupedCase("tiny", 3, 20, 16, 24, 1.0),), {"torch", "loop"}),
            (bench_rms_norm, "NORM", (NormCase(3, 40),), {"torch", "compile"}),
            (bench_swiglu, "SWIGLU", (SwigluCase(3, 40),), {"torch", "compile"}),
        ],
    )
    def test_benchmarks(self, module, name, small, peers, fake_gpu, tmp_path, capsys, monkeypatch) -> None:
        monkeypatch.setattr(module, name, small)
        monkeypatch.setattr(module, "LAYOUTS", (), raising=False)
        monkeypatch.setattr(module, "compiled", lambda function, *args: lambda: function(*args), raising=False)
        run, out = self.record(module.main, tmp_path, capsys)
        assert {row["peer"] for row in run.rows} == {harness.OURS, *peers}
        assert run.arguments["failures"] == [] and run.summary["over"][0]["cases"] == "all"
        assert small[0].name in out and "geomean" in out

    def test_no_time_is_a_failure(self, fake_gpu, tmp_path, capsys) -> None:
        assert bench_gemm.main(["--budget", "0", "--out", str(tmp_path)]) == 1
        assert "no time left for 38 of 38 cases" in capsys.readouterr().out

    def test_a_wrong_answer_and_an_error_are_failures(self, fake_gpu, tmp_path, capsys, monkeypatch) -> None:
        monkeypatch.setattr(bench_gemm, "GEMM", (GemmCase(9, 16, 24), GemmCase(10, 16, 24)))
        monkeypatch.setattr(bench_gemm, "LAYOUTS", ())

        def op(a, b):
            if a.shape[0] == 10:
                raise RuntimeError("no kernel")
            return a @ b + 1

        monkeypatch.setattr(bench_gemm.pyptx_ops, "gemm", op)
        assert bench_gemm.main(["--out", str(tmp_path)]) == 1
        (run,) = records.load(next(tmp_path.iterdir()))
        assert run.rows == [] and [text.split(":")[0] for text in run.arguments["failures"]] == [
            "M9 N16 K24 NT", "M10 N16 K24 NT",
        ]  # fmt: skip
        assert "FAILED" in capsys.readouterr().out

    def test_overhead(self, fake_gpu, tmp_path, capsys, monkeypatch) -> None:
        empty = torch.empty
        monkeypatch.setattr(torch, "empty", lambda size, **options: empty(size, **{**options, "device": "cpu"}))
        run, out = self.record(bench_overhead.main, tmp_path, capsys, "--budget", "0")
        assert {row["mode"] for row in run.rows} == set(bench_overhead.MODES) and "peer / ours" in out

    def test_tune(self, fake_gpu, tmp_path, capsys, monkeypatch) -> None:
        monkeypatch.setattr(tune, "GEMM", (GemmCase(9, 16, 24),))
        monkeypatch.setattr(tune, "GROUPED", (GroupedCase("tiny", 3, 20, 16, 24, 1.0),))
        run, out = self.record(tune.main, tmp_path, capsys)
        assert sum(row.get("chosen", False) for row in run.rows) == 2
        assert "torch/chosen" in out

    def test_checks(self, fake_gpu, tmp_path, capsys) -> None:
        run, out = self.record(check_ops.main, tmp_path, capsys, "--only", "gemm 33x9x")
        assert all(row["failed"] == 0 and row["checks"] for row in run.rows) and "error / bound" in out
