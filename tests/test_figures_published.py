"""Published figures and user cases, each by its identifier: what the product makes of it against what was printed.

`data/figures.csv` has a row for each: what is asked, the expected value (a number, several, a range `low..high`, or in
words), its tolerance (a number: absolute; with %: relative; none: to the last digit), its source, and either the test
that covers it or nothing, in which case it is computed here. A note that starts with `missed` marks a figure that the
models do not reach, and by how much; nothing was fitted to any row of the table.
"""

from __future__ import annotations

import ast
import csv
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import roofline as rl
from roofline.calibrated import calibrated
from roofline.cli.estimate import estimate_command
from roofline.comparison import StartUp, compare_log, read_log, transferred
from roofline.deployment import deployment
from roofline.economics import usd_per_mtok
from roofline.errors import InfeasibleError, UnsupportedError
from roofline.kernels.collective import CollectiveConstants, collective_time
from roofline.layers.loops import loop_radius, loops_to_settle
from roofline.memory import contiguous_waste, footprint, length_of_waste, paged_waste, swap_blocks, weight_bytes
from roofline.memory.paging import cache_kinds, pool, sequence_bytes
from roofline.ops import (
    Attention,
    Collective,
    Gemm,
    distinct_experts,
    naive_attention_io_elements,
    tiled_attention_io_elements,
)
from roofline.parallel import Plan
from roofline.planner.layouts import plans
from roofline.planner.unequal import Card, over_cards
from roofline.precision import FORMATS, precision_named
from roofline.serving.lengths import continuous_occupancy, fixed, static_occupancy
from roofline.serving.steady import steady_state
from roofline.serving.tiers import fetch_s
from roofline.simulation.result import Result
from roofline.specs.engine import engine_named
from roofline.specs.hf import from_hf_config
from roofline.specs.library import hardware
from roofline.specs.model import Model
from roofline.speculative import eagle, expected_by_position, expected_tokens, kv_tokens
from roofline.workload import Sequences, decode, prefill, verify

HERE = Path(__file__).parent
GIB, MIB = 2.0**30, 2.0**20
BF16 = precision_named("bf16")
ONE = Plan()


def table() -> list[dict[str, str]]:
    """The rows of the table."""
    with (HERE / "data" / "figures.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


TABLE = {row["id"]: row for row in table()}


# What the figures are computed with.


@cache
def model(name: str) -> Model:
    return rl.load_model(name).model


@cache
def alone(model_name: str, engine: str = "ideal", **how):
    """One user, one H100, the first tokens of a conversation: weights are all that is read."""
    return rl.estimate(model_name, "h100-sxm", engine=engine, weights="bf16", batch=1, isl=1, osl=1, **how)


@cache
def on_h100(name: str, tp: int = 1, weights: str = "bf16", kv: str | None = None, length: float = 8192.0):
    """Memory as in the logs of the planner study: 79.19 GiB, utilisation 0.95, vLLM 0.19."""
    how = {"utilisation": 0.95, "visible_bytes": 79.19 * GIB}
    precision = precision_named(weights).with_kv(kv)
    return footprint(model(name), hardware("h100-sxm"), Plan(tp=tp), precision, engine_named("vllm"), length, **how)


def loaded(name: str, weights: str = "bf16", plan: Plan = ONE, version: str | None = None, stage: int = 0) -> float:
    """GiB of weights on a rank as vLLM loads them."""
    profile = engine_named("vllm", version=version).memory if version else engine_named("vllm").memory
    return weight_bytes(model(name), plan, precision_named(weights), profile, stage) / GIB


def peak(name: str, version: str, tokens: float = 8192, seqs: float = 1024, weights: str = "bf16") -> float:
    """GiB of the profiling peak."""
    found = footprint(
        model(name), hardware("h100-sxm"), ONE, precision_named(weights), engine_named("vllm", version=version), 8192.0,
        max_num_batched_tokens=tokens, max_num_seqs=seqs,
    )  # fmt: skip
    return float(found.stages[0].activation) / GIB


def swap(name: str, tp: int = 1) -> float:
    return swap_blocks(model(name), Plan(tp=tp), precision_named("fp16"), engine_named("vllm").memory)


def cached(name: str, tokens: float, tp: int = 1, kv: str | None = None) -> float:
    """Bytes of one sequence on a rank."""
    return float(model(name).kv_bytes_per_sequence(tokens, Plan(tp=tp), BF16.with_kv(kv)))


def family(**attention) -> Model:
    """Sixty layers of one kind of attention with 128 heads of 128."""
    kinds = {"layer": {"attention": {"heads": 128, **attention}}}
    return Model(name="textbook", hidden=1024, vocab=1024, kinds=kinds, layers="60*layer")


FAMILIES = [
    family(kind="gqa", head_dim=128, kv_heads=128),
    family(kind="gqa", head_dim=128, kv_heads=8),
    family(kind="gqa", head_dim=128, kv_heads=1),
    family(kind="mla", q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128),
]
MHA = FAMILIES[0]


def elements(spec: Model) -> float:
    """Cached elements of a token and layer: an 8-bit cache without scales has a byte for each."""
    return spec.kv_bytes_per_token(precision=BF16.with_kv("fp8")) / spec.stored_layers


def attention_families() -> dict:
    """B10 to B25: four figures of each of four families."""
    found = {}
    for n, spec in enumerate(FAMILIES):
        unit = 1e6 if n < 2 else 1e3
        found |= {
            f"B{10 + 4 * n}": lambda s=spec: elements(s),
            f"B{11 + 4 * n}": lambda s=spec, u=unit: s.kv_bytes_per_token() / u,
            f"B{12 + 4 * n}": lambda s=spec: s.kv_bytes_per_sequence(131072.0) / 1e9,
            f"B{13 + 4 * n}": lambda s=spec: MHA.kv_bytes_per_token() / s.kv_bytes_per_token(),
        }
    return found


def matmul(parameters: float, tokens: float = 1.0) -> Gemm:
    """Every weight of a model of that many parameters in one product."""
    return Gemm("all", tokens, parameters / 8192.0, 8192.0)


def matmul_ms(parameters: float, tokens: float) -> float:
    return float(alone("llama-3.1-70b").deployment.timed([matmul(parameters, tokens)]).total_s) * 1e3


def score_table(**how) -> Attention:
    return Attention("a", prefill(1, how.pop("tokens", 8192)), 1, 1, 128, 128, **how)


def table_traffic() -> float:
    """HBM bytes that the score table adds."""
    return float(score_table(naive=True).bytes - score_table().bytes)


def own_bytes(tokens: float, naive: bool) -> float:
    """Bytes of activations that attention moves."""
    return float(score_table(tokens=tokens, naive=naive).activation_bytes)


# ShareGPT under the tokeniser of OPT: Kwon et al. 2023, section 6.1
PROMPT, OUTPUT, LONGEST = 161.0, 338.0, 2048.0


def useful_pct() -> float:
    """Share of reserved KV in use when a mean request ends."""
    return 100.0 * (1.0 - float(contiguous_waste(PROMPT + OUTPUT, LONGEST)))


def gain_of_paging() -> list[float]:
    """Tokens/s of pages over those of reservations that use 20.4 and 38.2 % of the same pool."""
    where = deployment("opt-13b", "a100-sxm-40gb", weights="fp16")
    held = PROMPT + OUTPUT / 2.0
    tokens = float(where.footprint(LONGEST).kv_tokens)

    def rate(useful: float) -> float:
        batch = tokens * useful / held
        return batch / float(where.decode_step(batch, held).total_s)

    paged = rate(1.0 - float(paged_waste(16, held)))
    return [paged / rate(useful) for useful in (0.204, 0.382)]


def experts_of(name: str) -> list[float]:
    ffn = model(name).layers[-1].layer.ffn
    return [ffn.experts, ffn.top_k, ffn.shared_width / ffn.width]


def without_shared() -> list[float]:
    """256 experts, 8 a token, none shared: a spec that must load."""
    layers = [{"count": 2, "ffn": {"kind": "moe", "width": 512, "experts": 256, "top_k": 8}}]
    ffn = Model(name="moe", hidden=1024, vocab=1024, layers=layers).layers[0].layer.ffn
    return [ffn.experts, ffn.top_k, ffn.shared_width / ffn.width]


def weight_reads() -> list[float]:
    """Times that the target's weights are read for five tokens."""
    where = alone("llama-3.1-8b").deployment
    once = where.step(decode(1.0, 100.0)).weight_bytes
    return [5.0 * once / once, where.step(verify(1.0, 100.0, 4.0)).weight_bytes / once]


def speed_at(share: float) -> float:
    """Tokens/s of Llama 3.2 1B on an H100 with that share of its bandwidth."""
    h100 = hardware("h100-sxm", overrides={"memory.bandwidth": f"{3.35 * share:.6f} TB/s"})
    where = deployment("llama-3.2-1b", h100, weights="bf16", engine="ideal")
    return float(1.0 / where.decode_step(1.0, 0.0).total_s)


def ratio_of_layers(size: str) -> float:
    spec = model(f"parcae-{size}")
    return spec.executed_layers / spec.stored_layers


def regrouped_tokens() -> float:
    """Tokens at tp 4 in the memory that an engine without sharded heads cut into 814 blocks of 256."""
    profile = engine_named("vllm", block_size=256).memory
    spec = model("qwen3-32b")
    held = 814 * 256 * spec.kv_bytes_per_token()
    return float(pool(held, cache_kinds(spec, Plan(tp=4), BF16), 8192, 8192, profile).tokens)


def printed_concurrency() -> float:
    """Requests of 2048 tokens in 1381 blocks."""
    kinds = cache_kinds(model("llama-3.1-70b"), ONE, BF16)
    return float(pool(6.7433 * GIB, kinds, 2048, 8192, engine_named("vllm").memory).concurrency)


def small_card_pool() -> float:
    found = footprint(
        model("llama-3.1-8b"), hardware("rtx-4090"), ONE, BF16, engine_named("vllm", version="0.6.3"), 20000.0,
        utilisation=0.9, visible_bytes=23.58 * GIB, max_num_batched_tokens=20000, max_num_seqs=256,
    )  # fmt: skip
    return float(found.stages[0].kv_pool) / GIB


def window_cells() -> float:
    """MiB of the 52 window layers of Gemma 3 27B under llama.cpp."""
    kinds = [k for k in cache_kinds(model("gemma-3-27b"), ONE, precision_named("fp16")) if np.isfinite(k.window)]
    return float(sequence_bytes(kinds, 32768, 512, engine_named("llama.cpp").memory)) / MIB


def half_windowed() -> float:
    kinds = cache_kinds(model("gpt-oss-20b"), ONE, precision_named("mxfp4_experts"))
    return float(sequence_bytes(kinds, 131072, 512, engine_named("llama.cpp").memory)) / GIB


def main_cache() -> float:
    """Latents without index keys, packed as fp8_ds_mla."""
    packed = BF16.with_kv("fp8_ds_mla")
    layers = model("deepseek-v3.2").layers
    return 1_462_784 * sum(run.count * run.layer.attention.token_bytes(packed) for run in layers) / GIB


def with_fp8_kv(tokens: float) -> float:
    spec = model("qwen3-32b")
    return tokens * spec.kv_bytes_per_token() / spec.kv_bytes_per_token(precision=BF16.with_kv("fp8"))


def tokens_beside_a_draft() -> float:
    where = deployment("llama-3.1-8b", "h100-sxm", weights="bf16")
    return float(kv_tokens(where, eagle(where.model), 51.63 * GIB))


def ring_gb_per_s() -> float:
    """Bus bandwidth of the ring that NCCL falls back to: no reduction in the switch."""
    h100 = hardware("h100-sxm")
    ring = calibrated(h100, "collective", "any", "nccl", CollectiveConstants(), "all_reduce").constants
    chip = deployment("llama-3.1-70b", h100, tp=8).machine.chip
    seconds = float(collective_time("all_reduce", 16e9, 8, chip=chip, constants=ring))
    return float(Collective("ring", "all_reduce", 16e9, 8).wire_bytes) / seconds / 1e9


def tpot_of_101_tokens() -> float:
    """Milliseconds, as the simulator reports it."""
    times = {"sent_s": 0.0, "first_s": 2.0, "finish_s": 7.0, "isl": 100.0, "osl": 101.0}
    rest = {"complete": True, "totals": {}, "block_hits": (0, 0), "chunks": [], "decodes": []}
    columns = {n: np.array([times.get(n, 0.0)]) for n in Result.__dataclass_fields__ if n not in rest}
    return float(Result(**columns, **rest).tpot_s[0]) * 1e3


def a100_tflops() -> float:
    """Calibrated rate of a large square product, in TFLOP/s."""
    op = Gemm("square", 8192.0, 8192.0, 8192.0)
    seconds = deployment("llama-2-7b", "a100-sxm", weights="bf16").timed([op]).total_s
    return float(op.flops / seconds) / 1e12


def kv_of_a_72b() -> float:
    """Bytes of the KV of 8192 tokens."""
    return cached("qwen2.5-72b", 8192.0)


def gain_at_two_tokens() -> float:
    """Of the three devices that hold the file, the one that gains least."""
    gains = []
    for hw in ("a100-sxm", "h100-sxm", "rtx-pro-6000"):
        where = deployment("glm-4.5-air", hw, weights="q4_k_m", engine="llama.cpp")
        one, two = where.decode_step(np.array([1.0, 2.0]), 100.0).total_s
        gains.append(2.0 * one / two)
    return min(gains)


def prompts_without_peer_to_peer() -> float:
    """Two cards at home: eight PCIe lanes each, as desktop boards have for two; the case does not say."""
    pair = hardware("rtx-3090", overrides={"host.bandwidth": "15.75 GB/s"})
    where = deployment("llama-3.1-70b", pair, tp=2, weights="int4_awq", engine="exllamav2")
    return 16384.0 / float(where.prefill_step(1.0, 16384.0).total_s)


def gain_of_attention_data_parallelism() -> float:
    """SGLang's script for it: 10,000 requests at once, a token in, 512 out, the experts split as before."""
    rate = []
    for plan in ({"tp": 8}, {"dp": 8}):
        where = deployment("deepseek-v2", "h100-sxm", weights="fp8_block", engine="sglang==0.3.5", **plan)
        load = {"isl": fixed(1.0), "osl": fixed(512.0), "concurrency": 10000.0, "max_seqs": 2048.0, "burst_share": 0.2}
        rate.append(float(steady_state(where, **load).tokens_per_s))
    return rate[1] / rate[0]


def one_user_on_two_a100() -> float:
    """What the 90 tok/s that the case gives for one device let expect of two, in the release of August 2025."""
    one, two = (deployment("gpt-oss-120b", "a100-sxm", tp=n, engine="vllm==0.10.1") for n in (1, 2))
    return 1.0 / float(transferred(1.0 / 90.0, one, two, 1.0, 1000.0).seconds)


def nested_layers() -> float:
    text = {
        "model_type": "gemma3_text", "num_hidden_layers": 48, "hidden_size": 3840, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 256, "intermediate_size": 15360, "vocab_size": 262208,
        "sliding_window": 1024, "max_position_embeddings": 131072,
    }  # fmt: skip
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "num_hidden_layers": 27, "text_config": text,
              "vision_config": {"num_hidden_layers": 27}}  # fmt: skip
    return from_hf_config(config).model.stored_layers


def mixture_size(where: str) -> float:
    return model("qwen3-30b-a3b").weight_bytes(ONE, precision_named(where)) / GIB


NUMBERS = attention_families() | {
    "A01": lambda: hardware("h100-sxm").peak_flops_per_s("bf16") / 1e12,
    "A02": lambda: hardware("h100-sxm").bandwidth_bytes_per_s / 1e12,
    "A03": lambda: matmul(70e9).weight_bytes / 1e9,
    "A04": lambda: alone("llama-3.1-70b").tokens_per_s_user.value,
    "A05": lambda: alone("llama-3.1-70b").mfu * hardware("h100-sxm").peak_flops_per_s("bf16") / 1e12,
    "A06": lambda: 100.0 * alone("llama-3.1-70b").mfu,
    "A07": lambda: 100.0 * (1.0 - alone("llama-3.1-70b").mfu),
    "A08": lambda: np.log10(prompt_intensity(2000.0) / alone("llama-3.1-70b").intensity),
    "A09": lambda: alone("llama-3.1-70b").ridge_point,
    "A10": lambda: alone("llama-3.1-70b").critical_batch,
    "A11": lambda: matmul_ms(70e9, 2000.0),
    "A12": lambda: matmul_ms(70e9, 1.0),
    "A16": lambda: usd_per_mtok(4.0, 24.0),
    "A17": lambda: usd_per_mtok(8.0, 24.0),
    "B01": lambda: naive_attention_io_elements(8192, 0) / 4,
    "B02": lambda: table_traffic() / 4 / 1e6,
    "B03": lambda: table_traffic() / FORMATS["bf16"].bytes(8192, 8192),
    "B04": lambda: table_traffic() / 1e6,
    "B05": lambda: naive_attention_io_elements(2**20, 64) / naive_attention_io_elements(2**19, 64),
    "B06": lambda: [
        tiled_attention_io_elements(*at) / tiled_attention_io_elements(4096, 64, 1e5)
        for at in ((8192, 64, 1e5), (4096, 128, 1e5), (4096, 64, 2e5))
    ],
    "B07": lambda: [own_bytes(2**18, naive) / own_bytes(2**17, naive) for naive in (True, False)],
    "B26": lambda: FAMILIES[3].kv_bytes_per_token() / FAMILIES[2].kv_bytes_per_token(),
    "B27": lambda: [
        heads for name in ("llama-2-70b", "mistral-7b") for heads in
        (model(name).layers[0].layer.attention.heads, model(name).layers[0].layer.attention.kv_heads)
    ],
    "B30": lambda: cached("llama-2-7b", 32768.0) / 4 / cached("mistral-7b", 32768.0),  # MHA of the same shape: 4 x GQA
    "B31": lambda: model("mistral-7b").layers[0].layer.attention.window * model("mistral-7b").executed_layers,
    "B32": lambda: [
        cached("mistral-7b", t) / model("llama-3.1-8b").kv_bytes_per_token() for t in (1000.0, 4096.0, 32768.0)
    ],  # Llama 3.1 8B has the same heads and layers, without windows
    "B33": lambda: cached("gemma-2-27b", 32768.0) / (2.0 * 32768.0 * model("gemma-2-27b").kv_bytes_per_token()),
    "B40": useful_pct,
    "B41": useful_pct,
    "B42": lambda: 100.0 * float(contiguous_waste(PROMPT + OUTPUT, LONGEST)),
    "B43": lambda: 100.0 * float(contiguous_waste(PROMPT + OUTPUT, LONGEST)),
    "B44": lambda: 100.0 * float(paged_waste(engine_named("vllm").memory.block_size, PROMPT + OUTPUT)),
    "B45": lambda: engine_named("vllm").memory.block_size,
    "B46": lambda: float(length_of_waste(16, 0.04)),
    "B47": gain_of_paging,
    "B50": lambda: 100.0 * static_occupancy(np.array([3, 7, 5, 11])),
    "B51": lambda: 100.0 * static_occupancy(np.array([2, 5, 4, 8])),
    "B52": lambda: 100.0 * continuous_occupancy(backlog=7, seats=4),
    "B60": lambda: [model("mixtral-8x7b").params / 1e9, model("mixtral-8x7b").active_params() / 1e9],
    "B61": lambda: matmul(13e9).flops / 1e9,
    "B62": lambda: matmul(47e9).flops / 1e9,
    "B63": lambda: model("mixtral-8x7b").params / model("mixtral-8x7b").active_params(),
    "B64": lambda: float(FORMATS["bf16"].bytes(1, 47e9)) / 1e9,
    "B65": lambda: float(FORMATS["fp8"].bytes(1, 47e9)) / 1e9,
    "B66": lambda: 8.0 * FORMATS["nvfp4"].element_bytes,
    "B67": lambda: float(FORMATS["nvfp4"].bytes(1, 47e9)) / 1e9,
    "B69": lambda: [*experts_of("mixtral-8x7b"), *experts_of("deepseek-v3"), *without_shared()],
    "B70": lambda: float(expected_tokens(0.5, 4)),
    "B71": lambda: float(expected_tokens(0.7, 4)),
    "B72": lambda: float(expected_tokens(0.9, 4)),
    "B73": lambda: float(expected_tokens(1.0, 4)),
    "B74": weight_reads,
    "B75": lambda: float(expected_by_position([1.0, 1.0, 1.0, 0.0], 4)),
    "C03": lambda: rl.traffic(tokens_per_day=1e12, isl=9000, osl=1000).tokens_per_s / 1e6,
    "C05": lambda: 100.0 * alone("llama-3.2-1b", "megakernel").mbu,
    "C06": lambda: speed_at(0.72),
    "C07": lambda: speed_at(0.78),
    "C08": lambda: speed_at(0.50),
    "C10": lambda: loop_radius(np.linspace(-8.0, 3.0, 45)[:, None, None], np.geomspace(1e-2, 10.0, 7)[:, None]),
    **{f"C11-{size}": lambda s=size: ratio_of_layers(s.lower()) for size in ("140M", "370M", "770M", "1.3B")},
    "U-kv_formula-01": lambda: model("mistral-small-24b").kv_bytes_per_token(),
    "U-kv_formula-02": lambda: swap("llama-3.1-8b"),
    "U-kv_formula-03": lambda: swap("qwen2.5-7b"),
    "U-kv_mla-01": lambda: cached("deepseek-r1", 32768.0, kv="q8_0") / MIB,
    "U-kv_mla-02": main_cache,
    "U-kv_swa_hybrid-01": window_cells,
    "U-kv_swa_hybrid-02": half_windowed,
    "U-kv_swa_hybrid-03": lambda: StartUp(kv_tokens=290864.0, max_concurrency=33.04, max_model_len=32768.0).capacity,
    "U-kv_tp_sharding-01": lambda: cached("qwen3-235b-a22b", 367404.0, tp=4) / 2 / GIB,
    "U-kv_tp_sharding-02": regrouped_tokens,
    "U-kv_tp_sharding-03": lambda: cached("minimax-m2", 196608.0, tp=2) / GIB,
    "U-kv_tp_sharding-04": lambda: swap("llama-2-7b", tp=2),
    "U-kv_dtype-01": lambda: float(
        deployment("minimax-m2.5", "h100-sxm", tp=8).model.kv_bytes_per_sequence(
            196608.0, precision=deployment("minimax-m2.5", "h100-sxm", tp=8).precision
        )
    ) / GIB,
    "U-kv_dtype-02": lambda: 58.11 * GIB / model("llama-3.1-8b").kv_bytes_per_token(precision=BF16.with_kv("fp8")),
    "U-kv_dtype-03": lambda: with_fp8_kv(299344.0),
    "U-kv_capacity_budget-01": small_card_pool,
    "U-kv_capacity_budget-02": printed_concurrency,
    "U-kv_capacity_budget-03": tokens_beside_a_draft,
    "U-kv_capacity_budget-04": lambda: float(on_h100("llama-3.1-8b").kv_tokens),
    "U-kv_capacity_budget-05": lambda: float(on_h100("qwen2.5-7b-instruct").kv_tokens),
    "U-weights_dense-01": lambda: loaded("llama-3.1-8b"),
    "U-weights_dense-02": lambda: loaded("qwen3-0.6b"),
    "U-weights_dense-03": lambda: loaded("llama-3.1-8b", plan=Plan(pp=4)),
    "U-weights_dense-04": lambda: loaded("qwen3-32b"),
    "U-weights_quant-01": lambda: loaded("llama-3.1-70b", "int8"),
    "U-weights_quant-02": lambda: loaded("qwen2.5-7b-instruct", "int4_awq"),
    "U-weights_quant-03": lambda: loaded("gpt-oss-20b", "mxfp4_experts", version="0.11.0"),
    "U-weights_quant-04": lambda: mixture_size("q4_k_m"),
    "U-weights_quant-06": lambda: float(FORMATS["q8_0"].bytes(1.027e12 / 32, 32)) / GIB,
    "U-weights_moe-01": lambda: loaded("qwen3-30b-a3b", plan=Plan(tp=4)),
    "U-activation_overhead-01": lambda: peak("llama-3.1-8b", "0.11"),
    "U-activation_overhead-02": lambda: peak("gpt-oss-20b", "0.11", weights="mxfp4_experts"),
    "U-activation_overhead-03": lambda: peak("gemma-2-9b", "0.19"),
    "U-activation_overhead-04": lambda: peak("llama-3.1-8b", "0.6", 20000, 256),
    "U-activation_overhead-05": lambda: peak("llama-3.1-8b", "0.6", 29000, 256),
    "U-activation_overhead-06": lambda: [
        float(on_h100("llama-3.1-8b", tp=tp).stages[0].non_torch) / GIB for tp in (1, 2, 4)
    ],
    "U-units_capacity-01": lambda: hardware("H100 80GB").usable_bytes / GIB,
    "U-units_capacity-02": lambda: hardware("m3").usable_bytes / GIB,
    "U-peak_specs-01": lambda: hardware("h100-sxm").peak_flops_per_s("bf16") / 1e12,
    "U-peak_specs-02": lambda: hardware("b200").bandwidth_bytes_per_s / 1e12,
    "U-peak_specs-03": lambda: [hardware("h100-sxm").link_bytes_per_s / 1e9, ring_gb_per_s()],
    "U-peak_specs-04": lambda: hardware("rtx-3090").memory.best_read / 1e9,
    "U-moe_bytes-01": lambda: float(distinct_experts(128, 8, 16)),
    "U-moe_bytes-02": gain_at_two_tokens,
    "U-prefill_flops-01": lambda: rl.estimate(
        "llama-2-7b", "a100-sxm", weights="fp16", engine="tensorrt-llm", isl=2048
    ).ttft_s.value * 1e3,
    "U-prefill_flops-02": lambda: float(Attention("a", Sequences(1, 64), 12, 12, 64, 64, causal=False).flops),
    "U-prefill_flops-04": lambda: Gemm("g", 3.0, 5.0, 7.0).flops / (3 * 5 * 7),
    "U-parallel_comm-01": prompts_without_peer_to_peer,
    "U-parallel_comm-02": gain_of_attention_data_parallelism,
    "U-parallel_comm-03": one_user_on_two_a100,
    "U-disagg-01": lambda: float(fetch_s(1.0, kv_of_a_72b(), 4 * 400e9 / 8)) * 1e3,
    "U-config_parsing-01": nested_layers,
    "U-bench_pitfalls-01": a100_tflops,
    "U-slo_capacity-02": tpot_of_101_tokens,
    "U-slo_capacity-03": lambda: usd_per_mtok(8 * 2.5, 12000.0),
}  # fmt: skip


def prompt_intensity(tokens: float) -> float:
    """FLOP/B of a whole prompt."""
    step = alone("llama-3.1-70b").deployment.prefill_step(1.0, tokens)
    return float(step.flops / step.bytes)


# Behaviour.


def a_completion_is_a_fixed_part_and_steps():
    """A13. A constant step: exact; growing KV: the sum of every step."""
    one, many = (rl.estimate("llama-3.1-8b", "h100-sxm", isl=2000, osl=n) for n in (1, 201))
    assert many.e2e_s.value == pytest.approx(one.e2e_s.value + 200 * many.tpot_s.value, rel=1e-9)
    contexts = 2000.0 + np.arange(1, 201)
    every = many.deployment.decode_step(1.0, contexts).total_s.sum()
    assert 200 * many.tpot_s.value == pytest.approx(float(every), rel=1e-3)


def gpt_oss_fits_one_gpu():
    """B68."""
    assert rl.estimate("gpt-oss-120b", "h100-sxm").fits


def looping_costs_compute_not_parameters():
    """C12."""
    attention = {"kind": "gqa", "heads": 8, "kv_heads": 8, "head_dim": 64}
    four, eight = (
        Model(
            name="looped", hidden=512, vocab=1024, kinds={"a": {"attention": attention}},
            layers=["a", {"of": "2*a", "loops": n}, "a"],
        )
        for n in (4, 8)
    )  # fmt: skip
    assert four.params == eight.params
    flops = [deployment(m, "h100-sxm", engine="ideal").prefill_step(1.0, 512.0).flops for m in (four, eight)]
    assert flops[1] / flops[0] > 1.5
    assert loops_to_settle([0.0], 0.5) < loops_to_settle([0.0], 0.25)


def doubling_a_prompt_more_than_doubles_its_flops():
    """U-prefill_flops-03."""
    where = deployment("llama-3.1-8b", "h100-sxm")
    one, two = (float(where.prefill_step(1.0, n).flops) for n in (8192.0, 16384.0))
    assert 2.0 < two / one < 4.0


def five_ranks_cannot_share_the_vocabulary():
    """U-config_parsing-03: its 40 heads could be dealt out; refused with the reason, and listed nowhere."""
    layer = {"attention": {"kind": "gqa", "heads": 40, "kv_heads": 40, "head_dim": 128}}
    spec = Model(name="m", hidden=5120, vocab=151936, kinds={"a": layer}, layers="40*a")
    with pytest.raises(InfeasibleError, match="vocabulary of 151936 rows"):
        rl.estimate(spec, "h100-sxm", tp=5)
    assert {p.tp for p in plans(spec, hardware("h100-sxm"))} == {1, 2, 4, 8}


def an_unknown_mixture_is_refused():
    """U-config_parsing-04."""
    with pytest.raises(UnsupportedError, match=r"brand_new_moe.*num_hidden_layers"):
        from_hf_config({"model_type": "brand_new_moe", "num_experts": 256})


def what_does_not_fit_is_said_first():
    """U-slo_capacity-01: the violation and the smallest layout come before any number; sweeps give no number at all."""
    found = CliRunner().invoke(estimate_command, ["llama-3.1-405b", "--hw", "h100-sxm", "--weights", "bf16"])
    assert found.exit_code == 0
    said = " ".join(found.output.split())
    assert "does not fit" in said and "smallest plan that fits is 16 devices" in said
    assert "TTFT" in said and said.index("does not fit") < said.index("TTFT")
    assert found.output.count("756") >= 1  # GiB: 811.7 GB
    point = rl.sweep("llama-3.1-405b", "h100-sxm", weights="bf16", batch=[1])
    assert not point.feasible.any() and np.isnan(np.asarray(point.tpot_s)).all()


def equal_shards_do_not_fit_a_small_card():
    """U-heterogeneous-01: refused with what is left on the small card, and a pipeline by size in its place."""
    cards = [Card(hardware("rtx-3090"), size * GIB) for size in (23.58, 7.79)]
    ways = over_cards(model("mistral-7b-v0.1"), cards, BF16, engine_named("vllm"))
    equal = next(w for w in ways if w.kind == "tensor parallel")
    assert not equal.fits and equal.weight_bytes[0] / GIB == pytest.approx(6.75, abs=0.01)
    assert "leaves 0.2" in equal.why
    assert ways[0].kind == "pipeline by size" and ways[0].fits


BEHAVIOUR = {
    "A13": a_completion_is_a_fixed_part_and_steps,
    "B68": gpt_oss_fits_one_gpu,
    "C12": looping_costs_compute_not_parameters,
    "U-prefill_flops-03": doubling_a_prompt_more_than_doubles_its_flops,
    "U-config_parsing-03": five_ranks_cannot_share_the_vocabulary,
    "U-config_parsing-04": an_unknown_mixture_is_refused,
    "U-slo_capacity-01": what_does_not_fit_is_said_first,
    "U-heterogeneous-01": equal_shards_do_not_fit_a_small_card,
}


# The tests.


def meets(value, expected: str, tolerance: str) -> bool:
    """Whether every number of `value` is what the row says."""
    got = np.atleast_1d(np.asarray(value, float)).ravel()
    low, _, high = expected.partition("..")
    if high:
        return bool(np.all((got >= float(low)) & (got <= float(high))))
    want = np.array([float(x) for x in expected.split()])
    assert got.shape == want.shape, (got, want)
    if tolerance.endswith("%"):
        return bool(np.all(np.abs(got - want) <= float(tolerance[:-1]) / 100.0 * np.abs(want)))
    return bool(np.all(np.abs(got - want) <= float(tolerance or 1e-9)))


@pytest.mark.parametrize("name", [n for n, row in TABLE.items() if n not in BEHAVIOUR and not row["test"]])
def test_figure(name, request):
    row = TABLE[name]
    if row["note"].startswith("missed"):
        request.applymarker(pytest.mark.xfail(strict=True, raises=AssertionError, reason=row["note"]))
    value = NUMBERS[name]()
    expected, within = row["expected"], row["tolerance"]
    assert meets(value, expected, within), f"{row['quantity']}: {value} for {expected} {row['unit']} within {within}"


@pytest.mark.parametrize("name", list(BEHAVIOUR))
def test_behaviour(name):
    BEHAVIOUR[name]()


def test_every_row_has_one_test_and_every_test_a_row():
    covered = {n for n, row in TABLE.items() if row["test"]}
    assert len(TABLE) == len(table())
    assert not set(NUMBERS) & set(BEHAVIOUR)
    assert not covered & (set(NUMBERS) | set(BEHAVIOUR))
    assert covered | set(NUMBERS) | set(BEHAVIOUR) == set(TABLE)


@pytest.mark.parametrize("name", [n for n, row in TABLE.items() if row["test"]])
def test_the_test_of_a_covered_row_is_there(name):
    """The file has that test, and the test its number or its source."""
    row = TABLE[name]
    path, _, function = row["test"].partition("::")
    text = (HERE.parent / path).read_text(encoding="utf-8")
    assert function in {n.name for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)}
    number = row["expected"].split()[0]
    traces = [name, number, row["source"].split(" PR ")[-1].split()[-1]]
    assert any(trace in text.replace("_", "").replace(",", "") or trace in text for trace in traces), traces


def test_a_70b_on_one_h100_has_numbers_and_a_violation():
    """A04 again: the speed is given and that it does not fit is said."""
    found = alone("llama-3.1-70b")
    assert not found.fits and "131.4 GiB exceed the 79.19 GiB" in found.violations[0]


def test_every_row_has_a_source_and_a_tolerance_that_reads():
    for name, row in TABLE.items():
        assert row["source"] and row["quantity"] and row["kind"], name
        assert float(row["tolerance"].removesuffix("%") or 0) >= 0, name


def test_what_is_missed_is_in_the_docs(root):
    limits = (root / "docs" / "limits.md").read_text(encoding="utf-8")
    assert f"Of {len(TABLE)} published figures" in limits
    for name, row in TABLE.items():
        relaxed = row["note"].startswith(("missed", "asked for", "errors cancel"))
        assert (f"`{name}`" in limits) == relaxed, name


def test_all_collected_figures_are_in_the_table(shared):
    facts = shared / "facts"
    with (facts / "seed_figures.csv").open(encoding="utf-8") as file:
        figures = {row["id"] for row in csv.DictReader(file) if row["kind"] != "input"}
    with (facts / "user_cases.csv").open(encoding="utf-8") as file:
        cases = {row["case_id"] for row in csv.DictReader(file)}
    assert set(TABLE) == figures | cases


def test_a_log_that_prints_too_few_tokens(tmp_path):
    """U-kv_swa_hybrid-03: the usable capacity is laid beside the printed one, and said."""
    log = tmp_path / "log.txt"
    log.write_text("GPU KV cache size: 290,864 tokens\nMaximum concurrency for 32,768 tokens per request: 33.04x\n")
    assert read_log(log).capacity == pytest.approx(1_082_655, rel=1e-3)
    found = compare_log(deployment("qwen3-next-80b-a3b", "h100-sxm", tp=4), log)
    assert [r.measured for r in found.rows if r.quantity == "tokens in such requests"] == [33.04 * 32768]
    assert "1,082,655" in found.notes[0] and "290,864" in str(found)
    log.write_text("GPU KV cache size: 476,016 tokens\nMaximum concurrency for 8,192 tokens per request: 58.11x\n")
    assert compare_log(deployment("llama-3.1-8b", "h100-sxm"), log).notes == ()
