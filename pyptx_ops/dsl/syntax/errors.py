"""Where PTX text is not what was expected."""

from __future__ import annotations

__all__ = ["PtxSyntaxError", "Unexpected"]

SHOWN = 100  # characters of a line


class Unexpected(Exception):
    """Inside the parser: the token `at` (counted from the statement's first) is not what was `wanted`."""

    def __init__(self, at: int, wanted: str):
        self.at = at
        self.wanted = wanted


class PtxSyntaxError(ValueError):
    """Text that is no PTX: `file`, `line` and `column` (from 1), what was `wanted` and `got`, and the line's `text`."""

    def __init__(self, source: str, offset: int, wanted: str, got: str, file: str):
        start = source.rfind("\n", 0, offset) + 1
        end = source.find("\n", offset)
        self.file = file
        self.line = source.count("\n", 0, offset) + 1
        self.column = offset - start + 1
        self.wanted = wanted
        self.got = _clipped(got) if got else "the end of the text"
        first = max(start, offset - SHOWN // 2)
        shown = source[first : min(first + SHOWN, end if end >= 0 else len(source))].rstrip()
        self.text = shown
        marker = "".join(["\t" if c == "\t" else " " for c in source[first:offset]]) + "^"
        super().__init__(f"{file}:{self.line}:{self.column}: expected {wanted}, got {self.got}\n{shown}\n{marker}")


def _clipped(token: str) -> str:
    return repr(token if len(token) <= 40 else token[:37] + "…")
