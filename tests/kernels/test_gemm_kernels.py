"""GEMM kernels: what the selector promises, what the host tells a tensor map, and every config on a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyptx_ops import launch
from pyptx_ops.dispatch import gemm as host
from pyptx_ops.dispatch import operands
from pyptx_ops.kernels.configs import GemmConfig
from pyptx_ops.kernels.hopper.tuning import gemm as tuning
from pyptx_ops.kernels.hopper.tuning.gemm import GemmProblem
from pyptx_ops.trials import trials_of
from pyptx_ops.trials.inputs import moved
from tests.tolerance import assert_within, product_bound

CONFIGS = tuning.configs()
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}

sizes = st.one_of(st.integers(1, 300), st.integers(1, 200_000), st.sampled_from([1 << e for e in range(18)]))
problems = st.builds(
    GemmProblem,
    m=sizes, n=sizes, k=sizes,
    dtype=st.sampled_from(tuning.DTYPES),
    token_major=st.sampled_from(["k", "mn"]),
    weight_major=st.sampled_from(["k", "mn"]),
    groups=st.one_of(st.just(0), st.integers(1, 5000)),
    ragged_k=st.booleans(),
)  # fmt: skip


class TestSelector:
    @given(problems, st.sampled_from([132, 114, 78]))
    @settings(max_examples=500, deadline=None)
    def test_returns_a_shipped_config_that_fits(self, problem: GemmProblem, sms: int) -> None:
        problem = replace(problem, ragged_k=problem.ragged_k and problem.groups > 0)
        if problem.ragged_k:
            problem = replace(problem, token_major="mn", weight_major="mn")
        elif problem.groups:
            problem = replace(problem, token_major="k")
        config = tuning.select(problem, sms)
        assert config in CONFIGS
        assert config.dtype == problem.dtype
        token_major, weight_major = (
            (config.y_major, config.x_major) if config.swap else (config.x_major, config.y_major)
        )
        assert (token_major, weight_major) == (problem.token_major, problem.weight_major)
        assert (config.grouped, config.ragged_k) == (problem.groups > 0, problem.ragged_k)
        blocks = tuning.grid(problem, config, sms)
        assert blocks > 0 and blocks % config.split_k == 0
        assert config.split_k > 1 or blocks <= sms * config.blocks_per_sm

    def test_names_are_unique(self) -> None:
        assert len({config.name for config in CONFIGS}) == len(CONFIGS)

    def test_few_tokens_go_to_the_narrow_side(self) -> None:
        problem = GemmProblem(m=16, n=28672, k=4096, dtype="bf16", token_major="k", weight_major="k")
        assert tuning.select(problem).swap

    def test_large_products_take_the_largest_tile(self) -> None:
        problem = GemmProblem(m=8192, n=8192, k=8192, dtype="bf16", token_major="k", weight_major="k")
        assert (tuning.select(problem).tile_m, tuning.select(problem).tile_n) == (128, 256)


class TestOperands:
    """`matrix_of`: (major, sizes and byte strides of the map), and whether the operand is copied first."""

    def operand(self, shape: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> Tensor:
        span = offset + 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True) if size)
        return torch.as_strided(torch.randn(span).to(torch.bfloat16), shape, stride, offset)

    @pytest.mark.parametrize(
        ("shape", "stride", "offset", "major", "tail"),
        [
            ((5, 64), (64, 1), 0, "k", (64, 5, 128)),
            ((5, 64), (72, 1), 8, "k", (64, 5, 144)),
            ((64, 5), (1, 64), 0, "mn", (64, 5, 128)),
            ((1, 7), (7, 1), 0, "k", (7, 1, 16)),  # one row: its pitch does not matter
            ((9, 1), (1, 1), 0, "mn", (9, 1, 32)),  # one column
            ((3, 5, 64), (320, 64, 1), 0, "k", (64, 5, 3, 128, 640)),
            ((3, 64, 5), (320, 1, 64), 0, "mn", (64, 5, 3, 128, 640)),
            ((1, 5, 64), (3, 64, 1), 0, "k", (64, 5, 1, 128, 16)),  # one group: its stride does not matter
        ],
    )
    def test_taken_as_it_is(
        self, shape: tuple[int, ...], stride: tuple[int, ...], offset: int, major: str, tail: tuple[int, ...]
    ) -> None:
        assert operands.matrix_of(self.operand(shape, stride, offset)) == ((major, tail), False)

    @pytest.mark.parametrize(
        ("shape", "stride", "offset"),
        [
            ((5, 511), (511, 1), 0),  # a pitch of 1022 bytes
            ((5, 64), (64, 1), 1),  # a misaligned view
            ((5, 64), (128, 2), 0),  # neither dimension contiguous
            ((5, 64), (0, 1), 0),  # one row, expanded
            ((5, 64), (8, 1), 0),  # overlapping rows
            ((3, 5, 64), (0, 64, 1), 0),  # one matrix, expanded
            ((3, 5, 64), (321, 64, 1), 0),  # groups at odd addresses
        ],
    )
    def test_copied(self, shape: tuple[int, ...], stride: tuple[int, ...], offset: int) -> None:
        operand = self.operand(shape, stride, offset)
        matrix, copied = operands.matrix_of(operand)
        copy = operands.padded_copy(operand)
        assert copied
        assert torch.equal(copy, operand)
        assert operands.matrix_of(copy) == (matrix, False)

    def test_windows_begin_in_the_operand(self) -> None:
        """Window w begins with row w: no address of a map lies before its operand."""
        assert host._windows(self.operand((70, 24), (24, 1))) == ((24, host.WINDOW, 70, 48, 48), False)
        assert {c.tile_k for c in CONFIGS if c.ragged_k} == {host.WINDOW}

    def test_grouped_rows_are_contiguous_along_k(self) -> None:
        operand = self.operand((64, 16), (1, 64))
        assert operands.matrix_of(operand)[1] is False
        assert operands.matrix_of(operand, k_major_only=True)[1] is True


def operand(rows: int, k: int, major: str, dtype: torch.dtype, groups: int | None = None) -> Tensor:
    """A random (rows, K) or (groups, rows, K) operand in rows of whole 16-byte chunks, without a copy."""
    outer, inner = (rows, k) if major == "k" else (k, rows)
    lead = () if groups is None else (groups,)
    matrix = torch.randn(*lead, outer, -(-inner // 8) * 8, device="cuda").to(dtype)[..., :inner]
    return matrix if major == "k" else matrix.transpose(-1, -2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
class TestOnGpu:
    """Each config by itself: the selector is told to choose it whatever the problem."""

    @pytest.fixture(params=CONFIGS, ids=lambda config: config.name)
    def config(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[GemmConfig]:
        if torch.cuda.get_device_capability() != (9, 0):
            pytest.skip("the kernels are built for sm_90a")
        config: GemmConfig = request.param
        monkeypatch.setattr(host, "select", lambda problem, sms: config)
        monkeypatch.setattr(host, "_plans", {})
        with launch.unbound():
            yield config

    def majors(self, config: GemmConfig) -> tuple[str, str]:
        return (config.y_major, config.x_major) if config.swap else (config.x_major, config.y_major)

    def poison(self, m: int, n: int, dtype: torch.dtype) -> None:
        """Leave NaN where the allocator will put the output."""
        blocks = [torch.full((m, n), float("nan"), dtype=dtype, device="cuda") for _ in range(2)]
        del blocks

    @pytest.mark.parametrize("out_f32", [False, True])
    @pytest.mark.parametrize("with_bias", [False, True])
    def test_config(self, config: GemmConfig, with_bias: bool, out_f32: bool) -> None:
        if config.ragged_k:
            self.check_ragged_k(config, with_bias, out_f32)
        elif config.grouped:
            self.check_grouped(config, with_bias, out_f32)
        else:
            self.check_plain(config, with_bias, out_f32)

    def check_plain(self, config: GemmConfig, with_bias: bool, out_f32: bool) -> None:
        dtype = DTYPES[config.dtype]
        out_dtype = torch.float32 if out_f32 else dtype
        token_major, weight_major = self.majors(config)
        for m, n, k in [(128, 256, 64), (1, 1, 1), (17, 130, 129), (129, 257, 200), (300, 520, 1000), (64, 2048, 4096)]:
            a, w = operand(m, k, token_major, dtype), operand(n, k, weight_major, dtype)
            bias = torch.randn(n, device="cuda").to(dtype) if with_bias else None
            self.poison(m, n, out_dtype)
            out = host.gemm(a, w.t(), bias, out_dtype)
            truth, magnitude = a.double() @ w.double().t(), a.double().abs() @ w.double().abs().t()
            if bias is not None:
                truth, magnitude = truth + bias.double(), magnitude + bias.double().abs()
            assert_within(out, truth, product_bound(truth, magnitude, k, out_dtype), f"{config.name} {m}×{n}×{k}")

    def check_grouped(self, config: GemmConfig, with_bias: bool, out_f32: bool) -> None:
        dtype = DTYPES[config.dtype]
        out_dtype = torch.float32 if out_f32 else dtype
        token_major, weight_major = self.majors(config)
        for rows, tail, n, k in [
            ([128, 256], 0, 256, 64),
            ([5, 0, 9, 3, 0, 2], 3, 40, 72),
            ([1] * 70, 11, 130, 129),
            ([0, 300, 1, 0, 127, 129], 140, 520, 300),
            ([0] * 40 + [7] + [0] * 1000, 5, 64, 64),
        ]:
            ends = list(itertools.accumulate(rows))
            m, groups = ends[-1] + tail, len(rows)
            a, w = operand(m, k, token_major, dtype), operand(n, k, weight_major, dtype, groups)
            a[ends[-1] :] = float("nan")
            bias = torch.randn(groups, n, device="cuda").to(dtype) if with_bias else None
            self.poison(m, n, out_dtype)
            offs = torch.tensor(ends, dtype=torch.int32, device="cuda")
            out = host.grouped_gemm(a, w.transpose(1, 2), offs, bias, out_dtype)
            truth = torch.zeros(m, n, dtype=torch.float64, device="cuda")
            magnitude = torch.zeros_like(truth)
            for group, (start, end) in enumerate(itertools.pairwise([0, *ends])):
                if start == end:
                    continue
                x, y = a[start:end].double(), w[group].double().t()
                truth[start:end], magnitude[start:end] = x @ y, x.abs() @ y.abs()
                if bias is not None:
                    truth[start:end] += bias[group].double()
                    magnitude[start:end] += bias[group].double().abs()
            what = f"{config.name}, {groups} groups"
            assert_within(out, truth, product_bound(truth, magnitude, k, out_dtype), what)
            assert not out[ends[-1] :].any(), f"{what}: rows past the last group"

    def check_ragged_k(self, config: GemmConfig, with_bias: bool, out_f32: bool) -> None:
        for trial in trials_of(config):
            trial = replace(trial, bias=with_bias, wide=out_f32)
            inputs = trial.inputs(seed=0)
            outputs = trial.run(moved(inputs, "cuda"))
            assert trial.excess(inputs, {name: out.cpu() for name, out in outputs.items()}) <= 1, trial.what

    def test_runs_repeat_bitwise(self, config: GemmConfig) -> None:
        """Also with split K: parts are added in a fixed order."""
        dtype = DTYPES[config.dtype]
        token_major, weight_major = self.majors(config)
        groups = 3 if config.grouped else None
        a, w = operand(190, 1030, token_major, dtype), operand(260, 1030, weight_major, dtype, groups)

        def run() -> Tensor:
            if not config.grouped:
                return host.gemm(a, w.t(), None, None)
            offs = torch.tensor([70, 70, 190], dtype=torch.int32, device="cuda")
            if config.ragged_k:
                return host.grouped_gemm_ragged_k(a, w[0].t(), offs, None, None)
            return host.grouped_gemm(a, w.transpose(1, 2), offs, None, None)

        first = run()
        assert all(torch.equal(first, run()) for _ in range(5))
