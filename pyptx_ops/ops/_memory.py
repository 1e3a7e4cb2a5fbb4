"""Which elements of strided tensors share memory: what an op that writes to its arguments has to know."""

from __future__ import annotations

from torch import Tensor

__all__ = ["elements_meet", "tensors_meet"]


def elements_meet(tensor: Tensor) -> bool:
    """Whether elements of one tensor may lie at one address: where a stride is within what smaller strides span."""
    span = 1
    for stride, size in _dims(tensor):
        if stride < span:
            return True
        span += (size - 1) * stride
    return False


def tensors_meet(one: Tensor, other: Tensor) -> bool:
    """Whether an element of one may lie in the memory of another. Neither's own elements meet.

    Views of one shape and the same strides, such as halves of the columns, are told apart exactly; others by where
    they begin and end.
    """
    if not one.numel() or not other.numel():
        return False
    if _end(one) <= other.data_ptr() or _end(other) <= one.data_ptr():
        return False
    distance = other.data_ptr() - one.data_ptr()
    same = one.shape == other.shape and one.stride() == other.stride() and one.dtype is other.dtype
    if not same or distance % one.element_size():
        return True
    return _is_reached(distance // one.element_size(), _dims(one))


def _is_reached(distance: int, dims: list[tuple[int, int]]) -> bool:
    """Whether steps of fewer than `size` along each dimension, either way, cover this distance."""
    if not dims:
        return distance == 0
    *smaller, (stride, size) = dims
    steps = {distance // stride, distance // stride + 1}  # what smaller dimensions span is less than a stride
    return any(abs(step) < size and _is_reached(distance - step * stride, smaller) for step in steps)


def _dims(tensor: Tensor) -> list[tuple[int, int]]:
    """(stride, size) of the dimensions that have more than one element, by stride."""
    return sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size > 1)


def _end(tensor: Tensor) -> int:
    """The address after the last element of a tensor that has one."""
    last = sum((size - 1) * stride for stride, size in zip(tensor.stride(), tensor.shape))
    return tensor.data_ptr() + (last + 1) * tensor.element_size()
