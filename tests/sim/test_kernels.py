"""Every shipped kernel on the simulator: within the bounds of its arithmetic, under every policy, without a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple

import pytest
import torch
from torch import Tensor

import pyptx_ops
from pyptx_ops import dispatch
from pyptx_ops.dispatch import gemm as gemm_host
from pyptx_ops.kernels.configs import GemmConfig
from pyptx_ops.kernels.hopper.tuning import gemm as gemm_tuning
from pyptx_ops.kernels.hopper.tuning import norm as norm_tuning
from tests.tolerance import assert_within, norm_bound, product_bound, rounding_bound, silu_bound

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
ORDERS = [("lazy", 0), ("eager", 0), ("reverse", 0), ("random", 1), ("random", 2)]
CONFIGS = gemm_tuning.configs()


@pytest.fixture(params=ORDERS, ids=lambda order: f"{order[0]}{order[1]}")
def machine(request) -> Iterator[None]:
    policy, seed = request.param
    with pyptx_ops.simulate(policy=policy, seed=seed, multiprocessors=1):
        yield


def shapes_of(configs: tuple[GemmConfig, ...]) -> list[GemmConfig]:
    """One config per shape of tile: bf16, both operands along K."""
    return [c for c in configs if (c.dtype, c.x_major, c.y_major) == ("bf16", "k", "k")]


def check_gemm(config: GemmConfig, monkeypatch: pytest.MonkeyPatch, out_dtype: torch.dtype | None = None) -> None:
    """A product that ends inside tiles, with a ring that wraps, in this config."""
    dtype = DTYPES[config.dtype]
    token_major, weight_major = (config.y_major, config.x_major) if config.swap else (config.x_major, config.y_major)
    tokens, weights = config.tokens, config.weights
    m, n, k = tokens + tokens // 2 + 8, weights + 40, 200
    a = randn(m, k, token_major, dtype)
    monkeypatch.setattr(gemm_host, "select", lambda problem, sms: config)
    gemm_host._plans.clear()
    if config.grouped:
        ends = [tokens // 2 + 1, tokens // 2 + 1, m - 3]
        b = torch.stack([randn(n, k, "k", dtype) for _ in ends])
        if weight_major == "mn":
            b = b.transpose(1, 2).contiguous().transpose(1, 2)
        bias = torch.randn(len(ends), n).to(dtype)
        offs = torch.tensor(ends, dtype=torch.int32)
        out = pyptx_ops.grouped_gemm(a, b.transpose(1, 2), offs, bias, out_dtype=out_dtype)
        starts = [0, *ends[:-1]]
        for group, (start, end) in enumerate(zip(starts, ends, strict=True)):
            check_product(out[start:end], a[start:end], b[group], bias[group], dtype)
        assert not out[ends[-1] :].any()
        return
    b, bias = randn(n, k, weight_major, dtype), torch.randn(n).to(dtype)
    out = pyptx_ops.gemm(a, b.t(), bias, out_dtype=out_dtype)
    check_product(out, a, b, bias, dtype)


def randn(rows: int, k: int, major: str, dtype: torch.dtype) -> Tensor:
    values = torch.randn(rows, k).to(dtype)
    return values if major == "k" else values.t().contiguous().t()


def check_product(out: Tensor, a: Tensor, b: Tensor, bias: Tensor, dtype: torch.dtype) -> None:
    truth = a.double() @ b.double().t() + bias.double()
    magnitude = a.double().abs() @ b.double().abs().t() + bias.double().abs()
    assert_within(out, truth, product_bound(truth, magnitude, a.shape[1], out.dtype))


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("config", shapes_of(CONFIGS), ids=lambda c: c.name)
def test_gemm_shapes(config: GemmConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    check_gemm(config, monkeypatch)


@pytest.mark.parametrize("config", [c for c in CONFIGS if c not in shapes_of(CONFIGS)], ids=lambda c: c.name)
def test_other_gemms(config: GemmConfig, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """fp16, and operands along M or N: each config in an order of its own; results in fp32."""
    with pyptx_ops.simulate(policy="random", seed=seed, multiprocessors=1):
        check_gemm(config, monkeypatch, torch.float32)


NORMS = [
    (residual, width, candidate)
    for (width, residual), candidates in norm_tuning.SHAPES.items()
    for candidate in candidates
]


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("residual, width, shape", NORMS, ids=str)
def test_norms(residual: bool, width: int, shape: tuple[int, ...]) -> None:
    check_norm_config(residual, width, shape, torch.bfloat16)


@pytest.mark.parametrize("residual, width, shape", NORMS, ids=str)
def test_norms_of_fp16(residual: bool, width: int, shape: tuple[int, ...], seed: int) -> None:
    with pyptx_ops.simulate(policy="random", seed=seed):
        check_norm_config(residual, width, shape, torch.float16)


def check_norm_config(residual: bool, width: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    config = norm_tuning.RmsNormConfig("bf16", residual, width, *shape)  # type: ignore[arg-type]
    hidden = config.resident + 8 * 3 if config.wide else config.resident - (8 if width == 8 else 3)
    rows = 3 if hidden < 4096 else 1
    x, weight = torch.randn(rows, hidden).to(dtype), torch.randn(hidden).to(dtype)
    chosen = norm_tuning.select(norm_tuning.NormProblem(hidden, "bf16", residual, width == 8))
    assert astuple(chosen) == astuple(config)
    if width == 1:  # at an odd address
        x, weight = (torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape) for t in (x, weight))
    if not residual:
        check_norm(pyptx_ops.rms_norm(x, weight, 1e-5, cast_before_weight=False), x.double(), weight)
        return
    r = torch.randn(rows, hidden).to(dtype)
    y, total = pyptx_ops.fused_add_rms_norm(x, r, weight, 1e-5, cast_before_weight=False)
    truth = x.double() + r.double()
    assert_within(total, truth, rounding_bound(truth, dtype))
    check_norm(y, truth, weight)


def check_norm(y: Tensor, x: Tensor, weight: Tensor) -> None:
    truth = torch.nn.functional.rms_norm(x, x.shape[-1:], weight.double(), 1e-5)
    assert_within(y, truth, norm_bound(truth, x.shape[-1], y.dtype))


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("layout", ["rows", "pairs", "strided"])
def test_swiglu(layout: str, dtype: torch.dtype) -> None:
    columns = 107 if layout == "strided" else 104
    both = torch.randn(7, 2 * columns).to(dtype)
    interleaved = layout == "pairs"
    out = pyptx_ops.silu_and_mul(both, interleaved)
    gate, up = (both[:, ::2], both[:, 1::2]) if interleaved else both.chunk(2, dim=1)
    truth = torch.nn.functional.silu(gate.double()) * up.double()
    assert_within(out, truth, silu_bound(truth, gate, dtype))


def test_the_same_seed_gives_the_same_bits() -> None:
    a, b = torch.randn(70, 200).bfloat16(), torch.randn(200, 64).bfloat16()
    results, instructions = [], []
    for seed in (5, 5, 6):
        with pyptx_ops.simulate(policy="random", seed=seed) as launcher:
            results.append(pyptx_ops.gemm(a, b))
        instructions.append(launcher.executed)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    assert instructions[0] == instructions[1] > 0


def test_outside_the_block_and_for_other_dtypes_the_reference_runs() -> None:
    a = torch.randn(4, 8)
    with pyptx_ops.simulate() as launcher:
        assert torch.equal(pyptx_ops.gemm(a, a.t()), a @ a.t())
        assert (dispatch.route("cpu").path, dispatch.route("cpu").arch) == ("kernel", "sm_90a")
    assert dispatch.route("cpu").path == "reference"
    pyptx_ops.gemm(a.bfloat16(), a.t().bfloat16())
    assert launcher.executed == 0
