"""out = x, a matrix, one tile per CTA, moved by the copy engine (TMA) through shared memory.

    thread 0: expect_tx(barrier, bytes of a tile)        what must arrive before the phase completes
              tensor load  x tile ──► shared ──► barrier    the engine counts the bytes off
              wait(barrier, parity 0)
              tensor store shared ──► out tile; commit; wait until shared memory was read

New here: a tensor map describes a matrix to the engine. What the kernel is traced for (element type, box, swizzle) is
its TensorMapSpec; address, sizes and strides arrive with each launch, where the host encodes the map. A box that sticks
out of the matrix is filled with zeros on the way in and clipped on the way out.
"""

from __future__ import annotations

import torch

from examples.run import Run, main
from pyptx_ops.dsl import Kernel, TensorMapSpec, ptx, special
from pyptx_ops.dsl.macros import wait_parity

ROWS, COLUMNS = 64, 128  # of a tile
TILE_BYTES = ROWS * COLUMNS * 2


def build() -> Kernel:
    with Kernel("tma_copy", block=(32, 1, 1)) as k:
        spec = TensorMapSpec("bf16", box=(COLUMNS, ROWS))  # innermost dimension first
        x, out = k.tensor_map("x", spec), k.tensor_map("out", spec)
        smem = k.dynamic_shared(align=128)  # tensor copies want tiles at multiples of 128 bytes
        tile, barrier = smem.array("tile", TILE_BYTES, 128), smem.array("barrier", 8, 8)
        column = ptx.mov(special("ctaid.x"), type="u32") * COLUMNS
        row = ptx.mov(special("ctaid.y"), type="u32") * ROWS
        at = [column.as_type("s32"), row.as_type("s32")]
        with k.if_(ptx.mov(special("tid.x"), type="u32") == 0):
            ptx.mbarrier.init(barrier, 1)  # one arrival completes a phase, once the bytes are there
            ptx.fence.mbarrier_init()  # the engine sees the initialised barrier
            ptx.mbarrier.arrive.expect_tx(barrier, TILE_BYTES)
            ptx.cp.async_.bulk.tensor.load(tile, x, at, barrier, dim="2d")
            wait_parity(barrier.reg(), 0)  # a macro: try_wait in a loop
            ptx.cp.async_.bulk.tensor.store(out, at, tile, dim="2d")
            ptx.cp.async_.bulk.commit_group()
            ptx.cp.async_.bulk.wait_group(0, read=True)  # shared memory must outlive the reads
        ptx.ret()
    return k


def check(run: Run, device: str) -> None:
    for rows, columns in ((ROWS, COLUMNS), (1, 8), (ROWS + 1, COLUMNS - 8), (300, 520)):
        x = torch.randn(rows, columns, device=device).to(torch.bfloat16)
        out = torch.full_like(x, torch.nan)
        run((-(-columns // COLUMNS), -(-rows // ROWS), 1), x, out)
        torch.testing.assert_close(out, x, rtol=0, atol=0)


if __name__ == "__main__":
    main(build(), check)
