"""What importing the package does."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import torch

import pyptx_ops


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_without_torch_the_dsl_and_the_build_remain():
    hidden = "import sys; sys.modules['torch'] = None; "
    code = hidden + "import pyptx_ops.dsl, pyptx_ops.build; print(hasattr(pyptx_ops, 'gemm'))"
    assert python(code) == "False"


def test_importing_registers_the_ops_and_leaves_transformers_alone():
    code = "import torch, sys, pyptx_ops; print(torch.ops.pyptx.gemm, 'transformers' in sys.modules)"
    assert python(code) == "pyptx.gemm False"


@pytest.mark.parametrize("name", [n for n in pyptx_ops.__all__ if n not in ("patch", "simulate", "unpatch")])
def test_functions_mirror_the_schemas(name):
    """Same arguments in the same order; every function says what it takes, gives and raises."""
    function, schema = getattr(pyptx_ops, name), getattr(torch.ops.pyptx, name).default._schema
    assert list(inspect.signature(function).parameters) == [argument.name for argument in schema.arguments]
    assert "Args:" in function.__doc__ and "Raises:" in function.__doc__
    assert torch.Tag.pt2_compliant_tag in getattr(torch.ops.pyptx, name).default.tags


def test_unknown_names():
    with pytest.raises(AttributeError, match="no attribute 'matmul'"):
        pyptx_ops.matmul  # noqa: B018
