"""Problems for each RMSNorm and SwiGLU config: the rows that the selector gives it, around its edges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from ..kernels.configs import RmsNormConfig, SwigluConfig
from ..kernels.hopper.tuning import norm as norm_tuning
from ..ops._swiglu import split
from ..ops.fused_add_rms_norm import fused_add_rms_norm, fused_add_rms_norm_
from ..ops.rms_norm import rms_norm
from ..ops.silu_and_mul import silu_and_mul
from ..ops.silu_and_mul_bwd import silu_and_mul_bwd
from ..ops.swiglu import swiglu
from ..ops.swiglu_bwd import swiglu_bwd
from .bounds import fused_excess, norm_excess, silu_excess, silu_gradients_excess
from .inputs import DTYPES, Source, Values

__all__ = ["NormTrial", "SwigluTrial", "norm_trials", "swiglu_trials"]

EPS = 1e-5
SCALE = 4  # so that the gate reaches where silu bends


def _shown(values: Values) -> str:
    return "" if values == "normal" else f" {values}"


@dataclass(frozen=True)
class NormTrial:
    """rows × hidden.

    weight: of the inputs' dtype, fp32, or none.  offset, cast: the op's weight_offset and cast_before_weight.
    form: "sliced": rows that are two strides apart.
    """

    config: RmsNormConfig
    rows: int
    hidden: int
    weight: Literal["same", "fp32", "none"] = "same"
    offset: float = 0.0
    cast: bool = True
    form: Literal["plain", "in place", "sliced"] = "plain"
    values: Values = "normal"

    @property
    def kernel(self) -> str:
        return self.config.name

    @cached_property
    def what(self) -> str:
        weight = f"weight {self.weight} +{self.offset:g} {'cast first' if self.cast else 'cast last'}"
        return f"{self.rows}x{self.hidden} {weight} {self.form}{_shown(self.values)}"

    def inputs(self, seed: int) -> dict[str, Tensor | None]:
        source, dtype = Source(self.what, seed), DTYPES[self.config.dtype]

        def rows() -> Tensor:
            if self.form != "sliced":
                return source.numbers((self.rows, self.hidden), dtype, values=self.values)
            return source.numbers((2, self.rows + 1, self.hidden), dtype, values=self.values)[:, : self.rows]

        x, residual = rows(), rows() if self.config.residual else None
        weight_dtype = torch.float32 if self.weight == "fp32" else dtype
        weight = None if self.weight == "none" else source.numbers((self.hidden,), weight_dtype)
        return {"x": x, "residual": residual, "weight": weight}

    def run(self, inputs: dict[str, Tensor | None]) -> dict[str, Tensor]:
        """On tensors of any device, which stay as they are."""
        x, residual, weight = inputs.values()
        assert x is not None
        options = (EPS, self.offset, self.cast)
        if residual is None:
            return {"out": rms_norm(x, weight, *options)}
        if self.form == "in place":
            x, residual = x.clone(), residual.clone()
            fused_add_rms_norm_(x, residual, weight, *options)
            return {"out": x, "sum": residual}
        out, total = fused_add_rms_norm(x, residual, weight, *options)
        return {"out": out, "sum": total}

    def excess(self, inputs: dict[str, Tensor | None], outputs: dict[str, Tensor]) -> float:
        x, residual, weight = inputs.values()
        assert x is not None
        options = (EPS, self.offset, self.cast)
        if residual is None:
            return norm_excess(outputs["out"], x, weight, *options)
        return fused_excess((outputs["out"], outputs["sum"]), x, residual, weight, *options)


def norm_trials(config: RmsNormConfig) -> Iterator[NormTrial]:
    """The first one is the smallest."""
    least, most, inner = _least(config), _most(config), _most(config) - config.width
    form: Literal["plain", "in place"] = "in place" if config.residual else "plain"
    yield NormTrial(config, 1, least)
    yield NormTrial(config, config.rows + 1, inner, "fp32", cast=False, form=form)
    yield NormTrial(config, 1, most if config.width > 1 else inner, "none")
    yield NormTrial(config, max(config.rows - 1, 2), least, offset=1.0, form="sliced")
    yield NormTrial(config, 2, inner, "fp32", offset=1.0)


def _least(config: RmsNormConfig) -> int:
    """The shortest row that the selector gives this config."""
    shorter = [
        other.resident
        for other in norm_tuning.configs()
        if (other.dtype, other.residual, other.width) == (config.dtype, config.residual, config.width)
        and other.resident < config.resident
    ]
    if config.wide and config.cluster == 1:
        return max(shorter) + 1
    return max(shorter, default=0) + config.width


def _most(config: RmsNormConfig) -> int:
    """The longest row that stays in registers; of a config for wide rows one that needs another two turns."""
    return config.resident + (config.resident // 2 if config.wide else 0)


@dataclass(frozen=True)
class SwigluTrial:
    """rows × columns of the activation. used: rows that belong to groups, where there are any; the others hold NaN."""

    config: SwigluConfig
    rows: int
    columns: int
    form: Literal["packed", "apart"] = "packed"
    used: int | None = None
    values: Values = "normal"

    @property
    def kernel(self) -> str:
        return self.config.name

    @cached_property
    def what(self) -> str:
        used = f" {self.used} used" if self.used is not None else ""
        return f"{self.rows}x{self.columns} {self.form}{used}{_shown(self.values)}"

    @property
    def interleaved(self) -> bool:
        return self.config.layout == "pairs"

    def inputs(self, seed: int) -> dict[str, Tensor | None]:
        source, dtype = Source(self.what, seed), DTYPES[self.config.dtype]

        def numbers(columns: int, major: str = "k") -> Tensor:
            return source.numbers((self.rows, columns), dtype, major, self.values) * SCALE

        major = "mn" if self.config.layout == "strided" and self.form == "apart" else "k"
        inputs: dict[str, Tensor | None]
        if self.form == "packed":
            inputs = {"x": numbers(2 * self.columns)}
        else:
            inputs = {"gate": numbers(self.columns, major), "up": numbers(self.columns, major)}
        if self.config.backward:
            inputs["dy"] = numbers(self.columns, major)
        if self.used is not None:
            for tensor in inputs.values():
                assert tensor is not None
                tensor[self.used :] = float("nan")
            inputs["offs"] = torch.tensor([self.used // 2, self.used], dtype=torch.int32)
        return inputs

    def run(self, inputs: dict[str, Tensor | None]) -> dict[str, Tensor]:
        """On tensors of any device."""
        x, dy, offs = inputs.get("x"), inputs.get("dy"), inputs.get("offs")
        if x is not None:
            return {
                "out": silu_and_mul(x, self.interleaved) if dy is None else silu_and_mul_bwd(dy, x, self.interleaved)
            }
        gate, up = inputs["gate"], inputs["up"]
        assert gate is not None and up is not None
        if dy is None:
            return {"out": swiglu(gate, up, offs)}
        d_gate, d_up = swiglu_bwd(dy, gate, up, offs)
        return {"d_gate": d_gate, "d_up": d_up}

    def excess(self, inputs: dict[str, Tensor | None], outputs: dict[str, Tensor]) -> float:
        used, x, dy = self.rows if self.used is None else self.used, inputs.get("x"), inputs.get("dy")
        gate, up = (inputs["gate"], inputs["up"]) if x is None else split(x, self.interleaved)
        assert gate is not None and up is not None
        results = list(outputs.values())
        if any(bool((result[used:] != 0).any()) for result in results):
            return float("inf")
        if dy is None:
            return silu_excess(results[0][:used], gate[:used], up[:used])
        d_gate, d_up = results if x is None else split(results[0], self.interleaved)
        return silu_gradients_excess(d_gate[:used], d_up[:used], dy[:used], gate[:used], up[:used])


def swiglu_trials(config: SwigluConfig) -> Iterator[SwigluTrial]:
    """The first one is the smallest."""
    width, per_block = config.width, config.block * config.unroll * config.width
    yield SwigluTrial(config, 1, width)
    yield SwigluTrial(config, 1, per_block - width)
    if width > 1:  # else rows that fill blocks would be aligned, and another config's
        yield SwigluTrial(config, 1, per_block)
    yield SwigluTrial(config, 1, per_block + width)
    yield SwigluTrial(config, 7, width * 83)
    if config.layout != "pairs":
        yield SwigluTrial(config, 5, width * 83, "apart")
        yield SwigluTrial(config, 6, width * 83, "apart", used=4)
        yield SwigluTrial(config, 3, width * 5, "apart", used=0)
