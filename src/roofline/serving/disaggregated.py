"""Prefill and decode on pools of their own: balance, KV transfer, waiting for a decode slot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roofline.arrays import Array
from roofline.deployment import Deployment
from roofline.errors import InputError, check_number
from roofline.serving.capacity import held_tokens, kv_sequences
from roofline.serving.lengths import Lengths, as_lengths, in_cycles
from roofline.serving.load import rules
from roofline.serving.queueing import queue_wait
from roofline.serving.steps import step_table

HALVINGS = 30  # of the interval in which the decode batch lies


@dataclass(frozen=True, slots=True)
class Pools:
    """A prefill pool and a decode pool, each some workers of one deployment; hardware may differ."""

    prefill: Deployment
    decode: Deployment
    prefill_workers: int = 1
    decode_workers: int = 1
    slots: Array = np.inf  # sequences that all decode workers take together
    link_bytes_per_s: float | None = None  # for the KV of one prompt; None: what the devices' links give

    def __post_init__(self):
        for name in ("prefill_workers", "decode_workers"):
            check_number(name, getattr(self, name), low=1, high=1e9, integer=True)

    @property
    def gpus(self) -> int:
        """Devices of both pools."""
        return self.prefill.plan.gpus * self.prefill_workers + self.decode.plan.gpus * self.decode_workers


@dataclass(frozen=True, slots=True)
class PoolState:
    """What users see of two pools under a load, and which pool holds them up."""

    ttft_s: Array
    tpot_s: Array
    e2e_s: Array
    requests_per_s: Array
    tokens_per_s: Array
    batch: Array  # sequences that decode, all workers
    prefill_utilisation: Array
    decode_utilisation: Array  # sequences running over slots that exist
    prefill_s: Array  # one prompt, once it runs
    transfer_s: Array
    slot_wait_s: Array
    saturated: Array  # open loop: more is asked than the pools can do


def hand_over_obstacle(prefill: Deployment, decode: Deployment, cross_vendor: bool = False) -> str | None:
    """Why no engine hands the KV of one worker to the other; None where it does.

    Formula:  same model, weight and KV formats, engine and vendor
    Args:     cross_vendor: unlike vendors are wanted all the same, with a connector of one's own
    Returns:  the reason, or None [-]
    Source:   vLLM, NIXL connector, `compute_nixl_compatibility_hash` (read November 2026): version, model, KV heads, KV
              format and attention backend must be equal on both sides, tensor parallelism and block size need not. CUDA
              and ROCm have no attention backend of one layout in common, and NIXL and RIXL are two libraries. GPU with
              Gaudi, Trainium or Cloud AI was shown by patches outside of it (vllm-gaudi 1588, vllm-neuron 27, vllm-qaic
              121: staged in host memory); SGLang and TensorRT-LLM document like devices only
    """
    p, d = prefill, decode
    if p.model.name != d.model.name or p.precision != d.precision:
        return "both pools need the same model in the same formats: engines compare them before they connect"
    if p.engine.name != d.engine.name:
        return f"{p.engine.name} and {d.engine.name} lay the KV cache out each in its own way"
    a, b = p.accelerator.vendor, d.accelerator.vendor
    if a != b and not cross_vendor:
        return f"no engine documents a KV transfer from {a} to {b}"
    return None


def kv_transfer_s(pools: Pools, isl: Array) -> Array:
    """Seconds in which the KV of one prompt goes from its prefill worker to its decode worker.

    Formula:  bytes of the prompt on all ranks / (link x the smaller number of ranks that hold it)
    Args:     isl [tokens]
    Returns:  [s]
    Assumes:  every rank of the smaller worker sends over its own link; nothing overlaps with the prefill
    Error:    not measured; engines that send layer by layer hide most of it
    Source:   derivation
    """
    p, d = pools.prefill, pools.decode
    sent = p.model.kv_bytes_per_sequence(isl, p.plan, p.precision)
    ranks = p.plan.tp * p.plan.cp
    if all(getattr(run.layer.attention, "kind", "") == "mla" for run in p.model.layer_runs):
        ranks = 1  # every rank holds the whole latent: one copy is sent
    link = pools.link_bytes_per_s or min(link_of(p), link_of(d))
    return sent * ranks / (link * min(ranks, d.plan.tp * d.plan.cp))


def link_of(where: Deployment) -> float:
    """Bandwidth by which one device reaches another worker: the network, or the host link where none is on record."""
    a = where.accelerator
    return a.scale_out_bytes_per_s or a.host_bytes_per_s or a.link_bytes_per_s or a.bandwidth_bytes_per_s


def pooled_state(
    pools: Pools,
    *,
    isl: Array | Lengths,
    osl: Array | Lengths,
    concurrency: Array | None = None,
    rate_per_s: Array | None = None,
    cached: Array = 0.0,
    burst_share: Array = 0.0,
    handover_s: Array = 0.0,
) -> PoolState:
    """TTFT, TPOT and throughput of disaggregated serving.

    Formula:  prefill pool: T_pre = S(1) once a prompt runs, R = workers x ranks x g/S(g) prompts a second at most
              decode pool:  X(b) = b/(O D(b)) for b sequences in all, b at most min(slots, KV capacity)
              open loop:    X = min(rate, R, X(slots)); b from X(b) = X; wait before the prefill: Sakasegawa
              closed loop:  b the largest with X(b) <= R and b + X(b) (T_pre + wait + transfer) <= C;
                            what of C is neither decoding nor on its way waits: for a slot, or for the prefill pool
              TTFT = C/X - O D (closed), T_pre + wait + transfer + hand-over (open)
              a decode pool that speculates: D is a cycle, O counts cycles, TPOT is per token
    Args:     isl, osl [tokens]; concurrency [requests] or rate_per_s [1/s] of the whole; cached [tokens];
              burst_share [-]: part of the requests that arrive together at the start; handover_s [s]: router and
              connector
    Returns:  PoolState, everything broadcast
    Assumes:  decode steps carry no prompt; a router that finds the free worker
    Error:    docs/serving.md
    Source:   derivation
    """
    if (concurrency is None) == (rate_per_s is None):
        raise InputError("give concurrency (closed loop) or rate_per_s (open loop), one of them")
    prompts, outputs = as_lengths(isl), as_lengths(osl)
    new = np.maximum(prompts.mean - cached, 1.0)
    r = rules(pools.prefill.engine.scheduler, prompts.mean, pools.prefill.plan.dp, {})
    steps = step_table(pools.prefill).beside(0.0, prompts.mean, new, cached)
    g = np.maximum(r.budget / new, 1e-9)
    one = steps.with_prompts_s(np.minimum(1.0, g)) * np.maximum(np.ceil(1.0 / g - 1e-9), 1.0)
    stations = pools.prefill_workers * pools.prefill.plan.dp
    whole = np.maximum(np.floor(g), np.minimum(g, 1.0))
    pool_rate = stations * whole / steps.with_prompts_s(whole)
    transfer = kv_transfer_s(pools, prompts.mean) + handover_s
    ranks = pools.decode_workers * pools.decode.plan.dp
    table, context, s = step_table(pools.decode), prompts.mean + outputs.mean / 2.0, pools.decode.speculation
    steps_each = outputs.mean if s is None else in_cycles(outputs, s.shares).mean
    held = held_tokens(prompts.mean, outputs.mean, pools.decode.engine.scheduler.reserve_output)
    cap = np.maximum(kv_sequences(pools.decode, held), 1.0) * ranks
    slots = np.minimum(pools.slots, cap)

    def step_s(batch: Array) -> Array:
        return table.decode(np.maximum(batch / ranks, 1.0), context)

    def served(batch: Array) -> Array:
        return batch / (steps_each * step_s(batch))

    def wait_s(rate: Array) -> Array:
        return queue_wait(np.minimum(rate / pool_rate, 0.98), stations / pool_rate, stations, 1.0, prompts.cv**2)

    asked = np.asarray(concurrency if rate_per_s is None else rate_per_s, float)
    low, high = np.zeros_like(asked + slots + one), np.zeros_like(asked + one) + slots
    if rate_per_s is None:
        high = np.minimum(high, asked)
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        rate = served(middle)
        if rate_per_s is None:
            fits = (rate <= pool_rate) & (middle + rate * (one + wait_s(rate) + transfer) <= asked)
        else:
            fits = rate <= np.minimum(asked, pool_rate)
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    batch = np.maximum(low, 1e-9)
    step, rate = step_s(batch), served(batch)
    path = one + wait_s(rate) + transfer + r.front_s + r.request_s + step
    if rate_per_s is None:
        steady = np.maximum(asked / rate - steps_each * step, path)
        burst = np.maximum(asked / (2.0 * pool_rate), path)
        ttft = (1.0 - burst_share) * steady + burst_share * burst
        slot = np.maximum(steady - path, 0.0)
        saturated = np.zeros_like(ttft, bool)
    else:
        ttft, slot = path, 0.0 * path
        saturated = asked > np.minimum(pool_rate, served(slots))
    tpot = step if s is None else step * (steps_each - 1.0) / np.maximum(outputs.mean - 1.0, 1.0)
    e2e = ttft + (outputs.mean - 1.0) * tpot
    return PoolState(
        ttft, tpot, e2e, rate, rate * outputs.mean, batch, rate / pool_rate, batch / slots, one,
        transfer, slot, saturated,
    )  # fmt: skip
