"""One instruction from a form and Python values: each value becomes an operand of the IR, or is refused by name."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from .errors import TraceError, user_location
from .ir import Address, Arguments, Immediate, Instruction, Pair, Register, Symbol, TensorCoordinates, Vector
from .isa.row import Form, Operand
from .reg import Global, Literal, NotPred, Pred, Reg, RegAddress, RegArray, SpecialRegister, Var
from .smem import SharedRef
from .trace import Kernel, current_kernel
from .types import TYPES

__all__ = ["REGISTERS", "append"]

SINK = Register("_")
REGISTERS = frozenset([Reg, Var, Pred])


def _literal(form: Form, operand: Operand, value: object) -> Immediate:
    wanted, name = operand.type, operand.name
    assert wanted is not None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TraceError(f"{form.opcode}: {name} takes a {wanted.name} register or literal, got {_describe(value)}")
    if wanted.cls == "float":
        code, mark = (">f", "0f") if wanted.bits == 32 else (">d", "0d")
        return Immediate(mark + struct.pack(code, value).hex().upper())
    if not isinstance(value, int):
        raise TraceError(f"{form.opcode}: {name} is {wanted.name}, got the float {value}")
    if not (0 if wanted.bits == 1 else -(1 << (wanted.bits - 1))) <= value < (1 << wanted.bits):
        raise TraceError(f"{form.opcode}: {name} is {wanted.name}, which cannot hold {value}")
    if not _within(operand.bounds, value):
        raise TraceError(f"{form.opcode}: {name} is {_span(operand.bounds)}, got {value}")
    return _int_immediate(value)


@lru_cache(maxsize=4096)
def _int_immediate(value: int) -> Immediate:
    return Immediate(str(value))


def _within(bounds: tuple[int, int, int] | None, value: int) -> bool:
    return bounds is None or (bounds[0] <= value <= bounds[1] and (value - bounds[0]) % bounds[2] == 0)


def _span(bounds: tuple[int, int, int] | None) -> str:
    if bounds is None:
        return "an integer literal"
    return f"from {bounds[0]} to {bounds[1]}" + (f" in steps of {bounds[2]}" if bounds[2] > 1 else "")


def _describe(value: object) -> str:
    if isinstance(value, Reg):
        return f"a {value.type.name} register"
    if isinstance(value, bool):
        return f"the Python bool {value}; a comparison of Python values is decided while tracing"
    if isinstance(value, (list, tuple, RegArray)):
        return f"a vector of {len(value)}"
    return f"{type(value).__name__} {value!r}"


def _foreign(form: Form, name: str, reg: Reg) -> TraceError:
    return TraceError(f"{form.opcode}: {name} is {reg!r}, a register that this kernel does not declare")


def _value(kernel: Kernel, form: Form, operand: Operand, value: Any) -> Any:
    """A scalar: a register of a fitting type, or a literal."""
    if isinstance(value, Reg):
        if value.kernel is not kernel and not isinstance(value, SpecialRegister):
            raise _foreign(form, operand.name, value)
        if value.type.name not in operand.takes:
            raise TraceError(f"{form.opcode}: {operand.name} takes {operand.type!r}, got a {value.type.name} register")
        return value.operand
    if isinstance(value, NotPred) and operand.type is TYPES["pred"]:
        return value.operand
    if isinstance(value, Global):
        return Symbol(value.name)
    if isinstance(value, Literal):
        return value.operand
    if isinstance(value, list) and len(value) == 1 and operand.may_be_braced:
        return Vector((_value(kernel, form, operand, value[0]),))
    return _literal(form, operand, value)


def _vector(kernel: Kernel, form: Form, operand: Operand, value: Any) -> Vector:
    """A vector of registers of one kernel; where it is a destination, None discards an element."""
    if not isinstance(value, (RegArray, list, tuple)) or len(value) != operand.count:
        raise TraceError(
            f"{form.opcode}: {operand.name} takes a vector of {operand.count} {operand.type!r}, got {_describe(value)}"
        )
    element = operand.element
    assert element is not None
    if isinstance(value, RegArray) and value.kernel is kernel and value.type.name in element.takes:
        return Vector(value.operands)
    return Vector(tuple([
        SINK if v is None and operand.output else _value(kernel, form, element, v) for v in value
    ]))  # fmt: skip


def _address(kernel: Kernel, form: Form, operand: Operand, value: Any) -> Address:
    if isinstance(value, Reg):
        if value.type.bits not in (32, 64) or value.type.cls in ("float", "pred"):
            raise TraceError(f"{form.opcode}: {operand.name} is an address, got a {value.type.name} register")
        if value.kernel is not kernel:
            raise _foreign(form, operand.name, value)
        return Address(value.operand)
    if isinstance(value, (RegAddress, SharedRef)):
        base = value.reg if isinstance(value, RegAddress) else value.plan.base
        if base.kernel is not kernel:
            raise _foreign(form, operand.name, base)
        return value.address()
    if isinstance(value, Address):
        return value
    if isinstance(value, Global):
        return Address(Symbol(value.name))
    raise TraceError(
        f"{form.opcode}: {operand.name} is an address: a register, reg.at(bytes), a shared-memory reference or a "
        f"global; got {_describe(value)}"
    )


def _immediate(kernel: Kernel, form: Form, operand: Operand, value: Any) -> Any:
    bounds = operand.bounds
    if isinstance(value, Literal):
        return value.operand
    if isinstance(value, int) and not isinstance(value, bool) and _within(bounds, value):
        return Immediate(str(value))
    span = f" {_span(bounds)}" if bounds else ""
    raise TraceError(f"{form.opcode}: {operand.name} takes an integer literal{span}, got {_describe(value)}")


def _label(kernel: Kernel, form: Form, operand: Operand, value: Any) -> Symbol:
    if isinstance(value, (str, Global)):
        return Symbol(value if isinstance(value, str) else value.name)
    raise TraceError(f"{form.opcode}: {operand.name} takes a name, got {_describe(value)}")


def _function(kernel: Kernel, form: Form, operand: Operand, value: Any) -> Symbol | Register:
    """A function by its name, or the register that holds its address."""
    if isinstance(value, Reg) and value.kernel is kernel:
        return value.operand
    return _label(kernel, form, operand, value)


def _arguments(kernel: Kernel, form: Form, operand: Operand, value: Any) -> Arguments:
    """Parameters, registers and literals that a call passes."""
    if not isinstance(value, (list, tuple)):
        raise TraceError(f"{form.opcode}: {operand.name} takes a list, got {_describe(value)}")
    return Arguments(tuple([_argument(kernel, form, operand, v) for v in value]))


def _argument(kernel: Kernel, form: Form, operand: Operand, value: Any) -> Any:
    if isinstance(value, Reg) and value.kernel is kernel:
        return value.operand
    if isinstance(value, Global):
        return Symbol(value.name)
    if isinstance(value, Literal):
        return value.operand
    return SINK if value is None else _immediate(kernel, form, operand, value)


_CONVERT: dict[str, Callable[..., Any]] = {
    "value": _value, "address": _address, "immediate": _immediate, "label": _label, "function": _function,
    "arguments": _arguments,
}  # fmt: skip


def _destination(kernel: Kernel, form: Form, operand: Operand, out: Any) -> tuple[Any, Any]:
    """(IR operand, what the call returns) for one destination."""
    assert operand.type is not None
    if operand.count:
        if out is None:
            regs = tuple([kernel.fresh(operand.type) for _ in range(operand.count)])
            return Vector(tuple([r.operand for r in regs])), regs
        return _vector(kernel, form, operand, out), out
    if operand.second is not None:
        return _destinations(kernel, form, operand, out)
    if operand.name == "_":
        if out is not None:
            raise TraceError(f"{form.opcode}: gives no result here, so out= has no use")
        return SINK, None
    if out is None:
        if operand.spec.sink:
            return SINK, None
        out = kernel.fresh(operand.type)
    elif not isinstance(out, Reg) and not (isinstance(out, list) and operand.may_be_braced):
        raise TraceError(f"{form.opcode}: out= takes a register, got {_describe(out)}")
    return _value(kernel, form, operand, out), out


def _destinations(kernel: Kernel, form: Form, operand: Operand, out: Any) -> tuple[Pair, Any]:
    """Two destinations; where the first is named `_`, it is the sink unless `out` names a register."""
    assert operand.type is not None and operand.second is not None
    if out is not None and (not isinstance(out, (tuple, list)) or len(out) != 2):
        raise TraceError(f"{form.opcode}: out= takes two registers, got {_describe(out)}")
    first, second = out if out is not None else (None, None)
    if second is None:
        second = kernel.fresh(operand.second)
    elif not (isinstance(second, Reg) and second.kernel is kernel and operand.second.accepts(second.type)):
        raise TraceError(f"{form.opcode}: out= takes a {operand.second!r} register second, got {_describe(second)}")
    if first is None and operand.name == "_":
        return Pair(SINK, second.operand), second
    if first is None:
        first = kernel.fresh(operand.type)
    assert operand.element is not None
    return Pair(_value(kernel, form, operand.element, first), second.operand), (first, second)


def append(form: Form, args: tuple[Any, ...], out: Any, pred: Any) -> Any:
    """Append one instruction of this form to the current kernel; the destination registers, if any, come back.

    Inputs are converted first, so that a refused call declares no register.
    """
    kernel = current_kernel()
    new = form not in kernel.forms
    if new:
        kernel.require(form)
    operands: list[Any] = []
    result = None
    destination = None
    position = 0
    for operand in form.operands:
        if operand.output:
            destination, place = operand, len(operands)
            operands.append(None)
            continue
        value = args[position]
        position += 1
        if type(value) in REGISTERS and value.kernel is kernel and value.type.name in operand.takes:
            operands.append(value.operand)  # the common case, without a call
        elif operand.kind == "tensor":
            operands.append(_tensor(kernel, form, operand, value, args[position]))
            position += 1
        else:
            convert = _vector if operand.count else _CONVERT[operand.kind]
            operands.append(convert(kernel, form, operand, value))
    guard = None if pred is None else _guard(kernel, form, pred)
    if destination is not None:
        if out is None and destination.fresh is not None:
            result = kernel.fresh(destination.fresh)
            operands[place] = result.operand
        else:
            operands[place], result = _destination(kernel, form, destination, out)
    if new:
        kernel.note(form)
    kernel.append(Instruction(form.opcode, tuple(operands), guard, user_location(3)))
    return result


def _tensor(kernel: Kernel, form: Form, operand: Operand, value: Any, coordinates: Any) -> TensorCoordinates:
    """A tensor map, whose address takes no offset, and the coordinates of a box."""
    address = _address(kernel, form, operand, value)
    if address.offset:
        raise TraceError(f"{form.opcode}: {operand.name} is the address of a tensor map and takes no offset")
    return TensorCoordinates(address.base, _vector(kernel, form, operand, coordinates))


def _guard(kernel: Kernel, form: Form, pred: Any) -> Any:
    register = pred.pred if isinstance(pred, NotPred) else pred
    if not isinstance(register, Pred):
        raise TraceError(f"{form.opcode}: pred= takes a predicate, got {_describe(pred)}")
    if register.kernel is not kernel:
        raise _foreign(form, "pred=", register)
    return pred.operand
