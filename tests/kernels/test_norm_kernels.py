"""RMSNorm kernels: what the selector promises, and every config against fp64, interpreted and on a GPU."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyptx_ops.dispatch import norm as host
from pyptx_ops.dispatch.rows import UNSPLIT, Rows, merge_rows, reciprocal
from pyptx_ops.kernels.configs import RmsNormConfig
from pyptx_ops.kernels.hopper.tuning import norm as tuning
from pyptx_ops.kernels.hopper.tuning.norm import NormProblem
from tests.kernels.interpreter import Memory, run
from tests.kernels.machines import MACHINES, Machine, has_kernels, traced
from tests.tolerance import assert_within, norm_bound, rounding_bound

CONFIGS = tuning.configs()
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
needs_gpu = pytest.mark.skipif(not has_kernels(), reason="needs an sm_90 GPU")


class TestSelector:
    @given(
        st.builds(
            NormProblem,
            hidden=st.one_of(
                st.integers(1, 300), st.integers(1, 200_000), st.sampled_from([1 << e for e in range(22)])
            ),
            dtype=st.sampled_from(tuning.DTYPES),
            residual=st.booleans(),
            aligned=st.booleans(),
        ),
        st.integers(1, 2**36),
    )
    @settings(max_examples=1000, deadline=None)
    def test_returns_a_shipped_config_that_fits(self, problem: NormProblem, rows: int) -> None:
        config = tuning.select(problem)
        assert config in CONFIGS
        assert (config.dtype, config.residual) == (problem.dtype, problem.residual)
        assert problem.hidden <= config.resident or config.wide
        assert config.width == 1 or (problem.aligned and problem.hidden % config.width == 0)
        x, y = tuning.grid(rows, config)
        assert x < 2**31 and y <= 65535 and x % config.cluster == 0
        assert x * y // config.cluster * config.rows >= rows

    def test_every_config_is_chosen(self) -> None:
        sizes = [size + step for size in (1, 8, *(8 << e for e in range(15))) for step in (0, 8)]
        chosen = {
            tuning.select(NormProblem(hidden, dtype, residual, aligned))
            for hidden, dtype, residual, aligned in itertools.product(
                sizes, tuning.DTYPES, (False, True), (False, True)
            )
        }
        assert chosen == set(CONFIGS)

    def test_names_are_unique(self) -> None:
        assert len({config.name for config in CONFIGS}) == len(CONFIGS)


class TestRows:
    @given(st.data())
    @settings(max_examples=300, deadline=None)
    def test_every_row_is_where_its_strides_say(self, data: st.DataObject) -> None:
        shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
        stride = st.one_of(st.integers(0, 12), st.sampled_from([2**31 + 8, 2**33]))
        layouts = [data.draw(st.lists(stride, min_size=len(shape), max_size=len(shape))) for _ in range(2)]
        dense = torch.empty(shape, device="meta").stride()
        layouts.append(list(dense))
        rows = merge_rows(shape, layouts)
        if rows is None:
            return
        indices = list(itertools.product(*(range(size) for size in shape[:-1])))
        assert rows.rows == len(indices)
        for i, index in enumerate(indices):
            outer, inner = divmod(i, rows.per_outer)
            for layout, (outer_stride, inner_stride) in zip(layouts, rows.strides, strict=True):
                wanted = 2 * sum(a * b for a, b in zip(index, layout, strict=False))
                assert outer * outer_stride + inner * inner_stride == wanted

    def test_dense_tensors_are_one_stride(self) -> None:
        dense = torch.empty((3, 1, 5, 7), device="meta").stride()
        assert merge_rows((3, 1, 5, 7), [dense], most=1) == Rows(15, UNSPLIT, ((0, 14),))

    def test_heads_are_two_strides(self) -> None:
        heads = torch.empty((2, 5, 3 * 4, 64), device="meta")[:, :, 4:8]
        assert merge_rows(heads.shape, [heads.stride()]) == Rows(40, 4, ((1536, 128),))

    def test_three_strides_are_too_many(self) -> None:
        assert merge_rows((2, 3, 4, 8), [(1000, 100, 10, 1)]) is None

    @given(st.integers(0, 2**63 - 1), st.integers(1, 2**63 - 1))
    def test_reciprocal(self, value: int, divisor: int) -> None:
        """The high half is the quotient or one less, which is what the kernels' `divide` mends."""
        assert value // divisor - ((value * reciprocal(divisor)) >> 64) in (0, 1)


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr(host, "_plans", {})
    with request.param().running(host, monkeypatch) as machine:
        yield machine


def norm(
    machine: Machine, x: Tensor, weight: Tensor | None = None, *, residual: Tensor | None = None,
    eps: float = 1e-6, offset: float = 0.0, cast: bool = True,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """(y, residual_out) in poisoned outputs."""
    y = machine.poisoned(*x.shape, dtype=x.dtype)
    total = None if residual is None else machine.poisoned(*x.shape, dtype=x.dtype)
    machine.show(x, y, residual, total, weight)
    host._run(x, y, residual, total, weight, eps, offset, cast)
    return y, total


def check(
    machine: Machine, x: Tensor, weight: Tensor | None, residual: Tensor | None, offset: float, cast: bool
) -> None:
    y, total = norm(machine, x, weight, residual=residual, offset=offset, cast=cast)
    values = x.double()
    if residual is not None:
        assert total is not None
        values = x.double() + residual.double()
        assert_within(total, values, rounding_bound(values, x.dtype), "residual_out")
    truth = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + 1e-6)
    roundings = 1
    if weight is not None:
        truth = truth * (weight.double() + offset)
        roundings = 2 if cast else 1
    assert_within(y, truth, norm_bound(truth, x.shape[-1], x.dtype, roundings), "y")


def random(machine: Machine, *shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape).to(machine.device, dtype)


def hidden_sizes(config: RmsNormConfig) -> list[int]:
    """Sizes that the config is chosen for: its ends, and one inside. Wide ones past their registers too."""
    smaller = [c.resident for c in CONFIGS if c.resident < config.resident and similar(c, config)]
    first, step = max(smaller, default=0) + config.width, config.width
    sizes = [first, (first + config.resident) // 2 // step * step, config.resident]
    if config.width == 1:
        sizes[1] = sizes[1] // 2 * 2 + 1
    if config.wide:  # registers full would take an interpreter long
        sizes = [first, config.resident - step, config.resident + step, config.resident + 9 * config.team * step + step]
    return sizes


def similar(a: RmsNormConfig, b: RmsNormConfig) -> bool:
    return (a.dtype, a.residual, a.width) == (b.dtype, b.residual, b.width)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_config(machine: Machine, config: RmsNormConfig) -> None:
    """Every config, with each kind of weight and rounding, on as many rows as a block takes and some."""
    dtype = DTYPES[config.dtype]
    weights = [
        (None, 0.0, True),
        (dtype, 0.0, True),
        (torch.float32, 0.0, True),
        (dtype, 1.0, False),
        (torch.float32, 0.5, False),
    ]
    sizes = hidden_sizes(config)
    if config.wide and machine.device == "cpu":
        sizes = [sizes[0], sizes[-1]]
    for (weight_dtype, offset, cast), hidden in zip(weights, itertools.cycle(sizes), strict=False):
        rows = 1 if config.wide and machine.device == "cpu" else config.rows + 1
        x = random(machine, rows, hidden, dtype=dtype)
        residual = random(machine, rows, hidden, dtype=dtype) if config.residual else None
        weight = None if weight_dtype is None else random(machine, hidden, dtype=weight_dtype)
        if config.width == 1 and hidden % 8 == 0:
            x = shifted(x)
        check(machine, x, weight, residual, offset, cast)
        if machine.device == "cpu":
            assert machine.launches[-1] == config.name


def shifted(x: Tensor) -> Tensor:
    """The same values, one element further: rows that are not aligned."""
    wide = torch.full((x.numel() + 8,), float("nan"), dtype=x.dtype, device=x.device)
    view = wide[1 : x.numel() + 1].view(x.shape)
    view.copy_(x)
    return view


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("layout", ["sliced rows", "heads", "column of a matrix", "one row expanded"])
def test_layouts(machine: Machine, layout: str, fused: bool) -> None:
    def make() -> Tensor:
        if layout == "sliced rows":
            return random(machine, 5, 96, dtype=torch.bfloat16)[:, 16:80]
        if layout == "heads":  # of a fused projection
            return random(machine, 3, 4, 12, 64, dtype=torch.bfloat16)[:, :, 3:7]
        if layout == "column of a matrix":
            return random(machine, 9, 4, dtype=torch.bfloat16)[:, 1:2]
        return random(machine, 1, 64, dtype=torch.bfloat16).expand(6, 64)

    x, residual = make(), make() if fused else None
    check(machine, x, random(machine, x.shape[-1], dtype=torch.bfloat16), residual, 0.0, True)


@pytest.mark.parametrize("layout", ["contiguous", "sliced rows", "heads", "unaligned"])
def test_in_place(machine: Machine, layout: str) -> None:
    """x becomes the norm, the residual the rounded sum; nothing around them changes."""

    def make() -> tuple[Tensor, Tensor]:
        if layout == "heads":
            whole = random(machine, 3, 12, 64, dtype=torch.float16)
            return whole, whole[:, 3:7]
        whole = random(machine, 5, 96, dtype=torch.float16)
        return whole, {"contiguous": whole, "sliced rows": whole[:, 16:80], "unaligned": whole[:, 3:80]}[layout]

    (whole_x, x), (whole_r, residual) = make(), make()
    weight = random(machine, x.shape[-1], dtype=torch.float16)
    x_before, residual_before = x.contiguous(), residual.contiguous()
    if layout == "unaligned":  # as the in-place call will find them
        x_before, residual_before = shifted(x_before), shifted(residual_before)
    y, total = norm(machine, x_before, weight, residual=residual_before)
    outside_x, outside_r = whole_x.clone(), whole_r.clone()
    machine.show(x, residual, weight)
    host._run(x, x, residual, residual, weight, 1e-6, 0.0, True)
    assert torch.equal(x, y)
    assert total is not None and torch.equal(residual, total)
    x.fill_(0)
    residual.fill_(0)
    for whole, before, view in ((whole_x, outside_x, x), (whole_r, outside_r, residual)):
        before.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(0)
        assert torch.equal(whole, before)


@pytest.mark.parametrize("hidden", [64, 1000, 4096, 65])
def test_a_row_does_not_depend_on_the_others(machine: Machine, hidden: int) -> None:
    x = random(machine, 7, hidden, dtype=torch.bfloat16)
    whole, _ = norm(machine, x)
    alone, _ = norm(machine, x[3:4].clone())
    assert torch.equal(whole[3:4], alone)


def test_special_values(machine: Machine) -> None:
    """As in plain arithmetic: infinity gives NaN in its place and zeros beside it; NaN, or zeros with eps 0, NaN."""
    x = torch.ones((4, 64), dtype=torch.bfloat16, device=machine.device)
    x[0, 5], x[1, 7], x[2] = math.inf, math.nan, 0.0
    y, _ = norm(machine, x, eps=0.0)
    wanted = torch.nn.functional.rms_norm(x.float().cpu(), (64,), eps=0.0)
    assert torch.equal(y.cpu().isnan(), wanted.isnan())
    assert torch.equal(y.cpu().float().nan_to_num(), wanted.nan_to_num())
    small = torch.full((1, 4096), 6e-5, dtype=torch.float16, device=machine.device)
    for value in (small, small * 5e6):
        assert torch.equal(norm(machine, value, eps=1e-12)[0], torch.ones_like(value))


@pytest.mark.parametrize("rows", [97, 193, 1000])
def test_a_grid_of_two_dimensions(machine: Machine, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """As for more rows than the first dimension reaches."""
    monkeypatch.setattr(tuning, "MAX_GRID_X", 3)
    check(machine, random(machine, rows, 64, dtype=torch.float16), None, None, 0.0, True)


def test_row_stride_past_four_gigabytes() -> None:
    """Two rows that no test could allocate in one piece; the kernel adds in 64 bits."""
    config = tuning.select(NormProblem(128, "f16", False, True))
    x = np.random.default_rng(0).standard_normal((2, 128)).astype(np.float16)
    y = np.full((2, 128), np.nan, np.float16)
    memory, base, far = Memory(), 1 << 40, 2 * (2**31 + 8) * 2
    memory.add(x[0], at=base)
    memory.add(x[1], at=base + far)
    sizes = host._sizes(Rows(2, UNSPLIT, ((0, far), (0, 256))), 128, config)
    run(traced(config.name), memory, (1, 1), (base, memory.add(y), 0, 1e-6, 0.0, 1, 0, *sizes))
    values = torch.from_numpy(x).double()
    truth = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + 1e-6)
    assert_within(torch.from_numpy(y), truth, norm_bound(truth, 128, torch.float16))


class TestPlans:
    """What is copied first."""

    @pytest.fixture(autouse=True)
    def interpreted(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(host, "_plans", {})
        with Machine("cpu").running(host, monkeypatch):
            yield

    @pytest.mark.parametrize(
        ("shape", "stride", "config"),
        [
            ((5, 64), (64, 1), "w8_8x2"),
            ((5, 64), (72, 1), "w8_8x2"),
            ((5, 64), (65, 1), "w1_32x8"),
            ((1, 64), (65, 1), "w8_8x2"),  # one row: its stride does not matter
            ((5, 1), (3, 7), "w1_32x8"),  # one element: neither does the stride within a row
            ((2, 3, 64), (1000, 64, 1), "w8_8x2"),
            ((5, 64), (1, 5), None),
            ((2, 3, 4, 64), (10000, 1000, 64, 1), None),
        ],
    )
    def test_plan(self, shape: tuple[int, ...], stride: tuple[int, ...], config: str | None) -> None:
        span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        x = torch.empty(span, dtype=torch.bfloat16).as_strided(shape, stride)
        plan = host.plan_of(x, None, None, aligned=True, in_place=False)
        assert (plan.config.name if plan else None) == (f"rms_norm_bf16_{config}" if config else None)


@needs_gpu
class TestOnGpu:
    """Through the functions that the ops call, at sizes that an interpreter does not reach."""

    @pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
    @pytest.mark.parametrize("hidden", [1, 7, 128, 1023, 2880, 4096, 7168, 8192, 16385, 32768, 65536, 131072, 200_000])
    def test_sizes(self, hidden: int, dtype: torch.dtype) -> None:
        machine = Machine("cuda")
        torch.manual_seed(hidden)
        for rows in (1, 3, 127, 1 + 2**21 // hidden):
            x, residual = random(machine, rows, hidden, dtype=dtype), random(machine, rows, hidden, dtype=dtype)
            weight = random(machine, hidden, dtype=dtype)
            check(machine, x, weight, None, 0.0, True)
            check(machine, x, weight.float(), residual, 1.0, False)

    @pytest.mark.parametrize("layout", ["transposed", "three strides", "mixed weight", "strided weight"])
    def test_copied_first(self, layout: str) -> None:
        machine = Machine("cuda")
        weight = random(machine, 64, dtype=torch.bfloat16)
        x = random(machine, 2, 3, 4, 64, dtype=torch.bfloat16)
        if layout == "transposed":
            x = random(machine, 64, 9, dtype=torch.bfloat16).t()
        elif layout == "three strides":
            x = random(machine, 4, 6, 8, 64, dtype=torch.bfloat16)[::2, ::2, ::2]
        elif layout == "mixed weight":
            weight = weight.half()
        else:
            weight = random(machine, 128, dtype=torch.bfloat16)[::2]
        check(machine, x, weight, None, 0.0, True)
        residual = random(machine, *x.shape, dtype=torch.bfloat16)
        wanted = norm(machine, x.contiguous(), weight, residual=residual)
        moved = x.clone()
        host.fused_add_rms_norm_(moved, residual, weight, 1e-6, 0.0, True)
        assert torch.equal(moved, wanted[0]) and torch.equal(residual, wanted[1])  # type: ignore[arg-type]

    def test_more_rows_than_a_grid_has_blocks_of_one_element(self) -> None:
        """2^31 rows and some."""
        x = torch.full((1, 1), 3.0, dtype=torch.bfloat16, device="cuda").expand(2**31 + 5, 1)
        y = host.rms_norm(x, None, 0.0, 0.0, True)
        assert (y == 1).all()

    def test_no_rows(self) -> None:
        x = torch.empty((0, 64), dtype=torch.bfloat16, device="cuda")
        assert host.rms_norm(x, None, 1e-6, 0.0, True).shape == (0, 64)
        torch.cuda.synchronize()
