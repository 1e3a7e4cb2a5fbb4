"""Arguments of a kind that no schema takes: refused by name before torch's own binding sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import torch

__all__ = ["kind_checker"]


class Kind(NamedTuple):
    """What an argument may be. text: the same for people."""

    name: str
    types: tuple[type, ...]
    text: str
    optional: bool

    def check(self, op: str, value: object) -> None:
        if isinstance(value, torch.Tensor) and torch.Tensor in self.types:
            if value.layout is not torch.strided:
                raise TypeError(f"{op}: {self.name} has layout {value.layout}, wanted torch.strided")
        elif not self.takes(value):
            got = "None" if value is None else f"{value!r:.40} of type {type(value).__name__}"
            raise TypeError(f"{op}: {self.name} is {got}, wanted {self.text}{' or None' if self.optional else ''}")

    def takes(self, value: object) -> bool:
        """Whether it is of the kind, or something that traces calls and stands in for anything."""
        return (
            isinstance(value, self.types) or (value is None and self.optional) or hasattr(value, "__torch_function__")
        )


_KINDS = {
    "Tensor": ((torch.Tensor,), "a tensor"),
    "float": ((Real,), "a number"),
    "bool": ((bool,), "a bool"),
    "ScalarType": ((torch.dtype,), "a torch.dtype"),
}


def kind_checker(op: torch._ops.OpOverload) -> Callable[[Sequence[object], Mapping[str, object]], None]:
    """A function of a call's arguments that raises TypeError for the first one that the schema does not take."""
    name = op._opname
    kinds = [_kind(argument) for argument in op._schema.arguments]
    by_name = {kind.name: kind for kind in kinds}

    def check(args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        for kind, value in zip(kinds, args):
            kind.check(name, value)
        for key, value in kwargs.items():
            by_name[key].check(name, value)

    return check


def _kind(argument: Any) -> Kind:
    text = str(argument.real_type)
    inner = text.removeprefix("Optional[").removesuffix("]")
    return Kind(argument.name, *_KINDS[inner], optional=inner != text)
