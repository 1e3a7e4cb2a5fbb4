"""Bugs reported against other projects, as small cases with the right answer, each widened to its kind.

Every test names the report. Numbers are held to the bounds of tests/tolerance.py.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import pyptx_ops
from pyptx_ops.ops.fused_add_rms_norm import reference as fused_reference
from pyptx_ops.ops.rms_norm import reference as norm_reference
from tests.ops.inputs import ends, randn
from tests.tolerance import assert_within, norm_bound, product_bound, rounding_bound, silu_bound

BF16 = torch.bfloat16


def poison(shape, dtype, device, count=8):
    """Leaves NaN in freed memory, for the next allocations of this size to find."""
    junk = [torch.full(shape, float("nan"), dtype=dtype, device=device) for _ in range(count)]
    del junk


# pytorch/pytorch#172439: the weight gradient of experts without tokens was stale memory.
@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32])
@pytest.mark.parametrize("sizes", [(5, 0, 9, 3, 0, 2), (0, 0, 19), (19, 0, 0), (0, 0, 0)], ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_b01_no_tokens_no_gradient(device, dtype, sizes, has_bias):
    offs = torch.tensor(sizes).cumsum(0).int().to(device)
    groups, rows = len(sizes), max(sum(sizes), 4)
    x = randn(rows, 64, device=device, dtype=dtype, grad=True)
    w = randn(groups, 64, 32, device=device, dtype=dtype, grad=True)
    bias = randn(groups, 32, device=device, dtype=dtype, grad=True) if has_bias else None
    poison((groups, 64, 32), dtype, device)
    pyptx_ops.grouped_gemm(x, w, offs, bias).float().sum().backward()
    start = 0
    for group, size in enumerate(sizes):
        part = x.detach()[start : start + size].double()
        truth = part.sum(0).unsqueeze(1).expand(64, 32)
        magnitude = part.abs().sum(0).unsqueeze(1).expand(64, 32)
        assert_within(w.grad[group], truth, product_bound(truth, magnitude, size, dtype), f"group {group}")
        if size == 0:
            assert (w.grad[group] == 0).all()
        if has_bias:
            assert (bias.grad[group] == size).all()
        start += size


# pytorch/pytorch#193633, #154557, pytorch/torchtitan#1237: rows past the last group were left unwritten.
@pytest.mark.parametrize("last", [0, 1, 10, 16])
@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_b03_rows_past_the_groups_are_zero(device, last, dtype):
    offs = ends(min(3, last), min(7, last), min(7, last), last, device=device)
    x = randn(16, 64, device=device, dtype=dtype, grad=True)
    w = randn(4, 64, 64, device=device, dtype=dtype, grad=True, scale=0.1)
    for _ in range(3):
        poison((16, 64), dtype, device)
        x.grad = w.grad = None
        hidden = pyptx_ops.grouped_gemm(x, w, offs)
        y = pyptx_ops.grouped_gemm(pyptx_ops.swiglu(hidden, hidden, offs), w, offs)
        assert (hidden[last:] == 0).all() and (y[last:] == 0).all()
        y.float().pow(2).sum().backward()
        assert w.grad.isfinite().all() and x.grad.isfinite().all() and (x.grad[last:] == 0).all()


# pytorch/pytorch#157922: offs that do not fit the experts ended in an unrelated message.
@pytest.mark.parametrize("entries", [2, 4, 1])
def test_b05_counts_are_in_the_message(device, entries):
    a, b = randn(10, 64, device=device, dtype=BF16), randn(3, 64, 32, device=device, dtype=BF16)
    with pytest.raises(ValueError, match=rf"offs has shape \({entries},\), wanted \(G,\) with G = 3"):
        pyptx_ops.grouped_gemm(a, b, torch.zeros(entries, dtype=torch.int32, device=device))
    with pytest.raises(ValueError, match=rf"bias has shape \({entries}, 32\), wanted \(G, N\) = \(3, 32\)"):
        offs = torch.zeros(3, dtype=torch.int32, device=device)
        pyptx_ops.grouped_gemm(a, b, offs, randn(entries, 32, device=device, dtype=BF16))


def check_rows(x, residual, w):
    """The ops on rows, whatever their layout, against fp64."""
    dtype, hidden = x.dtype, x.shape[-1]
    wide, other, factor = x.double(), residual.double(), w.double()
    truth = norm_reference(wide, factor, 1e-6)
    assert_within(pyptx_ops.rms_norm(x, w), truth, norm_bound(truth, hidden, dtype, 2), "norm")
    truth, total = fused_reference(wide, other, factor, 1e-6)
    slack = 2.0**-24 * (wide.abs() + other.abs())
    rstd = 1 / (total.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    y, got_total = pyptx_ops.fused_add_rms_norm(x, residual, w)
    assert_within(y, truth, norm_bound(truth, hidden, dtype, 2) + 2 * slack * rstd * factor.abs(), "add norm")
    assert_within(got_total, total, rounding_bound(total, dtype) + slack, "residual_out")
    for got, gate, up in (
        (pyptx_ops.swiglu(x, residual), x, residual),
        (pyptx_ops.silu_and_mul(x), *x.chunk(2, -1)),
        (pyptx_ops.silu_and_mul(x, True), x[..., ::2], x[..., 1::2]),
    ):
        truth = F.silu(gate.double()) * up.double()
        assert_within(got, truth, silu_bound(truth, gate, dtype), "swiglu")


# ModelTC/LightLLM#1467: one pass honoured the stride of the last dimension, the other did not.
@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32])
def test_b08_transposed_rows(device, dtype):
    x, residual = (randn(96, 40, device=device, dtype=dtype).t() for _ in range(2))
    w = randn(96, device=device, dtype=dtype)
    assert x.stride(-1) != 1
    check_rows(x, residual, w)
    check_rows(x, residual.contiguous(), w)
    check_rows(x[:, ::2], residual[:, 1::2], w[::2])
    check_rows(x.flip(0).unflatten(0, (4, 10)).transpose(0, 1), residual.unflatten(0, (10, 4)), w)


# stepfun-ai/StepMesh#43, RL-Align/RL-Kernel#324: no rows meant an empty grid, and a backward that failed in a reshape.
@pytest.mark.parametrize("shape", [(0, 7168), (0, 3, 64), (2, 0, 64)], ids=str)
def test_b10_no_rows(device, shape):
    hidden = shape[-1]
    x = torch.empty(shape, device=device, dtype=BF16, requires_grad=True)
    w = torch.ones(hidden, device=device, dtype=BF16, requires_grad=True)
    matrix = torch.ones(hidden, 8, device=device, dtype=BF16, requires_grad=True)
    y, total = pyptx_ops.fused_add_rms_norm(pyptx_ops.rms_norm(x, w), x, w)
    y = pyptx_ops.silu_and_mul(pyptx_ops.swiglu(y, total))
    assert y.shape == (*shape[:-1], hidden // 2)
    out = pyptx_ops.gemm(total, matrix)
    assert out.shape == (*shape[:-1], 8)
    (y.float().sum() + out.float().sum()).backward()
    assert x.grad.shape == shape and (w.grad == 0).all() and (matrix.grad == 0).all()
    assert F.pad(pyptx_ops.rms_norm(x, w).flatten(0, -2), (0, 0, 0, 4)).shape == (4, hidden)
    if device == "cuda":
        torch.cuda.synchronize()


def test_b10_no_rows_grouped(device):
    a = torch.empty(0, 16, device=device, dtype=BF16, requires_grad=True)
    w = torch.ones(3, 16, 8, device=device, dtype=BF16, requires_grad=True)
    out = pyptx_ops.grouped_gemm(a, w, ends(0, 0, 0, device=device), torch.ones(3, 8, device=device, dtype=BF16))
    assert out.shape == (0, 8)
    out.sum().backward()
    assert a.grad.shape == (0, 16) and (w.grad == 0).all()


# linkedin/Liger-Kernel#1462, ggml-org/llama.cpp#5810, vllm-project/vllm#29810: 1 + w was added in the weight's dtype.
@pytest.mark.parametrize("dtype", [torch.float32, BF16, torch.float16])
@pytest.mark.parametrize("cast", [False, True])
def test_b11_the_offset_is_added_in_fp32(device, dtype, cast):
    """In bf16 1 + 2^-8 is 1, and 255 + 0.75 is 256."""
    x = torch.full((2, 64), 256.0, device=device, dtype=dtype)
    w = torch.full((64,), 2.0**-8, device=device, dtype=BF16)
    wanted = torch.full((2, 64), 1 + 2.0**-8, device=device, dtype=torch.float64)
    zero = torch.zeros_like(x)
    for got in (
        pyptx_ops.rms_norm(x, w, 0.0, 1.0, cast),
        pyptx_ops.fused_add_rms_norm(x, zero, w, 0.0, 1.0, cast)[0],
    ):
        assert_within(got, wanted, norm_bound(wanted, 64, dtype))
    w = torch.full((64,), 0.75, device=device, dtype=BF16)
    got = pyptx_ops.rms_norm(x, w, 0.0, 255.0, cast)
    wanted = torch.full_like(wanted, 255.75)
    assert_within(got, wanted, norm_bound(wanted, 64, dtype))
    half = pyptx_ops.rms_norm(x * torch.tensor([1.0, 0.0] * 32, device=device, dtype=dtype), w, 0.0, 255.0, cast)
    wanted = 255.75 * 2**0.5 * torch.tensor([1.0, 0.0] * 32, device=device, dtype=torch.float64).expand(2, 64)
    assert_within(half, wanted, norm_bound(wanted, 64, dtype, 1 + cast))


# huggingface/transformers#30236, NVIDIA/TransformerEngine#1132: an fp32 weight made the result fp32.
@pytest.mark.parametrize("dtype", [BF16, torch.float16])
@pytest.mark.parametrize("weight_dtype", [torch.float32, BF16, torch.float16, torch.float64])
@pytest.mark.parametrize("cast", [False, True])
def test_b12_the_result_has_the_dtype_of_x(device, dtype, weight_dtype, cast):
    x, w = randn(4, 128, device=device, dtype=dtype), randn(128, device=device, dtype=weight_dtype)
    residual = randn(4, 128, device=device, dtype=dtype)
    y = pyptx_ops.rms_norm(x, w, 1e-6, 0.0, cast)
    fused, total = pyptx_ops.fused_add_rms_norm(x, residual, w, 1e-6, 0.0, cast)
    assert y.dtype is fused.dtype is total.dtype is dtype
    truth = norm_reference(x.double(), w.double(), 1e-6)
    assert_within(y, truth, norm_bound(truth, 128, dtype, 1 + cast))
    x.requires_grad_(), w.requires_grad_()
    pyptx_ops.rms_norm(x, w, 1e-6, 0.0, cast).sum().backward()
    assert x.grad.dtype is dtype and w.grad.dtype is weight_dtype


# flashinfer-ai/flashinfer#634, #718: vector widths from the size, not from the pointer; too much shared memory.
@pytest.mark.parametrize("hidden", [3584, 3585, 1, 7, 16384, 40000])
@pytest.mark.parametrize("dtype", [BF16, torch.float16])
@pytest.mark.parametrize("start", [0, 1, 2, 4])
def test_b14_any_hidden_size_at_any_address(device, hidden, dtype, start):
    x, residual = (randn(3, hidden + start, device=device, dtype=dtype)[:, start:] for _ in range(2))
    w = randn(hidden + start, device=device, dtype=dtype)[start:]
    y, total = pyptx_ops.fused_add_rms_norm(x, residual, w, 1e-6, 0.0, False)
    truth, true_total = fused_reference(x.double(), residual.double(), w.double(), 1e-6)
    slack = 2.0**-24 * (x.double().abs() + residual.double().abs())
    rstd = 1 / (true_total.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    assert_within(total, true_total, rounding_bound(true_total, dtype) + slack, "residual_out")
    assert_within(y, truth, norm_bound(truth, hidden, dtype) + 2 * slack * rstd * w.double().abs(), "y")
    alone = norm_reference(x.double(), w.double(), 1e-6)
    assert_within(pyptx_ops.rms_norm(x, w, 1e-6, 0.0, False), alone, norm_bound(alone, hidden, dtype))
    kept = x.clone(), residual.clone()
    pyptx_ops.fused_add_rms_norm_(x, residual, w, 1e-6, 0.0, False)
    assert torch.equal(x, y) and torch.equal(residual, total) and not torch.equal(kept[1], residual)


# flashinfer-ai/flashinfer#3007: 32-bit strides.
@pytest.mark.parametrize("stride", [2**31 + 8, 2**31 - 8, 2**33 + 1])
def test_b15_one_row_with_a_huge_stride(device, stride):
    row, w = randn(1, 128, device=device, dtype=BF16), randn(128, device=device, dtype=BF16)
    far = torch.as_strided(row, (1, 128), (stride, 1))
    check_rows(far, row, w)
    check_rows(torch.as_strided(row, (1, 1, 128), (stride, stride + 1, 1)), row.unsqueeze(0), w)
    matrix = randn(128, 16, device=device, dtype=BF16)
    weights = torch.as_strided(matrix, (1, 128, 16), (stride, 16, 1))
    truth, magnitude = row.double() @ matrix.double(), row.double().abs() @ matrix.double().abs()
    for got in (pyptx_ops.gemm(far, matrix), pyptx_ops.grouped_gemm(far, weights, ends(1, device=device))):
        assert_within(got, truth, product_bound(truth, magnitude, 128, BF16))


# meta-llama/llama#1048: statistics in fp16 overflow, or vanish.
@pytest.mark.parametrize("magnitude", [60000.0, 300.0, 1.0, 6e-5, 6e-8])
@pytest.mark.parametrize("dtype", [torch.float16, BF16])
def test_b17_the_range_of_the_statistics(device, magnitude, dtype):
    x = torch.full((2, 4096), magnitude, device=device, dtype=dtype)
    w = torch.ones(4096, device=device, dtype=dtype)
    truth = torch.ones(2, 4096, device=device, dtype=torch.float64)
    assert_within(pyptx_ops.rms_norm(x, w, 0.0), truth, norm_bound(truth, 4096, dtype))
    y, total = pyptx_ops.fused_add_rms_norm(x, -x / 2, w, 0.0)
    assert_within(y, truth, norm_bound(truth, 4096, dtype))
    assert total.isfinite().all()


# fla-org/flash-linear-attention#921, linkedin/Liger-Kernel#1326: halves of one projection are strided views.
@pytest.mark.parametrize("dtype", [torch.float32, BF16, torch.float16])
@pytest.mark.parametrize("shape", [(5, 7, 48), (35, 48), (48,), (1, 1, 2), (3, 0, 48)], ids=str)
def test_b19_halves_of_one_projection(device, dtype, shape):
    h = randn(*shape, device=device, dtype=dtype, grad=True)
    gate, up = h.chunk(2, -1)
    dy = randn(*gate.shape, device=device, dtype=dtype)
    wide = h.detach().double().requires_grad_()
    wide_gate, wide_up = wide.chunk(2, -1)
    truth = F.silu(wide_gate) * wide_up
    (wanted,) = torch.autograd.grad(truth, wide, dy.double())
    for y in (pyptx_ops.swiglu(gate, up), pyptx_ops.silu_and_mul(h)):
        assert_within(y, truth.detach(), silu_bound(truth.detach(), gate.detach(), dtype))
        (got,) = torch.autograd.grad(y, h, dy, retain_graph=True)
        both = torch.cat((gate, gate), -1).detach()
        assert got.shape == h.shape
        assert_within(got, wanted, silu_bound(wanted, both, dtype) + 2.0**-20)


# pytorch/pytorch#198031, #153389: compiled code that mutates the wrong tensor, or loses a write to a view.
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_b34_mutation_compiled(device, backend):
    def functional(x, residual, w):
        y, total = pyptx_ops.fused_add_rms_norm(x, residual.clone(), w)
        return y + residual, total

    def in_place(x, residual, w):
        twin = residual.clone()
        pyptx_ops.fused_add_rms_norm_(x, twin, w)
        return x + residual, twin

    def on_views(x, residual, w):
        both = torch.stack((x, residual))
        pyptx_ops.fused_add_rms_norm_(both[0], both[1], w)
        return both[0] + residual, both[1].clone(), both

    x, residual, w = (randn(*s, device=device, dtype=torch.float32) for s in ((4, 64), (4, 64), (64,)))
    wanted = functional(x, residual, w)
    torch._dynamo.reset()
    for f in (functional, in_place, on_views):
        for call in (f, torch.compile(f, backend=backend, fullgraph=True)):
            own, kept = x.clone(), residual.clone()
            got = call(own, kept, w)
            torch.testing.assert_close(got[:2], wanted)
            assert torch.equal(kept, residual)
            assert torch.equal(own, x) == (f is not in_place)
    torch._dynamo.reset()


# triton-lang/triton#10927, flagos-ai/FlagGems#4471, NVIDIA/cutlass#2905: layouts that no tensor map takes.
@pytest.mark.parametrize(
    "make",
    [
        lambda r: r(5, 511),
        lambda r: r(5, 513)[:, 1:],
        lambda r: r(64, 5).t(),
        lambda r: r(1, 5).t(),
        lambda r: r(8 * 5 + 1)[1:].view(5, 8),
        lambda r: r(5, 1),
        lambda r: r(1, 5, 64)[0],
        lambda r: r(64).expand(5, 64),
        lambda r: r(5, 128)[:, ::2],
        lambda r: r(10, 64)[::2],
        lambda r: r(200).as_strided((5, 64), (8, 1)),  # rows that overlap
        lambda r: r(200).as_strided((5, 64), (1, 1)),
    ],
)
@pytest.mark.parametrize("weight", ["k n", "n k", "unaligned"])
def test_b35_layouts_that_no_tensor_map_takes(device, make, weight):
    def r(*shape):
        return randn(*shape, device=device, dtype=BF16)

    a = make(r)
    k = a.shape[1]
    b = {
        "k n": lambda: r(2, k, 64),
        "n k": lambda: r(2, 64, k).transpose(1, 2),
        "unaligned": lambda: r(2, k, 65)[..., 1:],
    }
    b = b[weight]()
    for got, truth, magnitude in (
        (pyptx_ops.gemm(a, b[0]), a.double() @ b[0].double(), a.double().abs() @ b[0].double().abs()),
        (
            pyptx_ops.grouped_gemm(a, b, ends(2, 5, device=device)),
            torch.cat((a[:2].double() @ b[0].double(), a[2:].double() @ b[1].double())),
            torch.cat((a[:2].double().abs() @ b[0].double().abs(), a[2:].double().abs() @ b[1].double().abs())),
        ),
    ):
        assert_within(got, truth, product_bound(truth, magnitude, k, BF16))
