"""What shares memory, against every element's address."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from pyptx_ops.ops._memory import elements_meet, tensors_meet

MEMORY = torch.zeros(400, dtype=torch.int16)
LAYOUTS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=3)


def view(layout, start):
    return MEMORY.as_strided([size for size, _ in layout], [stride for _, stride in layout], start)


def addresses(tensor):
    steps = [[i * stride for i in range(size)] for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return [tensor.storage_offset() + sum(step) for step in itertools.product(*steps)]


@given(LAYOUTS, LAYOUTS, st.integers(0, 99), st.integers(0, 99), st.booleans())
def test_against_all_addresses(layout, other_layout, start, other_start, same):
    one, other = view(layout, start), view(layout if same else other_layout, other_start)
    places, other_places = addresses(one), addresses(other)
    if len(set(places)) < len(places):
        assert elements_meet(one)
    if not elements_meet(one) and not elements_meet(other):
        meet = bool(set(places) & set(other_places))
        assert tensors_meet(one, other) or not meet
        if same:
            assert tensors_meet(one, other) == meet


def test_what_ordinary_views_are():
    grid = torch.zeros(3, 5, 8)
    for tensor in (grid, grid.transpose(0, 2), grid[:, ::2], grid[..., 1:3], grid[1, 1]):
        assert not elements_meet(tensor)
    assert elements_meet(grid[:, :1].expand(3, 5, 8)) and not elements_meet(grid[:, :0].expand(3, 0, 8))
