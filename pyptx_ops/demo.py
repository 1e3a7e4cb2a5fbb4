"""``python -m pyptx_ops demo``: two MoE models from transformers, with our ops beside the library's own code.

The models are transformers' real classes, Mixtral and Qwen3-MoE, with random weights and the layer shapes of their
namesakes (``--size medium`` and up). The tokens are the bytes of this package's own source. Each model runs a text
through eager mode and torch.compile, and decodes in eager mode and as a CUDA graph.

When do two bf16 runs agree? Neither is exact. So each is measured against an fp32 run of the same weights, token by
token, as |logits - fp32| / |fp32| in the 2-norm, and ours may be 1.5 times as far off as the library's. `demo_runs` has
the rules.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

import pyptx_ops
from pyptx_ops import dispatch
from pyptx_ops.demo_runs import LIBRARY, LOOP, OURS, Result, Truth, measure
from pyptx_ops.integrations.routing import recorded_routes
from pyptx_ops.tables import table


@dataclass(frozen=True)
class Size:
    """A run: the models' configs, ``batch`` sequences of ``prompt`` tokens, then ``steps`` tokens decoded."""

    mixtral: dict[str, Any]
    qwen3_moe: dict[str, Any]
    batch: int
    prompt: int
    steps: int
    rounds: int  # timed runs, of which the median counts


# The layer shapes of Mixtral-8x7B and of Qwen3-30B-A3B.
_MIXTRAL = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
}
_QWEN3 = {
    "hidden_size": 2048,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "vocab_size": 151936,
}
_SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}

SIZES = {
    "small": Size(
        mixtral=_SMALL | {"intermediate_size": 448, "num_local_experts": 8, "num_experts_per_tok": 2},
        qwen3_moe=_QWEN3 | _SMALL | {"moe_intermediate_size": 128, "num_experts": 16, "head_dim": 64},
        batch=2,
        prompt=92,
        steps=4,
        rounds=3,
    ),
    "medium": Size(
        mixtral=_MIXTRAL | {"num_hidden_layers": 2},
        qwen3_moe=_QWEN3 | {"num_hidden_layers": 4},
        batch=4,
        prompt=504,
        steps=8,
        rounds=15,
    ),
    "large": Size(
        mixtral=_MIXTRAL | {"num_hidden_layers": 4},
        qwen3_moe=_QWEN3 | {"num_hidden_layers": 12},
        batch=8,
        prompt=1016,
        steps=8,
        rounds=15,
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; returns 0 if ours and the library's logits agree, else 1."""
    options = _parser().parse_args(arguments)
    device: torch.device = options.device
    size_name = options.size or ("medium" if device.type == "cuda" else "small")
    route = dispatch.route(device)
    transformers.logging.set_verbosity_error()
    print(_headline(device, size_name, options.dtype, route))
    results = []
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        for name in options.models:
            results.append(demonstrate(name, SIZES[size_name], device, getattr(torch, options.dtype), options.seed))
            print(f"\n{_describe(results[-1])}", flush=True)
    agrees = not any(result.complaints for result in results)
    print(f"\n{'Ours and the library agree.' if agrees else 'Ours and the library DISAGREE, see above.'}")
    if options.json:
        record = _record(device, size_name, options, route) | {"agrees": agrees, "models": list(map(asdict, results))}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if agrees else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pyptx_ops demo",
        description="Two MoE models from transformers, with our ops beside the library's own code.",
    )
    parser.add_argument("--size", choices=SIZES, help="default: medium on a GPU, small on a CPU")
    parser.add_argument("--device", type=_device, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=["bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--models", nargs="+", choices=["mixtral", "qwen3_moe"], default=["mixtral", "qwen3_moe"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results there too")
    return parser


def _device(name: str) -> torch.device:
    there = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    there += [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if name not in there:
        raise argparse.ArgumentTypeError(f"got {name}, wanted one of {', '.join(there)}")
    return torch.device(name)


# --- one model ---


def demonstrate(name: str, size: Size, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Result:
    """Runs one model every way, and judges."""
    shapes = getattr(size, name)
    library = _build(name, shapes, device, dtype, seed)
    loop, ours = _sharing(library), _sharing(library)
    library.set_experts_implementation("grouped_mm")
    loop.set_experts_implementation("eager")
    ops = Counter(entry.op for entry in pyptx_ops.patch(ours).replaced)
    result = Result(name, shapes, dict(ops))
    ids = text_tokens(size.batch, size.prompt + size.steps).to(device)
    models = {LIBRARY: library, LOOP: loop, OURS: ours}
    measure(result, models, ids, _truth(library, ids), prompt=size.prompt, rounds=size.rounds)
    return result


def _build(name: str, shapes: dict[str, Any], device: torch.device, dtype: torch.dtype, seed: int) -> Any:
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(name, **shapes, initializer_range=shapes["hidden_size"] ** -0.5)
    with device:
        return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def _sharing(model: Any) -> Any:
    """A copy that shares the parameters."""
    return copy.deepcopy(model, {id(p): p for p in model.parameters()})


def _truth(model: Any, ids: torch.Tensor) -> Truth:
    exact = copy.deepcopy(model).float()
    exact.set_experts_implementation("eager")
    with torch.no_grad(), recorded_routes(exact) as routes:
        logits = exact(ids, use_cache=False).logits
    return Truth(logits, routes)


def text_tokens(batch: int, length: int) -> torch.Tensor:
    """(batch, length) tokens of real text: the bytes of this package's source files, one token a byte."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    text = b"".join(file.read_bytes() for file in files)
    if len(text) < batch * length:
        raise ValueError(f"the package's source has {len(text)} bytes, wanted {batch * length}")
    return torch.tensor(list(text[: batch * length])).view(batch, length)


# --- what is printed and recorded ---


def _headline(device: torch.device, size: str, dtype: str, route: dispatch.Route) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    lines = [
        f"pyptx_ops {pyptx_ops.__version__}, torch {torch.__version__}, transformers {transformers.__version__}",
        f"{name}, size {size}, {dtype}; the ops run {_path(route)}: {route.why}",
        "tokens: the bytes of this package's own source; weights: random",
        "errors: |logits - fp32's| / |fp32's|, by token; moved: tokens that go to other experts than in fp32",
    ]
    return "\n".join(lines)


def _path(route: dispatch.Route) -> str:
    return "their kernels" if route.path == "kernel" else "their REFERENCE path, so its times say nothing of kernels"


def _describe(result: Result) -> str:
    shapes = result.shapes
    replaced = ", ".join(f"{count} {op}" for op, count in result.patched.items())
    lines = [
        f"{result.model}: {shapes['num_hidden_layers']} layers, hidden size {shapes['hidden_size']}",
        f"patched: {replaced}",
        "",
        table(["run", "implementation", "ms", "speed-up", "median error", "worst error", "moved"], _cells(result)),
        "",
        "with the routes of the fp32 run in all:",
        table(["implementation", "median error", "worst error"], _pinned_cells(result)),
        "",
        "our ops in one forward pass: " + ", ".join(f"{count} x {op}" for op, count in result.ops.items()),
    ]
    if result.kernels:
        lines.append("our kernels in one forward pass:")
        lines += [f"  {count:4} x {name}" for name, count in result.kernels.items()]
    lines += [f"note: {note}" for note in result.notes]
    lines += [f"DISAGREES: {complaint}" for complaint in result.complaints]
    return "\n".join(lines)


def _cells(result: Result) -> list[list[object]]:
    base = {row.run: row.ms for row in result.rows if row.implementation == LIBRARY}
    return [
        [
            row.run,
            row.implementation,
            f"{row.ms:.3f}",
            f"{base[row.run] / row.ms:.2f}" if row.run in base else None,
            f"{row.median_error:.2e}",
            f"{row.worst_error:.2e}",
            row.moved,
        ]
        for row in result.rows
    ]


def _pinned_cells(result: Result) -> list[list[object]]:
    return [[name, f"{median:.2e}", f"{worst:.2e}"] for name, (median, worst) in result.pinned.items()]


def _record(device: torch.device, size: str, options: argparse.Namespace, route: dispatch.Route) -> dict[str, Any]:
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "host": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "pyptx_ops": pyptx_ops.__version__,
        "route": asdict(route),
        "size": size,
        "dtype": options.dtype,
        "seed": options.seed,
        "run": asdict(SIZES[size]),
    }


if __name__ == "__main__":
    sys.exit(main())
