from collections.abc import Callable
from typing import Any

class LaunchError(RuntimeError):
    """A driver call failed: the message names the call, the kernel, the driver's error and its cause."""

class DriverNotFound(LaunchError):
    """No CUDA driver library, or one that is too old."""

class Kernel:
    @property
    def name(self) -> str: ...
    def launch(
        self, device: int, stream: int, grid_x: int, grid_y: int, grid_z: int, /, *args: int | float
    ) -> None: ...
    def prepare(self, device: int, /) -> None: ...
    def attributes(self, device: int, /) -> dict[str, int]: ...

class Library:
    def kernel(
        self,
        entry: str,
        params: tuple[tuple[object, ...], ...],
        block: tuple[int, int, int],
        cluster: tuple[int, int, int] = (1, 1, 1),
        shared_memory: int = 0,
        pdl: bool = False,
    ) -> Kernel: ...

class Driver:
    def __init__(self, path: str) -> None: ...
    def load(self, image: bytes, name: str) -> Library: ...
    def version(self) -> tuple[int, int]: ...
    def device_count(self) -> int: ...
    def compute_capability(self, device: int, /) -> tuple[int, int]: ...

class BoundCalls:
    """The calls of one op by kind, bound to launches. Safe from several threads."""

    def __init__(
        self,
        exchange: object,
        names: tuple[str, ...],
        defaults: tuple[object, ...],
        tensor_types: tuple[type, ...],
        constant_types: tuple[type, ...],
        unusual: tuple[Callable[[Any], bool], ...],
        device_type: int = 2,
        limit: int = 4096,
        apart: bool = False,
    ) -> None:
        """
        exchange: DLPack's C exchange API of the framework.
        names, defaults: of the op's arguments, in order; the defaults are of the last ones.
        tensor_types: exactly the types whose objects are plain tensors.
        constant_types: exactly the types whose objects may be arguments and count by identity.
        unusual: tests of a tensor that is not bf16; a call with a tensor that passes one is left to the caller.
        device_type: DLPack's number of the device that the tensors are on.
        limit: as many kinds are kept; all are forgotten when one more comes.
        apart: whether a call is left to the caller where one tensor's memory, from its first element to its last,
            meets another's.
        """

    def run(self, *args: object, **kwargs: object) -> Any:
        """Launches a bound call: its output, a tuple of several, or None where it has none.

        NotImplemented, with nothing done, where no call of this kind is bound or one has no kind. Raises as
        `Kernel.launch`, and what an allocation raises.
        """

    def add(
        self,
        args: tuple[object, ...],
        kernel: Kernel,
        device: int,
        grid: tuple[int, int, int],
        values: tuple[int | float, ...],
        addresses: tuple[tuple[int, int, int], ...],
        outputs: tuple[tuple[Callable[..., object], tuple[object, ...]], ...],
    ) -> bool:
        """Binds the calls of the kind of this one; False where it has no kind. Raises as `Kernel.launch`, ValueError.

        args: all the op's arguments.
        values: those of the launch, as `Kernel.launch` takes them.
        addresses: (position among the values, operand, offset in bytes): what each call fills in. The operands are
            the arguments, and then the outputs.
        outputs: of each the function that makes a new one, on the device, and its arguments.
        """

    def clear(self) -> None: ...
    def __len__(self) -> int: ...
