"""Reads what benchmarks and engines write: vLLM, SGLang, genai-perf, AIPerf results and the start-up log of vLLM."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roofline.errors import InputError

LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
MAX_BYTES = 200e6


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a benchmark, in SI units; absent is None. `stats` has mean, p50, p90 ... of each latency."""

    tool: str
    isl: float | None
    osl: float | None
    concurrency: float | None
    rate_per_s: float | None
    requests: int | None
    stats: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    tokens_per_s: float | None = None  # output
    requests_per_s: float | None = None
    model: str = ""
    gpus: int | None = None
    failed: int = 0  # requests without an answer


@dataclass(frozen=True, slots=True)
class StartUp:
    """What vLLM said when it started; bytes, tokens; of the first rank that said it."""

    weight_bytes: float | None = None
    kv_pool_bytes: float | None = None
    kv_tokens: float | None = None
    max_model_len: float | None = None
    max_concurrency: float | None = None
    graph_bytes: float | None = None

    @property
    def capacity(self) -> float | None:
        """Tokens that requests of max_model_len can really have: of hybrids more than the tokens printed.

        Source: vllm-project/vllm 40691: the printed number divides the blocks by the groups of layers that share them
        """
        if self.max_concurrency is None or self.max_model_len is None:
            return None
        return self.max_concurrency * self.max_model_len


def read_results(path: str | Path) -> list[Measured]:
    """Every run in a result file of `vllm bench serve`, `sglang.bench_serving`, genai-perf or AIPerf.

    JSON with one run or a list of runs, or JSONL with one a line; the tool is recognised by its fields.
    """
    path = Path(path)
    runs = [r for r in _objects(path)]
    found = [_run(path, r) for r in runs]
    if not found:
        raise InputError(f"{path}: no benchmark result in it")
    return found


def _objects(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if path.stat().st_size > MAX_BYTES:
        raise InputError(
            f"{path}: {path.stat().st_size / 1e6:.0f} MB is more than a summary has; give the summary file"
        )
    text = path.read_text(encoding="utf-8", errors="replace").strip()
    try:
        data = json.loads(text)
        return [r for r in (data if isinstance(data, list) else [data]) if isinstance(r, dict)]
    except json.JSONDecodeError:
        pass
    out = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise InputError(f"{path}, line {number}: neither JSON nor JSONL ({error.msg})") from None
            if isinstance(row, dict):
                out.append(row)
    return out


def _run(path: Path, r: dict[str, Any]) -> Measured:
    if any(isinstance(v, dict) and "unit" in v for v in (r.get("records") or r).values() if isinstance(v, dict)):
        return _perf(r)
    if "mean_ttft_ms" in r and ("mean_e2e_latency_ms" in r or "accept_length" in r):
        return _flat(r, "sglang.bench_serving", "e2e_latency")
    if "mean_ttft_ms" in r:
        return _flat(r, "vllm bench serve", "e2el")
    raise InputError(
        f"{path}: not a result of vllm bench serve (mean_ttft_ms), sglang.bench_serving (mean_e2e_latency_ms) or "
        "genai-perf / AIPerf (time_to_first_token with a unit)"
    )


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and number >= 0.0 else None


def _flat(r: Mapping[str, Any], tool: str, e2e: str) -> Measured:
    """vLLM and SGLang write one flat object: mean_ttft_ms, p99_ttft_ms, total_input_tokens ..."""
    names = {"ttft_s": "ttft", "tpot_s": "tpot", "e2e_s": e2e}
    stats: dict[str, dict[str, float]] = {}
    for latency, word in names.items():
        found = {}
        for key, value in r.items():
            match = re.fullmatch(rf"(mean|median|p\d+(?:\.\d+)?)_{word}_ms", key)
            if match and (number := _number(value)) is not None:
                found["p50" if match[1] == "median" else match[1]] = number / 1e3
        if found:
            stats[latency] = found
    if r.get("completed") == 0:
        raise InputError(f"{tool}: completed is 0: no request was answered, nothing was measured")
    done = _number(r.get("completed")) or _number(r.get("num_prompts"))
    rate = _number(r.get("request_rate"))  # inf means closed loop or all at once
    limit = _number(r.get("max_concurrency"))
    if rate is None and limit is None:
        limit = done  # all requests at once
    tokens = {k: _number(r.get(k)) for k in ("total_input_tokens", "total_output_tokens")}
    return Measured(
        tool, tokens["total_input_tokens"] / done if done and tokens["total_input_tokens"] else None,
        tokens["total_output_tokens"] / done if done and tokens["total_output_tokens"] else None,
        limit, rate, None if done is None else int(done), stats, _number(r.get("output_throughput")),
        _number(r.get("request_throughput")), str(r.get("model_id") or r.get("model") or ""),
        failed=int(_number(r.get("failed")) or 0),
    )  # fmt: skip


_UNITS = {"ms": 1e-3, "milliseconds": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "us": 1e-6, "ns": 1e-9}
_PERF = {
    "ttft_s": ("time_to_first_token", "ttft"),
    "tpot_s": ("inter_token_latency", "itl"),  # genai-perf's is (e2e - ttft) / (tokens - 1) of a request
    "e2e_s": ("request_latency",),
}


def _perf(r: Mapping[str, Any]) -> Measured:
    """genai-perf and AIPerf write a block with unit, avg and percentiles for each metric."""
    blocks = r.get("records") if isinstance(r.get("records"), dict) else r

    def block(*names: str) -> Mapping[str, Any]:
        return next((blocks[n] for n in names if isinstance(blocks.get(n), dict)), {})

    def average(*names: str) -> float | None:
        return _number(block(*names).get("avg"))

    stats = {}
    for latency, names in _PERF.items():
        found = block(*names)
        scale = _UNITS.get(str(found.get("unit", "ms")), 1e-3)
        values = {("mean" if k == "avg" else k): v * scale for k, raw in found.items()
                  if re.fullmatch(r"avg|p\d+(?:\.\d+)?", k) and (v := _number(raw)) is not None}  # fmt: skip
        if values:
            stats[latency] = values
    config = r.get("input_config") if isinstance(r.get("input_config"), dict) else {}
    concurrency, rate = _find(config, "concurrency"), _find(config, "request_rate")
    count = average("request_count")
    model = _first(config, ("model_names", "model", "models"))
    return Measured(
        "AIPerf" if "aiperf_version" in r or "benchmark_duration" in blocks else "genai-perf",
        average("input_sequence_length", "isl"), average("output_sequence_length", "osl"), concurrency,
        rate, None if count is None else int(count), stats,
        average("output_token_throughput"), average("request_throughput"), model,
    )  # fmt: skip


def _find(config: Any, name: str) -> float | None:
    """A number of that name anywhere in a nested configuration."""
    if isinstance(config, dict):
        if name in config and (number := _number(config[name])) is not None:
            return number
        for value in config.values():
            if (number := _find(value, name)) is not None:
                return number
    if isinstance(config, list):
        for value in config:
            if (number := _find(value, name)) is not None:
                return number
    return None


def _first(config: Any, names: tuple[str, ...]) -> str:
    if isinstance(config, dict):
        for name in names:
            value = config.get(name)
            if isinstance(value, str):
                return value
            if isinstance(value, list) and value and isinstance(value[0], str):
                return value[0]
        for value in config.values():
            if found := _first(value, names):
                return found
    return ""


_LOG = {
    "weight_bytes": (re.compile(r"[Mm]odel loading took ([\d.]+) Gi?B"), 2.0**30),
    "kv_pool_bytes": (re.compile(r"Available KV cache memory: ([\d.]+) GiB"), 2.0**30),
    "kv_tokens": (re.compile(r"GPU KV cache size: ([\d,]+) tokens"), 1.0),
    "max_concurrency": (re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x"), 1.0),
    "max_model_len": (re.compile(r"Maximum concurrency for ([\d,]+) tokens per request"), 1.0),
    "graph_bytes": (re.compile(r"Graph capturing finished in [\d.]+ secs, took ([\d.]+) GiB"), 2.0**30),
}


def read_log(path: str | Path) -> StartUp:
    """The memory lines of a vLLM start-up log."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    found: dict[str, float] = {}
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            for name, (pattern, scale) in _LOG.items():
                if name not in found and (match := pattern.search(line)):
                    found[name] = float(match[1].replace(",", "")) * scale
            if len(found) == len(_LOG):
                break
    if not found:
        raise InputError(f"{path}: no line of a vLLM start-up log, such as 'GPU KV cache size: 100,000 tokens'")
    return StartUp(**found)
