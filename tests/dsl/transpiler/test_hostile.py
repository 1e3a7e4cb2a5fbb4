"""Text that is made to break a parser: it prints back or is refused, in linear time and at any depth.

Each has about 100,000 tokens: a step that is quadratic in them would take minutes.
"""

from __future__ import annotations

import pytest

from pyptx_ops import dsl

from .corpus import HEADER, kernel

N = 50_000
READ = {
    "nested blocks": kernel("{" * N + "}" * N),
    "nested blocks with registers": kernel("{.reg .b32 a;" * (N // 4) + "}" * (N // 4)),
    "nested parentheses": kernel("mov.u32 %r1, " + "(" * N + "1" + ")" * N + ";"),
    "nested brackets": kernel("mov.u32 %r1, " + "[" * N + "1" + "]" * N + ";"),
    "nested initial value": HEADER + ".global .b8 a[9] = " + "{" * N + "}" * N + ";",
    "comments": kernel("/**/" * N),
    "stars": kernel("/*" + "*" * 4 * N + "/"),
    "a long token": kernel("mov.u32 " + "a" * 20 * N + ", 1;"),
    "a long number": kernel("mov.u32 " + "1" * 20 * N + ", 1;"),
    "a long string": kernel('.pragma "' + "\\" * 20 * N + '";'),
    "a long opcode": kernel("a" + ".b" * N + " 1;"),
    "a torn opcode": kernel("a" + " .b" * N + " 1;"),
    "a long list": HEADER + ".global .b8 a[9] = {" + "1," * N + "1};",
    "labels": kernel("a:" * N),
    "alternatives": kernel("mov a|" + "b|" * N + "c;"),
    "minuses": kernel("mov.u32 %r1, " + "-" * N + "1;"),
    "parameters": HEADER + ".entry k(" + ".param .u64 a," * N + ".param .u64 b){}",
    "inlined locations": HEADER + ".loc 1 2 3" + ", inlined_at 1 2 3" * N,
    "one statement in many pieces": HEADER + ".global .b8 a[9] = {" + "1,\n" * 3 * N + "1};",
}
REFUSED = {
    "nested vectors": kernel("mov.u32 %r1, " + "{" * N + "1" + "}" * N + ";"),
    "open blocks": kernel("{" * N),
    "open vectors": kernel("mov.u32 %r1, " + "{" * N),
    "open comments": kernel("/*" * N),
    "open strings": kernel('"a\n' * N + '"'),
    "open attributes": HEADER + ".attribute(" * N,
    "a missing semicolon": kernel("ret " * N),
    "linkage": HEADER + ".visible " * N,
    "commas": kernel("mov " + "," * N + ";"),
}


@pytest.mark.parametrize("what", READ)
def test_it_prints_back(what: str) -> None:
    assert dsl.print(dsl.parse(READ[what])) == READ[what]


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused(what: str) -> None:
    with pytest.raises(dsl.PtxSyntaxError) as caught:
        dsl.parse(REFUSED[what])
    assert len(str(caught.value)) < 500


def test_a_register_in_a_deep_block_is_renamed() -> None:
    text = kernel("{" * N + ".reg .b32 a; mov.u32 a, 1;" + "}" * N)
    renamed = dsl.print(dsl.rename(dsl.parse(text), "k", "a", "b"))
    assert renamed == text.replace(" a;", " b;").replace(" a,", " b,")
