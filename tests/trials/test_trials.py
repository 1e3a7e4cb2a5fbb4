"""The problems made for the kernels reach each of them and its edges, and find what is wrong."""

from __future__ import annotations

import pytest
import torch

from pyptx_ops.kernels.configs import GemmConfig
from pyptx_ops.kernels.hopper.families import FAMILIES
from pyptx_ops.kernels.hopper.tuning import gemm as gemm_tuning
from pyptx_ops.kernels.hopper.tuning import norm as norm_tuning
from pyptx_ops.kernels.hopper.tuning import swiglu as swiglu_tuning
from pyptx_ops.trials import CONFIGS, every_trial, poisoned, trials_of
from pyptx_ops.trials.gemm import GemmTrial
from pyptx_ops.trials.gemm_swiglu import GemmSwigluTrial
from pyptx_ops.trials.inputs import Source, bits, digest, moved
from pyptx_ops.trials.rowwise import NormTrial, SwigluTrial

TRIALS = list(every_trial())


def test_every_kernel_has_trials_with_names_of_their_own() -> None:
    assert {config.name for family in FAMILIES for config in family.configs} == {trial.kernel for trial in TRIALS}
    assert len({(trial.kernel, trial.what) for trial in TRIALS}) == len(TRIALS)
    assert all(next(trials_of(config)).kernel == config.name for config in CONFIGS)


@pytest.mark.parametrize("config", gemm_tuning.configs(), ids=lambda config: config.name)
def test_gemm_problems_reach_the_edges(config: GemmConfig) -> None:
    trials = [trial for trial in trials_of(config) if isinstance(trial, GemmTrial)]
    depths = [max(trial.counts) if config.ragged_k else trial.depth for trial in trials]
    per_rank = [-(-depth // config.tile_k) / config.split_k for depth in depths]
    assert any(blocks > config.stages for blocks in per_rank), "no ring wraps"
    assert {trial.bias for trial in trials} == {True, False}
    if config.swiglu:
        packed = {trial.interleaved for trial in trials if isinstance(trial, GemmSwigluTrial)}
        assert packed == ({False} if "mn" in (config.x_major, config.y_major) else {True, False})
    else:
        assert {trial.wide for trial in trials} == {True, False}
    assert any(trial.columns % 8 == 0 for trial in trials) and any(trial.columns % config.weights for trial in trials)
    products = [len(trial.counts) if config.ragged_k else 1 for trial in trials]
    token_tiles = [n * -(-trial.rows // config.tokens) for n, trial in zip(products, trials, strict=True)]
    assert any(n > trial.workers for n, trial in zip(token_tiles, trials, strict=True)), "no CTA has several tiles"
    if config.ragged_k:
        assert any(0 in trial.counts for trial in trials) and any(sum(t.counts) < t.depth for t in trials)
    elif config.grouped:
        assert any(0 in trial.counts for trial in trials) and any(sum(t.counts) < t.rows for t in trials)
    else:
        near = {trial.rows - config.tokens for trial in trials}
        assert near & {-1, 0} and near & {0} and near & {1, 8}
    if config.split_k > 1:
        assert any(blocks < 1 for blocks in per_rank), "every CTA has K blocks"


def test_the_selector_takes_rows_there() -> None:
    for trial in TRIALS:
        if isinstance(trial, NormTrial):
            config = trial.config
            problem = norm_tuning.NormProblem(trial.hidden, config.dtype, config.residual, True)
            assert norm_tuning.select(problem) == config, trial.what
        elif isinstance(trial, SwigluTrial):
            config, aligned = trial.config, trial.config.layout != "strided" or trial.form == "packed"
            problem = swiglu_tuning.SwigluProblem(
                trial.columns, config.dtype, trial.interleaved, aligned, config.backward
            )
            assert swiglu_tuning.select(problem) == config, trial.what


@pytest.mark.parametrize("trial", TRIALS[::13], ids=lambda trial: f"{trial.kernel} {trial.what}")
def test_the_reference_passes_and_changed_results_do_not(trial) -> None:
    inputs = trial.inputs(3)
    before = digest(inputs)
    outputs = trial.run(inputs)
    assert trial.excess(inputs, outputs) <= 1
    assert digest(inputs) == before
    for name, tensor in outputs.items():
        changed = tensor.clone()
        changed.view(-1)[-1] = changed.view(-1)[-1] * 1.5 + 1
        assert not trial.excess(inputs, {**outputs, name: changed}) <= 1


def test_inputs_are_known_bits() -> None:
    """What one machine computed must mean the same on another one: the figures are those of every machine."""
    source = Source("a name", 7)
    assert digest({"x": source.numbers((3, 5), torch.bfloat16)}) == "3eda029ec92ff565f663591515e40682"
    assert digest({"x": source.numbers((3, 5), torch.float16, "mn"), "y": None}) == "5602faea8a6649439f1f0308be751863"


def test_inputs_depend_on_seed_and_name() -> None:
    first, again, other = (next(trials_of(CONFIGS[0])).inputs(seed) for seed in (1, 1, 2))
    assert digest(first) == digest(again) != digest(other)
    values = Source("spread", 0).numbers((4000,), torch.float32)
    assert abs(float(values.mean())) < 0.1 and 1.1 < float(values.std()) < 1.2


def test_a_moved_tensor_keeps_its_strides_and_bits() -> None:
    sliced = torch.arange(60, dtype=torch.float32).view(3, 4, 5)[:, 1:3, ::2]
    copy = moved({"x": sliced}, "cpu")["x"]
    assert copy is not None and copy.data_ptr() != sliced.data_ptr()
    assert copy.stride() == sliced.stride() and bits(copy) == bits(sliced) == bits(sliced.contiguous())


def test_poisoned_memory() -> None:
    with poisoned():
        assert torch.empty(100).isnan().all() and torch.ones(3, dtype=torch.bfloat16).new_empty((40, 2)).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()
