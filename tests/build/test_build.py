"""The build on small families: what it makes, what it does not make again, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyptx_ops import build as build_module
from pyptx_ops.build import BuildError, build
from pyptx_ops.dsl.types import Param
from pyptx_ops.kernels.family import Family
from pyptx_ops.manifest import Manifest
from pyptx_ops.ptxas import find_ptxas

from . import fake

FAKE = fake.__name__
ROOT = Path(__file__).parents[2]
NAMES = ["scale_2_128", "scale_3_128", "scale_2_256"]


@pytest.fixture(autouse=True)
def _needs_ptxas() -> None:
    if find_ptxas() is None:
        pytest.skip("no ptxas on this machine")


def make(output: Path, **options: object) -> Manifest:
    return build(**{"output": output, "module": FAKE, "jobs": 1} | options)  # type: ignore[arg-type]


def times(output: Path, pattern: str) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (output / "sm_90a").glob(pattern)}


def contents(output: Path) -> dict[str, bytes]:
    """What the launcher sees."""
    return {path.name: path.read_bytes() for path in (output / "sm_90a").iterdir() if path.is_file()}


@dataclass(frozen=True)
class Named:
    """A config that is only a name."""

    name: str


def use(monkeypatch: pytest.MonkeyPatch, builder: object, *names: str) -> None:
    """Makes the fake module list one family of such kernels."""
    configs = tuple(Named(name) for name in names or ("kernel",))
    monkeypatch.setattr(fake, "FAMILIES", (Family("fake", configs, builder),))  # type: ignore[arg-type]


def raw(text: str) -> SimpleNamespace:
    """Stands in for a traced kernel whose PTX is given."""
    shape = {"block": (1, 1, 1), "cluster": (1, 1, 1), "dynamic_smem": 0, "pdl": False}
    return SimpleNamespace(ptx=lambda: text, entry="kernel", params=(), **shape)


def test_every_config_becomes_a_kernel(tmp_path: Path) -> None:
    manifest = make(tmp_path)
    directory = tmp_path / "sm_90a"
    assert Manifest.load(directory) == manifest
    assert [record.name for record in manifest.kernels] == NAMES
    assert manifest.ptxas == find_ptxas().version  # type: ignore[union-attr]
    record = manifest.kernel("scale_2_256")
    assert (record.family, record.config) == ("scale", {"factor": 2.0, "block": 256})
    assert (record.block, record.cluster, record.shared_memory, record.pdl) == ((256, 1, 1), (1, 1, 1), 0, False)
    assert record.params == (Param("data", "pointer"),)
    assert record.registers and (record.spill_stores, record.spill_loads, record.stack) == (0, 0, 0)
    for record in manifest.kernels:
        assert f".entry {record.entry}(" in (directory / record.ptx).read_text()
        assert record.cubin and (directory / record.cubin).read_bytes().startswith(b"\x7fELF")


def test_what_did_not_change_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make(tmp_path)
    before, made = times(tmp_path, "scale*"), times(tmp_path, "build/scale*")
    monkeypatch.setattr(build_module, "_trace", lambda job: pytest.fail(f"traced {job.name} again"))
    assert make(tmp_path) == first
    assert (times(tmp_path, "scale*"), times(tmp_path, "build/scale*")) == (before, made)


def test_changed_sources_are_traced_and_unchanged_ptx_is_not_assembled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    cubins, traces = times(tmp_path, "build/*.cubin"), times(tmp_path, "build/*.json")
    monkeypatch.setattr(build_module, "_hash_of_sources", lambda module: "other sources")
    make(tmp_path)
    assert times(tmp_path, "build/*.cubin") == cubins
    assert all(times(tmp_path, "build/*.json")[f"{name}.json"] > traces[f"{name}.json"] for name in NAMES)


@pytest.mark.parametrize("edited", ["dsl/ir.py", "isa/row.py", "kernels/family.py", "manifest.py", "build/fake.py"])
def test_the_hash_covers_dsl_kernels_and_the_module(monkeypatch: pytest.MonkeyPatch, edited: str) -> None:
    before = build_module._hash_of_sources(FAKE)
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read_bytes(path) + b"#" * path.as_posix().endswith(edited))
    assert build_module._hash_of_sources(FAKE) != before
    monkeypatch.undo()
    assert build_module._hash_of_sources(FAKE) == before


FILES = ["scale_2_128.ptx", "scale_2_128.cubin", "build/scale_2_128.ptx", "build/scale_2_128.cubin"]


@pytest.mark.parametrize("lost", FILES)
def test_a_lost_file_is_made_again(tmp_path: Path, lost: str) -> None:
    make(tmp_path)
    path = tmp_path / "sm_90a" / lost
    right = path.read_bytes()
    path.unlink()
    make(tmp_path)
    assert path.read_bytes() == right


@pytest.mark.parametrize("edited", FILES[:3])
def test_an_edited_file_is_made_again(tmp_path: Path, edited: str) -> None:
    make(tmp_path)
    path = tmp_path / "sm_90a" / edited
    right = path.read_bytes()
    path.write_bytes(right + b"// edited\n")
    make(tmp_path)
    assert path.read_bytes() == right


def test_force_starts_from_nothing(tmp_path: Path) -> None:
    make(tmp_path)
    before = times(tmp_path, "build/*.cubin")
    make(tmp_path, force=True)
    assert all(time > before[name] for name, time in times(tmp_path, "build/*.cubin").items())


def test_only_keeps_the_other_kernels(tmp_path: Path) -> None:
    whole = make(tmp_path)
    (tmp_path / "sm_90a/build/scale_2_256.json").write_text("not looked at")
    assert make(tmp_path, only="*_128") == whole
    fresh = make(tmp_path / "fresh", only="scale_3*")
    assert [record.name for record in fresh.kernels] == ["scale_3_128"]


def test_kernels_that_are_no_more_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path)
    (family,) = fake.FAMILIES
    monkeypatch.setattr(fake, "FAMILIES", (Family("scale", family.configs[:1], family.build),))
    make(tmp_path)
    left = sorted(path.name for path in (tmp_path / "sm_90a").iterdir() if path.is_file() and path.name[0] != ".")
    assert left == ["manifest.json", "scale_2_128.cubin", "scale_2_128.ptx"]


def test_processes_make_the_same(tmp_path: Path) -> None:
    code = (
        f"from pathlib import Path; from pyptx_ops.build import build; build(output=Path(%r), module={FAKE!r}, jobs=%d)"
    )
    for jobs in (1, 3):
        subprocess.run([sys.executable, "-c", code % (str(tmp_path / str(jobs)), jobs)], check=True, cwd=ROOT)
    one, three = (Manifest.load(tmp_path / str(jobs) / "sm_90a") for jobs in (1, 3))
    assert one == three


# --------------------------------------------------------------------------------------------------- without ptxas


def test_without_ptxas_the_ptx_is_packaged_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "find_ptxas", lambda: None)
    with pytest.warns(RuntimeWarning, match="no ptxas found .*Triton.*pip install nvidia-cuda-nvcc") as caught:
        manifest = make(tmp_path)
    assert len(caught) == 1 and "PYPTX_PTXAS" in str(caught[0].message)
    assert manifest.ptxas is None
    assert [(record.cubin, record.registers) for record in manifest.kernels] == [(None, None)] * 3
    assert not times(tmp_path, "*.cubin")


def test_without_ptxas_a_cubin_of_the_same_ptx_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make(tmp_path)
    (tmp_path / "sm_90a/scale_3_128.cubin").unlink()
    monkeypatch.setattr(build_module, "find_ptxas", lambda: None)
    with pytest.warns(RuntimeWarning, match="no ptxas found"):
        manifest = make(tmp_path)
    assert manifest.kernel("scale_2_128") == whole.kernel("scale_2_128")
    assert manifest.kernel("scale_3_128").cubin is None


# ---------------------------------------------------------------------------------------------------------- refusals


def entry(body: str, directives: str = ".maxntid 128, 1, 1") -> SimpleNamespace:
    head = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry kernel(.param .u64 data)\n"
    return raw(f"{head}{directives}\n{{\n{body}ret;\n}}\n")


def crowded(config: Named) -> SimpleNamespace:
    """More live values than its registers hold."""
    loads = "".join(f"ld.volatile.global.b32 %r{i}, [%rd0+{512 * i}];\n" for i in range(64))
    stores = "".join(f"st.volatile.global.b32 [%rd0+{512 * i}], %r{i};\n" for i in range(64))
    declared = ".reg .b32 %r<64>;\n.reg .b64 %rd<1>;\nld.param.u64 %rd0, [data];\n"
    return entry(declared + loads + stores, ".maxntid 128, 1, 1\n.maxnreg 24")


def greedy(config: Named) -> SimpleNamespace:
    """Asks for registers without saying how many a thread starts with."""
    return entry("setmaxnreg.inc.sync.aligned.u32 240;\n")


def test_a_spill_fails_the_build_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path)
    before = contents(tmp_path)
    use(monkeypatch, crowded, "scale_2_128")
    with pytest.raises(BuildError, match=r"scale_2_128 spills: \d+ bytes stored, \d+ loaded with 24 registers"):
        make(tmp_path)
    assert contents(tmp_path) == before


def test_a_spill_with_a_reason_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, crowded, "crowded")
    monkeypatch.setitem(build_module.ALLOWED_SPILLS, "crow*", "made to spill")
    (record,) = make(tmp_path).kernels
    assert record.spill_stores and record.spill_loads and record.stack


def test_an_advisory_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, greedy, "greedy")
    with pytest.raises(BuildError, match=r"greedy: .*\(C7508\).*setmaxnreg"):
        make(tmp_path)


def test_ptx_that_ptxas_refuses_is_named_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry kernel()\n{\n    no.such opcode;\n}\n"
    use(monkeypatch, lambda config: raw(text), "one", "two")
    with pytest.raises(BuildError) as caught:
        make(tmp_path)
    for name in ("one", "two"):
        assert f"{name}.ptx, line 6" in str(caught.value)


def test_a_kernel_that_does_not_trace_is_named_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(config: Named) -> None:
        raise ZeroDivisionError("no tiles")

    use(monkeypatch, broken, "one", "two", "three", "four")
    line = broken.__code__.co_firstlineno + 1
    wanted = rf"one, two, three and 1 more: no trace: ZeroDivisionError: no tiles \(.*test_build.py:{line}\)"
    with pytest.raises(BuildError, match=wanted):
        make(tmp_path)


def test_two_configs_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, greedy, "same", "same")
    with pytest.raises(BuildError, match="kernel names used by two configs: same"):
        make(tmp_path)


def test_an_unknown_architecture_or_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="wanted an architecture out of sm_90a, got 'sm_70'"):
        build("sm_70", output=tmp_path)
    with pytest.raises(BuildError, match="no kernel of sm_90a is called 'x'; there are scale_2_128"):
        make(tmp_path, only="x")


def test_the_command_tells_what_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(build_module.FAMILIES, "sm_90a", FAKE)
    assert build_module.main(["--output", str(tmp_path), "--jobs", "1"]) == 0
    assert capsys.readouterr().out.startswith("sm_90a: 3 kernels, 3 cubins (ptxas ")
    assert build_module.main(["--output", str(tmp_path), "--only", "x"]) == 1
    assert "build failed for sm_90a:\nno kernel of sm_90a is called 'x'" in capsys.readouterr().err
    monkeypatch.setenv("PYPTX_PTXAS", "/no/ptxas")
    assert build_module.main(["--output", str(tmp_path)]) == 1
    assert "build failed for sm_90a:\nPYPTX_PTXAS names /no/ptxas, which is no file" in capsys.readouterr().err
