"""One registrar for every op: its schema, and its kernels for each dispatch key.

An op is declared once with what it does (`run`, which checks, then computes or launches), what it returns (`fake`) and
how it differentiates (`backward`). The kernel on the Autograd key is ours, because it is on the way of every eager
call. Where no input requires grad and no mode or forward-mode level is active, it tries the bound calls
(`dispatch/bound.py`), which take plain tensors only. Otherwise the dispatch key set tells whether anything but the
tensor's own backend still waits below (a mode, a subclass, a transform, functionalization); if nothing does, `run` is
called straight away.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd import forward_ad

from pyptx_ops.dispatch import bound
from pyptx_ops.ops._arguments import kind_checker

__all__ = ["LIBRARY", "Registered", "register", "register_inplace"]

LIBRARY = torch.library.Library("pyptx", "DEF")

_KeySet = torch._C.DispatchKeySet
_Key = torch._C.DispatchKey
_below_autograd = torch._C._AutoDispatchBelowAutograd
_any_requires_grad = torch._C._any_requires_grad
_grad_enabled = torch.is_grad_enabled
_active_modes = torch._C._len_torch_dispatch_stack
_increment_version = torch.autograd.graph.increment_version
_is_compiling = torch.compiler.is_compiling
_function_modes = torch._C._len_torch_function_stack
_transforms_active = torch._C._are_functorch_transforms_active
_autocast_enabled = torch._C._is_any_autocast_enabled
_profiler_enabled = torch._C._autograd._profiler_enabled
_tracing_state = torch._C._get_tracing_state

# Keys below autograd for which an op has no kernel, so that the dispatcher skips them.
_SKIPPED = _KeySet(_Key.BackendSelect)
_SKIPPED_IF_FUNCTIONAL = _SKIPPED | _KeySet(_Key.ADInplaceOrView)
_PLAIN = {_KeySet(backend).raw_repr() for backend in (_Key.CPU, _Key.CUDA)}  # the backend and nothing else
_AUTOCAST = {"cpu": _KeySet(_Key.AutocastCPU), "cuda": _KeySet(_Key.AutocastCUDA)}


class Registered(NamedTuple):
    """An op as torch has it, and a function that calls it, by a shorter way where there is one."""

    op: torch._ops.OpOverload
    call: Callable[..., Any]


def register(
    schema: str,
    *,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., tuple[Any, ...]] | None = None,
    save: Callable[..., None] | None = None,
    recorded: Callable[..., Any] | None = None,
    autocast: bool = False,
) -> Registered:
    """Defines a functional op.

    Args:
        schema: name, arguments and returns, as `torch.library` spells them.
        run: the op on CPU and CUDA tensors; raises before it launches or writes anything.
        fake: the same call on tensors without data: same errors for what is known, exact output strides.
        save: `save(ctx, *args, **kwargs)`, keeps what the backward needs.
        backward: `backward(ctx, *grads)`, one gradient (or None) per positional argument of the schema;
            `ctx.needs_input_grad` says which are asked for.
        recorded: in place of `save` and `backward`, the op in terms of other ops, which is called where a gradient is
            recorded.
        autocast: whether floating-point inputs are cast to the autocast dtype where autocast is on.
    """
    op, run_bound = _define(schema, (torch.Tag.flexible_layout,), run, fake)
    defaults = _positional_defaults(run)
    below = _below(op, run, _SKIPPED_IF_FUNCTIONAL)
    check_kinds = kind_checker(op)
    if recorded is not None:
        record = function = _in_other_ops(recorded, check_kinds)
    else:
        assert save is not None and backward is not None
        record, function = _functions(op, run_bound, check_kinds, below, save, backward)

    def autograd(*args: Any, **kwargs: Any) -> Any:
        # Inside a forward-mode level any argument may have a tangent, which the node refuses and would not drop.
        if not (_grad_enabled() and _any_requires_grad(*args)) and forward_ad._current_level < 0:
            if not _active_modes():
                result = run_bound(*args, **kwargs)
                if result is not NotImplemented:
                    return result
            return below(*args, **kwargs)
        # The dispatcher drops trailing arguments that equal their defaults: autograd wants one gradient for each.
        return function(*args, *defaults[len(args) :], kwargs)

    LIBRARY.impl(op._opname, autograd, "Autograd")
    if autocast:
        for device_type in _AUTOCAST:
            kernel = _autocast_kernel(op, device_type)
            LIBRARY.impl(op._opname, kernel, f"Autocast{device_type.upper()}", with_keyset=True)

    def call(*args: Any, **kwargs: Any) -> Any:
        if _is_plain():
            if _grad_enabled() and _any_requires_grad(*args):
                return record(*args, *defaults[len(args) :], kwargs)
            result = run_bound(*args, **kwargs)
            if result is not NotImplemented:
                return result
            check_kinds(args, kwargs)
        return op(*args, **kwargs)

    return Registered(op, call)


def register_inplace(schema: str, *, run: Callable[..., None], fake: Callable[..., None], mutated: int) -> Registered:
    """Defines an op that overwrites its first `mutated` arguments, returns nothing and has no derivative."""
    op, run_bound = _define(schema, (torch.Tag.needs_exact_strides,), run, fake, apart=True)
    name = op._opname
    below = _below(op, run, _SKIPPED)

    def autograd(*args: Any) -> None:
        if (_grad_enabled() and _any_requires_grad(*args)) or (forward_ad._current_level >= 0 and _any_tangent(args)):
            raise RuntimeError(
                f"{name}: works in place and has no derivative, but an argument requires grad; use "
                f"{name.rstrip('_')}, or call it under torch.no_grad()"
            )
        if _active_modes() or run_bound(*args) is NotImplemented:
            below(*args)
        else:
            _increment_version(args[:mutated])

    def bump_versions(keyset: Any, *args: Any) -> None:
        with torch._C._AutoDispatchBelowADInplaceOrView():
            op.redispatch(keyset & torch._C._after_ADInplaceOrView_keyset, *args)
        _increment_version(args[:mutated])

    LIBRARY.impl(name, autograd, "Autograd")
    LIBRARY.impl(name, bump_versions, "ADInplaceOrView", with_keyset=True)

    check_kinds = kind_checker(op)

    def call(*args: Any) -> None:
        if _is_plain():
            if not (_grad_enabled() and _any_requires_grad(*args)) and run_bound(*args) is not NotImplemented:
                _increment_version(tuple(arg for arg in args[:mutated] if not arg.is_inference()))
                return
            check_kinds(args, {})
        op(*args)

    return Registered(op, call)


def _is_plain() -> bool:
    """Whether nothing in this thread watches or changes calls: the dispatcher would go straight to our own kernel."""
    return not (
        _is_compiling()  # first: to a compiler it is a constant
        or _function_modes()
        or _active_modes()
        or _transforms_active()
        or _autocast_enabled()
        or _profiler_enabled()
        or _tracing_state() is not None
        or forward_ad._current_level >= 0
    )


def _define(
    schema: str, tags: tuple[Any, ...], run: Callable[..., Any], fake: Callable[..., Any], *, apart: bool = False
) -> tuple[Any, Callable[..., Any]]:
    """The op, and what runs its bound calls. apart: as for those."""
    name = LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag, *tags)).removeprefix("pyptx::")
    run_bound = bound.calls_of(name, run, apart=apart)

    def cuda(*args: Any, **kwargs: Any) -> Any:
        result = run_bound(*args, **kwargs)
        return run(*args, **kwargs) if result is NotImplemented else result

    LIBRARY.impl(name, run, "CPU")
    LIBRARY.impl(name, cuda, "CUDA")
    torch.library.register_fake(f"pyptx::{name}", fake, lib=LIBRARY)
    return getattr(torch.ops.pyptx, name).default, run_bound


def _below(op: Any, run: Callable[..., Any], skipped: Any) -> Callable[..., Any]:
    """The op as it goes on below autograd."""

    def below(*args: Any, **kwargs: Any) -> Any:
        keys = torch._C._dispatch_tls_local_include_set()
        for arg in args:
            if isinstance(arg, torch.Tensor):
                keys = keys | torch._C._dispatch_keys(arg)
        keys = (keys - torch._C._dispatch_tls_local_exclude_set() - skipped) & torch._C._after_autograd_keyset
        if keys.raw_repr() in _PLAIN:
            return run(*args, **kwargs)
        with _below_autograd():
            return op.redispatch(keys, *args, **kwargs)

    return below


def _any_tangent(args: tuple[Any, ...]) -> bool:
    tensors = (arg for arg in args if isinstance(arg, torch.Tensor))
    return any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def _positional_defaults(run: Callable[..., Any]) -> tuple[Any, ...]:
    parameters = inspect.signature(run).parameters.values()
    return tuple(p.default for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY)


def _functions(
    op: Any, run_bound: Callable[..., Any], check_kinds: Callable[..., None], below: Callable[..., Any],
    save: Callable[..., None], backward: Callable[..., Any],
) -> tuple[Callable[..., Any], Callable[..., Any]]:  # fmt: skip
    """The op as a node of the autograd graph: where no transform is active, and anywhere.

    The inputs are the op's, then a dictionary of keyword arguments.
    """

    def forward(ctx: Any, *inputs: Any) -> Any:
        *args, kwargs = inputs
        result = NotImplemented if _active_modes() else run_bound(*args, **kwargs)
        if result is NotImplemented:
            check_kinds(args, kwargs)
            result = below(*args, **kwargs)
        save(ctx, *args, **kwargs)
        return result

    def gradients(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return (*backward(ctx, *grads), None)

    def forward_at_level(ctx: Any, *inputs: Any) -> Any:
        *args, kwargs = inputs
        save(ctx, *args, **kwargs)
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):  # the levels below record this call too
            return below(*args, **kwargs)

    def node(base: type, forward: Callable[..., Any]) -> Any:
        members = {"forward": staticmethod(forward), "backward": staticmethod(gradients)}
        return type(f"Pyptx_{op._opname}", (base,), members)

    plain = node(torch.autograd.Function, forward)
    record = super(torch.autograd.Function, plain).apply  # without the look for transforms
    # Inside torch.func transforms this kernel runs once per level, already below the transform's own dispatch: it adds
    # a node to that level only, which torch.autograd.Function would refuse.
    at_level = node(torch.autograd.function._SingleLevelFunction, forward_at_level)

    def apply(*inputs: Any) -> Any:
        if not torch._C._are_functorch_transforms_active():
            return plain.apply(*inputs)
        with enable_single_level_autograd_function():
            return at_level.apply(*inputs)

    return record, apply


def _in_other_ops(recorded: Callable[..., Any], check_kinds: Callable[..., None]) -> Callable[..., Any]:
    def function(*inputs: Any) -> Any:
        *args, kwargs = inputs
        check_kinds(args, kwargs)
        return recorded(*args, **kwargs)

    return function


def _autocast_kernel(op: Any, device_type: str) -> Callable[..., Any]:
    excluded = _AUTOCAST["cpu"] | _AUTOCAST["cuda"]

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype(device_type)
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            return op(*(_cast(arg, device_type, dtype) for arg in args), **kwargs)

    return kernel


def _cast(arg: Any, device_type: str, dtype: torch.dtype) -> Any:
    """As torch's own autocast: floating-point tensors of this device, fp64 left alone."""
    if not isinstance(arg, torch.Tensor) or arg.device.type != device_type:
        return arg
    return arg.to(dtype) if arg.is_floating_point() and arg.dtype is not torch.float64 else arg
