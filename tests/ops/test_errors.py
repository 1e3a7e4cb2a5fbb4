"""Bad input is refused before anything is computed or written, naming the argument, what it is and what is taken."""

from __future__ import annotations

import inspect

import pytest
import torch

import pyptx_ops
from tests.ops.inputs import ends, randn

BF16 = torch.bfloat16


def good(op, device):
    def t(*shape):
        return randn(*shape, device=device, dtype=BF16)

    return {
        "gemm": lambda: {"a": t(6, 8), "b": t(8, 4), "bias": t(4)},
        "grouped_gemm": lambda: {"a": t(6, 8), "b": t(3, 8, 4), "offs": ends(1, 1, 5, device=device), "bias": t(3, 4)},
        "gemm_swiglu": lambda: {"a": t(6, 8), "w13": t(8, 4), "bias": t(4)},
        "grouped_gemm_swiglu": lambda: {
            "a": t(6, 8),
            "w13": t(3, 8, 4),
            "offs": ends(1, 1, 5, device=device),
            "bias": t(3, 4),
        },
        "rms_norm": lambda: {"x": t(6, 8), "weight": t(8)},
        "fused_add_rms_norm": lambda: {"x": t(6, 8), "residual": t(6, 8), "weight": t(8)},
        "fused_add_rms_norm_": lambda: {"x": t(6, 8), "residual": t(6, 8), "weight": t(8)},
        "silu_and_mul": lambda: {"x": t(6, 8)},
        "silu_and_mul_bwd": lambda: {"dy": t(6, 4), "x": t(6, 8)},
        "swiglu": lambda: {"gate": t(6, 8), "up": t(6, 8), "offs": ends(2, 5, device=device)},
        "swiglu_bwd": lambda: {"dy": t(6, 8), "gate": t(6, 8), "up": t(6, 8), "offs": ends(2, 5, device=device)},
    }[op]()


def other_shape(*shape):
    return lambda t: t.new_zeros(shape)


def to(dtype):
    return lambda t: t.to(dtype)


def elsewhere(t):
    return t.to("cpu" if t.is_cuda else "meta")


NORM = [
    ("x", to(torch.int32), TypeError, r"x has dtype torch\.int32, wanted .*bfloat16"),
    ("x", to(torch.complex64), TypeError, r"x has dtype torch\.complex64"),
    ("x", other_shape(), ValueError, r"x has shape \(\), wanted \(\.\.\., H\)"),
    ("x", other_shape(6, 0), ValueError, r"x has shape \(6, 0\), wanted .*H >= 1"),
    ("weight", other_shape(9), ValueError, r"weight has shape \(9,\), wanted \(H,\) with H = 8"),
    ("weight", other_shape(1, 8), ValueError, r"weight has shape \(1, 8\)"),
    ("weight", to(torch.int64), TypeError, r"weight has dtype torch\.int64"),
    ("weight", elsewhere, ValueError, r"weight is on \w+(:\d)?, wanted \w+"),
    ("eps", lambda _: -1e-6, ValueError, r"eps is -1e-06, wanted"),
    ("eps", lambda _: float("nan"), ValueError, r"eps is nan, wanted"),
]
ADD_NORM = [
    *NORM,
    ("residual", to(torch.float32), TypeError, r"residual has dtype torch\.float32, wanted torch\.bfloat16 like x"),
    ("residual", other_shape(5, 8), ValueError, r"residual has shape \(5, 8\), wanted \(6, 8\) like x"),
    ("residual", other_shape(8), ValueError, r"residual has shape \(8,\), wanted \(6, 8\) like x"),
    ("residual", elsewhere, ValueError, r"residual is on"),
]
PACKED = [
    ("x", to(torch.int32), TypeError, r"x has dtype torch\.int32"),
    ("x", other_shape(6, 7), ValueError, r"x has shape \(6, 7\), wanted \(\.\.\., 2 d\)"),
    ("x", other_shape(), ValueError, r"x has shape \(\)"),
]
PARTS = [
    ("gate", to(torch.uint8), TypeError, r"gate has dtype torch\.uint8"),
    ("gate", other_shape(), ValueError, r"gate has shape \(\), wanted \(\.\.\., d\)"),
    ("up", to(torch.float16), TypeError, r"up has dtype torch\.float16, wanted torch\.bfloat16 like gate"),
    ("up", other_shape(6, 4), ValueError, r"up has shape \(6, 4\), wanted \(6, 8\) like gate"),
    ("up", other_shape(6, 1), ValueError, r"up has shape \(6, 1\)"),
    ("up", elsewhere, ValueError, r"up is on"),
    ("offs", to(torch.int64), TypeError, r"offs has dtype torch\.int64, wanted torch\.int32"),
    ("offs", other_shape(0), ValueError, r"offs has shape \(0,\), wanted \(G,\) with G >= 1"),
    ("offs", other_shape(2, 1), ValueError, r"offs has shape \(2, 1\)"),
    ("offs", elsewhere, ValueError, r"offs is on"),
]
BAD = {
    "gemm": [
        ("a", to(torch.int8), TypeError, r"a has dtype torch\.int8, wanted .*bfloat16"),
        ("a", other_shape(), ValueError, r"a has shape \(\), wanted \(\.\.\., K\)"),
        ("b", to(torch.float16), TypeError, r"b has dtype torch\.float16, wanted torch\.bfloat16 like a"),
        ("b", other_shape(7, 4), ValueError, r"b has shape \(7, 4\), wanted \(K, N\) with K = 8"),
        ("b", other_shape(8), ValueError, r"b has shape \(8,\), wanted \(K, N\)"),
        ("b", other_shape(2, 8, 4), ValueError, r"b has shape \(2, 8, 4\), wanted \(K, N\)"),
        ("b", elsewhere, ValueError, r"b is on"),
        ("bias", to(torch.float32), TypeError, r"bias has dtype torch\.float32, wanted torch\.bfloat16"),
        ("bias", other_shape(5), ValueError, r"bias has shape \(5,\), wanted \(N,\) with N = 4"),
        ("bias", other_shape(1, 4), ValueError, r"bias has shape \(1, 4\)"),
        ("bias", elsewhere, ValueError, r"bias is on"),
        ("out_dtype", lambda _: torch.float16, TypeError, r"out_dtype is torch\.float16, wanted None, .*bfloat16"),
    ],
    "grouped_gemm": [
        ("a", to(torch.int32), TypeError, r"a has dtype torch\.int32"),
        ("a", other_shape(8), ValueError, r"a has shape \(8,\) and b \(3, 8, 4\); taken are .*\(G, M, K\)"),
        ("a", other_shape(2, 6, 8), ValueError, r"b has shape \(3, 8, 4\), wanted \(G, K, N\) with G = 2 as in a"),
        ("a", other_shape(3, 6, 8), ValueError, r"offs is given, wanted None with a \(G, M, K\)"),
        ("b", other_shape(8), ValueError, r"b \(8,\); taken are a \(M, K\) with b \(G, K, N\)"),
        ("b", other_shape(7, 4), ValueError, r"b has shape \(7, 4\), wanted \(K, N\) with K = 8 as in a"),
        ("b", to(torch.float32), TypeError, r"b has dtype torch\.float32, wanted torch\.bfloat16 like a"),
        ("b", other_shape(3, 4, 8), ValueError, r"b has shape \(3, 4, 8\), wanted \(G, K, N\) with K = 8"),
        ("b", elsewhere, ValueError, r"b is on"),
        ("offs", lambda _: None, ValueError, r"offs is None, wanted int32 \(G,\)"),
        ("offs", to(torch.int64), TypeError, r"offs has dtype torch\.int64, wanted torch\.int32"),
        ("offs", to(torch.float32), TypeError, r"offs has dtype torch\.float32"),
        ("offs", other_shape(4), ValueError, r"offs has shape \(4,\), wanted \(G,\) with G = 3"),
        ("offs", other_shape(0), ValueError, r"offs has shape \(0,\)"),
        ("offs", other_shape(1, 3), ValueError, r"offs has shape \(1, 3\)"),
        ("offs", elsewhere, ValueError, r"offs is on"),
        ("bias", other_shape(4), ValueError, r"bias has shape \(4,\), wanted \(G, N\) = \(3, 4\)"),
        ("bias", other_shape(3, 5), ValueError, r"bias has shape \(3, 5\)"),
        ("bias", to(torch.float32), TypeError, r"bias has dtype torch\.float32"),
        ("bias", elsewhere, ValueError, r"bias is on"),
        ("out_dtype", lambda _: torch.float64, TypeError, r"out_dtype is torch\.float64"),
    ],
    "gemm_swiglu": [
        ("a", to(torch.int8), TypeError, r"a has dtype torch\.int8, wanted .*bfloat16"),
        ("a", other_shape(), ValueError, r"a has shape \(\), wanted \(\.\.\., K\)"),
        ("w13", to(torch.float16), TypeError, r"w13 has dtype torch\.float16, wanted torch\.bfloat16 like a"),
        ("w13", other_shape(7, 4), ValueError, r"w13 has shape \(7, 4\), wanted \(K, 2 d\) with K = 8"),
        ("w13", other_shape(8, 5), ValueError, r"w13 has shape \(8, 5\), wanted \(K, 2 d\)"),
        ("w13", other_shape(2, 8, 4), ValueError, r"w13 has shape \(2, 8, 4\), wanted \(K, 2 d\)"),
        ("w13", elsewhere, ValueError, r"w13 is on"),
        ("bias", to(torch.float32), TypeError, r"bias has dtype torch\.float32, wanted torch\.bfloat16"),
        ("bias", other_shape(2), ValueError, r"bias has shape \(2,\), wanted \(2 d,\) with 2 d = 4"),
        ("bias", elsewhere, ValueError, r"bias is on"),
    ],
    "grouped_gemm_swiglu": [
        ("a", to(torch.int32), TypeError, r"a has dtype torch\.int32"),
        ("a", other_shape(2, 6, 8), ValueError, r"a has shape \(2, 6, 8\), wanted \(M, K\)"),
        ("w13", to(torch.float32), TypeError, r"w13 has dtype torch\.float32, wanted torch\.bfloat16 like a"),
        ("w13", other_shape(3, 4, 8), ValueError, r"w13 has shape \(3, 4, 8\), wanted \(G, K, 2 d\) with K = 8"),
        ("w13", other_shape(3, 8, 3), ValueError, r"w13 has shape \(3, 8, 3\)"),
        ("w13", other_shape(8, 4), ValueError, r"w13 has shape \(8, 4\)"),
        ("w13", elsewhere, ValueError, r"w13 is on"),
        ("offs", to(torch.int64), TypeError, r"offs has dtype torch\.int64, wanted torch\.int32"),
        ("offs", other_shape(4), ValueError, r"offs has shape \(4,\), wanted \(G,\) with G = 3"),
        ("offs", other_shape(0), ValueError, r"offs has shape \(0,\)"),
        ("offs", elsewhere, ValueError, r"offs is on"),
        ("bias", other_shape(4), ValueError, r"bias has shape \(4,\), wanted \(G, 2 d\) = \(3, 4\)"),
        ("bias", to(torch.float32), TypeError, r"bias has dtype torch\.float32"),
        ("bias", elsewhere, ValueError, r"bias is on"),
    ],
    "rms_norm": NORM,
    "fused_add_rms_norm": ADD_NORM,
    "fused_add_rms_norm_": ADD_NORM,
    "silu_and_mul": PACKED,
    "silu_and_mul_bwd": [
        *PACKED,
        ("dy", to(torch.float16), TypeError, r"dy has dtype torch\.float16, wanted torch\.bfloat16 like x"),
        ("dy", other_shape(6, 8), ValueError, r"dy has shape \(6, 8\), wanted \(6, 4\) like each half of x"),
        ("dy", other_shape(4), ValueError, r"dy has shape \(4,\), wanted \(6, 4\)"),
        ("dy", elsewhere, ValueError, r"dy is on"),
    ],
    "swiglu": PARTS,
    "swiglu_bwd": [
        *PARTS,
        ("dy", to(torch.float16), TypeError, r"dy has dtype torch\.float16, wanted torch\.bfloat16 like gate"),
        ("dy", other_shape(6, 4), ValueError, r"dy has shape \(6, 4\), wanted \(6, 8\) like gate"),
        ("dy", elsewhere, ValueError, r"dy is on"),
    ],
}


def refusals():
    """Each case in eager mode, with gradients where the op has them, and on fake tensors.

    Fake tensors of two devices are refused by torch itself.
    """
    for op, cases in BAD.items():
        for case in cases:
            for where in ("eager", "grad", "fake"):
                if not (where == "grad" and op.endswith("_")) and not (where == "fake" and elsewhere in case):
                    yield pytest.param(where, op, *case, id=f"{op}-{case[0]}-{where}")


@pytest.mark.parametrize("where, op, argument, spoil, error, message", [*refusals()])
def test_refused(device, where, op, argument, spoil, error, message):
    arguments = good(op, device)
    arguments[argument] = spoil(arguments.get(argument))
    kept = {name: t.clone() for name, t in arguments.items() if isinstance(t, torch.Tensor) and t.device.type == device}
    if where == "fake":
        with torch._subclasses.FakeTensorMode() as mode:
            arguments = {n: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
            with pytest.raises(error, match=f"^{op}: .*{message}"):
                called(op)(**arguments)
        return
    if where == "grad":
        for value in arguments.values():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                value.requires_grad_()
    with pytest.raises(error, match=f"^{op}: .*{message}"):
        called(op)(**arguments)
    for name, before in kept.items():
        assert torch.equal(arguments[name], before), name


def called(op):
    return getattr(pyptx_ops, op, None) or getattr(torch.ops.pyptx, op)


WRONG_KINDS = {
    "a": [None, [1.0]], "b": [None, 2.0], "bias": [1.0], "offs": [[3], (1, 2)], "out_dtype": ["f32", 16],
    "x": [None, 1.0], "weight": [1.0], "residual": [None, 0], "eps": ["small", None], "weight_offset": [None, "1"],
    "cast_before_weight": [None, 2], "interleaved": [None, "yes"], "gate": [None, [0.0]], "up": [None, 3],
    "w13": [None, 0.5],
}  # fmt: skip


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("op", [op for op in BAD if hasattr(pyptx_ops, op)])
def test_arguments_of_another_kind(device, op, grad):
    for name in inspect.signature(getattr(pyptx_ops, op)).parameters:
        for value in WRONG_KINDS[name]:
            arguments = good(op, device) | {name: value}
            if grad and not op.endswith("_"):
                for other in arguments.values():
                    if isinstance(other, torch.Tensor) and other.is_floating_point():
                        other.requires_grad_()
            with pytest.raises(TypeError, match=rf"^{op}: {name} is .*, wanted (a|an) "):
                getattr(pyptx_ops, op)(**arguments)


@pytest.mark.parametrize("op", [op for op in BAD if hasattr(pyptx_ops, op)])
def test_sparse_tensors(device, op):
    arguments = good(op, device)
    name = next(iter(arguments))
    with pytest.raises(TypeError, match=rf"^{op}: {name} has layout torch.sparse_coo, wanted torch.strided"):
        getattr(pyptx_ops, op)(**arguments | {name: arguments[name].to_sparse()})


@pytest.mark.parametrize("op", BAD)
def test_the_good_ones_are_taken(device, op):
    called(op)(**good(op, device))


@pytest.mark.parametrize("op", ["grouped_gemm", "grouped_gemm_swiglu", "swiglu", "swiglu_bwd"])
@pytest.mark.parametrize(
    "offs, message",
    [
        ((-1, 2, 5), r"offs is negative: offs\[0\] = -1"),
        ((1, -3, 5), r"offs is negative: offs\[1\] = -3"),
        ((4, 2, 5), r"offs is decreasing: offs\[1\] = 2 < 4"),
        ((1, 2, 7), r"offs\[-1\] is 7, wanted at most 6"),
    ],
)
def test_values_of_offs_on_a_cpu(op, offs, message):
    arguments = good(op, "cpu") | {"offs": ends(*offs, device="cpu")}
    with pytest.raises(ValueError, match=f"^{op}: {message}"):
        called(op)(**arguments)


@pytest.mark.parametrize("op", ["rms_norm", "fused_add_rms_norm", "fused_add_rms_norm_"])
def test_an_offset_needs_a_weight(device, op):
    arguments = good(op, device) | {"weight": None, "weight_offset": 1.0}
    with pytest.raises(ValueError, match=r"weight_offset is 1\.0, wanted 0"):
        getattr(pyptx_ops, op)(**arguments)


def test_offs_of_swiglu_needs_rows(device):
    gate = randn(2, 3, 4, device=device)
    with pytest.raises(ValueError, match=r"gate has shape \(2, 3, 4\), wanted \(rows, d\) where offs is given"):
        pyptx_ops.swiglu(gate, gate, ends(2, device=device))
