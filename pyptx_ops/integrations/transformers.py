"""Experts for transformers 5: importing this module makes ``experts_implementation="pyptx"`` a valid choice.

    import pyptx_ops.integrations.transformers
    model = AutoModelForCausalLM.from_pretrained(path, experts_implementation="pyptx")

``pyptx_ops.patch(model)`` does the same for a model that exists already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import pyptx_ops

try:
    from transformers.activations import SiLUActivation
    from transformers.integrations import moe
except ImportError as error:
    raise ImportError(
        "pyptx_ops.integrations.transformers needs transformers 5 or newer, with its registry of experts functions: "
        "pip install 'pyptx_ops[demo]'"
    ) from error

NAME = "pyptx"


@dataclass(frozen=True)
class Displaced:
    """What a patched experts module ran before.

    It is kept on the module, so a pickled module imports this file, and with it the registration, when it is loaded.
    """

    implementation: str | None


def experts_forward(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Routed experts, with grouped GEMMs over tokens sorted by expert.

    An experts function of the registry: ``self`` is the experts module, whose flags (``is_transposed``,
    ``is_concatenated``, ``has_bias``, ``has_gate``, ``has_post_expert_norm``) are honoured. Nothing is read back from
    the device, so the call can be compiled with ``fullgraph=True`` and captured in a CUDA graph. The sum over a
    token's experts has a fixed order.

    Args:
        hidden_states: (T, H).
        top_k_index: (T, top_k), integer expert ids ≥ 0. An id ≥ ``num_experts`` (a token that another rank serves)
            contributes zero.
        top_k_weights: (T, top_k), the router's weights.

    Returns:
        (T, H) in the dtype of ``hidden_states``.
    """
    tokens, top_k = top_k_index.shape
    expert_ids, order = torch.sort(top_k_index.reshape(-1), stable=True)
    experts = torch.arange(self.num_experts, device=expert_ids.device, dtype=expert_ids.dtype)
    offs = torch.searchsorted(expert_ids, experts, right=True, out_int32=True)  # group ends; higher ids fall behind

    x = hidden_states[order // top_k]
    if _is_swiglu(self) and (self.is_concatenated or not self.is_transposed):  # the other layout would be copied
        x = pyptx_ops.grouped_gemm_swiglu(*_operands(self, "gate_up_proj", x, offs), not self.is_concatenated)
    else:
        x = _activate(self, _grouped_linear(self, "gate_up_proj" if self.has_gate else "up_proj", x, offs))
    x = _grouped_linear(self, "down_proj", x, offs)
    if getattr(self, "has_post_expert_norm", False):
        x = self.post_expert_norm(x)  # may turn the zero rows of higher ids into something else
        top_k_weights = top_k_weights.masked_fill(top_k_index >= self.num_experts, 0.0)

    x = torch.empty_like(x).index_copy_(0, order, x)  # back to token order: `order` is a permutation
    x = x.view(tokens, top_k, x.shape[-1]) * top_k_weights.unsqueeze(-1)
    return x.sum(dim=1).to(hidden_states.dtype)


def _grouped_linear(module: Any, name: str, x: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    return pyptx_ops.grouped_gemm(*_operands(module, name, x, offs))


def _operands(
    module: Any, name: str, x: torch.Tensor, offs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Of a grouped product: tokens, weights (E, in, out), group ends, bias."""
    weight = getattr(module, name)
    bias = getattr(module, f"{name}_bias") if module.has_bias else None
    return x.to(weight.dtype), weight if module.is_transposed else weight.transpose(-2, -1), offs, bias


def _is_swiglu(module: Any) -> bool:
    """Whether the up projection's result goes through silu(gate) * up."""
    default = module.has_gate and type(module)._apply_gate is moe._default_apply_gate
    return default and is_silu(module.act_fn)


def _activate(module: Any, x: torch.Tensor) -> torch.Tensor:
    if not module.has_gate:
        return module.act_fn(x)
    if _is_swiglu(module):
        return pyptx_ops.silu_and_mul(x, interleaved=not module.is_concatenated)
    if type(module)._apply_gate is not moe._default_apply_gate:
        return module._apply_gate(x)
    gate, up = x.chunk(2, dim=-1) if module.is_concatenated else (x[..., ::2], x[..., 1::2])
    return module.act_fn(gate) * up


def is_silu(activation: Any) -> bool:
    """Whether an activation (module or function) is exactly silu."""
    return type(activation) in (nn.SiLU, SiLUActivation) or activation is nn.functional.silu


moe.ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
