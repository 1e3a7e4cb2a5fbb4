from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyptx_ops.dsl.types import PARAM_KINDS, TENSOR_MAP_DTYPES, Param, TensorMapSpec
from pyptx_ops.manifest import FORMAT, KernelRecord, Manifest, ManifestError, write_atomically

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
sizes = st.tuples(*[st.integers(1, 1024)] * 3)
numbers = st.none() | st.integers(0, 255)
specs = st.builds(
    TensorMapSpec,
    st.sampled_from(sorted(TENSOR_MAP_DTYPES)),
    st.lists(st.integers(1, 256), min_size=1, max_size=5).map(tuple),
    st.sampled_from((0, 32, 64, 128)),
    st.sampled_from((0, 64, 128, 256)),
    st.booleans(),
)
scalars = st.builds(Param, names, st.sampled_from([kind for kind in PARAM_KINDS if kind != "tensor_map"]))
params = st.lists(scalars | st.builds(Param, names, st.just("tensor_map"), specs), max_size=6).map(tuple)
configs = st.dictionaries(
    names, st.integers() | st.booleans() | st.none() | names | st.lists(st.integers()), max_size=4
)
records = st.builds(
    KernelRecord, names, names, names, configs, names, params, sizes, sizes, st.integers(0, 232448), st.booleans(),
    names, names, st.none() | names, numbers, numbers, numbers, numbers, numbers,
)  # fmt: skip

RECORD = KernelRecord(
    "k", "f", "sm_90a", {"tile": 64}, "k", (Param("x", "pointer"),), (1, 1, 1), (1, 1, 1), 0, False, "k.ptx", "00"
)


@given(st.lists(records, max_size=4, unique_by=lambda record: record.name), st.none() | names)
def test_json_round_trip(kernels: list[KernelRecord], ptxas: str | None) -> None:
    manifest = Manifest("sm_90a", ptxas, tuple(kernels))
    assert Manifest.loads(manifest.dumps()) == manifest
    assert all(manifest.kernel(record.name) is record and record.name in manifest for record in kernels)


def test_save_and_load(tmp_path: Path) -> None:
    manifest = Manifest("sm_90a", None, (RECORD,))
    path = manifest.save(tmp_path / "new" / "sm_90a")
    assert path.name == "manifest.json"
    assert Manifest.load(path.parent) == manifest
    assert [item.name for item in path.parent.iterdir()] == ["manifest.json"]


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "text is no bytes")  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o644


def test_names_are_unique() -> None:
    with pytest.raises(ManifestError, match="sm_90a: kernel names used twice: k"):
        Manifest("sm_90a", None, (RECORD, replace(RECORD, entry="other")))


def test_a_missing_manifest_says_how_to_build(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="manifest.json does not exist; run `python -m pyptx_ops.build`"):
        Manifest.load(tmp_path)


def document(**changes: object) -> dict[str, object]:
    return json.loads(Manifest("sm_90a", None, (RECORD,)).dumps()) | changes


def kernel(**changes: object) -> dict[str, object]:
    (record,) = document()["kernels"]  # type: ignore[misc]
    return document(kernels=[{name: value for name, value in (record | changes).items() if value != "absent"}])


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("", "not a manifest: JSONDecodeError"),
        ("{", "not a manifest: JSONDecodeError"),
        ([], f"reads manifest format {FORMAT}, got 'list'"),
        ({}, f"reads manifest format {FORMAT}, got None"),
        (document(format=FORMAT + 1), f"reads manifest format {FORMAT}, got {FORMAT + 1}"),
        ({"format": FORMAT}, "not a manifest: KeyError: 'kernels'"),
        (document(kernels=[3]), "not a manifest: AttributeError"),
        (kernel(pdl="absent"), "kernel 'k': fields missing or unknown: pdl"),
        (kernel(colour=1), "kernel 'k': fields missing or unknown: colour"),
        (kernel(block=[1, 2]), r"kernel 'k': block wants 3 sizes, got \[1, 2\]"),
        (kernel(params=[{"name": "x", "kind": "u16", "tensor_map": None}]), "'k' parameter 'x': unknown kind 'u16'"),
        (kernel(params=[{"name": "x", "kind": "tensor_map", "tensor_map": {"sort": 1}}]), "not a manifest: KeyError"),
    ],
)
def test_what_is_wrong_with_a_manifest_is_told(tmp_path: Path, content: object, match: str) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ManifestError, match=match) as caught:
        Manifest.load(tmp_path)
    assert str(tmp_path / "manifest.json") in str(caught.value)
