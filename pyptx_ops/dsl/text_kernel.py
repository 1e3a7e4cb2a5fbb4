"""A kernel that is given as PTX text: what a launch needs to know of it, read from the text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .ir import Directive, Function, Module
from .syntax.declarations import Declaration, head
from .syntax.parser import parse
from .types import Param, TensorMapSpec

__all__ = ["TextKernel"]

KINDS = {
    ".u32": "u32", ".b32": "u32", ".s32": "i32", ".u64": "u64", ".b64": "u64", ".s64": "i64", ".f32": "f32",
    ".f64": "f64",
}  # fmt: skip
Dimensions = tuple[int, int, int]


@dataclass(frozen=True)
class TextKernel:
    """The one entry function of a module, with what a traced `Kernel` says of itself: launchers take either.

    params: pointers are what the text declares `.ptr`.  block, cluster: threads and CTAs, each (x, y, z).
    dynamic_smem: bytes.  pdl: launch with programmatic stream serialization.
    """

    text: str
    entry: str
    target: str
    params: tuple[Param, ...]
    block: Dimensions
    cluster: Dimensions = (1, 1, 1)
    dynamic_smem: int = 0
    pdl: bool = False

    @classmethod
    def read(
        cls,
        text: str,
        *,
        block: Dimensions | None = None,
        dynamic_smem: int = 0,
        tensor_maps: Mapping[str, TensorMapSpec] | None = None,
    ) -> TextKernel:
        """The kernel of a text. `block`: where the text does not require one. `tensor_maps`: by parameter.

        Raises ValueError for text that is no PTX, for none or several entries, for parameters that cannot be passed,
        and where nothing says how large a block is.
        """
        module = parse(text)
        found = [head(s.head) for s in module.statements if isinstance(s, Function) and ".entry" in s.head]
        if len(found) != 1:
            raise ValueError(f"wanted one entry function, got {', '.join(f.name for f in found) or 'none'}")
        entry = found[0]
        block = _dimensions(entry.directives, ".reqntid") or block
        if block is None:
            raise ValueError(f"{entry.name} does not say .reqntid: block= is missing")
        params = tuple(_param(declared, tensor_maps or {}) for declared in entry.parameters)
        cluster = _dimensions(entry.directives, ".reqnctapercluster") or (1, 1, 1)
        return cls(text, entry.name, _target(module), params, block, cluster, dynamic_smem)

    def edited(self, text: str) -> TextKernel:
        """The same kernel with another text."""
        return replace(self, text=text)

    def ptx(self) -> str:
        return self.text

    def module(self) -> Module:
        return parse(self.text)


def _target(module: Module) -> str:
    words = [s.tokens for s in module.statements if isinstance(s, Directive) and s.tokens[0] == ".target"]
    if not words:
        raise ValueError("the text has no .target")
    return words[0][1]


def _dimensions(directives: tuple[str, ...], name: str) -> Dimensions | None:
    """The numbers after a directive, with 1 for those left out."""
    if name not in directives:
        return None
    numbers: list[int] = []
    for word in directives[directives.index(name) + 1 :]:
        if word.isdigit():
            numbers.append(int(word))
        elif word != ",":
            break
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def _param(declared: Declaration, tensor_maps: Mapping[str, TensorMapSpec]) -> Param:
    (name,) = declared.names
    if name.name in tensor_maps:
        return Param(name.name, "tensor_map", tensor_maps[name.name])
    if ".ptr" in declared.words:
        return Param(name.name, "pointer")
    kind = next((KINDS[word] for word in declared.words if word in KINDS), None)
    if kind is None or name.dimensions:
        raise ValueError(f"{name.name} is declared {' '.join(declared.words)}: such a parameter is not passed")
    return Param(name.name, kind)
