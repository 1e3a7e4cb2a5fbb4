"""`ptx`: one Python function per row of the instruction table; one call appends one instruction.

The functions are generated, with real signatures, from the rows; their source is kept for tracebacks and debuggers.
"""

from __future__ import annotations

import inspect
import keyword
import linecache
from collections.abc import Callable, Sequence
from typing import Any

from .appending import REGISTERS, append
from .errors import TraceError
from .isa import ROWS
from .isa.row import Form, FormError, Row
from .reg import Reg, RegArray
from .types import TYPES

__all__ = ["Namespace", "Overloads", "build_namespace", "overloads", "python_name"]


class Namespace:
    """A dotted prefix of opcodes, such as `ptx.mbarrier`."""

    def __init__(self, path: str):
        self._path = path

    def __getattr__(self, name: str) -> Any:
        known = sorted(k for k in vars(self) if not k.startswith("_"))
        raise TraceError(f"no instruction {self._path}.{name}; known there: {', '.join(known)}")


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
        scope: dict[str, Any] = {"_row": self, "_forms": self.forms, "_append": append}
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
