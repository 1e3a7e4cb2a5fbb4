"""``patch`` and ``unpatch`` on whole models."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import pyptx_ops
from pyptx_ops.integrations.routing import pinned_routes, recorded_routes

EXPECTED = {  # op -> modules, for the models of conftest
    "MixtralForCausalLM": {"experts": 2, "rms_norm": 5},
    "Qwen3MoeForCausalLM": {"experts": 1, "rms_norm": 9, "swiglu": 1},
    "DeepseekV3ForCausalLM": {"experts": 1, "rms_norm": 9, "swiglu": 2},
}


def logits(model, ids):
    with torch.no_grad():
        return model(ids, use_cache=False).logits


def fingerprint(model):
    """All that a patch might leave behind."""
    modules = {
        name: (type(m), type(m).forward, sorted(m.__dict__), m.__dict__.get("forward"))
        for name, m in model.named_modules()
    }
    tensors = {name: t.data_ptr() for name, t in model.state_dict().items()}
    return modules, tensors, [id(p) for p in model.parameters()], copy.deepcopy(model.config.__dict__)


def counts(entries):
    ops = [entry.op for entry in entries]
    return {op: ops.count(op) for op in sorted(set(ops))}


def test_report_is_complete(build):
    model = build()
    classes = {name: type(module).__name__ for name, module in model.named_modules()}
    report = pyptx_ops.patch(model)
    assert counts(report.replaced) == EXPECTED[type(model).__name__]
    assert report.skipped == report.already == ()
    for entry in report.replaced:
        assert entry.module == classes[entry.name] and not entry.reason
    text = str(report)
    assert f"replaced: {len(report.replaced)}" in text and "skipped: 0" in text and "model.layers.*." in text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["f32", "bf16", "f16"])
def test_logits(build, dtype, device, ids):
    """Ours is as close to an fp64 run of the same weights as the library's own path, token by token.

    Both round equally often or ours less, so their errors have one size; what is compared are the largest among 34
    tokens, each a norm over 64 hidden units' roundings, so a factor of 2 leaves room for chance. The routes are
    pinned to those of the fp64 run.
    """
    model = build().to(device=device, dtype=dtype).eval()
    exact = copy.deepcopy(model).double()
    exact.set_experts_implementation("eager")
    with recorded_routes(exact) as routes:
        expected = logits(exact, ids)

    def worst_error():
        with pinned_routes(model, routes):
            out = logits(model, ids)
        assert out.dtype == dtype
        return ((out.double() - expected).norm(dim=-1) / expected.norm(dim=-1)).max()

    theirs = worst_error()
    pyptx_ops.patch(model)
    ours = worst_error()
    assert ours <= 2 * theirs, f"ours {ours:.3e}, the library's {theirs:.3e}"
    assert ours <= 64 * torch.finfo(dtype).eps  # and theirs is no excuse


def test_free_routes_agree_in_fp32(build, ids):
    """With its own routing in fp32, no score of these models ties: the same experts, the same logits."""
    model = build().to(ids.device).eval()
    theirs = logits(model, ids)
    pyptx_ops.patch(model)
    torch.testing.assert_close(logits(model, ids), theirs, rtol=0, atol=64 * 2.0**-24 * theirs.abs().max().item())


def test_round_trip(build, ids):
    model = build().to(ids.device).eval()
    before, theirs = fingerprint(model), logits(model, ids)
    report = pyptx_ops.patch(model)
    assert model.config._experts_implementation == "pyptx"
    assert list(before[1].items()) == [(name, t.data_ptr()) for name, t in model.state_dict().items()]
    restored = pyptx_ops.unpatch(model)
    assert fingerprint(model) == before
    assert {e.name for e in restored.replaced} == {e.name for e in report.replaced}
    assert torch.equal(logits(model, ids), theirs)
    assert pyptx_ops.unpatch(model).replaced == ()
    assert fingerprint(model) == before


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
def test_unpatch_restores_the_implementation(mixtral, implementation):
    model = mixtral()
    model.set_experts_implementation(implementation)
    pyptx_ops.patch(model)
    assert model.config._experts_implementation == "pyptx"
    pyptx_ops.unpatch(model)
    assert model.config._experts_implementation == implementation


def test_unpatch_respects_a_later_choice(mixtral):
    model = mixtral()
    pyptx_ops.patch(model)
    model.set_experts_implementation("eager")
    pyptx_ops.unpatch(model)
    assert model.config._experts_implementation == "eager"


def test_idempotent(build, ids):
    model = build().to(ids.device).eval()
    first = pyptx_ops.patch(model)
    once, ours = fingerprint(model), logits(model, ids)
    second = pyptx_ops.patch(model)
    assert second.already == first.replaced and second.replaced == second.skipped == ()
    assert fingerprint(model) == once
    assert torch.equal(logits(model, ids), ours)
    pyptx_ops.unpatch(model)
    assert model.config._experts_implementation != "pyptx"


@pytest.mark.parametrize("op", ["experts", "rms_norm", "swiglu"])
def test_selection(qwen3_moe, op):
    model = qwen3_moe()
    report = pyptx_ops.patch(model, **{op: False})
    assert op not in counts(report.replaced)
    assert {e.reason for e in report.skipped} == {f"not asked for ({op}=False)"}
    assert counts(report.skipped)[op] == EXPECTED["Qwen3MoeForCausalLM"][op]


def test_submodule_and_single_modules(qwen3_moe):
    model = qwen3_moe()
    assert counts(pyptx_ops.patch(model.model.layers[0]).replaced) == {"rms_norm": 4, "swiglu": 1}
    norm = model.model.norm
    assert str(pyptx_ops.patch(norm).replaced[0]).endswith("(root)")
    x = torch.randn(3, 64)
    ours = norm(x)
    pyptx_ops.unpatch(norm)
    torch.testing.assert_close(ours, norm(x), rtol=2e-6, atol=0)


# --- what is not proven to be the same stays as it is ---


FORMULA = """
import {module} as torch

def forward(self, hidden_states{parameter}):
    {name} = hidden_states.dtype
    hidden_states = hidden_states.to(torch.float32)
    square = hidden_states.pow({power}).mean(-1, keepdim=True)
    hidden_states = hidden_states * torch.rsqrt(square {sign} self.variance_epsilon)
    return {weight} * hidden_states.to({name})
"""
AS_IN_LIBRARY = {"parameter": "", "name": "dtype", "power": 2, "sign": "+", "weight": "self.weight", "module": "torch"}


def norm(**changes):
    """An RMSNorm under another name, with the library's formula but for the changes."""
    namespace = {}
    exec(FORMULA.format(**AS_IN_LIBRARY | changes), namespace)

    def init(self):
        nn.Module.__init__(self)
        self.weight = nn.Parameter(torch.ones(64))
        self.variance_epsilon = 1e-6

    return type("OtherRMSNorm", (nn.Module,), {"__init__": init, "forward": namespace["forward"]})()


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"name": "anything"}, True),
        ({"power": 4}, False),
        ({"sign": "-"}, False),
        ({"weight": "(1 + self.weight)"}, False),
        ({"weight": "self.scale"}, False),
        ({"parameter": ", residual=None"}, False),
        ({"module": "math"}, False),
    ],
    ids=str,
)
def test_only_the_same_formula(changes, same):
    report = pyptx_ops.patch(nn.Sequential(norm(**changes)))
    assert counts(report.replaced) == ({"rms_norm": 1} if same else {})
    assert len(report.skipped) == (not same)


def reason(report, name):
    (entry,) = [e for e in report.skipped if e.name == name]
    return entry.reason


@pytest.mark.parametrize(
    ("spoil", "name", "says"),
    [
        (
            lambda m: setattr(m.model, "norm", norm(weight="(1 + self.weight)")),
            "model.norm",
            "not the one that rms_norm computes",
        ),
        (lambda m: m.model.norm.double(), "model.norm", "weight is torch.float64"),
        (lambda m: setattr(m.model.norm, "variance_epsilon", torch.tensor(1e-6)), "model.norm", "takes a float"),
        (lambda m: setattr(m.model.norm, "forward", lambda x: x), "model.norm", "overridden on the instance"),
        (lambda m: setattr(m.model.layers[0].mlp, "act_fn", nn.GELU()), "model.layers.0.mlp", "activation is GELU"),
        (lambda m: m.model.layers[0].mlp.act_fn.register_forward_hook(print), "model.layers.0.mlp", "hooks"),
        (lambda m: m.model.layers[1].mlp.experts.double(), "model.layers.1.mlp.experts", "is torch.float64"),
    ],
    ids=["formula", "dtype", "epsilon", "instance", "activation", "hooks", "experts dtype"],
)
def test_skipped_and_why(qwen3_moe, spoil, name, says):
    model = qwen3_moe()
    spoil(model)
    kinds = {n: type(m) for n, m in model.named_modules()}
    report = pyptx_ops.patch(model)
    assert says in reason(report, name)
    assert len(report.skipped) == 1 and len(report.replaced) == 10
    assert says in str(report)
    assert type(dict(model.named_modules())[name]) is kinds[name]


def test_one_config_for_all_experts(mixtral):
    """The experts follow their config, so one that cannot be replaced keeps all of them."""
    model = mixtral()
    model.model.layers[0].mlp.experts.double()
    report = pyptx_ops.patch(model)
    assert model.config._experts_implementation != "pyptx"
    assert "float64" in reason(report, "model.layers.0.mlp.experts")
    assert "model.layers.0.mlp.experts" in reason(report, "model.layers.1.mlp.experts")


def test_undecorated_experts():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_up_proj = nn.Parameter(torch.zeros(2, 4, 4))
            self.down_proj = nn.Parameter(torch.zeros(2, 4, 2))

        def forward(self, x):
            return x

    assert "not dispatched" in reason(pyptx_ops.patch(Experts()), "")


def test_activation_other_than_silu_in_experts(qwen3_moe, ids):
    """The experts function takes any activation; the dense MLP's op is silu only."""
    model = qwen3_moe(hidden_act="gelu").to(ids.device).eval()
    theirs = logits(model, ids)
    assert counts(pyptx_ops.patch(model).skipped) == {"swiglu": 1}
    torch.testing.assert_close(logits(model, ids), theirs, rtol=0, atol=64 * 2.0**-24 * theirs.abs().max().item())


def test_norm_with_a_weight_of_another_dtype(mixtral):
    """The library's product of a bf16 state and an fp32 weight is fp32: the replacement leaves that to it."""
    norm = mixtral().model.norm
    x = torch.randn(5, 64).bfloat16()
    theirs = norm(x)
    pyptx_ops.patch(norm)
    ours = norm(x)
    assert ours.dtype == torch.float32 and torch.equal(ours, theirs)


@pytest.mark.parametrize("function", [pyptx_ops.patch, pyptx_ops.unpatch])
def test_no_module(function):
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module, got dict"):
        function({})


# --- what must keep working on a patched model ---


def test_compile_fullgraph(build, ids):
    model = build().to(ids.device).eval()
    pyptx_ops.patch(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    eager = logits(model, ids)
    # On CUDA the library's own attention is computed in another order when compiled, patched or not.
    rounding = 64 * 2.0**-24 * eager.abs().max().item() if ids.is_cuda else 0.0
    torch.testing.assert_close(logits(compiled, ids), eager, rtol=0, atol=rounding)


def test_gradients(build, ids):
    """One training step: each parameter's gradient as close to fp64's as the library's own."""
    model = build().to(ids.device)
    exact = copy.deepcopy(model).double()
    exact.set_experts_implementation("eager")
    grads = []
    for prepare, subject in ((None, exact), (None, model), (pyptx_ops.patch, model)):
        if prepare:
            prepare(subject)
        subject.zero_grad()
        subject(ids, labels=ids, use_cache=False).loss.backward()
        grads.append({n: p.grad.double() for n, p in subject.named_parameters() if p.grad is not None})
    expected, theirs, ours = grads
    assert ours.keys() == theirs.keys()
    whole = max(g.norm() for g in expected.values())
    for name, g in expected.items():
        # Twice the library's error, and below that the rounding of terms that cancel: 64 units of the largest gradient.
        bound = 2 * (theirs[name] - g).norm() + 64 * 2.0**-24 * whole
        assert (ours[name] - g).norm() <= bound, name


def test_gradient_checkpointing(build, ids):
    model = build().to(ids.device).train()
    pyptx_ops.patch(model)
    grads = []
    for checkpointing in (False, True):
        if checkpointing:
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable()
        model.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()
        grads.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    plain, checkpointed = grads
    assert plain.keys() == checkpointed.keys()
    assert all(torch.equal(plain[name], checkpointed[name]) for name in plain)


def test_autocast(build, ids):
    """fp32 parameters under autocast: no further from fp64 than twice the library's own."""
    model = build().to(ids.device).eval()
    exact = copy.deepcopy(model).double()
    exact.set_experts_implementation("eager")
    with recorded_routes(exact) as routes:
        expected = logits(exact, ids)
    errors = []
    model.set_experts_implementation("eager")  # the library's grouped_mm knows nothing of autocast
    for prepare in (lambda m: None, pyptx_ops.patch):
        prepare(model)
        with torch.autocast(ids.device.type, torch.bfloat16), pinned_routes(model, routes):
            out = logits(model, ids)
        errors.append(((out.double() - expected).norm(dim=-1) / expected.norm(dim=-1)).max())
    theirs, ours = errors
    assert ours <= 2 * theirs


def test_frozen_parameters_stay_frozen(mixtral, ids):
    model = mixtral().to(ids.device)
    model.requires_grad_(False)
    model.model.norm.weight.requires_grad_(True)
    pyptx_ops.patch(model)
    assert [n for n, p in model.named_parameters() if p.requires_grad] == ["model.norm.weight"]
    model(ids, labels=ids, use_cache=False).loss.backward()
    assert model.model.norm.weight.grad is not None and model.lm_head.weight.grad is None


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_copies(build, ids, clone):
    model = build().to(ids.device).eval()
    theirs = logits(model, ids)
    pyptx_ops.patch(model)
    ours = logits(model, ids)
    twin = clone(model)
    assert torch.equal(logits(twin, ids), ours)
    pyptx_ops.unpatch(twin)
    assert torch.equal(logits(twin, ids), theirs)
    assert model.config._experts_implementation == "pyptx"  # the original is still patched
    assert torch.equal(logits(model, ids), ours)


def test_torch_save(mixtral, ids):
    model = mixtral().to(ids.device).eval()
    pyptx_ops.patch(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    twin = torch.load(file, weights_only=False)
    assert torch.equal(logits(twin, ids), logits(model, ids))


def test_save_pretrained(build, ids, tmp_path):
    """A checkpoint written by a patched model is the library's own."""
    model = build().to(ids.device).eval()
    theirs = logits(model, ids)
    pyptx_ops.patch(model)
    model.save_pretrained(tmp_path)
    assert "pyptx" not in (tmp_path / "config.json").read_text()
    loaded = type(model).from_pretrained(tmp_path).to(ids.device).eval()
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert torch.equal(logits(loaded, ids), theirs)
    ours = type(model).from_pretrained(tmp_path, experts_implementation="pyptx").to(ids.device).eval()
    assert pyptx_ops.patch(ours).already


def test_generate(build, ids):
    model = build().to(ids.device).eval()
    settings = {"max_new_tokens": 4, "do_sample": False}
    theirs = model.generate(ids, **settings)
    pyptx_ops.patch(model)
    assert torch.equal(model.generate(ids, **settings), theirs)


def test_hooks_still_run(qwen3_moe, ids):
    model = qwen3_moe().to(ids.device).eval()
    seen = []
    model.model.norm.register_forward_hook(lambda module, args, output: seen.append(output))
    model.model.layers[0].mlp.down_proj.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    pyptx_ops.patch(model)
    logits(model, ids)
    assert [t.shape[-1] for t in seen] == [80, 64]
