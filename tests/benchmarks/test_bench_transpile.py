"""The transpiler's benchmark writes what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench_transpile


def test_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_transpile, "RUNS", 1)
    corpus = str(bench_transpile.CORPUS / "hard")
    assert bench_transpile.main(["--corpus", corpus, "--large", "20000", "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*-transpile.json")
    (run,) = json.loads(path.read_text())["runs"]
    files, large = run["rows"]
    assert files["files"] == len(list((bench_transpile.CORPUS / "hard").glob("*.ptx"))) and large["files"] == 1
    assert all(row[rate] > 0 for row in run["rows"] for rate in ("parse", "print", "transpile"))
    assert large["raw"] == 0 and 15000 < large["MB"] * 1e6 < 30000


def test_a_folder_without_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_transpile.main(["--corpus", str(tmp_path)]) == 1
    assert "no .ptx files" in capsys.readouterr().err
