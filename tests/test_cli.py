"""``python -m pyptx_ops``: demo, doctor, and what they say when something is missing or wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import torch

import pyptx_ops
from pyptx_ops import doctor, settings
from pyptx_ops.__main__ import main
from pyptx_ops.kernels.hopper.families import FAMILIES
from pyptx_ops.manifest import KernelRecord, Manifest
from pyptx_ops.tables import table

OPS = {
    schema.name.removeprefix("pyptx::")
    for schema in torch._C._jit_get_all_schemas()
    if schema.name.startswith("pyptx::")
}


# --- the command line itself ---


def test_help(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert all(command in text for command in ("demo", "doctor", "build", "sim"))


@pytest.mark.parametrize("arguments", [[], ["no-such-command"]])
def test_bad_command(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["demo", "doctor", "build", "sim"])
def test_each_command_has_help(command, capsys):
    if command == "demo":
        pytest.importorskip("transformers")
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    assert command in capsys.readouterr().out


@pytest.mark.parametrize("missing", [("transformers",), ("torch", "transformers")], ids="-".join)
def test_demo_without_its_packages(missing, monkeypatch, capsys):
    for package in missing:
        monkeypatch.setitem(sys.modules, package, None)
    assert main(["demo"]) == 2
    text = capsys.readouterr().err
    assert f"demo needs {' and '.join(missing)}, not installed" in text
    assert "pip install 'pyptx_ops[demo]'" in text


def test_table():
    text = table(["name", "n"], [["a", 1], ["bcd", 100], [None, None]])
    assert text == "name    n\n----  ---\na       1\nbcd   100\n"


# --- doctor ---


def test_doctor_names_every_op_and_device():
    text = doctor.report()
    devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    lines = [line.split() for line in text.splitlines()]
    for op in OPS:
        for device in devices:
            (line,) = [words for words in lines if words[:2] == [op, device]]
            assert line[2] in ("kernel", "reference", "error") and len(line) > 3
    assert torch.__version__ in text and pyptx_ops.__version__ in text
    assert "cannot tell" not in text


def test_doctor_knows_every_op():
    assert set(doctor.KERNELS) == OPS


@pytest.mark.parametrize("missing", [("torch", "transformers"), ("pyptx_ops._launch",)], ids="-".join)
def test_doctor_with_packages_missing(missing):
    hide = "".join(f"sys.modules[{package!r}] = None; " for package in missing)
    code = f"import sys; {hide}from pyptx_ops.__main__ import main; sys.exit(main(['doctor']))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "not installed" in done.stdout if "torch" in missing else "not built" in done.stdout
    assert "cannot tell" not in done.stdout


def test_doctor_with_no_kernels(tmp_path, monkeypatch):
    monkeypatch.setenv("PYPTX_ARTIFACTS", str(tmp_path))
    assert f"none in {tmp_path}" in doctor.report()


def test_doctor_with_a_broken_manifest(tmp_path, monkeypatch):
    (tmp_path / "sm_90a").mkdir()
    (tmp_path / "sm_90a" / "manifest.json").write_text("{")
    monkeypatch.setenv("PYPTX_ARTIFACTS", str(tmp_path))
    assert "not a manifest" in doctor.report()


def test_doctor_with_an_empty_manifest(tmp_path, monkeypatch):
    Manifest("sm_90a", "13.0.88", ()).save(tmp_path / "sm_90a")
    monkeypatch.setenv("PYPTX_ARTIFACTS", str(tmp_path))
    assert "0 kernels" in doctor.report()
    path, why = doctor._kernel_path(Manifest.load(tmp_path / "sm_90a"), "gemm", "kernels for sm_90a")
    assert path == "error" and "no gemm_* was built" in why


def test_every_kernel_is_counted_once():
    for family in FAMILIES:
        for config in family.configs:
            kinds = [kind for kind in set(doctor.KERNELS.values()) if re.match(f"{kind}_b?f16_", config.name)]
            assert len(kinds) == 1, config.name


def test_doctor_on_a_whole_build():
    manifest = Manifest.load(settings.artifacts_directory() / "sm_90a")
    assert sum(len(family.configs) for family in FAMILIES) == len(manifest.kernels)
    for kind in doctor.KERNELS.values():
        path, why = doctor._kernel_path(manifest, kind, "why")
        assert path == "kernel" and re.fullmatch(rf"why; \d+ {kind}_\* to choose from", why)


def test_doctor_counts_the_kernels_of_an_op():
    fields = {"family": "gemm", "arch": "sm_90a", "config": {}, "entry": "e", "params": (), "block": (1, 1, 1)}
    fields |= {"cluster": (1, 1, 1), "shared_memory": 0, "pdl": False, "ptx": "e.ptx", "ptx_sha256": ""}
    names = ("gemm_f16_a", "grouped_gemm_bf16_a", "grouped_gemm_f16_b")
    manifest = Manifest("sm_90a", None, tuple(KernelRecord(name, **fields) for name in names))
    path, why = doctor._kernel_path(manifest, "gemm", "why")
    assert path == "kernel" and re.fullmatch(
        r"why; 1 gemm_\* to choose from, but \d\d more were not built: .* build", why
    )
    path, why = doctor._kernel_path(manifest, "grouped_gemm", "why")
    assert path == "kernel" and why.startswith("why; 2 grouped_gemm_* to choose from, but ")
    assert "3 kernels (3 gemm) as 0 cubins, the rest PTX" in doctor._built(manifest)


def test_doctor_with_a_wrong_ptxas(tmp_path, monkeypatch):
    monkeypatch.setenv("PYPTX_PTXAS", str(tmp_path / "none"))
    text = doctor.report()
    assert f"PYPTX_PTXAS names {tmp_path / 'none'}" in text and "cannot tell: PtxasError" in text


# --- demo ---


@pytest.fixture
def demo(monkeypatch):
    pytest.importorskip("transformers", minversion="5.0")
    from pyptx_ops import demo

    tiny = {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 256, "head_dim": 16}
    size = demo.Size(
        mixtral=demo._SMALL | tiny | {"intermediate_size": 96, "num_local_experts": 4, "num_experts_per_tok": 2},
        qwen3_moe=demo._QWEN3 | demo._SMALL | tiny | {"moe_intermediate_size": 48, "num_experts": 12},
        batch=2,
        prompt=29,
        steps=3,
        rounds=1,
    )
    monkeypatch.setitem(demo.SIZES, "small", size)
    return demo


def test_demo(demo, tmp_path, capsys):
    path = tmp_path / "demo.json"
    assert main(["demo", "--size", "small", "--device", "cpu", "--json", str(path)]) == 0
    text = capsys.readouterr().out
    assert "REFERENCE path" in text and "Ours and the library agree." in text
    assert "no CUDA graph" in text and "bytes of this package's own source" in text
    record = json.loads(path.read_text())
    assert record["agrees"] and record["route"]["path"] == "reference"
    assert [model["model"] for model in record["models"]] == ["mixtral", "qwen3_moe"]
    for model in record["models"]:
        runs = {(row["run"], row["implementation"]): row for row in model["rows"]}
        for run in ("prefill, eager", "prefill, compiled", "decode, eager"):
            for implementation in (demo.LIBRARY, demo.OURS):
                if "compiled" in run and implementation == demo.LIBRARY and torch.__version__.startswith("2.9."):
                    assert any("does not compile it" in note for note in model["notes"])
                    continue
                row = runs[run, implementation]
                assert row["ms"] > 0 and 0 < row["median_error"] <= row["worst_error"]
        assert ("prefill, eager", demo.LOOP) in runs
        assert model["ops"]["grouped_gemm"] == model["ops"]["grouped_gemm_swiglu"] == 1
        assert model["ops"]["rms_norm"] == model["patched"]["rms_norm"]


def test_demo_where_the_library_does_not_compile(demo, monkeypatch, capsys):
    """Ours is then judged by the library's errors in eager mode."""

    def refuses(*args, **kwargs):
        raise torch._dynamo.exc.Unsupported("a reason\nand more")

    def compiled(model, **options):
        return refuses if model.config._experts_implementation == "grouped_mm" else model

    monkeypatch.setattr(torch, "compile", compiled)
    assert main(["demo", "--size", "small", "--device", "cpu", "--models", "mixtral"]) == 0
    text = capsys.readouterr().out
    assert f"note: {demo.LIBRARY}: torch {torch.__version__} does not compile it: a reason\n" in text
    (line,) = [line for line in text.splitlines() if line.startswith("prefill, compiled")]
    assert demo.OURS in line


@pytest.mark.parametrize("op", ["grouped_gemm", "grouped_gemm_swiglu", "rms_norm"])
def test_demo_finds_a_wrong_op(demo, op, monkeypatch, capsys):
    """An op that is off by a quarter in one row of its output, and right in all others, makes the demo fail."""
    right = getattr(pyptx_ops, op)

    def wrong(*args, **kwargs):
        out = right(*args, **kwargs).clone()
        out[-1:] *= 1.25
        return out

    monkeypatch.setattr(pyptx_ops, op, wrong)
    monkeypatch.setattr("pyptx_ops.demo_runs._compiled", lambda *args: None)  # eager mode is enough to find it
    assert main(["demo", "--size", "small", "--device", "cpu", "--models", "mixtral"]) == 1
    text = capsys.readouterr().out
    assert "DISAGREES: prefill with fp32's routes: worst error" in text and "DISAGREE, see above" in text


@pytest.mark.parametrize("device", ["meta", "cuda:99", "no-such-device"])
def test_demo_on_a_device_that_is_not_there(device, capsys):
    pytest.importorskip("transformers", minversion="5.0")
    with pytest.raises(SystemExit) as stopped:
        main(["demo", "--device", device])
    assert stopped.value.code == 2
    assert device in capsys.readouterr().err


def test_text_is_the_source(demo):
    tokens = demo.text_tokens(3, 50)
    assert tokens.shape == (3, 50) and bytes(tokens.flatten().tolist()).startswith(b'"""')
    with pytest.raises(ValueError, match="wanted 1000000000"):
        demo.text_tokens(1000, 1000000)


# --- the rules of agreement ---


@pytest.fixture
def runs(demo):
    from pyptx_ops import demo_runs

    return demo_runs


@pytest.fixture
def result(runs):
    return runs.Result("mixtral", {}, {})


@pytest.mark.parametrize(("ours", "agrees"), [(1.4, True), (1.6, False), (float("nan"), False), (float("inf"), False)])
def test_rule_errors(runs, result, ours, agrees):
    runs._judge_errors(result, "run", {runs.LIBRARY: (0.01, 0.02), runs.OURS: (0.01 * ours, 0.02)})
    runs._judge_errors(result, "run", {runs.LIBRARY: (0.01, 0.02), runs.OURS: (0.01, 0.02 * ours)})
    assert len(result.complaints) == (0 if agrees else 2)


@pytest.mark.parametrize(("ours", "agrees"), [(1.4, True), (1.6, False), (float("nan"), False)])
def test_rule_errors_where_the_library_takes_no_part(runs, result, ours, agrees):
    result.pinned[runs.LIBRARY] = (0.01, 0.02)
    runs._judge_errors(result, "run", {runs.OURS: (0.01 * ours, None)})
    assert len(result.complaints) == (0 if agrees else 1)


def test_rule_tokens(runs, result):
    exact = torch.zeros(1, 3, 8)
    exact[..., 2] = 1.0
    exact[0, 2, 3] = 0.99  # a near tie: either is right
    library = exact + 0.01
    ours = exact.clone()
    ours[0, 2, 3] = 1.1
    runs._judge_tokens(result, ours, library, exact)
    assert not result.complaints
    ours[0, 0, 5] = 2.0
    runs._judge_tokens(result, ours, library, exact)
    assert "1 tokens differ" in result.complaints[0]


@pytest.mark.parametrize(("theirs", "ours", "agrees"), [(0, 5, True), (0, 6, False), (10, 25, True), (10, 30, False)])
def test_rule_moved(runs, result, theirs, ours, agrees):
    result.rows = [runs.Row("run", runs.LIBRARY, 1.0, moved=theirs), runs.Row("run", runs.OURS, 1.0, moved=ours)]
    runs._judge_moved(result)
    assert (not result.complaints) == agrees


def test_rule_graph(runs, result):
    result.pinned[runs.LIBRARY] = (0.005, 0.01)
    eager = torch.ones(1, 2, 4)
    for factor, complaints in ((1.0, 0), (1.01, 0), (1.02, 1), (float("nan"), 2)):
        runs._judge_graph(result, eager * factor, eager)
        assert len(result.complaints) == complaints


def test_medians_take_turns(runs):
    order = []
    times = runs.medians(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")},
        torch.device("cpu"),
        3,
        before=lambda name: order.append(f"before {name}"),
    )
    assert order == ["before a", "a", "before b", "b"] * 5
    assert set(times) == {"a", "b"} and all(ms >= 0 for ms in times.values())
