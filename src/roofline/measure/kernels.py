"""The kernels themselves: for each op, functions that do its work once, on random data, through torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from roofline.errors import UnsupportedError
from roofline.measure.device import Device
from roofline.measure.timing import Call

SEED = 20240229
COPIES = 8  # distinct weights that are cycled through at most
LAUNCHES = 100  # tiny kernels in one sample of the launch latency


@dataclass(frozen=True, slots=True)
class Work:
    """What is timed: calls that do the same on buffers of their own, `per` executions in each."""

    calls: list[Call]
    per: float = 1.0
    cold: bool = True


def dtype_of(torch: Any, name: str) -> Any:
    """torch's name of a format."""
    names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "float8_e4m3fn", "int8": "int8"}
    return getattr(torch, names[name])


def random(device: Device, shape: tuple[int, ...], dtype: str, scale: float = 1.0) -> Any:
    """A tensor of normal random numbers (bytes for int8): zeros would draw less power and run at a higher clock."""
    torch = device.torch
    generator = torch.Generator(device=device.where)
    generator.manual_seed(SEED)
    if dtype == "int8":
        return torch.randint(-127, 128, shape, dtype=torch.int8, device=device.where, generator=generator)
    wide = "fp32" if device.kind == "cpu" else "bf16"
    made = torch.empty(shape, dtype=dtype_of(torch, wide), device=device.where).normal_(0.0, scale, generator=generator)
    return made.to(dtype_of(torch, dtype))


def copies(device: Device, bytes_each: float) -> int:
    """How many buffers to rotate through so that none is still in a cache when its turn comes again."""
    return int(min(max(math.ceil(2.0 * device.cache_bytes / bytes_each), 1), COPIES))


def gemm(device: Device, shape: Mapping[str, Any]) -> Work:
    """[m, k] x [n, k]^T into 16 bits (fp32 stays fp32); operands of fp8 and int8 are quantised beforehand."""
    torch, dtype = device.torch, shape["dtype"]
    m, n, k = int(shape["m"]), int(shape["n"]), int(shape["k"])
    a = random(device, (m, k), dtype)
    weights = [random(device, (n, k), dtype) for _ in range(copies(device, n * k * a.element_size()))]
    if dtype == "fp8":
        one = torch.ones((), dtype=torch.float32, device=device.where)

        def product(w):
            return torch._scaled_mm(a, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    elif dtype == "int8":

        def product(w):
            return torch._int_mm(a, w.t())
    else:

        def product(w):
            return torch.mm(a, w.t())

    return Work([_launched(device, lambda w=w: product(w)) for w in weights])


def batched_gemm(device: Device, shape: Mapping[str, Any]) -> Work:
    """`batch` independent products [m, k] x [k, n]."""
    batch, m, n, k = (int(shape[x]) for x in ("batch", "m", "n", "k"))
    a, w = random(device, (batch, m, k), shape["dtype"]), random(device, (batch, k, n), shape["dtype"])
    return Work([_launched(device, lambda: device.torch.bmm(a, w))])


def attention(device: Device, shape: Mapping[str, Any]) -> Work:
    """Scaled dot-product attention: one query token per sequence over a cache, or causal over whole prompts."""
    torch = device.torch
    decode = "context" in shape
    batch, heads, kv_heads, dim = (int(shape[x]) for x in ("batch", "heads", "kv_heads", "head_dim"))
    length = int(shape["context"] if decode else shape["seq"])
    q = random(device, (batch, heads, 1 if decode else length, dim), "bf16")
    k, v = (random(device, (batch, kv_heads, length, dim), shape["kv_dtype"]) for _ in range(2))
    grouped = {"enable_gqa": True} if heads != kv_heads else {}

    def call():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=not decode, **grouped)

    return Work([_launched(device, call)])


def moe(device: Device, shape: Mapping[str, Any]) -> Work:
    """One gated mixture layer with even routing: gather rows by expert, two grouped products, weighted sum."""
    tokens, hidden, inter, top_k, experts = (int(shape[x]) for x in ("tokens", "hidden", "inter", "topk", "experts"))
    up = random(device, (experts, 2 * inter, hidden), shape["dtype"], hidden**-0.5)
    down = random(device, (experts, hidden, inter), shape["dtype"], inter**-0.5)
    x = random(device, (tokens, hidden), shape["dtype"])
    layer = Routed(device, tokens, experts, top_k)
    return Work([_launched(device, lambda: layer(x, up, down))])


class Routed:
    """A mixture layer whose routing is fixed beforehand: pair i goes to expert i modulo their number."""

    def __init__(self, device: Device, tokens: int, experts: int, top_k: int):
        torch = device.torch
        expert = torch.arange(tokens * top_k) % experts
        order = torch.argsort(expert, stable=True)
        counts = torch.bincount(expert, minlength=experts)
        self.torch, self.top_k = torch, top_k
        self.rows = (order // top_k).to(device.where)  # token of each pair, pairs sorted by expert
        self.counts = [int(c) for c in counts]
        self.ends = torch.cumsum(counts, 0).to(device=device.where, dtype=torch.int32)
        self.grouped = device.kind == "cuda" and hasattr(torch, "_grouped_mm")

    def __call__(self, x: Any, up: Any, down: Any) -> Any:
        torch = self.torch
        gate, value = self._products(x.index_select(0, self.rows), up).chunk(2, dim=-1)
        out = self._products(torch.nn.functional.silu(gate) * value, down)
        return torch.zeros_like(x).index_add_(0, self.rows, out, alpha=1.0 / self.top_k)

    def _products(self, rows: Any, weights: Any) -> Any:
        torch = self.torch
        if self.grouped:
            return torch._grouped_mm(rows, weights.transpose(-2, -1), offs=self.ends)
        parts, begin = [], 0
        for expert, count in enumerate(self.counts):
            if count:
                parts.append(torch.mm(rows[begin : begin + count], weights[expert].t()))
                begin += count
        return torch.cat(parts)


def bandwidth(device: Device, shape: Mapping[str, Any]) -> Work:
    """Read a buffer (its maximum), or copy it to another."""
    torch = device.torch
    source = random(device, (int(shape["bytes"]) // 4,), "fp32")
    if shape["kernel"] == "read":
        return Work([lambda: torch.amax(source)])
    target = torch.empty_like(source)
    return Work([lambda: target.copy_(source)])


def launch(device: Device, shape: Mapping[str, Any]) -> Work:
    """A kernel that does next to nothing, many times: on its own each time, or captured in one graph."""
    x = device.torch.zeros(8, device=device.where)

    def many():
        for _ in range(LAUNCHES):
            x.add_(1.0)

    if shape["mode"] == "graph":
        if not device.graphs:
            raise UnsupportedError(f"{device.kind} replays no graphs")
        many = device.graphed(many)
    return Work([many], per=LAUNCHES, cold=False)


def _launched(device: Device, call: Callable[[], object]) -> Call:
    """A call as serving engines run it: captured where the device has graphs, so that no launch gap is timed."""
    return device.graphed(call) if device.graphs else call


KERNELS: dict[str, Callable[[Device, Mapping[str, Any]], Work]] = {
    "gemm": gemm,
    "batched_gemm": batched_gemm,
    "decode_attention": attention,
    "prefill_attention": attention,
    "moe": moe,
    "bandwidth": bandwidth,
    "launch": launch,
}
