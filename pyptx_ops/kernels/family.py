"""What the build needs to know of a kernel family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..dsl import Kernel

__all__ = ["Family"]


@dataclass(frozen=True)
class Family:
    """Kernels that one builder makes: `configs` is every config that the selector can choose."""

    name: str
    configs: tuple[Any, ...]
    build: Callable[[Any], Kernel]
