"""Steady state of a replica: from the time of a step to TTFT, TPOT and throughput under a load, without a loop over
requests.

The letters: `batch` sequences decode per attention-data-parallel rank, each step may also carry prompts. Everything is
a few array evaluations over tabulated steps, so a point costs a microsecond.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from roofline.arrays import Array
from roofline.deployment import Deployment
from roofline.errors import InputError, UnknownNameError
from roofline.serving.capacity import held_tokens, kv_sequences
from roofline.serving.lengths import Lengths, as_lengths
from roofline.serving.steps import StepTable, step_table
from roofline.specs.engine import SchedulerProfile

ROUNDS = 4  # of the fixed points; the next one moves a result by less than 0.1 %
WINDOW = 4.0  # spread of the ends of a generation, in units of what unequal lengths make of it; tuned to the simulator
BLOCK = 1 << 16  # points evaluated at once


@dataclass(frozen=True, slots=True)
class Load:
    """What one rank has to do, per point: lengths in tokens, and how many requests are in flight."""

    new: Array  # prompt tokens to compute
    past: Array  # prompt tokens found in the cache
    osl: Array
    osl_ratio: Array  # shortest over longest output
    osl_longest: Array
    batch: Array  # sequences that decode together

    @property
    def context(self) -> Array:
        """Mean cached tokens of a decoding sequence."""
        return self.new + self.past + self.osl / 2.0


@dataclass(frozen=True, slots=True)
class Rules:
    """A scheduler profile as numbers of one rank."""

    mixed: bool
    chunked: bool
    budget: Array
    poll: Array
    late: Array  # steps between the arrival of a request and the first step that can see it
    hold: Array
    hold_ratio: Array
    request_s: Array  # tokeniser, per request of this rank
    front_s: Array
    emit: Array
    cold_s: Array


KNOBS = (
    "token_budget", "poll_interval", "lookahead", "hold_steps", "hold_ratio", "tokenizers", "tokenizer_token_s",
    "tokenizer_request_s", "front_end_s", "emit_steps", "cold_start_s",
)  # fmt: skip


def rules(profile: SchedulerProfile, isl: Array, dp: int, knobs: Mapping[str, Array]) -> Rules:
    """The rules of an engine for prompts of `isl` tokens, some knobs replaced (by arrays: one per point).

    Attention-data-parallel ranks share the tokenisers.
    """
    if unknown := sorted(set(knobs) - set(KNOBS)):
        raise UnknownNameError("scheduler knob", unknown[0], KNOBS)
    k = {name: np.asarray(knobs.get(name, getattr(profile, name)), float) for name in KNOBS}
    request = (k["tokenizer_request_s"] + k["tokenizer_token_s"] * isl) * dp / k["tokenizers"]
    return Rules(
        profile.policy == "mixed", profile.chunked_prefill, k["token_budget"], k["poll_interval"], k["lookahead"],
        k["hold_steps"], k["hold_ratio"], request, k["front_end_s"], k["emit_steps"], k["cold_start_s"],
    )  # fmt: skip


def prompts_per_step(load: Load, r: Rules) -> Array:
    """How many prompts the token budget lets into one step; below 1 a prompt takes several.

    Formula:  mixed and chunked: (B - b)/x; mixed, whole prompts: max(1, floor((B - b)/x)); prompts first: B/x
    Source:   scheduler rules of vLLM, TensorRT-LLM and SGLang
    """
    new = np.maximum(load.new, 1.0)
    if not r.mixed:
        return r.budget / new
    room = np.maximum(r.budget - load.batch, 1.0) / new
    return room if r.chunked else np.maximum(np.floor(room), 1.0)


def tpot(steps: StepTable, load: Load, r: Rules) -> Array:
    """Mean seconds per output token while `batch` sequences run and each that ends is replaced at once.

    Formula:  q = b - 1 requests prefill while one generates its O tokens, in n = min(O, q max(1, x/B)) steps that carry
              c = q x/n prompt tokens each
                mixed:         D + n/O (S(b, c) - D)
                prompts first: D + phi n/O S(0, c),  phi = 1/2 where all requests end together, else 1
    Args:     steps; load: per point; r: rules of the engine
    Returns:  [s]
    Assumes:  steps at the mean context; prompts arrive evenly
    Error:    see the validation table of serving in docs/serving.md
    Source:   derivation
    """
    decode = steps.decode(load.batch, load.context)
    others = np.maximum(load.batch - 1.0, 0.0)
    new = np.maximum(load.new, 1.0)
    carrying = np.minimum(load.osl, others * np.maximum(1.0, new / r.budget))
    prompts = np.where(carrying > 0, others / np.maximum(carrying, 1e-9), 1.0)
    share = carrying / load.osl
    if r.mixed:
        return decode + share * (steps.mixed(load.batch, load.context, prompts, new, load.past) - decode)
    phi = np.where(load.osl_ratio >= 1.0, 0.5, 1.0)
    return decode + phi * share * steps.mixed(0.0, load.context, prompts, new, load.past)


def step_with(steps: StepTable, load: Load, r: Rules, prompts: Array, fill: Array = 1.0) -> Array:
    """Seconds of a step with `prompts` prompts beside `fill` of the decoding batch; prompts-first engines: beside none."""
    batch = 1.0 + fill * (load.batch - 1.0) if r.mixed else 0.0
    return steps.mixed(batch, load.context, prompts, np.maximum(load.new, 1.0), load.past)


def together(steps: StepTable, load: Load, r: Rules, prompts: Array, per_step: Array) -> Array:
    """Mean time to the first token of `prompts` prompts that are let in together.

    Formula:  S(min(k, g)) (ceil(k/g) + ceil(1/g))/2
    Source:   derivation: they finish one after another, the first after ceil(1/g) steps, the last after ceil(k/g)
    """
    waves = np.ceil(prompts / per_step - 1e-9) + np.ceil(1.0 / per_step - 1e-9)
    return step_with(steps, load, r, np.minimum(prompts, per_step)) * waves / 2.0


def ttft_burst(steps: StepTable, load: Load, r: Rules) -> Array:
    """Mean TTFT of a whole batch of requests that arrive at once at an idle replica.

    Formula:  n = ceil(b/min(g, b)), s = S(min(g, b); 1/2), k1 = clip(S(1; 1/2)/f, 1, g), late = 1 - 1/b
              L0 + out D + max(f + s (n + ceil(1/g))/2 + [n <= 2] late S(1; 0),  f (b + 1)/2 + 1.5 S(k1; 1/2))
              + late N D1 (polling) + late hold D1 (prompts held back)
    Source:   derivation: either the prefill or the tokeniser (f seconds a request, serial) sets the pace
    """
    b = load.batch
    g = prompts_per_step(load, r)
    late = 1.0 - 1.0 / np.maximum(b, 1.0)
    decode, alone = steps.decode(b, load.context), steps.decode(1.0, load.context)
    waves = np.ceil(b / np.minimum(g, b) - 1e-9)
    one = step_with(steps, load, r, np.minimum(1.0, g), 0.0) * np.maximum(1.0, 1.0 / g)
    half = step_with(steps, load, r, np.minimum(1.0, g), 0.5) * np.maximum(1.0, 1.0 / g)
    f = r.request_s
    beside = np.clip(half / np.maximum(f, 1e-9), 1.0, np.maximum(g, 1.0))
    paced = f * (b + 1.0) / 2.0 + 1.5 * step_with(steps, load, r, np.minimum(beside, np.maximum(g, 1.0)), 0.5)
    filled = step_with(steps, load, r, np.minimum(g, b), 0.5)
    queued = f + filled * (waves + np.ceil(1.0 / g - 1e-9)) / 2.0 + np.where(waves <= 2, late * one, 0.0)
    held = (b - 1.0) * load.new < r.hold_ratio * r.budget
    waiting = late * alone * (np.where(r.poll > 1, r.poll, 0.0) + np.where(held, r.hold, 0.0))
    return r.front_s + r.emit * decode + np.maximum(queued, paced) + waiting


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How prompts fall into steps once the burst is over; see `rhythm`."""

    decode_s: Array  # a step without prompts
    tpot_s: Array
    prompts: Array  # that are let in together
    inside: Array  # of them in one step
    step_s: Array  # that step
    per_step: Array  # what the budget allows
    rate: Array  # arrivals per second while a generation is replaced
    busy: Array  # share of steps that carry a prompt


def rhythm(steps: StepTable, load: Load, r: Rules, rate: Array | None = None) -> Rhythm:
    """The fixed point of how many prompts share a step and how long steps then take.

    Formula:  lam requests/s arrive (closed loop: in a window W in which a generation ends), k of them share a step
                W   = 4 (1 - r) Omax tp + [mixed] b max(s/min(g, b), f)
                lam = min(max(b/W, b/(O tp)), 1/f)                           open loop: the rate
                k   = max(1, lam S(k)), bounded by b; holding: at least 1 + lam hold D; polling: max(1, lam N D)
                tp  = D + (b - 1)/O (S(k) - D)/k;  prompts first: D + phi (b - 1)/O S(k)/k, phi = 1/2 in lockstep
                p   = share of steps that carry a prompt, min(1, lam S(k)/k); 0 for prompts first
    Source:   derivation; the factor 4 is tuned to the event simulator
    """
    b, osl = load.batch, load.osl
    g = prompts_per_step(load, r)
    f = r.request_s
    decode, alone = steps.decode(b, load.context), steps.decode(1.0, load.context)
    full = step_with(steps, load, r, np.minimum(g, b))
    fewest = np.minimum(g, 1.0)
    lockstep = (load.osl_ratio >= 1.0) & (not r.mixed)
    others = np.maximum(b - 1.0, 0.0) / osl
    tp, k = decode, np.ones_like(decode * b)
    for _ in range(ROUNDS):
        window = WINDOW * (1.0 - load.osl_ratio) * load.osl_longest * (tp if r.mixed else decode)
        window = window + (b * np.maximum(full / np.minimum(g, b), f) if r.mixed else 0.0)
        lam = np.maximum(b / np.maximum(window, 1e-12), b / (osl * tp)) if rate is None else rate
        lam = np.minimum(lam, 1.0 / np.maximum(f, 1e-12))
        each = step_with(steps, load, r, np.clip(k, fewest, np.maximum(g, fewest)))
        k = np.maximum(1.0, lam * each)
        k = np.maximum(k, 1.0 + lam * r.hold * decode)
        k = np.where(r.poll > 1, np.maximum(k, lam * r.poll * alone), k)
        k = np.minimum(np.where(lockstep, b, k), np.maximum(b, 1.0))
        inside = np.minimum(k, g)
        each = step_with(steps, load, r, inside)
        extra = (each - (decode if r.mixed else 0.0)) / inside
        tp = decode + np.where(lockstep, 0.5, 1.0) * others * extra
    busy = np.minimum(1.0, lam * each / inside) if r.mixed else 0.0
    return Rhythm(decode, tp, k, inside, each, g, lam, busy)


def ttft_steady(steps: StepTable, load: Load, r: Rules, beat: Rhythm, phased: bool = True) -> Array:
    """Mean TTFT after the burst is over.

    Formula:  L0 + f (1 + (k - 1)/4) + (late + ph) ((1 - p) D + p S(k)) + N D/2 [polling] + hold + T(k) + out D
                ph   = 1 - (f + L0)/D where that is positive (in a closed loop requests follow the end of a step),
                       1/2 with polling or in an open loop
                hold = D (h + lam D h^2/2)/(1 + lam D h) for h held steps
    Source:   derivation
    """
    decode, k, f = beat.decode_s, beat.prompts, r.request_s
    late = (f + r.front_s) / decode
    phase = np.where((late < 1.0) & (r.poll <= 1) & phased, 1.0 - late, 0.5)
    waits = (r.late + phase) * ((1.0 - beat.busy) * decode + beat.busy * beat.step_s)
    polled = np.where(r.poll > 1, r.poll * decode / 2.0, 0.0)
    gap = beat.rate * decode
    held = decode * (r.hold + gap * r.hold**2 / 2.0) / (1.0 + gap * r.hold)
    first = together(steps, load, r, k, beat.per_step)
    return r.front_s + f * (1.0 + (k - 1.0) / 4.0) + waits + polled + held + first + r.emit * decode


@dataclass(frozen=True)
class SteadyState:
    """What users and owners of a replica see under a load. Seconds and tokens; every field broadcasts."""

    ttft_s: Array
    tpot_s: Array
    e2e_s: Array
    batch: Array  # sequences that decode together, whole replica
    concurrency: Array  # requests in the system
    requests_per_s: Array
    tokens_per_s: Array  # output tokens
    kv_occupancy: Array  # sequences running over sequences that fit
    saturated: Array  # more is asked than the replica can do; times are then those of the fullest batch it can run
    feasible: Array  # not even one sequence fits where False


def steady_state(
    deployment: Deployment,
    *,
    isl: Array | Lengths,
    osl: Array | Lengths,
    concurrency: Array | None = None,
    rate_per_s: Array | None = None,
    cached: Array = 0.0,
    burst_share: Array = 0.0,
    **knobs: Array,
) -> SteadyState:
    """TTFT, TPOT, end-to-end latency and throughput of a replica under a steady load.

    Args:     isl, osl [tokens]: arrays or `Lengths`; concurrency [requests]: closed loop, whoever gets an answer asks
              again; or rate_per_s [1/s]: open loop; cached [tokens] of each prompt found in the prefix cache;
              burst_share [-]: part of the requests that arrive together at the start (a benchmark of n requests at
              concurrency c: c/n); knobs: scheduler settings in place of the engine profile's, see KNOBS
    Returns:  SteadyState, everything broadcast
    Assumes:  like requests; steps at mean lengths
    Error:    docs/serving.md holds both against measured servers
    """
    if (concurrency is None) == (rate_per_s is None):
        raise InputError("give concurrency (closed loop) or rate_per_s (open loop), one of them")
    prompts, outputs = as_lengths(isl), as_lengths(osl)
    dp = deployment.plan.dp
    steps = step_table(deployment)
    r = rules(deployment.engine.scheduler, prompts.mean, dp, knobs)
    fits = kv_sequences(deployment, held_tokens(prompts.mean, outputs.mean))
    cap = np.maximum(fits, 1.0)

    def load(batch: Array) -> Load:
        return Load(prompts.mean - cached, cached, outputs.mean, outputs.ratio_min, outputs.longest, batch)

    if concurrency is not None:
        wanted = np.maximum(np.asarray(concurrency, float) / dp, 1.0)
        at = load(np.minimum(wanted, cap))
        beat = rhythm(steps, at, r)
        gap = beat.tpot_s
        first = (1.0 - burst_share) * ttft_steady(steps, at, r, beat)
        if np.any(np.asarray(burst_share) > 0):
            first = first + burst_share * (ttft_burst(steps, at, r) + r.cold_s)
        first = first + np.maximum(wanted - cap, 0.0) / cap * outputs.mean * gap
        whole = first + (outputs.mean - 1.0) * gap
        rate = np.asarray(concurrency, float) / whole
        return SteadyState(
            first, gap, whole, at.batch * dp, concurrency + 0.0 * whole, rate, rate * outputs.mean, at.batch / cap,
            wanted > cap, fits >= 1.0,
        )  # fmt: skip
    raise NotImplementedError
