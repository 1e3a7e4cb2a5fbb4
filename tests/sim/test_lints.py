"""Bank conflicts and sectors of single accesses, against counts made by hand."""

from __future__ import annotations

import pytest
import torch

import pyptx_ops
from pyptx_ops import sim
from pyptx_ops.dsl import Kernel, Reg, ptx, special
from pyptx_ops.dsl.sim import Access, Lints
from pyptx_ops.simulator import launch_kernel

ROW = 128  # bytes of a row of shared memory that goes round all banks


def counted(kernel: Kernel, *args: torch.Tensor) -> dict[str, Access]:
    """The accesses of a kernel of one warp by the first part of their opcode and their state space."""
    lints = Lints()
    with pyptx_ops.simulate(lint=lints):
        launch_kernel(kernel, (1, 1, 1), *args)
    found: dict[str, Access] = {}
    for access in lints.accesses:
        words = access.place.ptx.split()
        found[next(word for word in words if not word.startswith("@"))] = access
    return found


def lane_address(base: Reg, stride: int) -> Reg:
    return base + ptx.mul.lo(ptx.mov(special("tid.x"), type="u32"), stride)


def loads(stride: int, type: str, vec: str | None, lanes: int = 32) -> Kernel:
    """Lane l loads from shared memory at l times the stride, which was all set before."""
    with Kernel("loads", block=(32, 1, 1)) as k:
        tile = k.dynamic_shared().array("tile", 8192, 128).reg()
        lane = ptx.mov(special("tid.x"), type="u32")
        for start in range(0, 8192, 4 * ROW):
            ptx.st(tile + lane * 16 + start, [ptx.mov(0, type="b32")] * 4, space="shared", vec="v4", type="b32")
        ptx.bar.warp.sync(0xFFFFFFFF)
        with k.if_(lane < lanes):
            ptx.ld(lane_address(tile, stride), space="shared", type=type, **({"vec": vec} if vec else {}))
        ptx.ret()
    return k


@pytest.mark.parametrize(
    ("stride", "type", "vec", "lanes", "done", "least"),
    [
        (4, "u32", None, 32, 1, 1),  # a row: every bank once
        (0, "u32", None, 32, 1, 1),  # one word for all
        (8, "u32", None, 32, 2, 1),  # every other bank twice
        (12, "u32", None, 32, 1, 1),  # an odd number of words goes round all banks
        (ROW, "u32", None, 32, 32, 1),  # a column: one bank
        (ROW + 4, "u32", None, 32, 1, 1),  # with a word of padding
        (ROW, "u32", None, 8, 8, 1),  # of eight lanes
        (1, "u8", None, 32, 1, 1),  # four lanes share a word
        (2, "u16", None, 32, 1, 1),
        (64, "u16", None, 32, 16, 1),  # two banks
        (8, "u64", None, 32, 2, 2),  # half a warp at a time
        (ROW, "u64", None, 32, 32, 2),
        (8, "b32", "v2", 32, 2, 2),
        (16, "b32", "v4", 32, 4, 4),  # a quarter of a warp at a time
        (16, "b32", "v4", 8, 1, 1),
        (0, "b32", "v4", 32, 4, 4),
        (ROW, "b32", "v4", 32, 32, 4),  # rows: eight lanes meet in four banks
        (ROW + 16, "b32", "v4", 32, 4, 4),  # rows with 16 bytes of padding
        (64, "b32", "v4", 32, 16, 4),  # two places of 16 bytes for eight lanes
    ],
)
def test_loads_from_shared_memory(stride: int, type: str, vec: str | None, lanes: int, done: int, least: int) -> None:
    found = counted(loads(stride, type, vec, lanes))
    (access,) = (a for name, a in found.items() if name.startswith("ld"))
    assert (access.kind, access.runs, access.done, access.least) == ("shared", 1, done, least)
    assert access.excess == done - least and access.ratio == done / least and access.unit == "wavefronts"
    assert "test_lints.py:" in access.place.python and access.place.line > 0


@pytest.mark.parametrize(("swizzled", "count", "done"), [(False, 4, 32), (True, 4, 4), (True, 2, 2), (False, 1, 8)])
def test_matrix_moves(swizzled: bool, count: int, done: int) -> None:
    """Eight rows of 128 bytes each start in the same bank, unless their units are swizzled."""
    with Kernel("moves", block=(32, 1, 1)) as k:
        tile = k.dynamic_shared().array("tile", 32 * ROW, 1024).reg()
        lane = ptx.mov(special("tid.x"), type="u32")
        row = lane_address(tile, ROW)
        place = row + ((lane & 7) << 4) if swizzled else row
        ptx.stmatrix(place, [ptx.mov(0, type="b32")] * count, num=f"x{count}")
        ptx.bar.warp.sync(0xFFFFFFFF)
        ptx.ldmatrix(place, num=f"x{count}")
        ptx.ret()
    found = counted(k)
    assert sorted(name.partition(".")[0] for name in found) == ["ldmatrix", "stmatrix"]
    for access in found.values():
        assert (access.kind, access.done, access.least) == ("shared", done, count)


@pytest.mark.parametrize(
    ("start", "stride", "type", "vec", "done", "least"),
    [
        (0, 4, "u32", None, 4, 4),
        (16, 4, "u32", None, 5, 4),  # from the middle of a sector
        (0, 32, "u32", None, 32, 4),  # a sector for each lane
        (0, 8, "u32", None, 8, 4),  # every other word
        (0, 0, "u32", None, 1, 1),
        (0, 2, "u16", None, 2, 2),
        (0, 16, "b32", "v4", 16, 16),
        (0, 32, "b32", "v4", 32, 16),
    ],
)
def test_sectors_of_global_memory(start: int, stride: int, type: str, vec: str | None, done: int, least: int) -> None:
    with Kernel("sectors", block=(32, 1, 1)) as k:
        x = k.param("x", "pointer")
        address = x + ptx.mul.wide(ptx.mov(special("tid.x"), type="u32"), stride) + start
        value = ptx.ld(address, space="global", type=type, **({"vec": vec} if vec else {}))
        if stride:
            ptx.st(address, value, space="global", type=type, **({"vec": vec} if vec else {}))
        ptx.ret()
    memory = torch.zeros(2048, dtype=torch.uint8)
    aligned = memory[-memory.data_ptr() % 32 :]
    found = counted(k, aligned)
    assert len(found) == (2 if stride else 1)
    for access in found.values():
        assert (access.kind, access.runs, access.done, access.least) == ("global", 1, done, least)
        assert access.unit == "sectors"


def test_launches_add_up_and_the_worst_comes_first() -> None:
    with pyptx_ops.simulate(lint=True) as machine:
        for _ in range(3):
            launch_kernel(loads(ROW, "u32", None), (2, 1, 1))
    assert machine.lints is not None
    worst, *others = machine.lints.accesses
    assert (worst.runs, worst.done, worst.least) == (6, 6 * 32, 6) and not any(a.excess for a in others)


def test_nothing_is_counted_unless_asked_for() -> None:
    with pyptx_ops.simulate() as machine:
        launch_kernel(loads(ROW, "u32", None), (1, 1, 1))
    assert machine.lints is None


def conflicting() -> Kernel:
    return loads(ROW, "u32", None)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert sim.main([f"{__name__}:conflicting", "--policy", "lazy", "--lint"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "16 of 17 accesses took no more than the least"
    assert "32 wavefronts" in lines[-2] and "test_lints.py:" in lines[-2] and "ld.shared.u32" in lines[-2]
