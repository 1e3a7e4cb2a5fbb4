"""The generated files are current, and the signatures say what the functions take."""

from __future__ import annotations

import inspect

import pytest

from pyptx_ops.dsl import ptx, stub
from pyptx_ops.dsl.isa import ROWS


def test_the_stub_is_current() -> None:
    assert stub.STUB.read_text() == stub.stub(), f"run {stub.COMMAND}"


@pytest.mark.skipif(not stub.PAGE.exists(), reason="the documentation is not part of an installed package")
def test_the_page_is_current() -> None:
    assert stub.PAGE.read_text() == stub.isa_page(), f"run {stub.COMMAND}"


def test_the_page_has_every_row() -> None:
    assert stub.isa_page().count("\n| `ptx.") == len(ROWS)


def test_signatures_name_operands_and_modifiers() -> None:
    signature = inspect.signature(ptx.mbarrier.try_wait.parity)
    assert list(signature.parameters) == ["bar", "parity", "hint", "sem", "scope", "space", "out", "pred"]
    assert signature.parameters["space"].default == "shared::cta"
    assert signature.parameters["bar"].kind is inspect.Parameter.POSITIONAL_ONLY
    assert "mbarrier.try_wait.parity" in (ptx.mbarrier.try_wait.parity.__doc__ or "")


def test_the_functions_can_be_read() -> None:
    assert "_append(_form, _args" in inspect.getsource(ptx.add)
