"""Recording and pinning the routes of a MoE model, so that two runs can be compared token by token.

A router picks the k largest of its scores. Where two scores nearly tie, the last bit of a bf16 input decides, and a
token that goes to another expert has other logits: no error, but as large as one. Two implementations are therefore
compared with the routes of one run pinned in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

Route = tuple[torch.Tensor, torch.Tensor]  # weights (T, top_k), expert ids (T, top_k)


def routers(model: nn.Module) -> list[nn.Module]:
    """The routers of a model in the order of its layers: the ``gate`` beside each ``experts``."""
    gates: list[Any] = [getattr(module, "gate", None) for module in model.modules() if hasattr(module, "experts")]
    return [gate for gate in gates if isinstance(gate, nn.Module)]


@contextmanager
def recorded_routes(model: nn.Module) -> Iterator[list[Route]]:
    """Within the context, a forward pass appends each router's route to the list."""
    routes: list[Route] = []

    def record(module: nn.Module, args: Any, output: Any) -> None:
        _, weights, ids = output
        routes.append((weights, ids))

    with ExitStack() as stack:
        for router in routers(model):
            stack.enter_context(router.register_forward_hook(record))
        yield routes


@contextmanager
def pinned_routes(model: nn.Module, routes: list[Route]) -> Iterator[None]:
    """Within the context, the routers return these routes, whatever their scores.

    Raises:
        ValueError: the number of routes is not the number of routers.
    """
    found = routers(model)
    if len(found) != len(routes):
        raise ValueError(f"routes must hold one route for each of the model's {len(found)} routers, got {len(routes)}")

    def pin(weights: torch.Tensor, ids: torch.Tensor) -> Any:
        return lambda module, args, output: (output[0], weights.to(output[1].dtype), ids)

    with ExitStack() as stack:
        for router, route in zip(found, routes, strict=True):
            stack.enter_context(router.register_forward_hook(pin(*route)))
        yield


def same_experts(a: list[Route], b: list[Route]) -> torch.Tensor:
    """(T,) bool: the tokens that go to the same experts in every layer."""
    same = [(x.sort(dim=-1).values == y.sort(dim=-1).values).all(dim=-1) for (_, x), (_, y) in zip(a, b, strict=True)]
    return torch.stack(same).all(dim=0)
