"""``patch(model)`` swaps the ops into a transformers model in place; ``unpatch(model)`` takes them out again.

A module is replaced only where that provably computes the same thing: a norm or an MLP when the bytecode of its
``forward`` is that of a template below, the experts when they are dispatched by transformers' registry. Everything else
stays as it is, and the report says why.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import nn

import pyptx_ops
from pyptx_ops.integrations import transformers as adapter

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_OTHER_DTYPE = "is {}, served are bfloat16, float16 and float32"
_MARK = "_pyptx_displaced"


@dataclass(frozen=True)
class Entry:
    """One module of a report."""

    name: str  # qualified, as in ``named_modules``
    module: str  # its class
    op: str  # "experts" | "rms_norm" | "swiglu"
    reason: str = ""  # why it was skipped

    def __str__(self) -> str:
        return f"{self.op:9} {self.module:24} {self.name or '(root)'}" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True)
class Report:
    """What ``patch`` did to each module that one of the ops might serve."""

    replaced: tuple[Entry, ...] = ()
    already: tuple[Entry, ...] = ()
    skipped: tuple[Entry, ...] = ()

    def __str__(self) -> str:
        lines = []
        for title, entries in (("replaced", self.replaced), ("already", self.already), ("skipped", self.skipped)):
            lines.append(f"{title}: {len(entries)}")
            lines.extend(f"  {line}" for line in _folded(entries))
        return "\n".join(lines)


def patch(model: nn.Module, *, experts: bool = True, rms_norm: bool = True, swiglu: bool = True) -> Report:
    """Runs a transformers model's experts, RMSNorms and dense SwiGLU MLPs on the ops of this package, in place.

    Parameters, their names and the outputs' meaning stay; only roundings inside an op may differ. Patching twice
    changes nothing more. The patched model can be compiled, copied, pickled, saved and trained as before.

    The experts are switched through the field of their config that transformers reads, so they follow it: another
    model built from the very same config object changes with this one.

    Args:
        model: any module tree; Mixtral, Qwen3-MoE and DeepSeek-V3 are covered in full.
        experts, rms_norm, swiglu: which of the three to replace.

    Returns:
        A ``Report`` naming each module replaced and each skipped, with the reason.

    Raises:
        TypeError: ``model`` is no ``torch.nn.Module``.
    """
    _check_module(model, "patch")
    wanted = {"experts": experts, "rms_norm": rms_norm, "swiglu": swiglu}
    candidates = list(_candidates(model))
    blocked = _blocked_configs(candidates)
    replaced, already, skipped = [], [], []
    chosen: list[tuple[Any, str]] = []
    for name, module, op in candidates:
        entry = Entry(name, _base_class(module).__name__, op)
        if isinstance(module, _Patched):
            already.append(entry)
        elif reason := _refusal(module, op, blocked):
            skipped.append(replace(entry, reason=reason))
        elif op == "experts" and module.config._experts_implementation == adapter.NAME:
            already.append(entry)
        elif not wanted[op]:
            skipped.append(replace(entry, reason=f"not asked for ({op}=False)"))
        else:
            replaced.append(entry)
            chosen.append((module, op))
    _swap(chosen)
    return Report(tuple(replaced), tuple(already), tuple(skipped))


def unpatch(model: nn.Module) -> Report:
    """Undoes ``patch``: the classes, ``forward`` methods and config fields are what they were.

    Returns:
        A ``Report`` whose ``replaced`` names each module that was given back its own code.

    Raises:
        TypeError: ``model`` is no ``torch.nn.Module``.
    """
    _check_module(model, "unpatch")
    restored = []
    module: Any
    for name, module in model.named_modules():
        if isinstance(module, _Patched):
            op = module.pyptx_op
            module.__class__ = _base_class(module)  # type: ignore[assignment]
        elif _MARK in module.__dict__:
            op = "experts"
            displaced = module.__dict__.pop(_MARK)
            if module.config._experts_implementation == adapter.NAME:  # unless somebody has chosen another since
                module.config._experts_implementation_internal = displaced.implementation
        else:
            continue
        restored.append(Entry(name, type(module).__name__, op))
    return Report(tuple(restored))


def _check_module(model: Any, function: str) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"{function}: model must be a torch.nn.Module, got {type(model).__name__}")


# --- the replacements: subclasses made on demand, so that isinstance, hooks and parameters are untouched ---


class _Patched:
    pyptx_op: str

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        reduced: tuple[Any, ...] = super().__reduce_ex__(protocol)  # type: ignore[assignment]
        return _rebuild, (type(self).__mro__[1], _base_class(self)), *reduced[2:]


class _PatchedRMSNorm(_Patched):
    pyptx_op = "rms_norm"
    weight: torch.Tensor
    variance_epsilon: float

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if hidden_states.dtype != self.weight.dtype:  # the library's product is then of another dtype than ours
            return super().forward(hidden_states)  # type: ignore[misc]
        return pyptx_ops.rms_norm(hidden_states, self.weight, self.variance_epsilon)


class _PatchedSwiGLU(_Patched):
    pyptx_op = "swiglu"
    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(pyptx_ops.swiglu(self.gate_proj(x), self.up_proj(x)))


_MIXINS = {mixin.pyptx_op: mixin for mixin in (_PatchedRMSNorm, _PatchedSwiGLU)}


@cache
def _patched_class(mixin: Any, base: Any) -> Any:
    return type(f"Pyptx{base.__name__}", (mixin, base), {"__module__": __name__, "__doc__": base.__doc__})


def _rebuild(mixin: Any, base: Any) -> Any:
    cls = _patched_class(mixin, base)
    return cls.__new__(cls)


def _base_class(module: Any) -> type[nn.Module]:
    cls: Any = type(module)
    return cls.__mro__[cls.__mro__.index(_Patched) + 1] if isinstance(module, _Patched) else cls


def _swap(chosen: list[tuple[Any, str]]) -> None:
    experts = [module for module, op in chosen if op == "experts"]
    for module in experts:  # mark all before any config changes: several modules share one
        setattr(module, _MARK, adapter.Displaced(module.config._experts_implementation))
    for module in experts:
        module.config._experts_implementation_internal = adapter.NAME
    for module, op in chosen:
        if op != "experts":
            base: Any = type(module)
            module.__class__ = _patched_class(_MIXINS[op], base)


# --- the templates: what the ops compute, written so that transformers' forward compiles to the same bytecode ---


def _rms_norm_template(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    dtype = hidden_states.dtype
    hidden_states = hidden_states.to(torch.float32)
    square = hidden_states.pow(2).mean(-1, keepdim=True)
    hidden_states = hidden_states * torch.rsqrt(square + self.variance_epsilon)
    return self.weight * hidden_states.to(dtype)


def _swiglu_template(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
    return y  # noqa: RET504  (transformers does)


_TEMPLATES: dict[str, Callable[..., torch.Tensor]] = {"rms_norm": _rms_norm_template, "swiglu": _swiglu_template}


def _same_code(function: Any, template: Callable[..., Any]) -> bool:
    """Whether two functions are the same up to the names of local variables."""
    if not inspect.isfunction(function) or _parameters(function) != _parameters(template):
        return False
    ours, theirs = template.__code__, function.__code__
    return (
        theirs.co_code == ours.co_code
        and theirs.co_consts == ours.co_consts
        and theirs.co_names == ours.co_names
        and ("torch" not in ours.co_names or function.__globals__.get("torch") is torch)
    )


def _parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


# --- what is a candidate, and what speaks against it ---


def _candidates(model: nn.Module) -> Iterator[tuple[str, Any, str]]:
    for name, module in model.named_modules():
        down = getattr(module, "down_proj", None)
        if isinstance(down, torch.Tensor) and down.dim() == 3:
            yield name, module, "experts"
        elif isinstance(down, nn.Module) and hasattr(module, "gate_proj") and hasattr(module, "up_proj"):
            yield name, module, "swiglu"
        elif "RMSNorm" in type(module).__name__ or _same_code(type(module).forward, _rms_norm_template):
            yield name, module, "rms_norm"


def _blocked_configs(candidates: list[tuple[str, Any, str]]) -> dict[int, str]:
    """Configs that must not be switched, because one of the experts that read them cannot follow: id -> that one."""
    blocked: dict[int, str] = {}
    for name, module, op in candidates:
        if op == "experts" and hasattr(module, "config") and _refuse_experts(module):
            blocked[id(module.config)] = name
    return blocked


def _refusal(module: Any, op: str, blocked: dict[int, str]) -> str:
    if op == "experts":
        reason = _refuse_experts(module)
        if not reason and id(module.config) in blocked:
            reason = f"shares its config with {blocked[id(module.config)]}, which is skipped"
        return reason
    if "forward" in module.__dict__:
        return "its forward is overridden on the instance"
    if not _same_code(type(module).forward, _TEMPLATES[op]):
        return f"its forward is not the one that {op} computes"
    return _refuse_rms_norm(module) if op == "rms_norm" else _refuse_swiglu(module)


def _refuse_rms_norm(module: Any) -> str:
    weight = module._parameters.get("weight")
    if weight is None:
        return "weight is no parameter"
    if weight.dim() != 1:
        return f"weight has {weight.dim()} dimensions, the op takes 1"
    if not isinstance(module.variance_epsilon, float):
        return f"variance_epsilon is a {type(module.variance_epsilon).__name__}, the op takes a float"
    return _refuse_tensor("weight", weight)


def _refuse_swiglu(module: Any) -> str:
    if not adapter.is_silu(module.act_fn):
        return f"activation is {type(module.act_fn).__name__}, the op computes silu"
    if any(
        getattr(module.act_fn, hooks, None) for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    ):
        return "its activation has hooks, which the op would not call"
    weight = getattr(module.gate_proj, "weight", None)
    if isinstance(weight, torch.Tensor) and weight.dtype == torch.float64:  # what a quantised layer returns is its own
        return f"gate_proj.weight {_OTHER_DTYPE.format(weight.dtype)}"
    return ""


def _refuse_experts(module: Any) -> str:
    forward = type(module).forward
    interface = (
        inspect.getclosurevars(forward).nonlocals.get("experts_interface") if inspect.isfunction(forward) else None
    )
    if interface is None or not hasattr(module, "config"):
        return "its class is not dispatched by transformers' registry of experts functions"
    if adapter.NAME not in interface:
        return f"its registry ({type(interface).__name__}) is another than the one that has {adapter.NAME!r}"
    if module.config._experts_implementation == "deepgemm_megamoe":
        return "deepgemm_megamoe has changed the layout of its weights"
    names = ["gate_up_proj" if module.has_gate else "up_proj", "down_proj"]
    for name in names + [f"{name}_bias" for name in names if module.has_bias]:
        tensor = getattr(module, name)
        if reason := _refuse_tensor(name, tensor):
            return reason
        if tensor.dtype != module.down_proj.dtype:
            return f"{name} is {tensor.dtype}, down_proj is {module.down_proj.dtype}"
    return ""


def _refuse_tensor(name: str, tensor: torch.Tensor) -> str:
    if tensor.dtype not in _DTYPES:
        return f"{name} {_OTHER_DTYPE.format(tensor.dtype)}"
    if type(tensor.data) is not torch.Tensor:
        return f"{name} is a {type(tensor.data).__name__}, served are plain tensors"
    return ""


def _folded(entries: tuple[Entry, ...]) -> list[str]:
    """One line for all entries that differ in a layer's number only."""
    groups: dict[Entry, list[Entry]] = {}
    for entry in entries:
        folded = replace(entry, name=re.sub(r"(?<![^.])\d+(?![^.])", "*", entry.name))
        groups.setdefault(folded, []).append(entry)
    return [str(group[0]) if len(group) == 1 else f"{folded} (x{len(group)})" for folded, group in groups.items()]
