"""The documentation is true: its code runs, its PTX is what is traced, its links lead somewhere."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import pyptx_ops
from pyptx_ops import settings
from tests.test_floors import FLOORS

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def blocks(page: Path) -> Iterator[tuple[str, str, int]]:
    """(language, text, line of the first line) of every fenced block."""
    text = page.read_text()
    for match in FENCE.finditer(text):
        yield match[1], match[2], text.count("\n", 0, match.start(2)) + 1


def execute(text: str, line: int, page: Path, scope: dict[str, Any]) -> None:
    """Run a block; tracebacks show the page's own lines."""
    exec(compile("\n" * (line - 1) + text, str(page), "exec"), scope)


def execute_session(text: str, line: int, page: Path, scope: dict[str, Any]) -> None:
    """Run a block of prompts and compare what it prints."""
    test = doctest.DocTestParser().get_doctest(text, scope, page.name, str(page), line - 1)
    report: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append, clear_globs=False)
    assert not failed, "".join(report)
    scope.update(test.globs)


def run_page(page: Path) -> int:
    """Run the Python of a page in one scope; PTX must stand in that of the kernel `k`. Returns how many blocks ran."""
    scope: dict[str, Any] = {"__name__": "docs"}
    ran = 0
    for language, text, line in blocks(page):
        if language == "python":
            (execute_session if text.startswith(">>>") else execute)(text, line, page, scope)
        elif language == "ptx":
            assert text in scope["k"].ptx(), f"{page.name}:{line}: not what was traced:\n{scope['k'].ptx()}"
        else:
            continue
        ran += 1
    return ran


@pytest.mark.parametrize(
    ("page", "least"),
    [
        ("docs/kernels.md", 12),
        ("docs/transpiler.md", 5),
        ("docs/ops.md", 6),
        ("docs/simulator.md", 5),
        ("CONTRIBUTING.md", 1),
    ],
)
def test_code(page: str, least: int) -> None:
    assert run_page(ROOT / page) >= least


def test_ops_are_documented_with_their_schemas() -> None:
    """A section each, which starts with the schema, in the order of the table above them."""
    text = (ROOT / "docs/ops.md").read_text()
    documented = dict(re.findall(r"^## (\w+)\n\n```text\n(.+)\n```$", text, re.MULTILINE))
    registered = {
        schema.name.removeprefix("pyptx::"): str(schema).removeprefix("pyptx::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("pyptx::")
    }
    assert documented == registered
    assert re.findall(r"\[(\w+)\]\(#\1\)", text.split("## ")[0]) == list(documented)
    functions = {name for name in pyptx_ops.__all__ if name in registered}
    gradients = {name for name in registered if name.endswith("_bwd")}
    assert functions == registered.keys() - gradients


def test_architecture() -> None:
    """Its variables are those of settings.py, its floors those that test_floors enforces, its files are there."""
    text = (ROOT / "docs/architecture.md").read_text()
    assert dict(re.findall(r"^\| `([A-Z_]+)` \| (.+) \|$", text, re.MULTILINE)) == settings.VARIABLES
    for name in re.findall(r"`([\w/]+\.(?:py|h|cpp))`", text):
        assert any((ROOT / folder / name).is_file() for folder in ("", "pyptx_ops")), name
    floors = text.partition("| floor |")[2].partition("\n\n")[0]
    for floor in FLOORS:
        part = floor.replace("*", "").strip("._").split(".")[-1]
        assert part in floors or part == "bench", floor


def test_readme() -> None:
    """Its Python runs, given what it leaves to the reader."""
    pytest.importorskip("transformers")
    page = ROOT / "README.md"
    scope = {
        "x": torch.randn(6, 16), "w": torch.randn(3, 16, 4), "offs": torch.tensor([2, 2, 6], dtype=torch.int32),
        "weight": torch.ones(16), "model": torch.nn.Linear(2, 2), "__name__": "docs",
    }  # fmt: skip
    ran = [execute(text, line, page, scope) for language, text, line in blocks(page) if language == "python"]
    assert len(ran) == 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(re.sub(FENCE, "", page.read_text())):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        path = page.parent / target if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(link)
    assert not broken


def anchors(page: Path) -> set[str]:
    """The anchors that a renderer gives a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


LIES = {
    "assert": "```python\nassert 1 == 2\n```\n",
    "session": "```python\n>>> 1 + 1\n3\n```\n",
    "ptx": "```python\nk = K\n```\n```ptx\nadd\n```\n",
}


@pytest.mark.parametrize("kind", LIES)
def test_a_lie_is_seen(kind: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nclass K:\n    ptx = lambda: 'sub'\n```\n" + LIES[kind])
    with pytest.raises(AssertionError):
        run_page(page)
