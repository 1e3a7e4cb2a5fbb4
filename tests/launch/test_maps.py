"""Tensor maps as the launcher has them encoded by a driver that records what it is asked, and those that it refuses."""

from __future__ import annotations

import re

import pytest

from pyptx_ops import _launch
from pyptx_ops.dsl.types import Im2col, Param, TensorMapSpec
from pyptx_ops.launch import param_spec

from .conftest import StubDriver

MAP = param_spec(Param("a", "tensor_map", TensorMapSpec("bf16", (64, 128), swizzle=128, l2_promotion=256)))


@pytest.mark.parametrize("rank", range(1, 6))
def test_a_tensor_map_is_encoded_as_described(stub: StubDriver, rank: int) -> None:
    spec = TensorMapSpec("f32", tuple(range(4, 4 + rank)), swizzle=64, l2_promotion=64, oob_nan=True)
    sizes, strides = [10 * (i + 1) for i in range(rank)], [16 * (i + 1) for i in range(rank - 1)]
    stub.kernel((param_spec(Param("x", "tensor_map", spec)),)).launch(1, 0, 1, 1, 1, 4096, *sizes, *strides)
    fields = dict(field.split("=") for field in stub.calls("cuTensorMapEncodeTiled")[0].split()[1:])
    assert fields == {
        "device": "1",
        "dtype": "7",
        "address": "4096",
        "sizes": ",".join(map(str, sizes)),
        "strides": ",".join(map(str, strides)),
        "box": ",".join(map(str, spec.box)),
        "steps": ",".join("1" * rank),
        "interleave": "0",
        "swizzle": "2",
        "promotion": "1",
        "fill": "1",
    }


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_a_map_of_im2col_is_encoded_as_described(stub: StubDriver, rank: int) -> None:
    window = Im2col((-1, -2, -3)[: rank - 2], (4, 0, -5)[: rank - 2], (1, 2, 3)[: rank - 2])
    spec = TensorMapSpec("bf16", (64, 100), swizzle=128, im2col=window)
    sizes, strides = [10 * (i + 1) for i in range(rank)], [16 * (i + 1) for i in range(rank - 1)]
    stub.kernel((param_spec(Param("x", "tensor_map", spec)),)).launch(0, 0, 1, 1, 1, 4096, *sizes, *strides)
    assert not stub.calls("cuTensorMapEncodeTiled")
    fields = dict(field.split("=") for field in stub.calls("cuTensorMapEncodeIm2col")[0].split()[1:])
    assert fields == {
        "device": "0",
        "dtype": "9",
        "address": "4096",
        "sizes": ",".join(map(str, sizes)),
        "strides": ",".join(map(str, strides)),
        "lower": ",".join(map(str, window.lower)),
        "upper": ",".join(map(str, window.upper)),
        "channels": "64",
        "pixels": "100",
        "steps": ",".join(map(str, (1, *window.steps, 1))),
        "interleave": "0",
        "swizzle": "3",
        "promotion": "2",
        "fill": "0",
    }


def test_a_refused_map_of_im2col_tells_the_rule(stub: StubDriver) -> None:
    spec = TensorMapSpec("bf16", (64, 1025), im2col=Im2col((0,), (0,)))
    kernel = stub.kernel((param_spec(Param("a", "tensor_map", spec)),))
    stub.fail("cuTensorMapEncodeIm2col", 1)
    with pytest.raises(_launch.LaunchError, match="cuTensorMapEncodeIm2col failed") as caught:
        kernel.launch(0, 0, 1, 1, 1, 16, 64, 3, 2, 128, 384)
    assert str(caught.value).endswith("rules broken:\n  im2col takes 1 to 1024 pixels")
    with pytest.raises(ValueError, match="wanted a window of 1 to 3 dimensions and a box of channels and pixels"):
        stub.kernel(((*param_spec(Param("a", "tensor_map", spec))[:-1], (0, 0)),))


@pytest.mark.parametrize(
    ("values", "rules"),
    [
        ((8, 64, 128, 256), ["the address must be a multiple of 16 bytes"]),
        ((16, 64, 128, 250), [r"stride\[1\] must be a multiple of 16 bytes"]),
        ((16, 64, 128, 2**40), [r"stride\[1\] must be below 2\^40 bytes"]),
        ((16, 0, 128, 256), [r"size\[0\] must be 1 to 2\^32 elements"]),
        ((16, 64, 2**32 + 1, 256), [r"size\[1\] must be 1 to 2\^32 elements"]),
        ((1, 0, 0, 1), ["the address must", r"size\[0\]", r"size\[1\]", r"stride\[1\]"]),
        ((16, 64, 128, 256), ["rules broken: none known here"]),
    ],
)
def test_a_refused_tensor_map_tells_the_rule(stub: StubDriver, values: tuple[int, ...], rules: list[str]) -> None:
    kernel = stub.kernel((("n", "u32"), MAP))
    stub.fail("cuTensorMapEncodeTiled", 1)
    with pytest.raises(_launch.LaunchError) as caught:
        kernel.launch(0, 0, 1, 1, 1, 5, *values)
    text = str(caught.value)
    address, inner, outer, stride = values
    assert text.startswith("cuTensorMapEncodeTiled failed with CUDA_ERROR_INVALID_VALUE")
    assert f"tensor map 'a': address {address}, sizes ({inner}, {outer}), strides ({stride}), box (64, 128)" in text
    for rule in rules:
        assert len(re.findall(rule, text)) == 1
    assert text.count("must") == len([rule for rule in rules if "none" not in rule])


@pytest.mark.parametrize(
    ("box", "swizzle", "rule"),
    [
        ((128, 1), 128, "the inner box must fit the swizzle span of 128 bytes"),
        ((32, 1), 32, "the inner box must fit the swizzle span of 32 bytes"),
        ((4, 1), 0, "the inner box must be a multiple of 16 bytes"),
        ((64, 257), 0, "box[1] must be 1 to 256 elements"),
    ],
)
def test_a_refused_box_tells_the_rule(stub: StubDriver, box: tuple[int, int], swizzle: int, rule: str) -> None:
    kernel = stub.kernel((param_spec(Param("a", "tensor_map", TensorMapSpec("bf16", box, swizzle))),))
    stub.fail("cuTensorMapEncodeTiled", 1)
    with pytest.raises(_launch.LaunchError) as caught:
        kernel.launch(0, 0, 1, 1, 1, 16, 64, 128, 256)
    assert str(caught.value).endswith(f"rules broken:\n  {rule}")
