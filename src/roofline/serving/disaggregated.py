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
from roofline.serving.queueing import Latencies, Spread, batch_service, end_to_end
from roofline.serving.steps import step_table

HALVINGS = 30  # of the interval in which the decode batch lies
FULLEST = 0.98  # utilisation of the prefill pool above which its queue is not extrapolated


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
class PoolState(Latencies):
    """What users see of two pools under a load, and which pool holds them up.

    `ttft`, `tpot`, `e2e` say how times differ from request to request: `state.ttft.at(0.9)` is the 90th percentile.
    """

    ttft: Spread
    tpot: Spread
    e2e: Spread
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


@dataclass(frozen=True, slots=True)
class PrefillPool:
    """Workers that compute prompts and nothing else: one prompt once it runs, and the queue before it."""

    one_s: Array
    rate: Array  # prompts a second that all workers carry
    ranks: int  # that compute prompts of their own
    fixed_s: Array  # a step of k prompts takes fixed_s + k each_s, and saved_s less where a graph holds it
    each_s: Array
    saved_s: Array
    few: Array  # prompts that a graph holds
    most: Array  # prompts in one step
    prompts_cv2: Array
    arrivals_cv2: Array
    front_s: Array  # front end and tokeniser

    @property
    def ready_s(self) -> Array:
        """From sending a prompt that waits for nobody to the end of its prefill."""
        return self.front_s + self.one_s

    def wait_s(self, rate: Array) -> Array:
        """Mean seconds that a prompt takes longer than alone where `rate` come a second, dealt to the ranks in turn."""
        dealt = np.minimum(rate / self.rate, FULLEST) * self.rate / self.ranks
        gaps_cv2 = self.arrivals_cv2 / self.ranks
        a, b, d = self.fixed_s, self.each_s, self.saved_s
        return batch_service(dealt, a, b, self.most, gaps_cv2, self.prompts_cv2, d, self.few) - (a + b - d)


def prefill_pool(pools: Pools, prompts: Lengths, cached: Array, arrivals_cv2: Array = 1.0) -> PrefillPool:
    """The prefill workers of `pools` for prompts of which `cached` tokens are there.

    Formula:  T_pre = S(min(1, g)) ceil(1/g), g = token budget/new tokens; rate = ranks w/S(w), w = g in whole prompts
    Args:     prompts, cached [tokens], arrivals_cv2 [-]
    Returns:  PrefillPool
    Source:   derivation
    """
    where, new = pools.prefill, np.maximum(prompts.mean - cached, 1.0)
    r = rules(where.engine.scheduler, prompts.mean, where.plan.dp, {})
    steps = step_table(where).beside(0.0, prompts.mean, new, cached)
    g = np.maximum(r.budget / new, 1e-9)
    whole, ranks = np.maximum(np.floor(g), np.minimum(g, 1.0)), pools.prefill_workers * where.plan.dp
    one, full = steps.with_prompts_s(np.minimum(1.0, g)), steps.with_prompts_s(whole)
    few = np.floor(step_table(where).graph_tokens / new)
    beyond = np.where((few >= 1.0) & (few + 1.0 < whole), few + 1.0, 1.0)  # prompts of the smallest step on the line
    first = np.where(beyond > 1.0, steps.with_prompts_s(beyond), one)
    each = np.minimum((full - first) / np.maximum(whole - beyond, 1.0), first / beyond)
    each = np.where(whole > 1.0, each, full / whole)
    fixed = np.where(whole > 1.0, first - beyond * each, 0.0)
    saved = np.where(beyond > 1.0, np.maximum(fixed + each - one, 0.0), 0.0)
    return PrefillPool(
        one * np.maximum(np.ceil(1.0 / g - 1e-9), 1.0), ranks * whole / full, ranks,
        fixed, each, saved, np.maximum(few, 1.0), np.maximum(whole, 1.0), prompts.cv**2, arrivals_cv2,
        r.front_s + r.request_s,
    )  # fmt: skip


def seating_s(decode: Deployment, step_s: Array) -> Array:
    """From the arrival of a prompt's KV at a decode worker with a free slot to the first token at the client.

    Formula:  (1.5 + out) D: the rest of the step under way, the first own one, and its emission
    Args:     step_s D [s]
    Returns:  [s]
    Assumes:  engines stream the prefill's token when they have seated the request
    Source:   derivation, as the event simulator has it
    """
    return (1.5 + decode.engine.scheduler.emit_steps) * step_s


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
    arrivals_cv2: Array = 1.0,
) -> PoolState:
    """TTFT, TPOT and throughput of disaggregated serving.

    Formula:  prefill pool: T_pre once a prompt runs, W(X) waiting for X prompts a second, R of them at most, see
                            `prefill_pool` and `batch_service`
              decode pool:  X(b) = b/(O D(b)) for b sequences in all, b at most min(slots, KV capacity)
              open loop:    X = min(rate, R, X(slots)); b from X(b) = X
              closed loop:  b the largest with X(b) <= R and X(b) (P + (O - 1) D) <= C: Little's law;
                            what of C is neither decoding nor on its way waits: for a slot, or for the prefill pool
              TTFT = P = front end + T_pre + W + transfer + hand-over + seating; C/X - (O - 1) D where this is longer
              a decode pool that speculates: D is a cycle, O counts cycles, TPOT is per token
              spreads: waits are exponential; company on a rank is Poisson: sd(TPOT) = (D(b) - D(1))/sqrt(b)
    Args:     isl, osl [tokens]; concurrency [requests] or rate_per_s [1/s] of the whole; cached [tokens];
              burst_share [-]: part of the requests that arrive together at the start; handover_s [s]: router and
              connector; arrivals_cv2 [-]: squared coefficient of variation of the gaps between arrivals (Poisson: 1)
    Returns:  PoolState, everything broadcast
    Assumes:  decode steps carry no prompt; workers take requests in turn
    Error:    against the event simulator: tests/test_serving_disaggregated.py; against servers: docs/serving.md
    Source:   derivation
    """
    if (concurrency is None) == (rate_per_s is None):
        raise InputError("give concurrency (closed loop) or rate_per_s (open loop), one of them")
    prompts, outputs = as_lengths(isl), as_lengths(osl)
    pool = prefill_pool(pools, prompts, cached, arrivals_cv2)
    transfer = kv_transfer_s(pools, prompts.mean) + handover_s
    ranks = pools.decode_workers * pools.decode.plan.dp
    table, context, s = step_table(pools.decode), prompts.mean + outputs.mean / 2.0, pools.decode.speculation
    steps_each = outputs.mean if s is None else in_cycles(outputs, s.shares).mean
    held = held_tokens(prompts.mean, outputs, pools.decode.engine.scheduler.reserve_output)
    slots = np.minimum(pools.slots, np.maximum(kv_sequences(pools.decode, held), 1.0) * ranks)
    padding = 0.0 if rate_per_s is None else (table.graph_batch - 1.0) / 2.0  # as a steady state has it

    def step_s(batch: Array) -> Array:
        return table.decode(np.maximum(batch / ranks, 1.0), context, padding)

    def served(batch: Array) -> Array:
        return batch / (steps_each * step_s(batch))

    asked = np.asarray(concurrency if rate_per_s is None else rate_per_s, float)
    low, high = np.zeros_like(asked + slots + pool.one_s), np.zeros_like(asked + pool.one_s) + slots
    if rate_per_s is None:
        high = np.minimum(high, asked)

    def path_s(rate: Array, step: Array) -> Array:
        """From sending a request to its first token, where a slot is free."""
        return pool.ready_s + pool.wait_s(rate) + transfer + seating_s(pools.decode, step)

    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        rate = served(middle)
        if rate_per_s is None:
            step = step_s(middle)
            fits = (rate <= pool.rate) & (rate * (path_s(rate, step) + (steps_each - 1.0) * step) <= asked)
        else:
            fits = rate <= np.minimum(asked, pool.rate)
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    batch = np.maximum(low, 1e-9)
    step, rate = step_s(batch), served(batch)
    path = path_s(rate, step)
    least = path - pool.wait_s(rate)
    if rate_per_s is None:
        steady = np.maximum(asked / rate - (steps_each - 1.0) * step, path)
        burst = np.maximum(asked / (2.0 * pool.rate), path)
        ttft = Spread(least, steady - least, steady - least, burst_share, least, 2.0 * burst - least)
        saturated = np.zeros_like(steady, bool)
    else:
        steady, ttft = path, Spread(least, path - least, path - least)
        saturated = asked > np.minimum(pool.rate, served(slots))
    per_token = 1.0 if s is None else (steps_each - 1.0) / np.maximum(outputs.mean - 1.0, 1.0)
    alone = np.minimum(step_s(1.0), step)
    apart = (step - alone) / np.sqrt(np.maximum(batch / ranks, 1.0))
    tpot = Spread(alone * per_token, (step - alone) * per_token, apart * per_token)
    return PoolState(
        ttft, tpot, end_to_end(ttft, tpot, outputs.mean, outputs.cv), rate, rate * outputs.mean, batch,
        rate / pool.rate, batch / slots, pool.one_s, transfer, steady - path, saturated,
    )  # fmt: skip
