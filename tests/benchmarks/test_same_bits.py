"""The comparison of a GPU's answers with the simulator's: with answers of the simulator in the GPU's place."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import pyptx_ops
from benchmarks import products, same_bits
from pyptx_ops.simulator import traced

ONLY = "rms_norm_f16_w8_8x2"  # of both families


@pytest.fixture
def document(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(products, "DEVICE", "cpu")
    with pyptx_ops.simulate(policy="eager"):
        answers = same_bits.run(ONLY)
    kernels = {name: same_bits.fingerprint(traced(name).ptx()) for name in (ONLY, f"fused_add_{ONLY}")}
    return json.loads(
        json.dumps({"environment": {"date": "2026", "gpu": None}, "kernels": kernels, "answers": answers})
    )


def test_the_same_answers_are_the_same(document) -> None:
    tallies, wrong = same_bits.compare(document, ONLY)
    assert not wrong
    assert {kind: tally.same for kind, tally in tallies.items()} == {
        kind: tally.compared for kind, tally in tallies.items()
    }
    assert set(tallies) == {"out of rms_norm", "out of fused_add_rms_norm", "sum of fused_add_rms_norm"}


def test_what_is_told(document, tmp_path, capsys) -> None:
    answers = document["answers"]
    names = [name for name in answers if name.startswith("fused")]
    total = same_bits._unpacked(answers[names[0]]["outputs"]["sum"], torch.empty(1, 8, dtype=torch.float16))
    assert total is not None
    total[0, 3] = torch.nextafter(total.float(), torch.tensor(9.0))[0, 3] + 0.001
    answers[names[0]]["outputs"]["sum"] = same_bits._packed(total)
    answers[names[1]]["inputs"] = "others"
    answers[names[2]]["repeats"] = False
    del answers[names[3]]
    document["kernels"][ONLY] = "another"
    (tmp_path / same_bits.FILE).write_text(json.dumps(document))
    assert same_bits.main(["--compare", str(tmp_path), "--only", ONLY, "--out", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    for text in (
        f"not asked for 1 kernels as they are now: {ONLY}",
        f"{names[0]}: other bits (sum of",
        f"{names[1]}: made from other inputs",
        f"{names[2]}: the GPU's answer changes",
        f"{names[3]}: no answer",
        "1 of 8",
    ):
        assert text in told
    assert list(tmp_path.glob("*-cpu-same-bits.json"))


def test_units_of_the_last_place() -> None:
    one = torch.tensor([1.0, -1.0, 0.0, -0.0, 2.0], dtype=torch.bfloat16)
    other = torch.tensor([1.0078125, -1.0, -0.0, 0.0, 1.9921875], dtype=torch.bfloat16)
    assert same_bits.ulps(one, other).tolist() == [1, 0, 0, 0, 1]
    across = torch.tensor([1e-45, -1e-45], dtype=torch.float32)
    assert same_bits.ulps(across, across.flip(0)).tolist() == [2, 2]
    assert same_bits.ulps(torch.tensor([-0.0]), torch.tensor([1e-45])).tolist() == [1]


def test_every_case_has_a_name_of_its_own() -> None:
    names = [name for name, _ in same_bits.cases()]
    assert len(set(names)) == len(names) > 1200
