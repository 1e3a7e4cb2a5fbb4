"""Errors of the DSL. Each names the line of the user's Python that caused it."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

__all__ = ["Location", "TraceError", "user_location"]


class Location(NamedTuple):
    """Where in the user's Python a statement comes from."""

    file: str
    line: int


_DSL_DIR = os.path.dirname(os.path.abspath(__file__)) + os.sep
_is_dsl_file: dict[str, bool] = {}
_locations: dict[tuple[str, int], Location] = {}  # one object per line of source, which may emit many instructions


def user_location(depth: int = 1) -> Location:
    """File and line of the nearest caller outside the DSL, looked for from `depth` frames up."""
    frame = sys._getframe(depth)
    while True:
        code_file = frame.f_code.co_filename
        internal = _is_dsl_file.get(code_file)
        if internal is None:
            internal = code_file.startswith((_DSL_DIR, "<ptx.")) or code_file == _CONTEXTLIB
            _is_dsl_file[code_file] = internal
        if not internal or frame.f_back is None:
            place = code_file, frame.f_lineno
            return _locations.get(place) or _locations.setdefault(place, Location(*place))
        frame = frame.f_back


_CONTEXTLIB = getattr(sys.modules.get("contextlib"), "__file__", "")


class TraceError(Exception):
    """A kernel cannot be traced: what was wrong, and the user's file and line (`location`)."""

    def __init__(self, message: str, location: Location | None = None):
        self.location = location or user_location()
        super().__init__(f"{self.location[0]}:{self.location[1]}: {message}")
