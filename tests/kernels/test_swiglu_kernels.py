"""SwiGLU kernels: what the selector promises, and every config against fp64, interpreted and on a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pyptx_ops.dispatch import swiglu as host
from pyptx_ops.kernels.hopper.tuning import swiglu as tuning
from pyptx_ops.kernels.hopper.tuning.swiglu import SwigluProblem
from pyptx_ops.ops._swiglu import split
from pyptx_ops.trials.bounds import silu_gradients_excess
from tests.kernels.machines import MACHINES, Machine, has_kernels
from tests.tolerance import assert_within, silu_bound

CONFIGS = tuning.configs()
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
needs_gpu = pytest.mark.skipif(not has_kernels(), reason="needs an sm_90 GPU")


class TestSelector:
    @given(
        st.builds(
            SwigluProblem,
            columns=st.integers(1, 200_000),
            dtype=st.sampled_from(tuning.DTYPES),
            interleaved=st.booleans(),
            aligned=st.booleans(),
            backward=st.booleans(),
        ),
        st.integers(1, 2**20),
    )
    def test_returns_a_shipped_config_that_fits(self, problem: SwigluProblem, rows: int) -> None:
        config = tuning.select(problem)
        assert config in CONFIGS
        assert (config.dtype, config.backward) == (problem.dtype, problem.backward)
        if config.layout != "strided":
            assert problem.aligned and problem.columns % config.width == 0
            assert (config.layout == "pairs") == problem.interleaved
        blocks = tuning.grid(rows, problem.columns, config)
        assert (blocks - 1) * config.block * config.unroll * config.width < rows * problem.columns
        assert blocks * config.block * config.unroll * config.width >= rows * problem.columns

    def test_names_are_unique(self) -> None:
        assert len({config.name for config in CONFIGS}) == len(CONFIGS)


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr(host, "_plans", {})
    with request.param().running(host, monkeypatch) as machine:
        yield machine


def random(machine: Machine, *shape: int, dtype: torch.dtype) -> Tensor:
    """Gates far into both tails among them."""
    return (torch.randn(shape) * 4).to(machine.device, dtype)


def check(out: Tensor, gate: Tensor, up: Tensor) -> None:
    wide = gate.double()
    truth = wide * torch.sigmoid(wide) * up.double()
    assert_within(out, truth, silu_bound(truth, gate, gate.dtype))


def swiglu(machine: Machine, gate: Tensor, up: Tensor, offs: Tensor | None = None) -> Tensor:
    out = machine.poisoned(*gate.shape, dtype=gate.dtype)
    machine.show(gate, up, out, offs)
    host._swiglu(gate, up, offs, out)
    return out


def packed(machine: Machine, x: Tensor, interleaved: bool) -> Tensor:
    out = machine.poisoned(*x.shape[:-1], x.shape[-1] // 2, dtype=x.dtype)
    machine.show(x, out)
    host._silu_and_mul(x, interleaved, out)
    return out


def swiglu_bwd(machine: Machine, dy: Tensor, gate: Tensor, up: Tensor, offs: Tensor | None = None) -> list[Tensor]:
    results = [machine.poisoned(*gate.shape, dtype=gate.dtype) for _ in range(2)]
    machine.show(dy, gate, up, offs, *results)
    host._swiglu_bwd(dy, gate, up, offs, *results)
    return results


SHAPES = [(1, 8), (3, 24), (1, 1), (5, 7), (2, 520), (33, 40), (9, 1000), (1, 4097)]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_packed(machine: Machine, rows: int, columns: int, interleaved: bool, dtype: torch.dtype) -> None:
    x = random(machine, rows, 2 * columns, dtype=dtype)
    gate, up = (x[:, ::2], x[:, 1::2]) if interleaved else x.chunk(2, -1)
    check(packed(machine, x, interleaved), gate, up)
    if machine.device == "cpu":
        layout = "strided" if columns % 8 else "pairs" if interleaved else "rows"
        assert f"_{layout}_" in machine.launches[-1]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_packed_gradients(machine: Machine, rows: int, columns: int, interleaved: bool, dtype: torch.dtype) -> None:
    x, dy = random(machine, rows, 2 * columns, dtype=dtype), random(machine, rows, columns, dtype=dtype)
    dx = machine.poisoned(*x.shape, dtype=dtype)
    machine.show(x, dy, dx)
    host._silu_and_mul_bwd(dy, x, interleaved, dx)
    assert silu_gradients_excess(*split(dx, interleaved), dy, *split(x, interleaved)) <= 1
    if machine.device == "cpu":
        layout = "strided" if columns % 8 else "pairs" if interleaved else "rows"
        assert f"swiglu_bwd_{'bf16' if dtype is torch.bfloat16 else 'f16'}_{layout}_" in machine.launches[-1]


@pytest.mark.parametrize(
    "layout", ["contiguous", "halves", "pitch", "unaligned", "transposed", "expanded", "3D halves"]
)
def test_separate(machine: Machine, layout: str) -> None:
    def make(columns: int = 24) -> Tensor:
        return random(machine, 7, columns, dtype=torch.bfloat16)

    if layout == "halves":
        gate, up = make(48).chunk(2, -1)
    elif layout == "3D halves":
        gate, up = random(machine, 5, 7, 48, dtype=torch.bfloat16).chunk(2, -1)
    else:
        gate, up = (
            {
                "contiguous": lambda: make(),
                "pitch": lambda: make(40)[:, 8:32],
                "unaligned": lambda: make(25)[:, 1:],
                "transposed": lambda: make().t(),
                "expanded": lambda: make()[:1].expand(7, 24),
            }[layout]()
            for _ in range(2)
        )
    out = swiglu(machine, gate, up)
    check(out, gate, up)
    for dy in (random(machine, *gate.shape, dtype=torch.bfloat16), up, gate.new_ones(()).expand(gate.shape)):
        assert silu_gradients_excess(*swiglu_bwd(machine, dy, gate, up), dy, gate, up) <= 1


@pytest.mark.parametrize("columns", [16, 17])
@pytest.mark.parametrize("ends", [[0], [3, 3, 5], [9], [-4], [100]])
def test_offs(machine: Machine, ends: list[int], columns: int) -> None:
    """Rows at and past offs[-1] are zero whatever lies there; ends out of range mean the nearest one in it."""
    used = min(max(ends[-1], 0), 9)
    gate, up = (random(machine, 9, columns, dtype=torch.float16) for _ in range(2))
    gate[used:], up[used:] = math.nan, math.inf
    out = swiglu(machine, gate, up, torch.tensor(ends, dtype=torch.int32, device=machine.device))
    check(out[:used], gate[:used], up[:used])
    assert (out[used:] == 0).all()


@pytest.mark.parametrize("columns", [16, 17])
@pytest.mark.parametrize("ends", [[0], [3, 3, 5], [9], [-4], [100]])
def test_offs_of_gradients(machine: Machine, ends: list[int], columns: int) -> None:
    used = min(max(ends[-1], 0), 9)
    dy, gate, up = (random(machine, 9, columns, dtype=torch.float16) for _ in range(3))
    dy[used:], gate[used:], up[used:] = math.inf, math.nan, math.inf
    results = swiglu_bwd(machine, dy, gate, up, torch.tensor(ends, dtype=torch.int32, device=machine.device))
    assert silu_gradients_excess(*(t[:used] for t in (*results, dy, gate, up))) <= 1
    assert all((result[used:] == 0).all() for result in results)


def test_special_values(machine: Machine) -> None:
    """As F.silu in fp32."""
    gate = torch.tensor([-math.inf, math.inf, math.nan, -1e4, -100.0, 1e4, 0.0, -0.0], dtype=torch.bfloat16)
    up = torch.full_like(gate, 2.0)
    out = swiglu(machine, gate.to(machine.device), up.to(machine.device)).cpu()
    wanted = torch.nn.functional.silu(gate.float()) * 2
    assert torch.equal(out.isnan(), wanted.isnan())
    assert torch.equal(out.float().nan_to_num(), wanted.bfloat16().float().nan_to_num())
    ones = torch.ones_like(gate)
    d_gate, d_up = (t.cpu() for t in swiglu_bwd(machine, *(t.to(machine.device) for t in (ones, gate, up))))
    leaf = gate.float().requires_grad_()
    torch.nn.functional.silu(leaf).sum().backward()
    assert leaf.grad is not None
    assert torch.equal(d_gate.float().nan_to_num(), (2 * leaf.grad).nan_to_num())
    assert torch.equal(d_up.float().nan_to_num(), (wanted / 2).bfloat16().float().nan_to_num())


@needs_gpu
class TestOnGpu:
    """Through the functions that the ops call, at sizes that an interpreter does not reach."""

    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    @pytest.mark.parametrize(("rows", "columns"), [(1, 14336), (127, 2880), (4096, 1536), (1023, 8191), (3, 100_000)])
    def test_sizes(self, rows: int, columns: int, dtype: torch.dtype) -> None:
        x = random(Machine("cuda"), rows, 2 * columns, dtype=dtype)
        check(host.silu_and_mul(x, False), *x.chunk(2, -1))
        check(host.silu_and_mul(x, True), x[:, ::2], x[:, 1::2])
        check(host.swiglu(*x.chunk(2, -1), None), *x.chunk(2, -1))
        dy = random(Machine("cuda"), rows, columns, dtype=dtype)
        for interleaved in (False, True):
            parts = split(x, interleaved)
            dx = host.silu_and_mul_bwd(dy, x, interleaved)
            assert silu_gradients_excess(*split(dx, interleaved), dy, *parts) <= 1
            assert silu_gradients_excess(*host.swiglu_bwd(dy, *parts, None), dy, *parts) <= 1

    @pytest.mark.parametrize("interleaved", [False, True])
    def test_two_strides_are_copied(self, interleaved: bool) -> None:
        x = random(Machine("cuda"), 4, 6, 48, dtype=torch.bfloat16)[:, ::2]
        gate, up = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
        check(host.silu_and_mul(x, interleaved), gate, up)
        check(host.swiglu(gate, up, None), gate, up)
        dx = host.silu_and_mul_bwd(gate, x, interleaved)
        assert silu_gradients_excess(*split(dx, interleaved), gate, gate, up) <= 1

    @pytest.mark.parametrize("shift", [0, 1])
    def test_past_two_billion_elements(self, shift: int) -> None:
        rows, columns = 2**19 + 1, 4096
        wide = torch.zeros((rows, columns + 8), dtype=torch.bfloat16, device="cuda")
        gate = wide[:, 8 - shift : 8 - shift + columns]
        up = torch.ones((1, columns), dtype=torch.bfloat16, device="cuda").expand(rows, columns)
        gate[-3:] = random(Machine("cuda"), 3, columns, dtype=torch.bfloat16)
        out = host.swiglu(gate, up, None)
        check(out[-3:], gate[-3:], up[-3:])
        assert not out[:-3].any()

    def test_nothing(self) -> None:
        x = torch.empty((0, 64), dtype=torch.bfloat16, device="cuda")
        assert host.silu_and_mul(x, False).shape == (0, 32)
        assert host.swiglu(x, x, None).shape == (0, 64)
        torch.cuda.synchronize()
