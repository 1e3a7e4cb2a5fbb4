"""The simulator looks for live tensors before every launch: what was imported before the tests has none of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def few_objects() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
