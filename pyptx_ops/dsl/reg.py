"""Typed registers and the operators on them. Each operator emits one instruction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Union, overload

from .errors import TraceError
from .ir import Address, Negated, Register
from .types import TYPES, Type

if TYPE_CHECKING:
    from .trace import Kernel

__all__ = ["Global", "NotPred", "Pred", "Reg", "RegArray", "SpecialRegister", "Var"]

Scalar = Union["Reg", int, float]

_emit: dict[str, Any] = {}  # what operators, parameters and control flow emit; filled by the namespace when it is built


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

    def at(self, offset: int) -> Address:
        """The address `[self+offset]`, offset in bytes."""
        return Address(self.operand, str(offset) if offset else "")

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
        return _emit["fadd" if self._float() else "add"](self, other)

    def __radd__(self, other: Scalar) -> Reg:
        return _emit["fadd" if self._float() else "add"](self, other)

    def __sub__(self, other: Scalar) -> Reg:
        return _emit["fsub" if self._float() else "sub"](self, other)

    def __rsub__(self, other: Scalar) -> Reg:
        return _emit["fsub" if self._float() else "sub"](other, self)

    def __mul__(self, other: Scalar) -> Reg:
        return _emit["fmul" if self._float() else "mul"](self, other)

    def __rmul__(self, other: Scalar) -> Reg:
        return _emit["fmul" if self._float() else "mul"](self, other)

    def __floordiv__(self, other: Scalar) -> Reg:
        return _emit["div"](self, other)

    def __mod__(self, other: Scalar) -> Reg:
        return _emit["rem"](self, other)

    def __and__(self, other: Scalar) -> Reg:
        return self._like(_emit["and"](self, other))

    def __or__(self, other: Scalar) -> Reg:
        return self._like(_emit["or"](self, other))

    def __xor__(self, other: Scalar) -> Reg:
        return self._like(_emit["xor"](self, other))

    def __invert__(self) -> Reg:
        return self._like(_emit["not"](self))

    def __neg__(self) -> Reg:
        return _emit["neg"](self)

    def __lshift__(self, other: Scalar) -> Reg:
        return self._like(_emit["shl"](self, other))

    def __rshift__(self, other: Scalar) -> Reg:
        return self._like(_emit["shr"](self, other))

    def __lt__(self, other: Scalar) -> Pred:
        return _emit["setp"](self, other, cmp="lt")

    def __le__(self, other: Scalar) -> Pred:
        return _emit["setp"](self, other, cmp="le")

    def __gt__(self, other: Scalar) -> Pred:
        return _emit["setp"](self, other, cmp="gt")

    def __ge__(self, other: Scalar) -> Pred:
        return _emit["setp"](self, other, cmp="ge")

    def __eq__(self, other: object) -> Pred:  # type: ignore[override]
        return _emit["setp"](self, other, cmp="eq")

    def __ne__(self, other: object) -> Pred:  # type: ignore[override]
        return _emit["setp"](self, other, cmp="ne")


class Var(Reg):
    """A register that changes: augmented assignment (`i += 1`) and `set` write it in place."""

    __slots__ = ()

    def set(self, value: Scalar) -> None:
        """`mov`: overwrite with a register or a literal."""
        _emit["mov"](value, type=None if isinstance(value, Reg) else self.type.name, out=self)

    def __iadd__(self, other: Scalar) -> Var:
        return _emit["fadd" if self._float() else "add"](self, other, out=self)

    def __isub__(self, other: Scalar) -> Var:
        return _emit["fsub" if self._float() else "sub"](self, other, out=self)

    def __imul__(self, other: Scalar) -> Var:
        return _emit["fmul" if self._float() else "mul"](self, other, out=self)

    def __iand__(self, other: Scalar) -> Var:
        return _emit["and"](self, other, out=self)

    def __ior__(self, other: Scalar) -> Var:
        return _emit["or"](self, other, out=self)

    def __ixor__(self, other: Scalar) -> Var:
        return _emit["xor"](self, other, out=self)

    def __ilshift__(self, other: Scalar) -> Var:
        return _emit["shl"](self, other, out=self)

    def __irshift__(self, other: Scalar) -> Var:
        return _emit["shr"](self, other, out=self)


class Pred(Reg):
    """A predicate register: `~p` is its complement as an operand (no instruction), `& | ^` combine two."""

    __slots__ = ()

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

    def __init__(self, name: str, space: str, kernel: Kernel):
        self.name = name
        self.space = space
        self.kernel = kernel
