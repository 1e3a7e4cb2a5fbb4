"""What the demo measures on one model: runs, errors against fp32, times, and whether ours and the library agree.

The rules of agreement, each with the reason for its bound:

1. With routes pinned to those of the fp32 run, ours is at no token further from fp32 than ``SLACK`` times the library's
   worst token, nor in the median. Both round the same values about equally often, in another order; a norm over the
   vocabulary averages that chance away, so the ratio is near 1.
2. There, ours picks the same token as fp32 wherever fp32's margin is more than 2 ``SLACK`` times the library's largest
   error of a logit of that token.
3. With its own routes, ours moves no more tokens to other experts than the library does, within four standard
   deviations of a difference of two counts.
4. In every other run the median over tokens, which few moved tokens cannot shift, obeys rule 1.
5. A CUDA graph gives the logits of the eager steps, within the library's worst error of rule 1.
"""

from __future__ import annotations

import inspect
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from pyptx_ops import dispatch
from pyptx_ops.integrations.routing import Route, pinned_routes, recorded_routes, same_experts
from pyptx_ops.launch import current_launcher

__all__ = ["LIBRARY", "LOOP", "OURS", "Result", "Row", "Truth", "measure"]

LIBRARY, LOOP, OURS = "transformers, grouped_mm", "transformers, eager", "pyptx_ops"
SLACK = 1.5


@dataclass
class Row:
    """One way of running one implementation."""

    run: str
    implementation: str
    ms: float
    median_error: float | None = None  # over the tokens, against fp32
    worst_error: float | None = None
    moved: int | None = None  # tokens that go to other experts than in fp32


@dataclass
class Result:
    """All that was read off one model."""

    model: str
    shapes: dict[str, Any]
    patched: dict[str, int]
    rows: list[Row] = field(default_factory=list)
    pinned: dict[str, tuple[float, float]] = field(default_factory=dict)  # implementation -> median, worst error
    ops: dict[str, int] = field(default_factory=dict)  # calls of each op in one forward pass
    kernels: dict[str, int] = field(default_factory=dict)  # launches of our kernels in one forward pass
    notes: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)  # empty: ours and the library agree


@dataclass(frozen=True)
class Truth:
    """The fp32 run."""

    logits: torch.Tensor  # (B, S, V)
    routes: list[Route]


def measure(
    result: Result, models: dict[str, Any], ids: torch.Tensor, truth: Truth, *, prompt: int, rounds: int
) -> None:
    """Runs the models every way on the tokens ids (B, S), of which those from ``prompt`` on are decoded one by one."""
    with torch.no_grad():
        _prefill(result, models, ids, truth, rounds)
        _compiled(result, models, ids, truth, rounds)
        _decode(result, models, ids, truth, prompt, rounds)
        _what_ran(result, models[OURS], ids)


def _prefill(result: Result, models: dict[str, Any], ids: torch.Tensor, truth: Truth, rounds: int) -> None:
    exact = truth.logits
    pinned = {}
    for name, model in models.items():
        with pinned_routes(model, truth.routes):
            pinned[name] = model(ids, use_cache=False).logits
        result.pinned[name] = _summary(token_errors(pinned[name], exact))
    _judge_errors(result, "prefill with fp32's routes", result.pinned)
    _judge_tokens(result, pinned[OURS], pinned[LIBRARY], exact)
    times = medians({name: _forward(model, ids) for name, model in models.items()}, ids.device, rounds)
    for name, model in models.items():
        with recorded_routes(model) as routes:
            row = _row("prefill, eager", name, times[name], model(ids, use_cache=False).logits, exact)
        row.moved = int((~same_experts(routes, truth.routes)).sum())
        result.rows.append(row)
    _judge_moved(result)


def _compiled(result: Result, models: dict[str, Any], ids: torch.Tensor, truth: Truth, rounds: int) -> None:
    backend = "inductor" if ids.is_cuda else "aot_eager"
    if backend != "inductor":
        result.notes.append("torch.compile with backend aot_eager here: C++ code of inductor's takes long to compile")
    result.notes.append(f"{LOOP}: its loop over experts reads the device, so it is neither compiled nor captured")
    torch._dynamo.reset()
    compiled = {name: torch.compile(models[name], backend=backend, fullgraph=True) for name in (LIBRARY, OURS)}
    runs = {name: _forward(model, ids) for name, model in compiled.items()}
    with warnings.catch_warnings():  # of a cached function in the library's own path
        warnings.filterwarnings("ignore", message="Dynamo detected a call to a `functools.lru_cache`")
        outputs = {OURS: runs[OURS]()}
        try:
            outputs[LIBRARY] = runs[LIBRARY]()
        except torch._dynamo.exc.Unsupported as error:  # that of transformers 5 needs torch 2.10
            result.notes.append(
                f"{LIBRARY}: torch {torch.__version__} does not compile it: {str(error).splitlines()[0]}"
            )
            del runs[LIBRARY]
    _add(result, "prefill, compiled", medians(runs, ids.device, rounds), outputs, truth.logits)


def _decode(result: Result, models: dict[str, Any], ids: torch.Tensor, truth: Truth, prompt: int, rounds: int) -> None:
    steps, exact = ids[:, prompt:].split(1, dim=1), truth.logits[:, prompt:]
    decoders = {name: Decoder(models[name], ids[:, :prompt], len(steps)) for name in (LIBRARY, OURS)}

    def run(way: str) -> dict[str, torch.Tensor]:
        outputs = {name: decoder.decode(steps) for name, decoder in decoders.items()}
        times = medians(
            {name: decoder.step for name, decoder in decoders.items()},
            ids.device,
            rounds,
            before=lambda name: decoders[name].rewind(),
        )
        _add(result, f"decode, {way}", times, outputs, exact)
        return outputs

    eager = run("eager")
    if not ids.is_cuda:
        result.notes.append("no CUDA graph: there is no CUDA device")
        return
    for decoder in decoders.values():
        decoder.capture()
    graph = run("CUDA graph")
    _judge_graph(result, graph[OURS], eager[OURS])


def _forward(model: Any, ids: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: model(ids, use_cache=False).logits


def _add(
    result: Result, run: str, times: dict[str, float], outputs: dict[str, torch.Tensor], exact: torch.Tensor
) -> None:
    rows = [_row(run, name, ms, outputs[name], exact) for name, ms in times.items()]
    result.rows.extend(rows)
    _judge_errors(result, run, {row.implementation: (row.median_error, None) for row in rows})


def _row(run: str, implementation: str, ms: float, logits: torch.Tensor, exact: torch.Tensor) -> Row:
    return Row(run, implementation, ms, *_summary(token_errors(logits, exact)))


class Decoder:
    """Decodes one token a sequence after a prompt, with a static KV cache; after ``capture`` by replaying a graph."""

    def __init__(self, model: Any, prompt: torch.Tensor, steps: int) -> None:
        self.model = model
        self.length = prompt.shape[1]
        self.cache: Any = transformers.StaticCache(config=model.config, max_cache_len=self.length + steps)
        parameters = inspect.signature(model.forward).parameters
        # renamed in the course of transformers 5
        self.cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._forward(prompt)
        self.token = prompt[:, -1:].clone()
        self.logits = torch.empty(0)
        self.graph: torch.cuda.CUDAGraph | None = None

    def _forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(ids, use_cache=True, **{self.cache_argument: self.cache}).logits
        return logits

    def rewind(self) -> None:
        """Back to the end of the prompt: later entries of the cache are masked until they are written again."""
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(self.length)

    def step(self) -> torch.Tensor:
        if self.graph is None:
            self.logits = self._forward(self.token)
        else:
            self.graph.replay()
        return self.logits

    def decode(self, tokens: Sequence[torch.Tensor]) -> torch.Tensor:
        """(B, len(tokens), V): the logits after each of the given tokens (the text's, whatever was predicted)."""
        self.rewind()
        out = []
        for token in tokens:
            self.token.copy_(token)
            out.append(self.step().clone())
        self.rewind()
        return torch.cat(out, dim=1)

    def capture(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.rewind()
                self._forward(self.token)
        torch.cuda.current_stream().wait_stream(side)
        self.rewind()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.logits = self._forward(self.token)
        self.graph = graph


# --- reading: errors, times, what ran ---


def token_errors(logits: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """(tokens,) |logits - exact| / |exact| in the 2-norm, in fp32, sequence by sequence to save memory."""
    return torch.cat([(a.float() - b).norm(dim=-1) / b.norm(dim=-1) for a, b in zip(logits, exact, strict=True)])


def _summary(errors: torch.Tensor) -> tuple[float, float]:
    return errors.median().item(), errors.max().item()


def medians(
    runs: dict[str, Callable[[], Any]],
    device: torch.device,
    rounds: int,
    before: Callable[[str], None] = lambda name: None,
) -> dict[str, float]:
    """Median milliseconds of each run. The runs take turns, so that a drift of the clock meets all alike."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 2):  # two to warm up
        for name, run in runs.items():
            before(name)
            ms = _time(run, device)
            if turn >= 2:
                times[name].append(ms)
    return {name: statistics.median(values) for name, values in times.items()}


def _time(run: Callable[[], Any], device: torch.device) -> float:
    if device.type != "cuda":
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e3
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


class _OpCalls(TorchDispatchMode):
    """Counts the calls of our ops."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "pyptx":
            self.counts[func._opname] += 1
        return func(*args, **(kwargs or {}))


def _what_ran(result: Result, model: Any, ids: torch.Tensor) -> None:
    with _OpCalls() as calls:
        model(ids, use_cache=False)
    result.ops = dict(calls.counts)
    route = dispatch.route(ids.device)
    if route.arch is None:
        return
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        model(ids, use_cache=False)
        torch.cuda.synchronize(ids.device)
    names = {record.entry: record.name for record in current_launcher().manifest(route.arch).kernels}
    seen = Counter(event.name for event in profiler.events() if event.name in names)
    result.kernels = {names[entry]: count for entry, count in seen.items()}
    if not seen:
        result.notes.append("torch's profiler saw none of our kernels: either none ran, or it cannot trace this device")


# --- judging ---


def _judge_errors(result: Result, run: str, errors: Mapping[str, tuple[float | None, float | None]]) -> None:
    """Of a run that the library does not take, by the library's errors of rule 1."""
    library = errors[LIBRARY] if LIBRARY in errors else result.pinned[LIBRARY]
    for what, ours, theirs in zip(("median", "worst"), errors[OURS], library, strict=True):
        if ours is not None and theirs is not None and not ours <= SLACK * theirs:  # a NaN is a complaint too
            result.complaints.append(f"{run}: {what} error {ours:.2e}, more than {SLACK} x the library's {theirs:.2e}")


def _judge_tokens(result: Result, ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> None:
    wrong = 0
    for a, b, truth in zip(ours, theirs, exact, strict=True):
        top = truth.topk(2, dim=-1).values
        sure = top[:, 0] - top[:, 1] > 2 * SLACK * (b.float() - truth).abs().amax(dim=-1)
        wrong += int((sure & (a.argmax(dim=-1) != truth.argmax(dim=-1))).sum())
    if wrong:
        result.complaints.append(f"prefill with fp32's routes: {wrong} tokens differ from fp32's beyond any rounding")


def _judge_moved(result: Result) -> None:
    moved = {row.implementation: row.moved for row in result.rows if row.moved is not None}
    allowed = moved[LIBRARY] + 4 * (2 * (moved[LIBRARY] + 1)) ** 0.5
    if moved[OURS] > allowed:
        result.complaints.append(f"{moved[OURS]} tokens go to other experts, {moved[LIBRARY]} with the library")


def _judge_graph(result: Result, graph: torch.Tensor, eager: torch.Tensor) -> None:
    if torch.equal(graph, eager):
        result.notes.append("the CUDA graph's logits are those of the eager steps, bit for bit")
        return
    worst = token_errors(graph, eager.float()).max().item()
    result.notes.append(f"the CUDA graph's logits differ from those of the eager steps by {worst:.1e}")
    if not worst <= SLACK * result.pinned[LIBRARY][1]:
        result.complaints.append(f"CUDA graph: {worst:.1e} from the eager steps")
