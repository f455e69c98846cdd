"""What an engine should print and measure if the prediction holds."""

from __future__ import annotations

from roofline.deployment import Deployment

GIB = 2.0**30


def log_lines(d: Deployment, max_model_len: int) -> list[str]:
    """Lines of the engine's start-up log with predicted numbers.

    Args:     max_model_len [tokens]: as the engine is launched
    Returns:  lines to look for; per rank (vLLM prints one for each attention-data-parallel rank)
    Error:    docs/memory.md
    """
    memory = d.footprint(float(max_model_len))
    stage = memory.tightest
    weights, pool, tokens = stage.weights / GIB, max(stage.kv_pool, 0.0) / GIB, float(memory.kv_tokens)
    at_once = float(memory.max_concurrency)
    name = d.engine.name
    if name == "sglang":
        return [f"Load weight end. ... mem usage={weights:.2f} GB", f"max_total_num_tokens={tokens:.0f}"]
    if name == "tensorrt-llm":
        return [f"[MemUsageChange] Allocated {pool:.2f} GiB for max tokens in paged KV cache ({tokens:.0f})."]
    if name == "llama.cpp":
        return [f"load_tensors: ... model buffer size = {weights * 1024:.2f} MiB",
                f"llama_kv_cache: size = {pool * 1024:.2f} MiB"]  # fmt: skip
    return [
        f"Model loading took {weights:.2f} GiB",
        f"Available KV cache memory: {pool:.2f} GiB",
        f"GPU KV cache size: {tokens:,.0f} tokens",
        f"Maximum concurrency for {max_model_len:,} tokens per request: {at_once:.2f}x",
    ]


def bench_command(model: str, isl: float, osl: float, rate_per_s: float, requests: int = 1000) -> str:
    """The vLLM benchmark that offers this load to any OpenAI-compatible server, its result in a file for `compare`."""
    return (
        f"vllm bench serve --model {model} --dataset-name random --random-input-len {isl:.0f} "
        f"--random-output-len {osl:.0f} --request-rate {rate_per_s:.4g} --num-prompts {requests} --ignore-eos "
        "--percentile-metrics ttft,tpot,e2el --metric-percentiles 50,90,99 --save-result --result-filename bench.json"
    )
