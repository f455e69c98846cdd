"""What is measured: ops with their shapes under the column names of the kernel tables, and the op record of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from roofline.errors import UnknownNameError
from roofline.ops import Attention, Collective, Elementwise, Experts, Gemm, Op
from roofline.precision import format_named
from roofline.workload import Sequences

OPS = (
    "bandwidth",
    "launch",
    "gemm",
    "batched_gemm",
    "decode_attention",
    "prefill_attention",
    "moe",
    "collective",
    "model",
)


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to time: an op and its shape."""

    op: str
    shape: Mapping[str, Any]

    @property
    def key(self) -> str:
        """What identifies the case in a file."""
        return f"{self.op} {json.dumps(dict(self.shape), sort_keys=True)}"


@dataclass(frozen=True, slots=True)
class Scope:
    """How much is measured: no case beyond these sizes, and so long for each."""

    flops: float  # [FLOP] of one call
    bytes: float  # [B] of its buffers
    budget_s: float  # [s] of sampling
    formats: tuple[str, ...]


def scope(kind: str, memory_bytes: float, *, quick: bool) -> Scope:
    """The scope for a kind of device: seconds of work on a CPU are microseconds on a GPU."""
    share = min(0.3 * memory_bytes, 40e9)
    if kind == "cpu":
        return Scope(4e9 if quick else 2e11, min(share, 1.2e9 if quick else 8e9), 0.15 if quick else 1.0, ("bf16",))
    if kind == "mps":
        return Scope(
            2e11 if quick else 5e12, min(share, 2e9 if quick else 8e9), 0.1 if quick else 0.5, ("bf16", "fp16")
        )
    return Scope(5e12 if quick else 1e14, share, 0.05 if quick else 0.3, ("bf16", "fp16", "fp8", "int8"))


# (n, k) of linear layers of real models, and some that are not: what is fitted must hold for shapes between them.
WEIGHTS = (
    (2048, 2048), (4096, 2048), (3072, 3072), (6144, 4096), (1024, 4096), (4096, 4096), (28672, 4096), (4096, 14336),
    (8192, 8192), (10240, 8192), (57344, 8192), (8192, 28672), (5120, 5120), (2560, 9728), (7168, 2048), (2112, 7168),
    (24576, 1536), (18432, 7168), (128256, 4096),
)  # fmt: skip
QUICK_WEIGHTS = ((1024, 1024), (2048, 1024), (1024, 3072), (2048, 2048), (4096, 2048), (2048, 5632), (4096, 4096))
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
QUICK_ROWS = (1, 4, 16, 64, 256)
HEADS = (
    (32, 8, 128),
    (64, 8, 128),
    (32, 32, 128),
    (8, 1, 128),
    (16, 2, 64),
    (28, 4, 128),
    (16, 8, 256),
)  # heads, kv, dim
QUICK_HEADS = ((16, 4, 64), (16, 16, 64), (32, 8, 128), (8, 8, 128))
EXPERTS = ((128, 8, 2048, 768), (8, 2, 4096, 14336), (64, 6, 2048, 1408), (256, 8, 7168, 2048), (32, 4, 2880, 2880))
QUICK_EXPERTS = ((16, 2, 1024, 704), (8, 2, 1024, 1024), (32, 4, 768, 512))  # experts, top_k, hidden, inter


def cases(kind: str, memory_bytes: float, *, quick: bool, devices: int, only: Sequence[str] = ()) -> list[Case]:
    """All cases of a run that fit the scope, smallest ops first.

    Args:     only: names of OPS, none for all; devices: how many of the kind there are (collectives need two)
    """
    for name in only:
        if name not in OPS:
            raise UnknownNameError("op", name, OPS)
    limit = scope(kind, memory_bytes, quick=quick)
    made = [case for op in OPS if not only or op in only for case in MAKERS[op](limit, quick, devices)]
    return [c for c in made if within(c, limit)]


def within(case: Case, limit: Scope) -> bool:
    """Whether a case is small enough; cases without an op of their own (model, launch) always are."""
    op = op_of(case.op, case.shape)
    return op is None or (op.flops <= limit.flops and op.bytes <= limit.bytes)


def _bandwidth(limit: Scope, quick: bool, devices: int) -> list[Case]:
    sizes = [2**p for p in (range(22, 30, 2) if quick else range(18, 34))]
    return [
        Case("bandwidth", {"kernel": kernel, "bytes": float(size)}) for kernel in ("read", "copy") for size in sizes
    ]


def _launch(limit: Scope, quick: bool, devices: int) -> list[Case]:
    return [Case("launch", {"mode": mode}) for mode in ("stream", "graph")]


def _gemm(limit: Scope, quick: bool, devices: int) -> list[Case]:
    rows, weights = (QUICK_ROWS, QUICK_WEIGHTS) if quick else (ROWS, WEIGHTS)
    return [
        Case("gemm", {"dtype": dtype, "m": m, "n": n, "k": k})
        for dtype in limit.formats
        for (n, k), m in product(weights, rows)
    ]


def _batched(limit: Scope, quick: bool, devices: int) -> list[Case]:
    heads = (16, 64) if quick else (16, 64, 128)
    return [
        Case("batched_gemm", {"dtype": "bf16", "batch": h, "m": m, "n": n, "k": k})
        for h, m, (n, k) in product(heads, (1, 16) if quick else (1, 8, 64, 256), ((512, 128), (128, 512)))
    ]


def _decode(limit: Scope, quick: bool, devices: int) -> list[Case]:
    layouts = QUICK_HEADS if quick else HEADS
    loads = ((1, 512), (1, 4096), (8, 1024)) if quick else tuple(product((1, 4, 16, 64, 256), (512, 2048, 8192, 32768)))
    return [
        Case("decode_attention", _attention(h, kv, d) | {"batch": b, "context": s})
        for (h, kv, d), (b, s) in product(layouts, loads)
    ]


def _prefill(limit: Scope, quick: bool, devices: int) -> list[Case]:
    layouts = QUICK_HEADS if quick else HEADS
    loads = ((1, 128), (1, 512), (2, 512)) if quick else tuple(product((1, 4), (128, 512, 2048, 8192, 32768)))
    return [
        Case("prefill_attention", _attention(h, kv, d) | {"batch": b, "seq": s, "attn_dtype": "bf16"})
        for (h, kv, d), (b, s) in product(layouts, loads)
    ]


def _attention(heads: int, kv_heads: int, head_dim: int) -> dict[str, Any]:
    return {"kv_dtype": "bf16", "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "window": 0}


def _moe(limit: Scope, quick: bool, devices: int) -> list[Case]:
    return [
        Case(
            "moe",
            {"dtype": "bf16", "tokens": t, "hidden": h, "inter": i, "topk": k, "experts": e, "tp": 1, "ep": 1,
             "routing": "balanced"},
        )
        for (e, k, h, i), t in product(QUICK_EXPERTS if quick else EXPERTS, (1, 16, 128) if quick else ROWS[::2])
    ]  # fmt: skip


def _collective(limit: Scope, quick: bool, devices: int) -> list[Case]:
    ranks = [n for n in (2, 4, 8) if n <= devices]
    sizes = [2**p for p in range(10, 31, 4 if quick else 1)]
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
    return [
        Case("collective", {"collective": kind, "dtype": "bf16", "ranks": n, "bytes": float(size)})
        for kind, n, size in product(kinds, ranks, sizes)
    ]


def _model(limit: Scope, quick: bool, devices: int) -> list[Case]:
    if quick:
        loads = [("decode", 1, 256), ("decode", 4, 256), ("prefill", 1, 32)]
    else:
        loads = [("decode", b, c) for b, c in product((1, 8, 32, 128), (512, 4096))] + [
            ("prefill", 1, 512),
            ("prefill", 1, 4096),
        ]
    name = "llama-3.2-1b" if quick or limit.bytes < 20e9 else "llama-3.1-8b"
    return [
        Case("model", {"model": name, "dtype": "bf16", "phase": phase, "batch": b, "context": c, "layers": 0})
        for phase, b, c in loads
    ]


MAKERS: dict[str, Callable[[Scope, bool, int], list[Case]]] = {
    "bandwidth": _bandwidth,
    "launch": _launch,
    "gemm": _gemm,
    "batched_gemm": _batched,
    "decode_attention": _decode,
    "prefill_attention": _prefill,
    "moe": _moe,
    "collective": _collective,
    "model": _model,
}


def op_of(kind: str, shape: Mapping[str, Any]) -> Op | None:
    """The op record that a case executes once: its FLOPs and bytes, and how it is priced; None where it is not one op.

    >>> op_of("gemm", {"dtype": "bf16", "m": 1, "n": 4096, "k": 4096}).weight_bytes
    33554432.0
    """
    s = shape
    if kind in ("gemm", "batched_gemm"):
        return Gemm(
            kind, float(s["m"]), float(s["n"]), float(s["k"]), format_named(s["dtype"]), float(s.get("batch", 1))
        )
    if kind in ("decode_attention", "prefill_attention"):
        decode = kind == "decode_attention"
        sequences = (
            Sequences(float(s["batch"]), 1.0, s["context"] - 1.0)
            if decode
            else Sequences(float(s["batch"]), float(s["seq"]))
        )
        window = float(s["window"]) or float("inf")
        kv = format_named(s["kv_dtype"])
        return Attention(kind, sequences, s["heads"], s["kv_heads"], s["head_dim"], s["head_dim"], kv, window)
    if kind == "moe":
        return Experts(
            kind, float(s["tokens"]), float(s["hidden"]), float(s["inter"]), float(s["experts"]), float(s["topk"]),
            float(s["tp"]), float(s["ep"]), format_named(s["dtype"]),
        )  # fmt: skip
    if kind == "collective":
        return Collective(kind, s["collective"], float(s["bytes"]), int(s["ranks"]))
    if kind == "bandwidth":
        return Elementwise(f"{kind}.{s['kernel']}", float(s["bytes"]) * (2.0 if s["kernel"] == "copy" else 1.0))
    return None
