"""Typed registers and the operators on them. Each operator emits one instruction."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn, Union, overload

from .errors import TraceError
from .ir import Address, Expression, Immediate, Negated, Register, Symbol
from .types import TYPES, Type

if TYPE_CHECKING:
    from .trace import Kernel

__all__ = [
    "Emit",
    "Global",
    "Literal",
    "NotPred",
    "Pred",
    "Reg",
    "RegAddress",
    "RegArray",
    "SpecialRegister",
    "Var",
    "emit",
    "symbol",
]

LITERAL = re.compile(  # the tokens of a constant expression
    r"[%$_A-Za-z][\w$]*|-?0[xXfFdDbB][0-9A-Fa-f]+U?|-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?U?|[-+*/%?:!|&^~<>=()]",
    re.ASCII,
)
Scalar = Union["Reg", int, float]


class Emit:
    """The instructions of operators, parameters and control flow; the namespace sets them when it is built."""

    add: Callable[..., Reg]
    sub: Callable[..., Reg]
    mul: Callable[..., Reg]
    fadd: Callable[..., Reg]
    fsub: Callable[..., Reg]
    fmul: Callable[..., Reg]
    div: Callable[..., Reg]
    rem: Callable[..., Reg]
    neg: Callable[..., Reg]
    and_: Callable[..., Reg]
    or_: Callable[..., Reg]
    xor: Callable[..., Reg]
    not_: Callable[..., Reg]
    shl: Callable[..., Reg]
    shr: Callable[..., Reg]
    setp: Callable[..., Pred]
    mov: Callable[..., Reg]
    ld: Callable[..., Reg]
    cvta: Callable[..., Reg]
    cvta_to: Callable[..., Reg]
    bra: Callable[..., None]


emit = Emit()


class Reg:
    """A virtual register of one kernel, with the type that its value was given.

    `+ - * & | ^ ~ << >>` and the comparisons each emit one instruction and return a new register; the type is that of
    the left register. Float arithmetic rounds to nearest (`.rn`), so that ptxas does not contract it.
    """

    __slots__ = ("kernel", "operand", "type")

    def __init__(self, operand: Register, type: Type, kernel: Kernel | None):
        self.operand = operand
        self.type = type
        self.kernel = kernel

    def __repr__(self) -> str:
        return f"<{self.type.name} {self.operand.name}>"

    __hash__ = object.__hash__

    def at(self, offset: int | str) -> RegAddress:
        """The address `[self+offset]`, offset in bytes, or as it is to be spelled."""
        return RegAddress(self, offset)

    def as_type(self, name: str) -> Reg:
        """The same register read as another type of the same width. Emits nothing."""
        if name not in TYPES or not TYPES[name].bits == self.type.bits:
            raise TraceError(f"a {self.type.name} register cannot be read as {name}: the widths differ")
        return Reg(self.operand, TYPES[name], self.kernel)

    def __bool__(self) -> NoReturn:
        raise TraceError("a register has no value while tracing; compare it and use k.if_(…), k.range(…) or selp")

    def __index__(self) -> NoReturn:
        raise TraceError("a register has no value while tracing; loop over it with k.range(…)")

    def _like(self, result: Reg) -> Reg:
        """A bitwise result, read as this register's type."""
        result.type = self.type
        return result

    def _float(self) -> bool:
        return self.type.cls == "float"

    def __add__(self, other: Scalar) -> Reg:
        return (emit.fadd if self._float() else emit.add)(self, other)

    def __radd__(self, other: Scalar) -> Reg:
        return (emit.fadd if self._float() else emit.add)(self, other)

    def __sub__(self, other: Scalar) -> Reg:
        return (emit.fsub if self._float() else emit.sub)(self, other)

    def __rsub__(self, other: Scalar) -> Reg:
        return (emit.fsub if self._float() else emit.sub)(other, self)

    def __mul__(self, other: Scalar) -> Reg:
        return (emit.fmul if self._float() else emit.mul)(self, other)

    def __rmul__(self, other: Scalar) -> Reg:
        return (emit.fmul if self._float() else emit.mul)(self, other)

    def __floordiv__(self, other: Scalar) -> Reg:
        return emit.div(self, other)

    def __mod__(self, other: Scalar) -> Reg:
        return emit.rem(self, other)

    def __and__(self, other: Scalar) -> Reg:
        return self._like(emit.and_(self, other))

    def __or__(self, other: Scalar) -> Reg:
        return self._like(emit.or_(self, other))

    def __xor__(self, other: Scalar) -> Reg:
        return self._like(emit.xor(self, other))

    def __invert__(self) -> Reg:
        return self._like(emit.not_(self))

    def __neg__(self) -> Reg:
        return emit.neg(self)

    def __lshift__(self, other: Scalar) -> Reg:
        return self._like(emit.shl(self, other))

    def __rshift__(self, other: Scalar) -> Reg:
        return self._like(emit.shr(self, other))

    def __lt__(self, other: Scalar) -> Pred:
        return emit.setp(self, other, cmp="lt")

    def __le__(self, other: Scalar) -> Pred:
        return emit.setp(self, other, cmp="le")

    def __gt__(self, other: Scalar) -> Pred:
        return emit.setp(self, other, cmp="gt")

    def __ge__(self, other: Scalar) -> Pred:
        return emit.setp(self, other, cmp="ge")

    def __eq__(self, other: object) -> Pred:  # type: ignore[override]
        return emit.setp(self, other, cmp="eq")

    def __ne__(self, other: object) -> Pred:  # type: ignore[override]
        return emit.setp(self, other, cmp="ne")


class RegAddress:
    """The address `[reg+offset]`, usable wherever an address is taken."""

    __slots__ = ("offset", "reg")

    def __init__(self, reg: Reg, offset: int | str):
        self.reg = reg
        self.offset = offset

    def address(self) -> Address:
        return Address(self.reg.operand, str(self.offset) if self.offset else "")


class Var(Reg):
    """A register that changes: augmented assignment (`i += 1`) and `set` write it in place."""

    __slots__ = ()

    def set(self, value: Scalar) -> None:
        """`mov`: overwrite with a register or a literal."""
        emit.mov(value, type=None if isinstance(value, Reg) else self.type.name, out=self)

    def __iadd__(self, other: Scalar) -> Var:
        (emit.fadd if self._float() else emit.add)(self, other, out=self)
        return self

    def __isub__(self, other: Scalar) -> Var:
        (emit.fsub if self._float() else emit.sub)(self, other, out=self)
        return self

    def __imul__(self, other: Scalar) -> Var:
        (emit.fmul if self._float() else emit.mul)(self, other, out=self)
        return self

    def __iand__(self, other: Scalar) -> Var:
        emit.and_(self, other, out=self)
        return self

    def __ior__(self, other: Scalar) -> Var:
        emit.or_(self, other, out=self)
        return self

    def __ixor__(self, other: Scalar) -> Var:
        emit.xor(self, other, out=self)
        return self

    def __ilshift__(self, other: Scalar) -> Var:
        emit.shl(self, other, out=self)
        return self

    def __irshift__(self, other: Scalar) -> Var:
        emit.shr(self, other, out=self)
        return self


class Pred(Reg):
    """A predicate register: `~p` is its complement as an operand (no instruction), `& | ^` combine two."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __and__(self, other: Pred) -> Pred: ...  # type: ignore[override]
        def __or__(self, other: Pred) -> Pred: ...  # type: ignore[override]
        def __xor__(self, other: Pred) -> Pred: ...  # type: ignore[override]

    def __invert__(self) -> NotPred:  # type: ignore[override]
        return NotPred(self)

    def __bool__(self) -> NoReturn:
        raise TraceError(
            "a predicate is known only when the kernel runs: use k.if_(p), pred=p on one instruction, or selp; "
            "`and`, `or`, `not` become &, |, ~"
        )


class NotPred:
    """The complement of a predicate, where an operand or a guard may be negated."""

    __slots__ = ("operand", "pred")

    def __init__(self, pred: Pred):
        self.pred = pred
        self.operand = Negated(pred.operand)

    def __invert__(self) -> Pred:
        return self.pred

    def __bool__(self) -> NoReturn:
        raise TraceError("a predicate is known only when the kernel runs: use k.if_(p) or pred=p")


class SpecialRegister(Reg):
    """A read-only register that the hardware sets, such as `%tid.x`: read it with `ptx.mov`."""

    __slots__ = ()


class RegArray(Sequence[Reg]):
    """Registers of one type that are used together, such as an accumulator. Indexed in Python only."""

    __slots__ = ("kernel", "operands", "regs", "type")

    def __init__(self, regs: Sequence[Reg]):
        if not regs:
            raise TraceError("a register array needs at least one register")
        self.regs = tuple(regs)
        self.type = regs[0].type
        self.kernel = regs[0].kernel
        self.operands = tuple(r.operand for r in regs)

    def __len__(self) -> int:
        return len(self.regs)

    def __iter__(self) -> Iterator[Reg]:
        return iter(self.regs)

    @overload
    def __getitem__(self, index: int) -> Reg: ...
    @overload
    def __getitem__(self, index: slice) -> RegArray: ...
    def __getitem__(self, index: int | slice) -> Reg | RegArray:
        return RegArray(self.regs[index]) if isinstance(index, slice) else self.regs[index]


class Global:
    """A module variable, constant or shared array: usable as an address, and as the source of `mov` for its address."""

    __slots__ = ("kernel", "name", "space")

    def __init__(self, name: str, space: str, kernel: Kernel | None):
        self.name = name
        self.space = space
        self.kernel = kernel

    def at(self, offset: int | str) -> Address:
        """The address `[self+offset]`, offset in bytes, or as it is to be spelled."""
        return Address(Symbol(self.name), str(offset))


def symbol(name: str) -> Global:
    """A variable, parameter or function by its name in the text."""
    return Global(name, "", None)


class Literal:
    """A literal, or a constant expression without white space, by its spelling: `lit("0x1F")`, `lit("0f7FC00000")`."""

    __slots__ = ("operand",)

    def __init__(self, text: str):
        words = LITERAL.findall(text)
        if "".join(words) != text or not words:
            raise TraceError(f"{text!r} is no literal")
        self.operand: Immediate | Expression = Immediate(text) if len(words) == 1 else Expression(tuple(words))
