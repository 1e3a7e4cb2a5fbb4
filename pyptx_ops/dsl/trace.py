"""A kernel being traced: its parameters, registers, shared memory, control flow, and the statements so far."""

from __future__ import annotations

import contextvars
import gc
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from .errors import TraceError, user_location
from .ir import (
    Address,
    Block,
    Comment,
    Directive,
    Function,
    Instruction,
    Label,
    Location,
    Module,
    Register,
    Statement,
    Symbol,
)
from .printer import print_module
from .reg import Global, NotPred, Pred, Reg, RegArray, SpecialRegister, Var, emit
from .smem import SharedPlan
from .types import PARAM_KINDS, SPECIAL_REGISTERS, TYPES, Param, TensorMapSpec, Type

if TYPE_CHECKING:
    from .isa.row import Form, Requirement

__all__ = ["Kernel", "current_kernel", "has_target", "special"]

MAX_DYNAMIC_SMEM = {"sm_90": 232448, "sm_90a": 232448, "sm_100": 232448, "sm_100a": 232448}
LOWEST_VERSION = {"sm_80": (7, 0), "sm_90": (7, 8), "sm_90a": (8, 0), "sm_100": (8, 6), "sm_100a": (8, 6)}

DECLARED = {type.prefix: type.declared for type in TYPES.values()}

_PARAM_TYPE = {"pointer": "u64", "i32": "s32", "i64": "s64"}
_current: contextvars.ContextVar[Kernel] = contextvars.ContextVar("kernel")


def current_kernel() -> Kernel:
    """The kernel whose `with` block is running."""
    try:
        return _current.get()
    except LookupError:
        raise TraceError("an instruction was called outside a kernel: trace inside `with kernel:`") from None


def special(name: str) -> SpecialRegister:
    """A special register by its PTX name without the %, such as "tid.x", "ctaid.y", "laneid" or "clock64"."""
    if name not in SPECIAL_REGISTERS:
        raise TraceError(f"no special register {name!r}; known: {', '.join(SPECIAL_REGISTERS)}")
    return SpecialRegister(Register("%" + name), TYPES[SPECIAL_REGISTERS[name]], None)


class Kernel:
    """One entry function of one config.

    name: the entry's name.  target: "sm_90a", …  block, cluster: threads and CTAs, each (x, y, z).
    min_blocks: resident CTAs per SM that the register allocation must allow (0: no promise).
    pdl: launch with programmatic stream serialization.

    Use as `with Kernel(…) as k:`; instructions called inside are appended in order.
    """

    def __init__(
        self,
        name: str,
        *,
        target: str = "sm_90a",
        block: tuple[int, int, int] = (128, 1, 1),
        cluster: tuple[int, int, int] = (1, 1, 1),
        min_blocks: int = 0,
        max_registers: int | None = None,
        pdl: bool = False,
    ):
        if not re.fullmatch(r"[A-Za-z_$][\w$]*", name):
            raise TraceError(f"{name!r} is no PTX identifier")
        if target not in LOWEST_VERSION:
            raise TraceError(f"target is one of {', '.join(LOWEST_VERSION)}, got {target!r}")
        self.entry = name
        self.target = target
        self.block = block
        self.cluster = cluster
        self.min_blocks = min_blocks
        self.max_registers = max_registers
        self.pdl = pdl
        self._params: list[Param] = []
        self._shared: SharedPlan | None = None
        self._globals: list[Directive] = []
        self._global_names: set[str] = {name}
        self._statements: list[Statement] = []
        self._registers: dict[str, int] = {}
        self._labels = 0
        self._loops: list[tuple[str, str, Location]] = []
        self._open: list[tuple[str, Location]] = []
        self.forms: set[Form] = set()
        self._version = LOWEST_VERSION[target]
        self._token: contextvars.Token[Kernel] | None = None
        self._collecting = True

    # -- tracing ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Kernel:
        if self._token is not None:
            raise TraceError(f"kernel {self.entry} is already being traced")
        self._token = _current.set(self)
        self._collecting = gc.isenabled()
        gc.disable()  # a trace makes live, acyclic objects only, and walking them again and again halves its speed
        return self

    def __exit__(self, error: object, *_: object) -> None:
        assert self._token is not None
        _current.reset(self._token)
        self._token = None
        if self._collecting:
            gc.enable()
        if error is None and self._open:
            what, where = self._open[-1]
            raise TraceError(
                f"{what} opened here was left with Python's break, return or an exception; "
                "leave it with k.break_(pred)",
                where,
            )

    def append(self, statement: Statement) -> None:
        self._statements.append(statement)

    def require(self, form: Form) -> None:
        """Check that the target has a form."""
        need = form.requirement
        if not has_target(self.target, need.target):
            raise TraceError(f"{form.opcode} needs {_target_text(need)}, and this kernel's target is {self.target}")

    def note(self, form: Form) -> None:
        """A form that is new to this kernel: the module's PTX version is what its forms need."""
        self._version = max(self._version, form.requirement.version)
        self.forms.add(form)

    def fresh(self, type: Type) -> Reg:
        """A new register of this type."""
        prefix = type.prefix
        number = self._registers.get(prefix, 0)
        self._registers[prefix] = number + 1
        return (Pred if type.bits == 1 else Reg)(Register(prefix + str(number)), type, self)

    def reg(self, type: str) -> Reg:
        """Declare a register without a value, to be an `out=`."""
        return self.fresh(_type(type))

    def regs(self, type: str, count: int) -> RegArray:
        """Declare `count` registers without values, such as an accumulator."""
        return RegArray([self.fresh(_type(type)) for _ in range(count)])

    def var(self, type: str, value: Reg | int | float | None = None) -> Var:
        """A register that changes. With a value, one `mov`."""
        fresh = self.fresh(_type(type))
        variable = Var(fresh.operand, fresh.type, self)
        if value is not None:
            variable.set(value)
        return variable

    def comment(self, text: str) -> None:
        """A comment line in the PTX."""
        self.append(Comment(text.replace("\n", " ")))

    # -- what a kernel is given ------------------------------------------------------------------------------------

    def param(self, name: str, kind: str) -> Reg:
        """Declare a parameter and load it. A "pointer" comes as a global-space address (u64)."""
        if kind not in PARAM_KINDS or kind == "tensor_map":
            raise TraceError(
                f"kind is one of {', '.join(PARAM_KINDS[:-1])}, got {kind!r}; tensor maps: k.tensor_map(…)"
            )
        self._declare_param(Param(name, kind))
        loaded = self.fresh(_type(_PARAM_TYPE.get(kind, kind)))
        emit.ld(Address(Symbol(self._symbol(name))), space="param", type=loaded.type.name, out=loaded)
        return emit.cvta_to(loaded, space="global") if kind == "pointer" else loaded

    def tensor_map(self, name: str, spec: TensorMapSpec) -> Reg:
        """Declare a tensor map, passed by value; its generic address comes back (u64)."""
        if not 1 <= spec.rank <= 5:
            raise TraceError(f"{name}: a tensor map has 1 to 5 dimensions, got {spec.rank}")
        self._declare_param(Param(name, "tensor_map", spec))
        return emit.cvta(emit.mov(Global(self._symbol(name), "param", self), type="u64"), space="param")

    def dynamic_shared(self, align: int = 1024) -> SharedPlan:
        """Start the shared-memory plan: its base is the dynamic shared memory, rounded up to `align` bytes."""
        if self._shared is not None:
            raise TraceError("a kernel has one plan of dynamic shared memory")
        self._add_global("dynamic_smem", (".extern", ".shared", ".align", str(align), ".b8", "dynamic_smem[];"))
        base = emit.mov(Global("dynamic_smem", "shared", self), type="u32")
        if align > 16:  # only 16 bytes are documented for dynamic shared memory
            base = (base + (align - 1)) & -align
        self._shared = SharedPlan(base, align)
        return self._shared

    def shared_array(self, name: str, nbytes: int, align: int = 16) -> Global:
        """A static shared array of bytes."""
        self._add_global(name, (".shared", ".align", str(align), ".b8", f"{name}[{nbytes}];"))
        return Global(name, "shared", self)

    def global_array(
        self, name: str, type: str, values: Sequence[int | float] | int, *, space: Literal["global", "const"] = "global"
    ) -> Global:
        """A module variable or constant: `values` are its initial elements, or how many zero elements it has."""
        element = _type(type)
        count = values if isinstance(values, int) else len(values)
        text = ["." + space, ".align", str(max(element.bits // 8, 1)), "." + element.name, f"{name}[{count}]"]
        if not isinstance(values, int):
            text += ["=", "{" + ", ".join([_initial(v, element) for v in values]) + "}"]
        text[-1] += ";"
        self._add_global(name, tuple(text))
        return Global(name, space, self)

    # -- control flow ----------------------------------------------------------------------------------------------

    def label(self, hint: str = "L") -> str:
        """A new label name; `place` puts it down."""
        self._labels += 1
        return f"${hint}_{self._labels}"

    def place(self, label: str) -> None:
        self.append(Label(label))

    def branch(self, label: str, pred: Pred | NotPred | None = None) -> None:
        """`bra label`, taken where `pred` holds."""
        if pred is not None and not isinstance(pred, (Pred, NotPred)):
            raise TraceError(f"a branch takes a predicate, got {pred!r}; compare registers, not Python values")
        emit.bra(label, pred=pred)

    @contextmanager
    def if_(self, pred: Pred | NotPred) -> Iterator[None]:
        """Run the block where `pred` holds."""
        if not isinstance(pred, (Pred, NotPred)):
            raise TraceError(f"k.if_ takes a predicate of registers, got {pred!r}; for Python values use Python's if")
        end = self.label("ENDIF")
        self.branch(end, ~pred)
        self._open.append(("k.if_", user_location()))
        yield
        self._open.pop()
        self.place(end)

    @contextmanager
    def else_(self) -> Iterator[None]:
        """Directly after an `if_` block: run the block where the predicate did not hold."""
        last = self._statements[-1] if self._statements else None
        if not isinstance(last, Label) or not last.name.startswith("$ENDIF_"):
            raise TraceError("k.else_ follows a k.if_ block directly")
        self._statements.pop()
        end = self.label("ENDELSE")
        self.branch(end)
        self.append(last)
        self._open.append(("k.else_", user_location()))
        yield
        self._open.pop()
        self.place(end)

    def range(self, start: Reg | int, stop: Reg | int | None = None, step: Reg | int = 1) -> Iterator[Var]:
        """A run-time loop over start, start + step, … below stop. The counter has the type of stop, else of start."""
        if stop is None:
            start, stop = 0, start
        if isinstance(step, int) and step <= 0:
            raise TraceError(f"k.range counts upwards, got step {step}")
        typed = next((v.type.name for v in (stop, start) if isinstance(v, Reg)), "u32")
        counter = self.var(typed, start)
        where = user_location()
        top, again, end = self.label("LOOP"), self.label("NEXT"), self.label("END")
        self.place(top)
        self.branch(end, counter >= stop)
        self._enter_loop(again, end, "k.range", where)
        yield counter
        self._leave_loop()
        self.place(again)
        counter += step
        self.branch(top)
        self.place(end)

    @contextmanager
    def loop(self) -> Iterator[None]:
        """An endless run-time loop; leave it with `break_`."""
        top, end = self.label("LOOP"), self.label("END")
        self.place(top)
        self._enter_loop(top, end, "k.loop", user_location())
        yield
        self._leave_loop()
        self.branch(top)
        self.place(end)

    def break_(self, pred: Pred | NotPred | None = None) -> None:
        """Leave the innermost run-time loop where `pred` holds."""
        self.branch(self._innermost("break_")[1], pred)

    def continue_(self, pred: Pred | NotPred | None = None) -> None:
        """Go on with the next turn of the innermost run-time loop where `pred` holds."""
        self.branch(self._innermost("continue_")[0], pred)

    # -- the result ------------------------------------------------------------------------------------------------

    @property
    def params(self) -> tuple[Param, ...]:
        return tuple(self._params)

    @property
    def dynamic_smem(self) -> int:
        """Bytes of dynamic shared memory, with the slack that rounding the base up may take."""
        if self._shared is None:
            return 0
        nbytes = self._shared.nbytes + (self._shared.align if self._shared.align > 16 else 0)
        if nbytes > MAX_DYNAMIC_SMEM[self.target]:
            raise TraceError(
                f"{self.entry}: {nbytes} bytes of shared memory; {self.target} has {MAX_DYNAMIC_SMEM[self.target]}"
            )
        return nbytes

    def module(self) -> Module:
        """The module of this kernel alone."""
        version = f"{self._version[0]}.{self._version[1]}"
        head = [
            Directive((".version", version)),
            Directive((".target", self.target)),
            Directive((".address_size", "64")),
        ]
        registers = [
            Directive((".reg", "." + DECLARED[prefix], f"{prefix}<{count}>;"))
            for prefix, count in sorted(self._registers.items())
        ]
        words, trivia = self._head()
        entry = Function(words, Block((*registers, *self._statements)), trivia)
        return Module((*head, *self._globals, entry))

    def ptx(self) -> str:
        """The PTX text."""
        return print_module(self.module())

    def __len__(self) -> int:
        """How many instructions were traced."""
        return sum(isinstance(s, Instruction) for s in self._statements)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _head(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        words = [".visible", ".entry", self.entry, "("]
        trivia = ["\n", " ", " ", ""]
        for i, param in enumerate(self._params):
            comma = "," if i + 1 < len(self._params) else ""
            symbol = self._symbol(param.name)
            if param.tensor_map is not None:
                words.append(f".param .align 64 .b8 {symbol}[128]{comma}")
            else:
                words.append(f".param .{_PARAM_TYPE.get(param.kind, param.kind)} {symbol}{comma}")
            trivia.append("\n    ")
        words.append(")")
        trivia.append("\n" if self._params else "")
        words += [".maxntid", ", ".join(map(str, self.block))]
        trivia += ["\n", " "]
        if self.min_blocks:
            words += [".minnctapersm", str(self.min_blocks)]
            trivia += ["\n", " "]
        if self.max_registers:
            words += [".maxnreg", str(self.max_registers)]
            trivia += ["\n", " "]
        words.append("\n")
        trivia.append("")
        return tuple(words), tuple(trivia)

    def _symbol(self, name: str) -> str:
        return f"param_{name}"

    def _declare_param(self, param: Param) -> None:
        if any(p.name == param.name for p in self._params):
            raise TraceError(f"kernel {self.entry} already has a parameter {param.name!r}")
        self._params.append(param)

    def _add_global(self, name: str, words: tuple[str, ...]) -> None:
        if name in self._global_names:
            raise TraceError(f"the module already has a variable {name!r}")
        self._global_names.add(name)
        self._globals.append(Directive(words))

    def _enter_loop(self, again: str, end: str, what: str, where: Location) -> None:
        self._loops.append((again, end, where))
        self._open.append((what, where))

    def _leave_loop(self) -> None:
        self._loops.pop()
        self._open.pop()

    def _innermost(self, what: str) -> tuple[str, str, Location]:
        if not self._loops:
            raise TraceError(f"k.{what} outside a run-time loop")
        return self._loops[-1]


def _initial(value: int | float, type: Type) -> str:
    if type.cls != "float":
        return str(int(value))
    return (
        "0f" + struct.pack(">f", value).hex().upper()
        if type.bits == 32
        else "0d" + struct.pack(">d", value).hex().upper()
    )


def _type(name: str) -> Type:
    if name not in TYPES:
        raise TraceError(f"no type {name!r}; known: {', '.join(TYPES)}")
    return TYPES[name]


def has_target(target: str, needed: str) -> bool:
    """Whether `target` has what `needed` names: a base such as sm_90, an exact sm_90a, or "a" for any a target."""
    if needed == "a":
        return target.endswith("a")
    if needed.endswith("a"):
        return target == needed
    return int(target.removesuffix("a")[3:]) >= int(needed[3:])


def _target_text(need: Requirement) -> str:
    if need.target == "a":
        return "an architecture-specific target (sm_90a, sm_100a)"
    return need.target if need.target.endswith("a") else f"{need.target} or later"
