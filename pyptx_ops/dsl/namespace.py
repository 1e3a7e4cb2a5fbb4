"""`ptx`: one Python function per row of the instruction table; one call appends one instruction.

The functions are generated, with real signatures, from the rows; their source is kept for tracebacks and debuggers.
"""

from __future__ import annotations

import inspect
import keyword
import linecache
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from .errors import TraceError, user_location
from .ir import Address, Arguments, Immediate, Instruction, Pair, Register, Symbol, TensorCoordinates, Vector
from .isa import ROWS
from .isa.row import Form, FormError, Operand, Row
from .reg import Global, Literal, NotPred, Pred, Reg, RegAddress, RegArray, SpecialRegister, Var
from .smem import SharedRef
from .trace import Kernel, current_kernel
from .types import TYPES

__all__ = ["Namespace", "Overloads", "build_namespace", "overloads", "python_name"]

SINK = Register("_")
REGISTERS = frozenset([Reg, Var, Pred])


class Namespace:
    """A dotted prefix of opcodes, such as `ptx.mbarrier`."""

    def __init__(self, path: str):
        self._path = path

    def __getattr__(self, name: str) -> Any:
        known = sorted(k for k in vars(self) if not k.startswith("_"))
        raise TraceError(f"no instruction {self._path}.{name}; known there: {', '.join(known)}")


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


def _append(form: Form, args: tuple[Any, ...], out: Any, pred: Any) -> Any:
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


class Overloads:
    """The rows of one Python name. They share their operands and differ in modifiers, mostly in the types they take."""

    def __init__(self, path: str, rows: Sequence[Row]):
        self.path = path
        self.rows = tuple(rows)
        self.forms: dict[tuple[Any, ...], Form] = {}
        slots: dict[str, Any] = {}
        for row in self.rows:
            for slot in row.slots:
                slots.setdefault(slot.name, slot.default)
        self.defaults = slots
        self.types = tuple(dict.fromkeys(c for r in self.rows for s in r.slots if s.name == "type" for c in s.choices))
        self.inferred = any(s.name == "type" and s.required for r in self.rows for s in r.slots)
        self.optional = tuple(dict.fromkeys(n for r in self.rows for n in _parameters(r, optional=True)))
        self.inferred_from: dict[str, str] = {}
        self.positional: dict[int, tuple[str, ...]] = {}
        self.typed: dict[int, tuple[int, ...]] = {}
        for row in self.rows:
            names = _parameters(row, optional=False)
            typed = tuple(
                names.index(python_name(s.name)) for s in row.specs
                if s.role != "out" and not s.optional and s.type.lstrip("$") == "type"
            )  # fmt: skip
            self.positional.setdefault(len(names), names)
            self.typed[len(names)] = self.typed.get(len(names)) or typed
        self.has_out = any(spec.role == "out" for row in self.rows for spec in row.specs)
        if clash := set(self.defaults) & {*self.optional, *(n for names in self.positional.values() for n in names)}:
            raise ValueError(f"{path}: {clash} are both modifiers and operands")

    def infer(self, args: tuple[Any, ...], out: Any = None) -> str:
        """The type slot's value from the first register among the typed operands: see `_slot_type`."""
        for i in self.typed[len(args)]:
            value = args[i]
            if type(value) in REGISTERS:
                name: str = value.type.name
                return self.inferred_from.get(name) or self._slot_type(name)
        for value in (*[args[i] for i in self.typed[len(args)]], out):
            if isinstance(value, (list, tuple)):
                value = next((v for v in value if isinstance(v, Reg)), None)
            if isinstance(value, (Reg, RegArray)):
                return self._slot_type(value.type.name)
        raise TraceError(f"{self.path}: no operand tells the type; give type= one of {', '.join(self.types)}")

    def _slot_type(self, register: str) -> str:
        """What `type` is for a register of this type: the same, else bits of its width, else (of integers) unsigned."""
        held = TYPES[register]
        unsigned = (f"u{held.bits}",) if held.cls in ("int", "bits") else ()
        for name in (register, f"b{held.bits}", *unsigned):
            if name in self.types:
                self.inferred_from[register] = name
                return str(name)
        raise TraceError(f"{self.path}: no form for {register}; type= takes {', '.join(self.types)}")

    def new_form(self, values: dict[str, Any], given: frozenset[str], arity: int) -> Form:
        """The form of the first row that takes these modifiers, this many operands and the optional ones `given`."""
        rows = [row for row in self.rows if len(_parameters(row, optional=False)) == arity]
        self._check_choices(rows, values)
        closest, reason = -1, ""
        for row in rows:
            known = {s.name for s in row.slots}
            try:
                for name, value in values.items():
                    if name not in known and value != self.defaults[name]:
                        raise FormError(_taken_elsewhere(name, values))
                for name in given:
                    if name not in _parameters(row, optional=True):
                        raise FormError(_taken_elsewhere(name, values))
                return row.form(values, given)
            except FormError as error:
                fit = sum(1 + (slot.name == "type") for slot in row.slots if values[slot.name] in slot.choices)
                if fit > closest:
                    closest, reason = fit, str(error)
        raise TraceError(f"{self.path}: {reason}")

    def _check_choices(self, rows: Sequence[Row], values: dict[str, Any]) -> None:
        """Refuse a value that no row takes for its modifier, whatever the others are."""
        for name, value in values.items():
            choices = dict.fromkeys(c for row in rows for slot in row.slots if slot.name == name for c in slot.choices)
            if choices and isinstance(value, str) and value not in choices:
                raise TraceError(f"{self.path}: {name} takes {' or '.join(map(repr, choices))}, got {value!r}")

    def wrong_call(self, args: tuple[Any, ...], unknown: dict[str, Any]) -> TraceError:
        """The error for a wrong number of operands or an unknown keyword."""
        if unknown:
            known = [*self.defaults, *self.optional, *(["out"] if self.has_out else []), "pred"]
            return TraceError(f"{self.path}: no modifier or operand {', '.join(unknown)}; known: {', '.join(known)}")
        wanted = " or ".join(
            f"{n} operands ({', '.join(names) or 'none'})" for n, names in sorted(self.positional.items())
        )
        return TraceError(f"{self.path}: takes {wanted}, got {len(args)}")

    def source(self) -> str:
        """The Python source of the function."""
        name = python_name(self.path.split(".")[-1])
        parameters = [f"{n}=None" for n in self.optional]
        parameters += [f"{python_name(n)}={default!r}" for n, default in self.defaults.items()]
        parameters += [*(["out=None"] if self.has_out else []), "pred=None", "**_unknown"]
        lines = [f"def {name}(*_args, {', '.join(parameters)}):"]
        arities = [*self.positional]
        wrong = f"len(_args) != {arities[0]}" if len(arities) == 1 else f"len(_args) not in {tuple(arities)}"
        lines += [f"    if _unknown or {wrong}:", "        raise _row.wrong_call(_args, _unknown)"]
        if self.inferred:
            lines += ["    if type is None:", f"        type = _row.infer({'_args, out' if self.has_out else '_args'})"]
        key = "".join(f"{python_name(n)}, " for n in self.defaults) + "".join(f"{n} is None, " for n in self.optional)
        key += "len(_args), " if len(arities) > 1 else ""
        values = ", ".join(f"{n!r}: {python_name(n)}" for n in self.defaults)
        given = ", ".join(f"({n!r}, {n})" for n in self.optional)
        lines += [
            f"    _form = _forms.get(({key}))",
            "    if _form is None:",
            f"        _given = frozenset([_n for _n, _v in [{given}] if _v is not None])",
            f"        _form = _forms[({key})] = _row.new_form({{{values}}}, _given, len(_args))",
        ]
        lines += [line for n in self.optional for line in (f"    if {n} is not None:", f"        _args += ({n},)")]
        lines.append(f"    return _append(_form, _args, {'out' if self.has_out else 'None'}, pred)")
        return "\n".join(lines) + "\n"

    def signature(self) -> inspect.Signature:
        """What the function takes, for `help` and editors."""
        kinds = inspect.Parameter
        fewest, most = min(self.positional), max(self.positional)
        parameters = [
            kinds(n, kinds.POSITIONAL_ONLY, default=kinds.empty if i < fewest else None)
            for i, n in enumerate(self.positional[most])
        ]
        keywords = {**dict.fromkeys(self.optional), **{python_name(n): d for n, d in self.defaults.items()}}
        keywords |= {"out": None, "pred": None} if self.has_out else {"pred": None}
        return inspect.Signature(parameters + [kinds(n, kinds.KEYWORD_ONLY, default=d) for n, d in keywords.items()])

    def compile(self) -> Callable[..., Any]:
        source = self.source()
        filename = f"<ptx.{self.path}>"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        scope: dict[str, Any] = {"_row": self, "_forms": self.forms, "_append": _append}
        exec(compile(source, filename, "exec"), scope)
        function: Callable[..., Any] = scope[python_name(self.path.split(".")[-1])]
        function.__qualname__ = f"ptx.{self.path}"
        function.__module__ = __name__
        function.__doc__ = "\n".join(f"{r.spelling} {r.operands}\n{r.doc}".strip() for r in self.rows)
        function.__signature__ = self.signature()  # type: ignore[attr-defined]
        return function


def _parameters(row: Row, *, optional: bool) -> tuple[str, ...]:
    """The Python parameters of a row's input operands."""
    names = []
    for spec in row.specs:
        if spec.role != "out" and spec.optional == optional:
            names.append(python_name(spec.name))
            if spec.kind == "tensor" and spec.second:
                names.append(python_name(spec.second[0]))
    return tuple(names)


def _taken_elsewhere(name: str, values: dict[str, Any]) -> str:
    """A modifier or operand that some row of this name takes, but not with these modifiers."""
    others = ", ".join(f"{n}={v!r}" for n, v in values.items() if n != name and v)
    return f"takes no {name}" + (f" with {others}" if others else "")


def python_name(name: str) -> str:
    name = name.replace("::", "_").replace(".", "_")
    return name + "_" if keyword.iskeyword(name) else name


def overloads() -> tuple[Overloads, ...]:
    """The rows grouped by Python name, shorter names first."""
    groups: dict[str, list[Row]] = {}
    for row in ROWS:
        groups.setdefault(row.path, []).append(row)
    return tuple(Overloads(path, rows) for path, rows in sorted(groups.items(), key=lambda g: g[0].count(".")))


def build_namespace() -> Namespace:
    """One function per Python name, as deep as its dots."""
    root = Namespace("ptx")
    for group in overloads():
        *parents, leaf = [python_name(p) for p in group.path.split(".")]
        node: Any = root
        for parent in parents:
            if parent not in vars(node):
                setattr(node, parent, Namespace(f"{getattr(node, '_path', 'ptx')}.{parent}"))
            node = vars(node)[parent]
        setattr(node, leaf, group.compile())
    return root
