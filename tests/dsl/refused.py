"""What it means that a call is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from pyptx_ops.dsl import Kernel, TraceError

Call = Callable[[Kernel, dict[str, Any]], Any]

TYPES = ("u32", "s32", "u64", "b64", "f32", "f64", "b16", "b32", "pred", "f32x2")


def check_refused(call: Call, says: str, target: str = "sm_90a") -> None:
    """The call raises a TraceError that says this and names the file and line of the call."""
    with Kernel("k", target=target) as k:
        registers = {name: k.reg(name) for name in TYPES}
        with pytest.raises(TraceError, match=says) as caught:
            call(k, registers)
    lines, first = inspect.getsourcelines(call)
    assert caught.value.location.file == inspect.getsourcefile(call)
    assert first <= caught.value.location.line < first + max(len(lines), 12)
    assert str(caught.value).startswith("{}:{}: ".format(*caught.value.location))
