"""The experts function against a plain loop in fp64, over every flag of transformers' registry."""

from __future__ import annotations

import copy
import inspect
import itertools

import pytest
import torch
import torch._dynamo.testing
from torch import nn
from transformers import PreTrainedConfig
from transformers.integrations.moe import use_experts_implementation

import pyptx_ops
from pyptx_ops.integrations.transformers import experts_forward

EXPERTS, HIDDEN, INTERMEDIATE = 5, 48, 24
POST_NORM = "has_post_expert_norm" in inspect.signature(use_experts_implementation).parameters


def make_experts(*, act_fn=None, dtype=torch.float32, device="cpu", implementation="pyptx", **flags):
    """An experts module with the given flags; its own forward is the truth."""
    transposed, bias, gate = (flags.get(f, d) for f, d in (("is_transposed", 0), ("has_bias", 0), ("has_gate", 1)))
    concatenated = flags.get("is_concatenated", True)
    up, width = ("gate_up_proj", 2 * INTERMEDIATE) if gate else ("up_proj", INTERMEDIATE)

    @use_experts_implementation(**flags)
    class Experts(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.num_experts = EXPERTS
            self.act_fn = act_fn or nn.SiLU()
            for name, n, k in ((up, width, HIDDEN), ("down_proj", HIDDEN, INTERMEDIATE)):
                shape = (EXPERTS, k, n) if transposed else (EXPERTS, n, k)
                self.register_parameter(name, nn.Parameter(torch.randn(shape) / k**0.5))
                if bias:
                    self.register_parameter(f"{name}_bias", nn.Parameter(torch.randn(EXPERTS, n)))
            if flags.get("has_post_expert_norm"):
                self.post_expert_norm = nn.LayerNorm(HIDDEN)
                nn.init.normal_(self.post_expert_norm.bias)

        def linear(self, name, x, e):
            w = getattr(self, name)[e]
            return x @ (w if transposed else w.T) + (getattr(self, f"{name}_bias")[e] if bias else 0)

        def forward(self, hidden_states, top_k_index, top_k_weights):
            out = torch.zeros_like(hidden_states)
            for token, slot in itertools.product(*map(range, top_k_index.shape)):
                e = int(top_k_index[token, slot])
                if e >= self.num_experts:
                    continue
                x = self.linear(up, hidden_states[token], e)
                if gate:
                    g, u = x.chunk(2) if concatenated else (x[::2], x[1::2])
                    x = self.act_fn(g) * u
                else:
                    x = self.act_fn(x)
                x = self.linear("down_proj", x, e)
                if flags.get("has_post_expert_norm"):
                    x = self.post_expert_norm(x)
                out[token] += x * top_k_weights[token, slot]
            return out

    config = PreTrainedConfig()
    config._experts_implementation = implementation
    return Experts(config).to(device=device, dtype=dtype)


def truth(experts, hidden_states, top_k_index, top_k_weights):
    exact = copy.deepcopy(experts).double()
    exact.config._experts_implementation = "eager"
    return exact(hidden_states.double(), top_k_index, top_k_weights.double())


def inputs(tokens, top_k, dtype=torch.float32, device="cpu", ids=EXPERTS):
    x = torch.randn(tokens, HIDDEN, device=device).to(dtype)
    index = torch.rand(tokens, max(ids, top_k), device=device).argsort(1)[:, :top_k]
    return x, index, torch.rand(tokens, top_k, device=device).to(dtype)


def assert_rows_close(actual, expected):
    """Each row within its roundings, in the 2-norm.

    A rounding to the output dtype costs a relative error ≤ u. A row passes eight of them: into and out of two matmuls,
    their biases, the activation, the weighting and the sum. The matmuls' own fp32 sums cost ≤ K u32 each, twice for the
    two factors of the gate.
    """
    u = torch.finfo(actual.dtype).eps / 2
    bound = 8 * u + (2 * HIDDEN + INTERMEDIATE) * 2.0**-24
    error = (actual.double() - expected).norm(dim=-1)
    scale = expected.norm(dim=-1)
    assert torch.isfinite(actual).all()
    assert (error <= bound * scale).all(), f"worst row: {(error / scale).max():.3e}, bound {bound:.3e}"


FLAGS = [
    {"is_transposed": t, "is_concatenated": c, "has_bias": b, "has_gate": g}
    for t, c, b, g in itertools.product([False, True], [True, False], [False, True], [True, False])
    if g or c
]


@pytest.mark.parametrize("flags", FLAGS, ids=lambda f: "-".join(k for k, v in f.items() if v) or "plain")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_flags(flags, dtype, device):
    experts = make_experts(dtype=dtype, device=device, **flags)
    args = inputs(13, 2, dtype, device)
    wanted = truth(experts, *args)
    assert_rows_close(experts(*args), wanted)
    with torch.no_grad():
        assert_rows_close(experts(*args), wanted)


@pytest.mark.parametrize("flags", FLAGS, ids=lambda f: "-".join(k for k, v in f.items() if v) or "plain")
def test_the_gate_is_fused_where_nothing_is_copied_for_it(flags):
    experts, args = make_experts(dtype=torch.bfloat16, **flags), inputs(13, 2, torch.bfloat16)
    with pyptx_ops.simulate() as machine, torch.no_grad():
        assert_rows_close(experts(*args), truth(experts, *args))
    fused = [name for name in machine.launches if name.startswith("grouped_gemm_swiglu")]
    assert bool(fused) == (flags["has_gate"] and (flags["is_concatenated"] or not flags["is_transposed"]))


@pytest.mark.parametrize("act_fn", [nn.GELU(), nn.ReLU(), torch.nn.functional.silu, torch.tanh], ids=str)
@pytest.mark.parametrize("concatenated", [True, False])
def test_activations(act_fn, concatenated):
    experts = make_experts(act_fn=act_fn, is_concatenated=concatenated)
    args = inputs(11, 2)
    assert_rows_close(experts(*args), truth(experts, *args))


def test_own_gate():
    """A class with its own _apply_gate (here GPT-OSS's clamped one) keeps it."""
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    config = GptOssConfig(hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, num_local_experts=EXPERTS)
    experts = GptOssExperts(config)
    for parameter in experts.parameters():
        nn.init.normal_(parameter, std=0.3)
    config._experts_implementation = "pyptx"
    args = inputs(11, 2)
    assert_rows_close(experts(*args), truth(experts, *args))


@pytest.mark.skipif(not POST_NORM, reason="this transformers has no post-expert norm")
def test_post_expert_norm():
    """A norm with a bias turns zero rows into others: ids past the experts must still contribute nothing."""
    experts = make_experts(has_post_expert_norm=True)
    args = inputs(11, 2, ids=EXPERTS + 3)
    assert_rows_close(experts(*args), truth(experts, *args))


@pytest.mark.parametrize("tokens", [1, 2, 31, 32, 33, 127])
@pytest.mark.parametrize("top_k", [1, 3, EXPERTS])
def test_token_counts(tokens, top_k):
    experts = make_experts()
    args = inputs(tokens, top_k)
    assert_rows_close(experts(*args), truth(experts, *args))


def test_no_tokens(device):
    experts = make_experts(has_bias=True, device=device)
    x, index, weights = inputs(0, 2, device=device)
    out = experts(x.requires_grad_(), index, weights)
    assert out.shape == (0, HIDDEN)
    out.sum().backward()
    assert all((p.grad == 0).all() for p in experts.parameters())


def test_all_tokens_to_one_expert():
    experts = make_experts()
    x, index, weights = inputs(33, 1)
    args = x, torch.full_like(index, EXPERTS - 1), weights
    assert_rows_close(experts(*args), truth(experts, *args))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("act_fn", [None, nn.Sigmoid()], ids=["silu", "sigmoid"])  # sigmoid(0) is not 0
def test_sentinels(has_bias, act_fn, device):
    """Ids ≥ num_experts: served by another rank, so nothing here, forward and backward, whatever their weight."""
    experts = make_experts(has_bias=has_bias, act_fn=act_fn, has_gate=act_fn is None, device=device)
    x, index, weights = inputs(29, 2, device=device, ids=EXPERTS + 4)
    index[3] = EXPERTS  # a token with no expert here at all
    elsewhere = index >= EXPERTS
    x.requires_grad_()
    weights.requires_grad_()
    out, expected = experts(x, index, weights), truth(experts, x, index, weights)
    assert (out[3] == 0).all()
    served = ~elsewhere.all(dim=1)
    assert_rows_close(out[served], expected[served])
    out.square().sum().backward()
    assert (weights.grad[elsewhere] == 0).all()
    assert (x.grad[~served] == 0).all()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("flags", FLAGS, ids=lambda f: "-".join(k for k, v in f.items() if v) or "plain")
def test_gradients(flags):
    experts = make_experts(**flags)
    x, index, weights = inputs(19, 2)
    exact = copy.deepcopy(experts).double()
    exact.config._experts_implementation = "eager"
    dy = torch.randn(19, HIDDEN)
    leaves = []
    for module, dtype in ((experts, torch.float32), (exact, torch.float64)):
        inner = [t.to(dtype, copy=True).requires_grad_() for t in (x, weights)]
        module(inner[0], index, inner[1]).backward(dy.to(dtype))
        leaves.append([*inner, *module.parameters()])
    # Backward is a chain of twice as many products as forward; per tensor, as a weight's row may be nearly zero.
    bound = 2 * (8 + 2 * HIDDEN + INTERMEDIATE) * 2.0**-24
    for ours, exactly in zip(*leaves, strict=True):
        assert (ours.grad.double() - exactly.grad).norm() <= bound * exactly.grad.norm()


def test_index_dtype_and_weights_dtype():
    """Routers hand over int32 or int64 ids, and weights in fp32 beside bf16 states: the output keeps the states'."""
    experts = make_experts(dtype=torch.bfloat16)
    x, index, weights = inputs(9, 2, torch.bfloat16)
    out = experts(x, index.int(), weights.float())
    assert out.dtype == torch.bfloat16
    assert_rows_close(out, truth(experts, x, index, weights))


def test_states_wider_than_weights():
    """As in the library, fp32 states (of an fp32 norm) meet bf16 weights in bf16; the result is the states' dtype."""
    experts = make_experts(dtype=torch.bfloat16)
    x, index, weights = inputs(9, 2)
    out = experts(x, index, weights)
    assert out.dtype == torch.float32
    assert_rows_close(out.bfloat16(), truth(experts, x.bfloat16(), index, weights))


@pytest.mark.parametrize("flags", FLAGS, ids=lambda f: "-".join(k for k, v in f.items() if v) or "plain")
def test_autocast(flags, device):
    """fp32 weights under autocast: bf16 inside, as the library's own linears."""
    experts = make_experts(device=device, **flags)
    x, index, weights = inputs(13, 2, device=device)
    with torch.autocast(device.type, torch.bfloat16):
        out = experts(x, index, weights)
    assert out.dtype == torch.float32
    expected = truth(experts, x, index, weights)
    # Two roundings more than assert_rows_close counts: of the states and of the weights.
    error = (out.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert 2.0**-24 < error.max() <= 10 * 2.0**-9


def test_inputs_are_left_alone_and_result_repeats():
    experts = make_experts()
    args = inputs(23, 3)
    before = [t.clone() for t in args]
    first = experts(*args)
    assert all(torch.equal(t, b) for t, b in zip(args, before, strict=True))
    assert torch.equal(first, experts(*args))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_compile_once_for_all_token_counts(dtype):
    experts = make_experts(dtype=dtype)
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(experts, backend=counter, fullgraph=True, dynamic=True)
    for tokens in (7, 2, 64, 33, 128):
        args = inputs(tokens, 2, dtype)
        torch.testing.assert_close(compiled(*args), experts(*args), rtol=0, atol=0)
    assert counter.frame_count == 1


def test_export():
    experts = make_experts(has_bias=True)
    tokens = torch.export.Dim("tokens", min=1, max=4096)
    args = inputs(7, 2)
    program = torch.export.export(experts, args, dynamic_shapes=({0: tokens}, {0: tokens}, {0: tokens}))
    for count in (7, 33):
        args = inputs(count, 2)
        assert torch.equal(program.module()(*args), experts(*args))


def test_cuda_graph():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    experts = make_experts(dtype=torch.bfloat16, device="cuda")
    static = inputs(16, 2, torch.bfloat16, "cuda")
    with torch.no_grad():
        experts(*static)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = experts(*static)
        for ids in (EXPERTS, EXPERTS + 4):  # replay with other routes, and with some tokens served elsewhere
            fresh = inputs(16, 2, torch.bfloat16, "cuda", ids=ids)
            for old, new in zip(static, fresh, strict=True):
                old.copy_(new)
            graph.replay()
            assert torch.equal(out, experts(*fresh))


def test_registered_function():
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    assert ALL_EXPERTS_FUNCTIONS["pyptx"] is experts_forward
