"""PTX text to the tree and back, with nothing lost."""

from __future__ import annotations

from .errors import PtxSyntaxError
from .names import rename
from .parser import parse

__all__ = ["PtxSyntaxError", "parse", "rename"]
