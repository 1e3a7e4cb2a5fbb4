"""The ops as torch sees them: opcheck, compile, export, transforms, modes, meta tensors."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import pyptx_ops
from tests.ops.inputs import assert_contiguous, ends, randn, relaid

OPS = torch.ops.pyptx
# Parts of torch use parts of torch that are deprecated.
torch_uses_jit = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
inductor = pytest.param("inductor", marks=torch_uses_jit)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["reference", "kernels"])
def dtype(request, device):
    """fp32, for which there are no kernels, and bf16, which runs them: on a GPU, or simulated."""
    simulated = device == "cpu" and request.param is torch.bfloat16
    with pyptx_ops.simulate() if simulated else contextlib.nullcontext():
        yield request.param


def samples(device, dtype=torch.float32):
    """Awkward arguments per op: odd sizes, sizes of 0, strided views, with and without gradients."""

    def t(*shape, layout="contiguous", grad=True, dtype=dtype):
        return relaid(randn(*shape, device=device, dtype=dtype), layout).detach().requires_grad_(grad)

    offs = ends(2, 2, 6, device=device)
    return {
        "gemm": [
            (t(7, 5), t(5, 3), t(3)),
            (t(2, 3, 5, layout="every second"), t(5, 3, layout="transposed")),
            (t(0, 5, grad=False), t(5, 3, layout="unaligned", grad=False)),
            (t(4, 0), t(0, 3), t(3)),
        ],
        "grouped_gemm": [
            (t(7, 5), t(3, 5, 4), offs, t(3, 4)),
            (t(7, 5, layout="transposed"), t(3, 5, 4, layout="transposed"), offs),
            (t(0, 5), t(3, 5, 4), ends(0, 0, 0, device=device)),
            (t(7, 5, grad=False, layout="unaligned"), t(3, 5, 0, grad=False), offs),
            (t(5, 7, layout="transposed"), t(7, 3), offs, t(3, 3)),
            (t(5, 7), t(7, 3, layout="every second"), offs),
            (t(5, 0), t(0, 3), ends(0, 0, device=device), t(2, 3)),
            (t(3, 5, 4), t(4, 7, layout="transposed"), offs, t(3, 5)),
            (t(3, 5, 4, layout="transposed"), t(4, 0), ends(0, 0, 0, device=device)),
            (t(3, 5, 4), t(3, 4, 6, layout="transposed"), None, t(3, 6)),
            (t(2, 0, 4), t(2, 4, 6)),
        ],
        "gemm_swiglu": [
            (t(7, 5), t(5, 6), t(6)),
            (t(2, 3, 5, layout="every second"), t(5, 6, layout="transposed"), None, True),
            (t(7, 8, grad=False), t(8, 16, layout="transposed", grad=False), t(16, grad=False), True),
            (t(4, 0, grad=False), t(0, 6, grad=False), t(6, grad=False)),
            (t(0, 5, grad=False), t(5, 0, grad=False)),
        ],
        "grouped_gemm_swiglu": [
            (t(7, 5), t(3, 5, 8), offs, t(3, 8)),
            (t(7, 5, grad=False), t(3, 5, 8, layout="transposed", grad=False), offs, None, True),
            (t(0, 5, grad=False), t(3, 5, 8, grad=False), ends(0, 0, 0, device=device)),
        ],
        "rms_norm": [
            (t(3, 5), t(5), 1e-6),
            (t(2, 3, 7, layout="transposed"), None, 1e-6, 0.0, False),
            (t(0, 5), t(5), 1e-6, 1.0, False),
            (t(3, 5, grad=False, layout="every second"), t(5, grad=False), 1e-6),
        ],
        "fused_add_rms_norm": [
            (t(3, 5), t(3, 5, layout="transposed"), t(5), 1e-6),
            (t(0, 5), t(0, 5), None, 1e-6),
            (t(1, 5, grad=False), t(1, 5), t(5), 1e-6, 1.0, False),
        ],
        "fused_add_rms_norm_": [
            (t(3, 5, grad=False), t(3, 5, grad=False, layout="transposed"), t(5, grad=False), 1e-6),
            (t(0, 5, grad=False), t(0, 5, grad=False), None, 1e-6),
        ],
        "silu_and_mul": [(t(3, 6),), (t(2, 3, 6, layout="transposed"), True), (t(0, 6),), (t(3, 0),)],
        "swiglu": [
            (t(7, 5, layout="every second"), t(7, 5, layout="transposed")),
            (t(7, 5), t(7, 5), offs),
            (t(0, 5), t(0, 5), ends(0, 0, device=device)),
        ],
        "silu_and_mul_bwd": [
            (t(3, 3), t(3, 6)),
            (t(2, 3, 3, layout="every second"), t(2, 3, 6, layout="transposed"), True),
            (t(3, 0), t(3, 0)),
        ],
        "swiglu_bwd": [
            (t(7, 5, layout="transposed"), t(7, 5, layout="every second"), t(7, 5)),
            (t(7, 5), t(7, 5), t(7, 5), offs),
            (t(0, 5), t(0, 5), t(0, 5), ends(0, 0, device=device)),
        ],
    }


SAMPLES = [(name, i) for name, cases in samples("cpu").items() for i in range(len(cases))]


# It looks at what lies between the two ops that a recorded call of a product with its gate is.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("name, i", SAMPLES)
def test_opcheck(device, dtype, name, i):
    torch.library.opcheck(getattr(OPS, name).default, samples(device, dtype)[name][i])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", samples("cpu"))
def test_fake_strides_and_dtypes(device, name, dtype):
    for case in samples(device)[name]:
        args = [a.detach().to(dtype) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in case]
        got = getattr(OPS, name)(*args)
        meta = getattr(OPS, name)(*(a.to("meta") if isinstance(a, torch.Tensor) else a for a in args))
        as_tuple = lambda r: r if isinstance(r, tuple) else () if r is None else (r,)  # noqa: E731
        for real, fake in zip(as_tuple(got), as_tuple(meta), strict=True):
            assert (real.shape, real.stride(), real.dtype) == (fake.shape, fake.stride(), fake.dtype)
            assert_contiguous(real)
            inputs = [a for a in args if isinstance(a, torch.Tensor) and a.numel()]
            storages = {a.untyped_storage().data_ptr() for a in inputs}
            assert real.numel() == 0 or real.untyped_storage().data_ptr() not in storages


def block(x, residual, norm, w13, w2, offs, out):
    """Every functional op once, as an MoE block uses them."""
    y, residual = pyptx_ops.fused_add_rms_norm(x, residual, norm)
    hidden = pyptx_ops.silu_and_mul(pyptx_ops.grouped_gemm(y, w13, offs))
    y = pyptx_ops.grouped_gemm(hidden, w2.transpose(1, 2), offs)
    hidden = pyptx_ops.grouped_gemm_swiglu(y, w13, offs, interleaved=True)
    y = pyptx_ops.grouped_gemm(hidden, w2.transpose(1, 2), offs)
    y = pyptx_ops.gemm(pyptx_ops.gemm_swiglu(y, w13[0]), w2[0].t())
    y = pyptx_ops.gemm(pyptx_ops.rms_norm(y + residual, norm), out)
    return pyptx_ops.swiglu(y, residual, offs)


def block_inputs(tokens, device, grad=False, dtype=torch.float32):
    def t(*shape):
        return randn(*shape, device=device, dtype=dtype, grad=grad, scale=0.5)

    a, b = tokens // 3, tokens - tokens // 4
    weights = t(16), t(3, 16, 48), t(3, 16, 24), ends(a, a, b, device=device), t(16, 16)
    return t(tokens, 16), t(tokens, 16), *weights


@pytest.mark.parametrize(
    "backend, grad", [("aot_eager", False), ("aot_eager", True), pytest.param("inductor", True, marks=torch_uses_jit)]
)
def test_compiled_equals_eager(device, dtype, backend, grad):
    inputs = block_inputs(13, device, grad, dtype)
    wanted = block(*inputs)
    compiled = torch.compile(block, backend=backend, fullgraph=True)
    got = compiled(*inputs)
    torch.testing.assert_close(got, wanted)
    if grad:
        leaves = [t for t in inputs if t.requires_grad]
        dy = randn(13, 16, device=device, dtype=dtype)
        grads = (torch.autograd.grad(result, leaves, dy) for result in (got, wanted))
        for one, other in zip(*grads, strict=True):
            # A compiler may add up in fp32 what eager mode rounds to bf16 each time.
            rounding = 2 * torch.finfo(dtype).eps * other.abs().max().item()
            torch.testing.assert_close(one, other, rtol=1.3e-6, atol=rounding)


@pytest.mark.parametrize("grad", [False, True])
def test_one_graph_for_fifty_token_counts(device, dtype, grad):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(block, backend=counter, fullgraph=True, dynamic=True)
    compiled(*block_inputs(17, device, grad, dtype))
    compilations = counter.frame_count  # of one graph: torch starts again when it meets a float argument
    for tokens in range(18, 68):
        inputs = block_inputs(tokens, device, grad, dtype)
        got = compiled(*inputs)
        if tokens % 10 == 0:
            torch.testing.assert_close(got, block(*inputs))
        if grad:
            got.sum().backward()
    assert counter.frame_count == compilations
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_export_with_any_number_of_tokens(device, dtype):
    class Block(torch.nn.Module):
        def forward(self, x, residual, norm, w13, w2, offs, out):
            return block(x, residual, norm, w13, w2, offs, out)

    tokens = torch.export.Dim("tokens", min=2, max=4096)
    dynamic = ({0: tokens}, {0: tokens}, *[None] * 5)
    program = torch.export.export(Block(), block_inputs(13, device, dtype=dtype), dynamic_shapes=dynamic)
    names = {str(node.target) for node in program.graph.nodes if "pyptx" in str(node.target)}
    others = {name for name in samples(device) if name.endswith("_bwd")} | {"fused_add_rms_norm_"}
    assert names == {f"pyptx.{name}.default" for name in samples(device).keys() - others}
    for count in (2, 13, 300):
        inputs = block_inputs(count, device, dtype=dtype)
        torch.testing.assert_close(program.module()(*inputs), block(*inputs))


@torch_uses_jit
def test_any_layout_in_one_compiled_graph(device, dtype):
    """Kernels see the strides that they were promised, at token counts on, under and past tile edges."""

    def f(x, w, b, offs):
        y = pyptx_ops.gemm(x.t(), w)
        return (
            pyptx_ops.grouped_gemm(y, b, offs),
            pyptx_ops.rms_norm(y.t().contiguous().t()),
            pyptx_ops.swiglu(y, y + 1),
        )

    compiled = torch.compile(f, fullgraph=True, dynamic=True)
    for tokens in (128, 196, 257):
        x, w, b = (randn(*shape, device=device, dtype=dtype) for shape in ((24, tokens), (24, 16), (3, 16, 8)))
        args = x, w, b, ends(0, tokens // 3, tokens, device=device)
        torch.testing.assert_close(compiled(*args), f(*args))


def test_unknown_token_count(device):
    """Counts that only the run tells, one per tensor: fakes assert that they agree and do not branch."""

    def f(masks, tensors, norm):
        x, residual, gate, up = (t[mask.nonzero().squeeze(1)] for t, mask in zip(tensors, masks, strict=True))
        y, _ = pyptx_ops.fused_add_rms_norm(x, residual, norm)
        return pyptx_ops.rms_norm(y, norm), pyptx_ops.swiglu(gate, up), pyptx_ops.silu_and_mul(gate)

    masks = [torch.tensor([i != skipped for i in range(4)], device=device) for skipped in range(4)]
    tensors = [randn(4, 6, device=device, dtype=torch.float32) for _ in range(4)]
    norm = randn(6, device=device, dtype=torch.float32)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        got = torch.compile(f, backend="aot_eager", fullgraph=True)(masks, tensors, norm)
    torch.testing.assert_close(got, f(masks, tensors, norm))


@pytest.mark.parametrize("backend", ["aot_eager", inductor])
def test_in_place_compiled(device, dtype, backend):
    def f(x, residual, norm):
        pyptx_ops.fused_add_rms_norm_(x, residual, norm)
        return x * 2 + residual

    def inputs():
        torch.manual_seed(0)
        x, residual = randn(5, 6, device=device, dtype=dtype), randn(6, 5, device=device, dtype=dtype).t()
        return x, residual, torch.ones(6, device=device)

    eager, compiled = inputs(), inputs()
    torch.testing.assert_close(torch.compile(f, backend=backend, fullgraph=True)(*compiled), f(*eager))
    torch.testing.assert_close(compiled, eager)


def test_compiled_under_autocast(device):
    def f(x, w, b, offs):
        gated = pyptx_ops.gemm_swiglu(x, w), pyptx_ops.grouped_gemm_swiglu(x, b, offs)
        return pyptx_ops.gemm(x, w), pyptx_ops.grouped_gemm(x, b, offs), *gated

    inputs = block_inputs(13, device)
    args = inputs[0], inputs[6].bfloat16(), inputs[3], inputs[5]
    with torch.autocast(device, dtype=torch.bfloat16):
        got = torch.compile(f, backend="aot_eager", fullgraph=True)(*args)
        wanted = f(*args)
    assert {result.dtype for result in got} == {torch.bfloat16}
    torch.testing.assert_close(got, wanted)


def test_func_transforms(device):
    x, w = randn(4, 6, device=device), randn(6, device=device)
    matrix = randn(6, 6, device=device)

    def loss(x):
        return pyptx_ops.gemm(pyptx_ops.rms_norm(x, w), matrix).sin().sum()

    leaf = x.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(x), wanted)
    value, pullback = torch.func.vjp(lambda x: pyptx_ops.swiglu(x, x), x)
    torch.testing.assert_close(value, pyptx_ops.swiglu(x, x))
    (wanted,) = torch.autograd.grad(pyptx_ops.swiglu(leaf, leaf), leaf, x)
    torch.testing.assert_close(pullback(x)[0], wanted)
    direction = randn(4, 6, device=device)
    curvature = torch.func.grad(lambda x: (torch.func.grad(loss)(x) * direction).sum())(x)
    torch.testing.assert_close(curvature, torch.autograd.functional.vhp(loss, x, direction)[1])
    functional = torch.func.functionalize(lambda x: pyptx_ops.rms_norm(x, w))(x)
    assert torch.equal(functional, pyptx_ops.rms_norm(x, w))


@torch_uses_jit
@pytest.mark.parametrize("grad", [False, True])
def test_forward_mode_is_refused_and_not_dropped(device, grad):
    x, tangent = randn(4, 6, device=device, grad=grad), randn(4, 6, device=device)
    with pytest.raises(NotImplementedError, match="jvp"), torch.autograd.forward_ad.dual_level():
        pyptx_ops.rms_norm(torch.autograd.forward_ad.make_dual(x, tangent))
    with pytest.raises((NotImplementedError, RuntimeError), match="jvp|forward"):
        torch.func.jvp(pyptx_ops.rms_norm, (x.detach(),), (tangent,))
    with torch.autograd.forward_ad.dual_level():
        assert torch.equal(pyptx_ops.rms_norm(x), pyptx_ops.rms_norm(x.detach()))


def test_vmap(device):
    x, w = randn(3, 4, 6, device=device), randn(6, device=device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        got = torch.vmap(lambda x: pyptx_ops.rms_norm(x, w))(x)
        per_sample = torch.vmap(torch.func.grad(lambda x: pyptx_ops.rms_norm(x, w).sin().sum()))(x)
    torch.testing.assert_close(got, pyptx_ops.rms_norm(x, w))
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(per_sample, torch.autograd.grad(pyptx_ops.rms_norm(leaf, w).sin().sum(), leaf)[0])


def test_inference_mode(device):
    normal = randn(4, 6, device=device, grad=True)
    with torch.inference_mode():
        got = pyptx_ops.rms_norm(normal)
        again = pyptx_ops.rms_norm(got)
    assert got.is_inference() and again.is_inference() and not got.requires_grad


def test_no_grad(device):
    x = randn(4, 6, device=device, grad=True)
    with torch.no_grad():
        assert not pyptx_ops.rms_norm(x).requires_grad
    assert pyptx_ops.rms_norm(x).requires_grad
    assert not pyptx_ops.rms_norm(x.detach()).requires_grad


def test_modes_and_subclasses_see_the_op(device):
    seen = []

    class Tensor(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            seen.append(function)
            return super().__torch_function__(function, types, args, kwargs)

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    x = randn(4, 6, device=device)
    wanted = pyptx_ops.rms_norm(x)
    assert torch.equal(pyptx_ops.rms_norm(x.as_subclass(Tensor)).as_subclass(torch.Tensor), wanted)
    assert OPS.rms_norm.default in seen
    for grad in (False, True):
        seen.clear()
        with Watch():
            got = pyptx_ops.rms_norm(x.requires_grad_(grad))
        assert torch.equal(got, wanted) and seen[0] is OPS.rms_norm.default and got.requires_grad is grad


def test_activation_checkpointing(device):
    x, w = randn(4, 6, device=device, grad=True), randn(6, device=device, grad=True)

    def f(x):
        return pyptx_ops.swiglu(pyptx_ops.rms_norm(x, w), x)

    wanted = torch.autograd.grad(f(x).sum(), (x, w))
    got = torch.autograd.grad(torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False).sum(), (x, w))
    torch.testing.assert_close(got, wanted)


def test_deterministic_algorithms(device):
    dtype = torch.bfloat16 if device == "cuda" else torch.float32  # fp32 there goes to cuBLAS, which wants a setting
    inputs = block_inputs(40, device, grad=True, dtype=dtype)
    leaves = [t for t in inputs if t.requires_grad]
    torch.use_deterministic_algorithms(True)
    try:
        first = torch.autograd.grad(block(*inputs).sum(), leaves)
        second = torch.autograd.grad(block(*inputs).sum(), leaves)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
