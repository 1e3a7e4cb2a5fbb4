OPERATIONS: tuple[str, ...]
WORDS: tuple[str, ...]
TYPES: tuple[str, ...]
SPECIALS: tuple[str, ...]

def compile(words: bytes, names: str, memory: bytes, /) -> object:
    """A program of the words that `dsl.sim.loader` encodes, the names of its registers, a line each, and the memory
    of the module: constants, then variables.

    Raises ValueError(PTX line, message) for a form that the core does not have.
    """

def use_vectors(wanted: bool, /) -> bool:
    """Whether kernels compiled from now on use AVX2 and FMA where the processor has them. Returns whether they do."""

def run(
    program: object,
    grid: tuple[int, int, int],
    params: bytes,
    maps: bytes,
    segments: bytes,
    fresh: bytes,
    policy: int,
    seed: int,
    limit: int,
    multiprocessors: int,
    resident: int,
    interleave: bool,
    trace: bool,
    lint: bool,
    /,
) -> tuple[int, tuple[str, str, int, str, list[tuple[int, str]]] | None, bytes, bytes]:
    """Runs a grid: (warp instructions executed, problem or None, what happened when, what accesses took).

    The last two are empty unless they are asked for.

    A problem: its kind, message, PTX line, where, and (line, text) of who else was involved.

    maps, segments: int64 words: of each tensor map its offset in the parameters, address, rank, element bytes, swizzle,
    NaN fill, sizes, strides, then 0 and the box, or 1 and of im2col the channels, pixels, corners and steps; of each
    accessible stretch of memory its address and size.
    """
