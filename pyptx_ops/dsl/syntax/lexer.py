"""Tokens and the trivia in front of each, read piece by piece so that a large file never lies in memory as tokens."""

from __future__ import annotations

import re

from .errors import PtxSyntaxError

__all__ = ["Tokens"]

TRIVIA = r"""
    [\s\0\ufeff]*
    (?:
        (?: //[^\n]*                                     # to the end of the line
          | /\*[^*]*(?:\*(?!/)[^*]*)*(?:\*/|\Z)
          | \#[^\n]*                                     # a line of a C preprocessor
          | @@[^\n]*                                     # an old debug section, line by line
        )
        [\s\0\ufeff]*
    )*"""
TOKEN = r"""
    [,;\]\[{}:()]
  | [%$_A-Za-z][\w$]*(?:(?:\.|::)[\w$]+)*                # a name, a register, a whole opcode
  | -?0[xXfFdDbB][0-9A-Fa-f]+U?
  | -?(?:\d+\.?\d*|\.\d+(?!\w))(?:[eE][+-]?\d+)?U?
  | \.[\w$]+(?:::\w+)*                                   # a directive, a type
  | "[^"]*"?
  | [\s\S]                                               # an operator, or what has no business here
  | \Z"""
PAIR = re.compile(f"({TRIVIA})({TOKEN})", re.ASCII | re.VERBOSE)
# Where a comment is left open, its first star leads nowhere.
CLOSED = re.compile(TRIVIA.replace(r"|\Z)", ")"), re.ASCII | re.VERBOSE)
OPERATORS = frozenset("%$_=+-*/?!|&^~@<>.")
PIECE = 1 << 18


class Tokens:
    """A window on the tokens of a text: `words[i]` with `trivia[i]` in front of it.

    The window ends in "": with `complete`, the end of the text; else `more` moves it on.
    """

    def __init__(self, text: str, file: str):
        self.text = text
        self.file = file
        self.words: list[str] = [""]
        self.trivia: list[str] = [""]
        self.complete = False
        self._start = 0  # of the window, in the text
        self._end = 0
        self._size = PIECE
        self._fill()

    def more(self, used: int) -> None:
        """Drop the first `used` tokens and read another piece, a larger one where nothing could be dropped."""
        self._size = PIECE if used else 2 * self._size
        self._start = self.offset(used) - len(self.trivia[used])
        del self.words[:used]
        del self.trivia[:used]
        self._fill()

    def _fill(self) -> None:
        while True:
            end = self.text.find("\n", self._end + self._size)
            self.complete = end < 0
            end = len(self.text) if self.complete else end
            pairs = PAIR.findall(self.text, self._end, end)
            if len(pairs) > 1 and not pairs[-2][1]:
                pairs.pop()  # the end, a second time
            if self._closed(pairs):
                break
            self._size *= 2
        self._end = end
        trivia, words = zip(*pairs)
        self.words.pop()
        carried = self.trivia.pop()
        first = len(self.trivia)
        self.words += words
        self.trivia += trivia
        self.trivia[first] = carried + self.trivia[first]
        self._refuse_characters(set(words))

    def _closed(self, pairs: list[tuple[str, str]]) -> bool:
        """Whether the piece ends outside comments and strings. Raises where the text does not."""
        trailing = pairs[-1][0]
        last = pairs[-2][1] if len(pairs) > 1 else ""
        if (closed := CLOSED.match(trailing)) and closed.end() < len(trailing):
            if self.complete:
                at = len(self.text) - len(trailing) + closed.end()
                raise PtxSyntaxError(self.text, at, "a comment that ends in */", "", self.file)
            return False
        if last[:1] == '"' and (len(last) == 1 or last[-1] != '"'):
            if self.complete:
                at = len(self.text) - len(trailing) - len(last)
                raise PtxSyntaxError(self.text, at, "a string that ends in a quotation mark", "", self.file)
            return False
        return True

    def _refuse_characters(self, words: set[str]) -> None:
        for word in words:
            if len(word) == 1 and not word.isalnum() and word not in OPERATORS and word not in ",;][{}:()":
                raise self.error(self.words.index(word), "PTX")
            if len(word) == 1 and word.isalnum() and not word.isascii():
                raise self.error(self.words.index(word), "PTX")

    def offset(self, index: int) -> int:
        """Where a token of the window starts in the text."""
        before = sum(map(len, self.words[:index])) + sum(map(len, self.trivia[: index + 1]))
        return self._start + before

    def error(self, index: int, wanted: str) -> PtxSyntaxError:
        return PtxSyntaxError(self.text, self.offset(index), wanted, self.words[index], self.file)
