"""Grouped products in plain torch: loops over groups where `offs` is on the host, and none that reads it on a device.

On a device nothing may wait for `offs`, so the rows are laid out in a fixed number of tiles of equal height, each of
one group: with tiles of ceil(M / G) rows, G + M / height tiles hold any division into groups, at most twice the rows.
Nor can bad ends be refused there: they are taken as the nearest that do not decrease and are within 0 … M.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["grouped_product", "grouped_product_tiled", "grouped_wgrad", "grouped_wgrad_tiled", "row_groups"]


def row_groups(offs: Tensor, rows: int) -> Tensor:
    """The group of each row, (rows,) int64; G for the rows past the last group. offs: ends that do not decrease."""
    return torch.bucketize(torch.arange(rows, device=offs.device, dtype=offs.dtype), offs, right=True)


def grouped_product(a: Tensor, b: Tensor, ends: list[int], bias: Tensor | None, acc: torch.dtype) -> Tensor:
    out = a.new_zeros((a.shape[0], b.shape[2]), dtype=acc)
    start = 0
    for group, end in enumerate(ends):
        if end > start:
            torch.mm(a[start:end].to(acc), b[group].to(acc), out=out[start:end])
            if bias is not None:
                out[start:end] += bias[group]
        start = end
    return out


def grouped_wgrad(a: Tensor, dy: Tensor, ends: list[int], acc: torch.dtype) -> Tensor:
    out = a.new_zeros((len(ends), a.shape[1], dy.shape[1]), dtype=acc)
    start = 0
    for group, end in enumerate(ends):
        if end > start:
            torch.mm(a[start:end].t().to(acc), dy[start:end].to(acc), out=out[group])
        start = end
    return out


@dataclass(frozen=True)
class _Tiles:
    """Where rows lie in tiles. `rows` is (tiles, height), row 0 standing in where `used` is false."""

    rows: Tensor
    used: Tensor
    group: Tensor
    position: Tensor  # (M,): of each row, among all rows of all tiles
    in_group: Tensor  # (M,): whether the row belongs to a group at all

    @classmethod
    def of(cls, offs: Tensor, rows: int) -> _Tiles:
        groups, device = offs.shape[0], offs.device
        ends = offs.long().clamp(0, rows).cummax(0).values
        starts = torch.cat((ends.new_zeros(1), ends[:-1]))
        height = max(1, -(-rows // groups))
        tiles = (ends - starts + height - 1) // height
        tile_ends = tiles.cumsum(0)
        tile = torch.arange(groups + rows // height, device=device)
        group = torch.bucketize(tile, tile_ends, right=True)
        inside = group < groups
        group = group.clamp(max=groups - 1)
        first = starts[group] + (tile - (tile_ends - tiles)[group]) * height
        index = first.unsqueeze(1) + torch.arange(height, device=device)
        used = (index < ends[group].unsqueeze(1)) & inside.unsqueeze(1)
        of_row = row_groups(ends, rows)
        in_group = of_row < groups
        of_row = of_row.clamp(max=groups - 1)
        position = (tile_ends - tiles)[of_row] * height + torch.arange(rows, device=device) - starts[of_row]
        return cls(index.where(used, 0), used, group, position.where(in_group, 0), in_group)

    def gather(self, tensor: Tensor, acc: torch.dtype) -> Tensor:
        """(M, K) as (tiles, height, K), unused rows zero whatever stood in for them."""
        return tensor[self.rows].to(acc).where(self.used.unsqueeze(-1), 0)


def grouped_product_tiled(a: Tensor, b: Tensor, offs: Tensor, bias: Tensor | None, acc: torch.dtype) -> Tensor:
    rows = a.shape[0]
    if rows == 0:
        return a.new_zeros((0, b.shape[2]), dtype=acc)
    tiles = _Tiles.of(offs, rows)
    out = torch.bmm(tiles.gather(a, acc), b[tiles.group].to(acc))
    if bias is not None:
        out += bias[tiles.group].unsqueeze(1)
    return out.flatten(0, 1)[tiles.position].where(tiles.in_group.unsqueeze(1), 0)


def grouped_wgrad_tiled(a: Tensor, dy: Tensor, offs: Tensor, acc: torch.dtype) -> Tensor:
    out = a.new_zeros((offs.shape[0], a.shape[1], dy.shape[1]), dtype=acc)
    if a.shape[0] == 0:
        return out
    tiles = _Tiles.of(offs, a.shape[0])
    partial = torch.bmm(tiles.gather(a, acc).transpose(1, 2), tiles.gather(dy, acc))
    return out.index_put_((tiles.group,), partial, accumulate=True)  # sorts: the same sums each time
