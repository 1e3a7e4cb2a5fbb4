"""A ring of shared-memory stages between one producer warp and the consumer warpgroups.

    producer                      stage s                       consumers
    wait empty[s] ──► expect_tx, TMA ──► full[s] completes ──► wait full[s], wgmma reads the stage
          ▲                                                                     │
          └──────────── empty[s] completes ◄── one arrival per consumer warp ◄──┘

`full[s]` counts one arrival (the producer's) and the bytes; `empty[s]` one arrival per consumer warp. Each side keeps
its own stage and phase. The producer starts with the other parity: the stages are empty at first.
"""

from __future__ import annotations

from ..dsl import Kernel, Pred, Reg, SharedPlan, ptx
from ..dsl.macros import wait_parity

__all__ = ["Barriers", "Ring"]

BARRIER_BYTES = 8


class Barriers:
    """The full and empty barriers of a ring, in shared memory."""

    def __init__(self, smem: SharedPlan, stages: int):
        self.stages = stages
        self.full = smem.array("full", stages * BARRIER_BYTES, 8)
        self.empty = smem.array("empty", stages * BARRIER_BYTES, 8)

    def init(self, consumer_warps: int) -> None:
        """Initialise both sets; one thread does this."""
        for stage in range(self.stages):
            ptx.mbarrier.init(self.full.at(stage * BARRIER_BYTES), 1)
            ptx.mbarrier.init(self.empty.at(stage * BARRIER_BYTES), consumer_warps)


class Ring:
    """One side's view of the ring: which stage comes next, and the parity of its phase."""

    def __init__(self, k: Kernel, barriers: Barriers, *, producer: bool):
        self.k = k
        self.stages = barriers.stages
        self.stage = k.var("u32", 0)
        self.phase = k.var("u32", 1 if producer else 0)
        self._full = barriers.full.reg()
        self._empty = barriers.empty.reg()

    def full(self) -> Reg:
        """The address of this stage's full barrier."""
        return self._full + (self.stage << 3)

    def empty(self) -> Reg:
        """The address of this stage's empty barrier."""
        return self._empty + (self.stage << 3)

    def wait_empty(self) -> None:
        wait_parity(self.empty(), self.phase)

    def wait_full(self) -> None:
        wait_parity(self.full(), self.phase)

    def release(self, empty: Reg, pred: Pred) -> None:
        """Tell the producer that this warp is done with a stage; one lane of the warp does it."""
        ptx.mbarrier.arrive(empty, pred=pred)

    def advance(self) -> None:
        """Go on to the next stage; the phase flips when the ring wraps."""
        self.stage += 1
        wrapped = self.stage == self.stages
        ptx.mov(0, type="u32", out=self.stage, pred=wrapped)
        ptx.xor(self.phase, 1, type="b32", out=self.phase, pred=wrapped)
