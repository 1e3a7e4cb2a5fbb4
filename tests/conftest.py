"""For every test: inputs that depend on its id only, and no deadline where a machine may be busy."""

from __future__ import annotations

import random
import zlib

import hypothesis
import pytest
import torch

pytest_plugins = ("pytester",)

hypothesis.settings.register_profile("pyptx", deadline=None)
hypothesis.settings.load_profile("pyptx")


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """Seeds Python's and torch's generators from the test's id, and returns the seed."""
    value = zlib.crc32(request.node.nodeid.encode())
    random.seed(value)
    torch.manual_seed(value)
    return value
