"""Tiny models of the three families, and a truth to judge them by."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="5.0")

_SHARED = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "initializer_range": 0.1,
}


def mixtral(**changes):
    config = transformers.MixtralConfig(**_SHARED | {"num_key_value_heads": 2, "num_local_experts": 4} | changes)
    return transformers.MixtralForCausalLM(config)


def qwen3_moe(**changes):
    """Layer 0 has a dense MLP, layer 1 the experts."""
    own = {
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_experts": 8,
        "moe_intermediate_size": 48,
        "mlp_only_layers": [0],
    }
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**_SHARED | own | changes))


def deepseek_v3(**changes):
    """Layer 0 has a dense MLP, layer 1 experts and a shared expert."""
    own = {
        "num_key_value_heads": 4,
        "moe_intermediate_size": 48,
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 32,
        "q_lora_rank": 40,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
    }
    return transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**_SHARED | own | changes))


FAMILIES = {"mixtral": mixtral, "qwen3_moe": qwen3_moe, "deepseek_v3": deepseek_v3}


@pytest.fixture(params=FAMILIES)
def build(request):
    """A function that makes a tiny model of one family."""
    return FAMILIES[request.param]


@pytest.fixture(name="mixtral")
def mixtral_builder():
    return mixtral


@pytest.fixture(name="qwen3_moe")
def qwen3_moe_builder():
    return qwen3_moe


@pytest.fixture(params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def device(request):
    return torch.device(request.param)


@pytest.fixture
def ids(device):
    return torch.randint(1, 96, (2, 17), device=device)
