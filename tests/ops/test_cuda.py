"""What only a GPU shows: graphs, streams, devices, offsets past 2^31, synchronisation."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

import pyptx_ops
from pyptx_ops import dispatch, launch
from tests.ops.inputs import ends, randn
from tests.ops.test_torch import block
from tests.tolerance import assert_within, norm_bound, product_bound, silu_bound

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
BF16 = torch.bfloat16
second_device = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


def large(gigabytes):
    free = torch.cuda.mem_get_info()[0] / 2**30 if torch.cuda.is_available() else 0
    return pytest.mark.skipif(free < gigabytes, reason=f"needs {gigabytes} GiB of free GPU memory")


def inputs(device="cuda", tokens=300, grad=False, dtype=BF16):
    def t(*shape):
        return randn(*shape, device=device, dtype=dtype, scale=0.3, grad=grad)

    offs = ends(100, 100, 250, device=device)
    return [t(tokens, 64), t(tokens, 64), t(64), t(3, 64, 96), t(3, 64, 48), offs, t(64, 64)]


@contextmanager
def no_synchronization():
    """Whatever waits for the device inside raises."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32])
def test_nothing_waits_for_the_device(dtype):
    leaves = [t.detach().requires_grad_() if t.is_floating_point() else t for t in inputs(dtype=dtype)]
    plain = [t.detach().clone() for t in leaves]
    dy = torch.ones(300, 64, device="cuda", dtype=dtype)
    block(*plain)  # loads kernels, makes handles
    with no_synchronization():
        block(*leaves).backward(dy)
        pyptx_ops.fused_add_rms_norm_(plain[0], plain[1], plain[2])


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # warm-up, capture and check have their own
@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32])
@pytest.mark.parametrize("backward", [False, True])
def test_graph_replayed_with_other_offsets(dtype, backward):
    args = [t.detach().requires_grad_(backward) if t.is_floating_point() else t for t in inputs(dtype=dtype)]
    offs, leaves = args[5], [t for t in args if t.requires_grad]
    dy = randn(300, 64, device="cuda", dtype=dtype)

    def step():
        out = block(*args)
        return [out, *(torch.autograd.grad(out, leaves, dy) if backward else ())]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for values in ((0, 0, 0), (1, 2, 3), (300, 300, 300), (0, 128, 257), (100, 100, 250)):
        offs.copy_(torch.tensor(values, dtype=torch.int32))
        for tensor in captured:
            tensor.fill_(float("nan"))
        graph.replay()
        for got, wanted in zip(captured, step(), strict=True):
            torch.testing.assert_close(got, wanted)
        assert (captured[0][values[-1] :] == 0).all()


# linkedin/Liger-Kernel#1303, Dao-AILab/flash-attention#2356, deepseek-ai/FlashMLA#158: the wrong stream or device.
def test_b33_the_stream_in_use(device="cuda"):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = torch.zeros(4096, 4096, device=device, dtype=BF16)
        for _ in range(50):
            x = x + 0.02
        y = pyptx_ops.rms_norm(x, torch.ones(4096, device=device, dtype=BF16))
        h = pyptx_ops.gemm(x, torch.eye(4096, device=device, dtype=BF16))
        s = pyptx_ops.swiglu(x, x)
    side.synchronize()
    one = torch.ones_like(y)
    assert_within(y, one, norm_bound(one.double(), 4096, BF16))
    assert torch.equal(h, x)
    truth = torch.nn.functional.silu(x.double()) * x.double()
    assert_within(s, truth, silu_bound(truth, x, BF16))


def test_two_streams_at_once():
    """Two streams, each with inputs of its own, none waiting for the other."""
    streams = [torch.cuda.Stream() for _ in range(2)]
    jobs = [inputs(tokens=2048), inputs(tokens=2048)]
    wanted = [block(*job) for job in jobs]
    torch.cuda.synchronize()
    got = [[], []]
    for _ in range(20):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                got[i].append(block(*jobs[i]))
    torch.cuda.synchronize()
    for results, truth in zip(got, wanted, strict=True):
        assert all(torch.equal(result, truth) for result in results)


@second_device
@pytest.mark.parametrize("backward", [False, True])
def test_b33_a_device_that_is_not_current(backward):
    torch.cuda.set_device(0)
    args = [t.detach().requires_grad_(backward) if t.is_floating_point() else t for t in inputs("cuda:0")]
    other = [t.detach().to("cuda:1").requires_grad_(t.requires_grad) for t in args]
    wanted, got = block(*args), block(*other)
    assert got.device == torch.device("cuda:1") and torch.cuda.current_device() == 0
    torch.testing.assert_close(got.to("cuda:0"), wanted)
    if backward:
        wanted.float().sum().backward()
        got.float().sum().backward()
        for a, b in zip(args, other, strict=True):
            assert a.grad is None or b.grad.device == torch.device("cuda:1")
            torch.testing.assert_close(None if b.grad is None else b.grad.to("cuda:0"), a.grad)
    assert torch.cuda.current_device() == 0


@second_device
@pytest.mark.parametrize("spoilt", range(1, 7))
def test_tensors_of_two_devices_are_refused(spoilt):
    args = inputs("cuda:0")
    args[spoilt] = args[spoilt].to("cuda:1")
    with pytest.raises(ValueError, match=r"is on cuda:[01], wanted cuda:[01]"):
        block(*args)


# deepspeedai/DeepSpeed#8590, linkedin/Liger-Kernel#251, NVlabs/Sana#468: offsets that wrap at 2^31 elements.
@large(20)
def test_b18_swiglu_past_two_to_the_31():
    rows, columns = (2**31 + 4096) // 4096, 4096
    gate = torch.zeros(rows, columns, device="cuda", dtype=BF16)
    up = torch.ones(rows, columns, device="cuda", dtype=BF16)
    gate[-3:] = randn(3, columns, device="cuda", dtype=BF16)
    got = pyptx_ops.swiglu(gate, up)
    assert torch.equal(got[-3:], pyptx_ops.swiglu(gate[-3:].clone(), up[-3:].clone()))
    assert not got[:-3].any()


@large(20)
def test_b18_silu_and_mul_past_two_to_the_31():
    rows, columns = (2**31 + 8192) // 8192, 8192
    x = torch.zeros(rows, columns, device="cuda", dtype=BF16)
    x[-3:] = randn(3, columns, device="cuda", dtype=BF16)
    got = pyptx_ops.silu_and_mul(x)
    assert torch.equal(got[-3:], pyptx_ops.silu_and_mul(x[-3:].clone()))
    assert not got[:-3].any()


@large(30)
def test_b18_norms_past_two_to_the_31():
    rows, columns = (2**31 + 4096) // 4096, 4096
    x = torch.zeros(rows, columns, device="cuda", dtype=BF16)
    x[-3:] = randn(3, columns, device="cuda", dtype=BF16)
    w = randn(columns, device="cuda", dtype=BF16)
    tail = x[-3:].clone()
    got = pyptx_ops.rms_norm(x, w)
    assert torch.equal(got[-3:], pyptx_ops.rms_norm(tail, w)) and not got[:-3].any()
    del got
    y, total = pyptx_ops.fused_add_rms_norm(x, x, w)
    wanted = pyptx_ops.fused_add_rms_norm(tail, tail, w)
    assert torch.equal(y[-3:], wanted[0]) and torch.equal(total[-3:], wanted[1])
    assert not y[:-3].any() and not total[:-3].any()


@large(20)
def test_b18_products_past_two_to_the_31():
    """Operand and result both have more than 2^31 elements."""
    rows, k = (2**31 + 4096) // 4096, 4096
    a = torch.zeros(rows, k, device="cuda", dtype=BF16)
    a[-3:] = randn(3, k, device="cuda", dtype=BF16)
    b = randn(k, k, device="cuda", dtype=BF16)
    truth, magnitude = a[-3:].double() @ b.double(), a[-3:].double().abs() @ b.double().abs()
    bound = product_bound(truth, magnitude, k, BF16)
    got = pyptx_ops.gemm(a, b)
    assert_within(got[-3:], truth, bound)
    assert not got[:-3].any()
    del got
    got = pyptx_ops.grouped_gemm(a, b.expand(2, k, k), ends(5, rows - 1, device="cuda"))
    assert_within(got[-3:-1], truth[:2], bound[:2])
    assert not got[:-3].any() and not got[-1].any()


def t(*shape, dtype=BF16):
    return randn(*shape, device="cuda", dtype=dtype, scale=0.3)


KINDS = {
    "gemm": lambda: (t(33, 64), t(64, 96)),
    "gemm bias": lambda: (t(2, 33, 64), t(96, 64).t(), t(96)),
    "gemm many rows": lambda: (t(1100, 64, dtype=torch.float16), t(64, 256, dtype=torch.float16)),
    "grouped_gemm": lambda: (t(33, 64), t(3, 64, 96), ends(5, 5, 30, device="cuda"), t(3, 96)),
    "gemm_swiglu": lambda: (t(33, 64), t(96, 64).t(), t(96), True),
    "grouped_gemm_swiglu": lambda: (t(33, 64), t(3, 64, 96), ends(5, 5, 30, device="cuda")),
    "rms_norm": lambda: (t(3, 5, 64), t(64)),
    "rms_norm odd": lambda: (t(7, 63), t(63), 1e-5, 1.0, False),
    "fused_add_rms_norm": lambda: (t(3, 5, 64)[:, 1:], t(3, 4, 64), t(64).float()),
    "fused_add_rms_norm_": lambda: (t(3, 5, 64), t(3, 5, 64), None),
    "silu_and_mul": lambda: (t(7, 128),),
    "silu_and_mul interleaved": lambda: (t(7, 128), True),
    "swiglu": lambda: (*t(8, 128).chunk(2, -1), ends(3, 6, device="cuda")),
}


@pytest.mark.skipif(not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="no DLPack exchange API")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["eager", "inference", "training", "stream", "graph"])
def test_a_bound_call_gives_what_a_planned_one_does(monkeypatch, kind, where):
    """The second call of a kind is launched without Python: on the stream in use, and into a capture."""
    if dispatch.route("cuda").path != "kernel":
        pytest.skip("no kernels for this device")
    op, in_place = getattr(pyptx_ops, kind.split()[0]), kind.endswith("_")
    first, second = KINDS[kind](), KINDS[kind]()
    if where == "training" and in_place:
        pytest.skip("has no derivative")
    if where == "training" and "gemm_swiglu" in kind:
        pytest.skip("is recorded as a product and an activation")

    def results(args):
        out = op(*args)
        return args[:2] if in_place else out if isinstance(out, tuple) else (out,)

    with launch.unbound():
        wanted = [value.clone() for value in results([copy_of(arg) for arg in second])]
    results([copy_of(arg) for arg in first])  # binds
    args = [copy_of(arg) for arg in second]

    def planned(tensor):
        raise AssertionError("this call was planned again")

    monkeypatch.setattr(dispatch, "runs_kernels", planned)
    if where == "stream":
        got = on_a_late_stream(lambda: results(args), args)
    elif where == "graph":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = results(args)
        graph.replay()
    else:
        if where == "training":
            args[0].requires_grad_()
        with torch.inference_mode(where == "inference"):
            got = results(args)
    for ours, theirs in zip(got, wanted, strict=True):
        assert torch.equal(ours, theirs)
        assert in_place or ours.requires_grad == (where == "training")


def copy_of(arg):
    """Of the same kind: shape, strides, alignment."""
    if not isinstance(arg, torch.Tensor):
        return arg
    span = sum((size - 1) * stride for size, stride in zip(arg.shape, arg.stride(), strict=True)) + 1
    start = arg.data_ptr() % 16 // arg.element_size()
    copy = torch.zeros(start + span, dtype=arg.dtype, device=arg.device)[start:].as_strided(
        arg.shape, arg.stride(), start
    )
    return copy.copy_(arg)


def on_a_late_stream(call, args):
    """The call on a stream on which the tensors get their values late."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    values = [tensor.clone() for tensor in tensors]
    for tensor in tensors:
        tensor.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(20_000_000)
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)
        got = call()
    torch.cuda.synchronize()
    return got
