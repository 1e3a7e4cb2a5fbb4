"""The golden expansion of every macro."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pyptx_ops.dsl import Kernel, macros

from .test_kernel import body

EXPANSIONS: dict[str, tuple[Callable[[Kernel], Any], list[str]]] = {
    "wait_parity": (
        lambda k: macros.wait_parity(k.reg("u32"), k.reg("u32")),
        ["$WAIT_1:", "mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r0], %r1;", "@!%p0 bra $WAIT_1;"],
    ),
    "elect_one": (lambda k: macros.elect_one(), ["elect.sync _|%p0, 4294967295;"]),
    "ceil_div": (lambda k: macros.ceil_div(k.reg("u32"), 24), ["add.u32 %r1, %r0, 23;", "div.u32 %r2, %r1, 24;"]),
    "first_lane": (
        lambda k: macros.first_lane(k.reg("pred")),  # type: ignore[arg-type]
        ["vote.sync.ballot.b32 %r0, %p0, 4294967295;", "brev.b32 %r1, %r0;", "clz.b32 %r2, %r1;"],
    ),
    "zero": (
        lambda k: macros.zero([k.reg("f32"), k.reg("b32")]),
        ["mov.f32 %f0, 0f00000000;", "mov.b32 %r0, 0;"],
    ),
    "warp_inclusive_sum": (
        lambda k: macros.warp_inclusive_sum(k.reg("u32"), k.reg("u32")),
        [
            "mov.u32 %r2, %r0;",
            *(
                line
                for i, distance in enumerate((1, 2, 4, 8, 16))
                for line in (
                    f"shfl.sync.up.b32 %r{3 + i}, %r2, {distance}, 0, 4294967295;",
                    f"setp.ge.u32 %p{i}, %r1, {distance};",
                    f"@%p{i} add.u32 %r2, %r2, %r{3 + i};",
                )
            ),
        ],
    ),
}


@pytest.mark.parametrize("name", EXPANSIONS)
def test_expansion(name: str) -> None:
    call, expected = EXPANSIONS[name]
    with Kernel("k") as k:
        call(k)
    assert body(k) == expected


def test_every_macro_is_here() -> None:
    assert {name.split(",")[0] for name in EXPANSIONS} == set(macros.__all__)
