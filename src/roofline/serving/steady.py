"""Steady state of a replica: from the time of a step to TTFT, TPOT and throughput under a load, without a loop over
requests.

The letters: `batch` sequences decode per attention-data-parallel rank, each step may also carry prompts. Everything is
a few array evaluations over tabulated steps, so a point costs a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from roofline.arrays import Array
from roofline.deployment import Deployment
from roofline.errors import InputError, UnknownNameError, check_numbers
from roofline.serving.capacity import held_tokens, kv_sequences
from roofline.serving.lengths import Lengths, as_lengths, in_cycles
from roofline.serving.queueing import Spread, queue_wait
from roofline.serving.steps import Steps, StepTable, step_table
from roofline.specs.engine import SchedulerProfile
from roofline.speculative.acceptance import cycles_spread, expected_cycles

ROUNDS = 4  # of the fixed points; the next one moves a result by less than 0.1 %
SEARCHES, MORE = 3, 8  # rounds in search of the batch that a rate comes to: of all points, and of those not yet there
NEAR = 1e-4  # relative step at which a search has arrived
CALM = 0.999  # utilisation above which a queue is not extrapolated
TPOT_CV = 0.05  # spread of TPOT from request to request in a crowded closed loop


@dataclass(frozen=True, slots=True)
class Load:
    """What one rank has to do, per point: lengths in tokens, and how many requests are in flight."""

    new: Array  # prompt tokens to compute
    past: Array  # prompt tokens found in the cache
    osl: Array
    osl_ratio: Array  # shortest over longest output
    osl_longest: Array
    batch: Array  # sequences that decode together
    padding: Array = 0.0  # mean number by which graphs are larger than the batch
    grown: float = 1.0  # tokens by which a step lengthens a sequence; osl counts steps

    @property
    def context(self) -> Array:
        """Mean cached tokens of a decoding sequence."""
        return self.new + self.past + self.grown * self.osl / 2.0


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
    verified: float = 1.0  # tokens that a decoding sequence takes out of the budget


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

    Formula:  mixed and chunked: (B - v (b - 1))/x; mixed, whole prompts: max(1, floor((B - v (b - 1))/x)); prompts first:
              B/x
    Source:   scheduler rules of vLLM, TensorRT-LLM and SGLang
    """
    new = np.maximum(load.new, 1.0)
    if not r.mixed:
        return r.budget / new
    room = np.maximum(r.budget - r.verified * (load.batch - 1.0), 1.0) / new
    return room if r.chunked else np.maximum(np.floor(room), 1.0)


def step_kinds(table: StepTable, load: Load, r: Rules, fill: Array = 1.0) -> Steps:
    """The steps that carry prompts, beside `fill` of the decoding batch; of prompts-first engines: beside none."""
    batch = 1.0 + fill * (load.batch - 1.0) if r.mixed else 0.0
    return table.beside(batch, load.context, load.new, load.past, load.padding if r.mixed else 0.0)


def prompt_s(table: StepTable, load: Load, r: Rules) -> Array:
    """Least seconds of a rank per prompt: nobody waits less for an answer than all prompts in flight take.

    Formula:  max(S(j)/j, f) for j = min(g, b) prompts in a step without decodes, which is as full as the budget lets it
    Source:   derivation; it binds where answers are so short that prompts are nearly all of the work
    """
    inside = np.minimum(np.maximum(prompts_per_step(load, r), 1e-9), np.maximum(load.batch, 1.0))
    alone = table.beside(0.0, load.context, load.new, load.past)
    return np.maximum(alone.with_prompts_s(inside) / inside, r.request_s)


def steps_to_first(prompts: Array, per_step: Array) -> Array:
    """Mean number of steps to the first token of `prompts` prompts that are let in together.

    Formula:  (ceil(k/g) + ceil(1/g))/2
    Args:     prompts k [-], per_step g [-]
    Returns:  [-]
    Source:   derivation: they finish one after another, the first after ceil(1/g) steps, the last after ceil(k/g)
    """
    return (np.ceil(prompts / per_step - 1e-9) + np.ceil(1.0 / per_step - 1e-9)) / 2.0


def alone_s(steps: Steps, per_step: Array) -> Array:
    """Seconds of the steps that one prompt takes, the last of which may be shorter.

    Formula:  (n - 1) S(min(g, 1)) + S(1 - (n - 1) min(g, 1)),  n = ceil(1/g)
    Args:     per_step g [-]: prompts that one step has room for
    Returns:  [s]
    Source:   derivation
    """
    more, most = np.ceil(1.0 / per_step - 1e-9) - 1.0, np.minimum(per_step, 1.0)
    return more * steps.with_prompts_s(most) + steps.with_prompts_s(1.0 - more * most)


def ttft_burst(table: StepTable, load: Load, r: Rules, decode_s: Array) -> Array:
    """Mean TTFT of a whole batch of requests that arrive at once at an idle replica.

    Formula:  late = 1 - 1/b, q = max(b - 1, 1), n = ceil(q/min(g, q)), k1 = clip(S(1; 1/2)/f, 1, min(g, b))
              L0 + out D + max(f + S(1; 0) + late Q,  f (b + 1)/2 + 1.5 S(k1; 1/2))
              + late N D1 (polling) + late hold D1 (prompts held back)
                Q = mean over n - 1 full steps of g prompts and one of the rest; long prompts: S(g; 1/2) (n + ceil(1/g))/2
    Assumes:  S(k; u) is a step of k prompts beside the share u of the batch; the first prompt is tokenised first and
              runs alone, the others follow together
    Source:   derivation: either the prefill or the tokeniser (f seconds a request, serial) sets the pace
    """
    b, f = load.batch, r.request_s
    g = prompts_per_step(load, r)
    late, others = 1.0 - 1.0 / np.maximum(b, 1.0), np.maximum(b - 1.0, 1.0)
    alone = table.decode(1.0, load.context)
    waves, chunks = np.ceil(others / np.minimum(g, others) - 1e-9), np.ceil(1.0 / g - 1e-9)
    half = step_kinds(table, load, r, 0.5)
    first = alone_s(step_kinds(table, load, r, 0.0), g)
    full_s, full = half.with_prompts_s(np.minimum(g, others)), np.minimum(np.maximum(g, 1.0), others)
    rest = np.clip(others - (waves - 1.0) * full, 0.0, full)
    whole = (full_s * (waves - 1.0) * (full * waves / 2.0 + rest) + half.with_prompts_s(rest) * rest) / others
    queued = f + first + late * np.where(g >= 1.0, whole, full_s * (waves + chunks) / 2.0)
    most = np.maximum(np.minimum(g, b), 1.0)
    joined = np.clip(half.with_prompts_s(np.minimum(1.0, g)) * chunks / np.maximum(f, 1e-9), 1.0, most)
    paced = f * (b + 1.0) / 2.0 + 1.5 * half.with_prompts_s(np.minimum(joined, np.maximum(g, 1.0)))
    held = (b - 1.0) * load.new < r.hold_ratio * r.budget
    waiting = late * alone * (np.where(r.poll > 1, r.poll, 0.0) + np.where(held, r.hold, 0.0))
    return r.front_s + r.emit * decode_s + np.maximum(queued, np.where(f * b > first, paced, 0.0)) + waiting


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How prompts fall into steps once the burst is over; see `rhythm`."""

    steps: Steps
    decode_s: Array  # a step without prompts
    alone_s: Array  # the steps of one prompt that meets no other
    tpot_s: Array
    prompts: Array  # that are let in together, on average over steps
    company: Array  # the same as one prompt meets it, itself included
    inside: Array  # of `prompts` in one step
    step_s: Array  # that step
    rate: Array  # arrivals per second while a generation is replaced
    busy: Array  # share of steps that carry a prompt
    first_s: Array  # from the step that sees a prompt to its first token


def wave_steps(load: Load, per_step: Array) -> Array:
    """Steps in which the prompts of all seats are computed.

    Formula:  1 + (b - 1)/min(g, b - 1): the first prompt goes alone
    Args:     per_step g [-]
    Returns:  [steps]
    Source:   derivation
    """
    others = np.maximum(load.batch - 1.0, 0.0)
    return 1.0 + others / np.minimum(per_step, np.maximum(others, 1.0))


def window_steps(load: Load, cycle: Array, wave: Array, waves: Array) -> tuple[Array, Array]:
    """Steps over which the ends of one wave of a closed loop are spread, and how far chance spreads them.

    Formula:  min(c, hypot(2/3 sqrt(J) (1 - r) Omax, n))
    Args:     cycle c [steps]: from one prompt of a seat to its next; wave n [steps]: of the prompts of a wave, prompts first: 0; waves J: requests of a run per seat; inf where
              nothing ever started together
    Returns:  W [steps], and the share of W^2 that is not the even pace of the first wave [-]
    Assumes:  after j answers of uniform length the ends differ by a deviation sqrt(j) times that of one; 2/3 sqrt(J) is
              the mean of sqrt(j); the first wave is spread by its own prompt steps, unless decodes wait for them all
    Source:   derivation
    """
    apart = 2.0 / 3.0 * np.sqrt(np.where(np.isfinite(waves), waves, 0.0)) * (1.0 - load.osl_ratio) * load.osl_longest
    spread = np.where(np.isfinite(waves), apart, cycle)
    whole = np.maximum(np.hypot(spread, wave), 1.0)
    return np.minimum(cycle, whole), (spread / whole) ** 2


def lockstep(load: Load, r: Rules, waves: Array) -> Array:
    """Whether requests of one length that started together end together: prompts that stop decodes let nobody ahead."""
    return (load.osl_ratio >= 1.0) & np.isfinite(waves) & (not r.mixed)


def together(mean: Array) -> Array:
    """Mean number of a Poisson number of arrivals, where there are any.

    Formula:  x/(1 - exp(-x)), 1 at 0
    """
    x = np.maximum(mean, 1e-9)
    return x / -np.expm1(-x)


def rhythm(table: StepTable, load: Load, r: Rules, rate: Array | None = None, waves: Array = np.inf) -> Rhythm:
    """The fixed point of how many prompts share a step and how long steps then take.

    Formula:  closed loop: x = N (b - 1)/W prompts arrive between two looks at the queue (N = 1 but for polling), since
              every step ends as many answers as it gives tokens, however long it lasts;
                W = max(window_steps, b f/s): the tokeniser serves one at a time
                k = x/(1 - exp(-x)) share a step where any do; holding: at least 1 + h (b - 1)/W; lockstep: b
              open loop: lam requests/s, k = max(1, lam S(k)); polling: at least lam N D; holding: 1 + lam h D
              bounded by b; j = min(k, g) of them share a step
                tp  = D + ((b - k) + (k - j)/2)/O (S(j) - D)/j;  prompts first: S(j) in place of S(j) - D
                      (prompts of my own step do not delay my tokens, of those let in with me half come later)
                p   = share of steps that carry a prompt, max(1 - exp(-x), (b - 1)/(W g)); 0 for prompts first
    Source:   derivation
    """
    b, osl, f = load.batch, load.osl, r.request_s
    g = prompts_per_step(load, r)
    steps = step_kinds(table, load, r)
    decode = steps.decode_s() if r.mixed else table.decode(b, load.context, load.padding)
    base = decode if r.mixed else 0.0
    fewest, most = np.minimum(g, 1.0), np.maximum(b, 1.0)
    closed = rate is None
    mates = b - 1.0 if closed else b  # a closed loop has no other requests than the batch
    looks = np.maximum(r.poll, 1.0)
    locked = closed & lockstep(load, r, waves)
    wave = wave_steps(load, g) if closed and r.mixed else 0.0
    away = osl + 1.0 + r.late + (1.0 if r.mixed else 0.0)  # its answer, the steps before it is seen, its prompt's own
    cycle = np.maximum(away, wave) if closed else osl
    window, chance = window_steps(load, cycle, wave, waves) if closed else (0.0, 1.0)
    met = 1.0 - 0.5 / waves  # half of a wave is delayed by prompts of the next one, which the last wave does not have
    each = steps.with_prompts_s(fewest)
    alone = alone_s(steps, g) if np.any(g < 1.0) else each
    tp = decode + np.maximum(mates, 0.0) / osl * (each - base) / fewest
    for _ in range(ROUNDS):
        if closed:
            a_step = mates / np.maximum(window, b * f / (tp if r.mixed else decode))
            seen = a_step * looks
            k = np.maximum(together(seen), np.where(r.hold > 0, 1.0 + a_step * r.hold, 1.0))
            k = np.where(locked, b, k)
        else:
            lam = np.minimum(rate, 1.0 / np.maximum(f, 1e-12))
            seen = np.maximum(lam * each, np.where(r.poll > 1, lam * r.poll * decode, 0.0))
            k = np.maximum(np.maximum(1.0, seen), np.where(r.hold > 0, 1.0 + lam * r.hold * decode, 1.0))
        k = np.minimum(k, most)
        inside = np.minimum(k, g)
        each = steps.with_prompts_s(inside)
        others = (np.maximum(mates + 1.0 - k, 0.0) + (k - inside) / 2.0) * met
        beside = others / away if closed else others / osl
        tp = decode + (np.minimum(beside, g) if closed and r.mixed else beside) * (each - base) / inside
    if not closed:
        busy = np.minimum(1.0, lam * each / inside) if r.mixed else 0.0
        return Rhythm(steps, decode, alone, tp, k, k, inside, each, lam, busy, each * steps_to_first(k, g))
    load_share = np.minimum(a_step / g, 1.0)
    some = 1.0 - chance * np.minimum(np.exp(-seen), 1.0 - load_share)
    busy = np.maximum(1.0 - 1.5 / window, 0.0) * (some if r.mixed else some / (1.0 + some))
    company = np.minimum(np.maximum(1.0 + seen, k), most)
    own = np.where(g >= 1.0, steps.with_prompts_s(np.minimum(company, g)), each)
    if r.mixed:
        queued = queue_wait(np.minimum(load_share, CALM), 1.0 / fewest, np.maximum(g, 1.0), chance, 0.0)
        queued = np.minimum(queued, np.sqrt(b) / (2.0 * g)) + cycle - away
    else:
        queued = np.maximum(company / g - 1.0 / fewest, 0.0) / 2.0
    first = np.where(g >= 1.0, own, alone) + own * queued
    return Rhythm(steps, decode, alone, tp, k, company, inside, each, a_step / tp, busy, first)


def ttft_steady(r: Rules, beat: Rhythm, others: Array | None = None) -> Array:
    """Mean TTFT after the burst is over.

    Formula:  L0 + q + ph ((1 - p) D + p S(k)) + late ((1 - p^2) D + p^2 S(k)) + N D/2 [polling] + hold + T(k) + out D
                q    = f (1 + (k - 1)/4)
                ph   = 1 - (f + L0 + out D)/((1 - p) D + p S(k)) where that is positive (in a closed loop requests
                       follow the end of a step), 1/2 with polling or in an open loop
                hold = D (h + lam D h^2/2)/(1 + lam D h) for h held steps
    Args:     others: probability that anybody else is there in a closed loop; an idle engine starts at once
    Source:   derivation
    """
    decode, k, f = beat.decode_s, beat.company, r.request_s
    longer = beat.step_s - decode
    step = decode + beat.busy * longer
    after = (f + r.front_s + r.emit * decode) / step
    phase = np.where((after < 1.0) & (r.poll <= 1) & (others is not None), 1.0 - after, 0.5)
    waits = phase * step + r.late * (decode + beat.busy ** (2 if others is None else 1) * longer)
    polled = np.where(r.poll > 1, r.poll * decode / 2.0, 0.0)
    gap = beat.rate * decode
    held = decode * (r.hold + gap * r.hold**2 / 2.0) / (1.0 + gap * r.hold)
    there = 1.0 if others is None else others
    return r.front_s + f * (1.0 + (k - 1.0) / 4.0) + there * (waits + polled + held) + beat.first_s + r.emit * decode


@dataclass(frozen=True)
class SteadyState:
    """What users and owners of a replica see under a load. Seconds and tokens; every field broadcasts.

    `ttft`, `tpot`, `e2e` say how times differ from request to request: `state.ttft.at(0.9)` is the 90th percentile.
    """

    ttft: Spread
    tpot: Spread
    e2e: Spread
    batch: Array  # sequences that decode together, whole replica
    concurrency: Array  # requests in the system
    utilisation: Array  # load over what the replica can do; 1 where a closed loop waits for seats
    osl: Array
    kv_occupancy: Array  # sequences running over sequences that fit
    feasible: Array  # False where not even one sequence fits
    parts_s: dict[str, Array]  # of the mean TTFT

    @property
    def ttft_s(self) -> Array:
        """Mean time to first token."""
        return self.ttft.mean

    @property
    def tpot_s(self) -> Array:
        """Mean time per output token after the first."""
        return self.tpot.mean

    @property
    def e2e_s(self) -> Array:
        """Mean time from sending a request to its last token."""
        return self.e2e.mean

    @property
    def requests_per_s(self) -> Array:
        """Requests answered per second (Little's law)."""
        return self.concurrency / self.e2e_s

    @property
    def tokens_per_s(self) -> Array:
        """Output tokens per second."""
        return self.requests_per_s * self.osl

    @property
    def saturated(self) -> Array:
        """True where more is asked than the replica can do: times are then those of the fullest batch it can run."""
        return self.utilisation >= 1.0


def steady_state(
    deployment: Deployment,
    *,
    isl: Array | Lengths,
    osl: Array | Lengths,
    concurrency: Array | None = None,
    rate_per_s: Array | None = None,
    cached: Array = 0.0,
    prefixes: Array = 0.0,
    arrivals_cv2: Array = 1.0,
    burst_share: Array = 0.0,
    max_seqs: Array | None = None,
    **knobs: Array,
) -> SteadyState:
    """TTFT, TPOT, end-to-end latency and throughput of a replica under a steady load.

    Args:     isl, osl [tokens]: arrays or `Lengths`; concurrency [requests]: closed loop, whoever gets an answer asks
              again; or rate_per_s [1/s]: open loop; cached [tokens] of each prompt found in the prefix cache, which
              are one of `prefixes` different prefixes that requests share (0: every request holds its own);
              arrivals_cv2 [-]: squared coefficient of variation of the gaps between arrivals (Poisson 1, bursty
              more); burst_share [-]: part of the requests that arrive together at the start (a benchmark of n
              requests at concurrency c: c/n); max_seqs: limit of running sequences in place of the engine's;
              knobs: scheduler settings in place of the engine profile's, see KNOBS
    Returns:  SteadyState, everything broadcast
    Assumes:  like requests; steps at mean lengths
    Error:    docs/serving.md holds both against measured servers
    """
    if (concurrency is None) == (rate_per_s is None):
        raise InputError("give concurrency (closed loop) or rate_per_s (open loop), one of them")
    for name, lengths in (("isl", isl), ("osl", osl)):
        check_numbers(name, lengths.mean if isinstance(lengths, Lengths) else lengths, low=1.0)
    given = {"concurrency": concurrency, "rate_per_s": rate_per_s, "cached": cached, "prefixes": prefixes,
             "arrivals_cv2": arrivals_cv2, "burst_share": burst_share, "max_seqs": max_seqs, **knobs}  # fmt: skip
    for name, value in given.items():
        if value is not None:
            check_numbers(name, value)
    prompts, outputs = as_lengths(isl), as_lengths(osl)
    r = rules(deployment.engine.scheduler, prompts.mean, deployment.plan.dp, knobs)
    fits = kv_sequences(deployment, held_tokens(prompts.mean, outputs.mean), cached, prefixes, max_seqs)
    site = Site(step_table(deployment), r, prompts, outputs, np.asarray(cached, float), np.maximum(fits, 1.0))
    s = deployment.speculation
    if s is not None:
        r = replace(r, verified=site.table.verified)
        site = replace(site, rules=r, outputs=in_cycles(outputs, s.shares), grown=s.tokens)
    if concurrency is not None:
        state = _closed(site, np.asarray(concurrency, float), burst_share, deployment.plan.dp, fits >= 1.0)
    else:
        site = replace(site, padding=(site.table.graph_batch - 1.0) / 2.0)
        state = _open(site, np.asarray(rate_per_s, float), arrivals_cv2, deployment.plan.dp, fits >= 1.0)
    return state if s is None else _per_token(state, outputs, s.shares)


def _per_token(state: SteadyState, outputs: Lengths, shares: Array) -> SteadyState:
    """A state whose TPOT is that of cycles, in tokens; requests of one length need more or fewer cycles."""
    later, tpot = np.maximum(np.asarray(outputs.mean, float) - 1.0, 1.0), state.tpot
    cycles = expected_cycles(later, shares)
    per, sd = cycles / later, np.hypot(tpot.sd_s, tpot.mean * cycles_spread(later, shares) / cycles)
    return replace(state, tpot=Spread(tpot.floor_s * per, tpot.mean_s * per, sd * per), osl=outputs.mean)


@dataclass(frozen=True, slots=True)
class Site:
    """One rank with its rules, the lengths it is asked for, and how many sequences it can hold."""

    table: StepTable
    rules: Rules
    prompts: Lengths
    outputs: Lengths
    cached: Array
    cap: Array
    padding: float = 0.0  # a batch that comes and goes is, on average, padded by half the distance of two graphs
    grown: float = 1.0  # tokens that a step brings a sequence; outputs count steps

    def load(self, batch: Array) -> Load:
        """What `batch` such requests ask of it."""
        new, o = np.maximum(self.prompts.mean - self.cached, 1.0), self.outputs
        return Load(new, self.cached, o.mean, o.ratio_min, o.longest, batch, self.padding, self.grown)


def _closed(site: Site, concurrency: Array, burst_share: Array, dp: int, feasible: Array) -> SteadyState:
    wanted = np.maximum(concurrency / dp, 1.0)
    load = site.load(np.minimum(wanted, site.cap))
    waves = np.where(np.asarray(burst_share) > 0, wanted / load.batch / np.maximum(burst_share, 1e-12), np.inf)
    beat = rhythm(site.table, load, site.rules, waves=waves)
    steady = ttft_steady(site.rules, beat, np.minimum(load.batch - 1.0, 1.0))
    seats = np.maximum(wanted - site.cap, 0.0) / site.cap * site.outputs.mean * beat.tpot_s
    burst = steady
    if np.any(np.asarray(burst_share) > 0):
        again = ttft_burst(site.table, load, site.rules, beat.decode_s)
        burst, steady = again + site.rules.cold_s, np.where(lockstep(load, site.rules, waves), again, steady)
    floor, rest = _floor(beat, steady)
    earliest = np.minimum(floor, burst)
    sd = np.hypot(_spread(beat, rest), seats * site.outputs.cv)
    gaps_s = np.maximum(site.outputs.mean - 1.0, 0.0) * beat.tpot_s
    rest = rest + np.maximum(wanted * prompt_s(site.table, load, site.rules) - (steady + seats + gaps_s), 0.0)
    ttft = Spread(floor, rest + seats, sd, burst_share, earliest + seats, 2.0 * burst - earliest + seats)
    tpot = Spread(0.0, beat.tpot_s, TPOT_CV * beat.tpot_s * np.minimum(1.0, np.log1p(load.batch) / 4.0))
    parts = {"first step": floor, "waiting": rest, "seats": seats, "burst": burst_share * (burst - steady)}
    return SteadyState(
        *_end_to_end(site, ttft, tpot),
        batch=load.batch * dp,
        concurrency=concurrency,
        utilisation=np.where(wanted > site.cap, 1.0, load.batch / site.cap),
        osl=site.outputs.mean,
        kv_occupancy=load.batch / site.cap,
        feasible=feasible,
        parts_s=parts,
    )


def _open(site: Site, rate: Array, arrivals_cv2: Array, dp: int, feasible: Array) -> SteadyState:
    lam, osl = rate / dp, site.outputs.mean
    kinds = step_kinds(site.table, site.load(1.0), site.rules)
    full_s = tpot_open(site, kinds, site.cap)
    fastest = site.cap / (osl * full_s)
    inside, utilisation = np.minimum(lam, fastest), lam / fastest
    wanted = _batch_at(site, kinds, inside, full_s)
    load = site.load(np.maximum(wanted, 1.0))
    beat = rhythm(site.table, load, site.rules, inside)
    steady = ttft_steady(site.rules, beat)
    extra_s = (beat.step_s - (beat.decode_s if site.rules.mixed else 0.0)) / beat.inside  # of one prompt
    # crowds of Poisson arrivals are in the rhythm of mixed steps; where prompts stop decodes they queue by themselves
    queue_cv2 = np.maximum(arrivals_cv2 - 1.0, 0.0) if site.rules.mixed else arrivals_cv2
    crowd = queue_wait(np.minimum(inside * extra_s, CALM), beat.step_s, 1.0, queue_cv2)
    taken = np.where(utilisation < 1.0, load.batch / site.cap, 1.0)  # steps are faster while seats are free
    seats = queue_wait(np.minimum(taken, CALM), osl * beat.tpot_s, site.cap, arrivals_cv2, site.outputs.cv**2)
    texts = queue_wait(np.minimum(inside * site.rules.request_s, CALM), site.rules.request_s, 1.0, arrivals_cv2)
    queued = crowd + seats + texts
    ttft = _met(site, beat, steady + queued, inside)
    here = np.where(inside > 0, wanted / np.maximum(osl * inside, 1e-300), beat.decode_s)  # Little's law
    slope = np.maximum(tpot_open(site, kinds, load.batch * 1.1) - here, 0.0) / (0.1 * load.batch)
    # the mean over a stay of a Poisson number of companions has a variance of two thirds of their number; as many
    # prompts as there are companions come in that time, and more come where there are more companions
    company = np.maximum(arrivals_cv2, 0.1) * load.batch
    tpot = Spread(0.0, beat.tpot_s, slope * np.sqrt(2.0 / 3.0 * company) + np.sqrt(company) * extra_s / osl)
    ends = _end_to_end(site, ttft, tpot)
    return SteadyState(
        *ends,
        batch=load.batch * dp,
        concurrency=np.minimum(rate, fastest * dp) * ends[2].mean,
        utilisation=utilisation,
        osl=osl,
        kv_occupancy=load.batch / site.cap,
        feasible=feasible,
        parts_s={"first step": steady, "waiting": crowd + texts, "seats": seats, "burst": 0.0 * steady},
    )


def tpot_open(site: Site, steps: Steps, batch: Array) -> Array:
    """Mean seconds per output token where `batch` sequences run and others arrive at the rate at which they end.

    Formula:  k = max(1, b/(O tp1) S(1)), tp1 = D + b/O (S(1) - D): D + b/O (S(k) - D)/k; prompts first: S(k)/k alone
    Args:     steps: of this site beside any batch
    Returns:  [s]
    Source:   derivation, as `rhythm` in one round
    """
    load = site.load(np.maximum(batch, 1.0))
    each_own = load.batch / load.osl
    if site.rules.mixed:
        steps = steps.at(load.batch)
        decode = base = steps.decode_s()
    else:
        decode, base = site.table.decode(load.batch, load.context, load.padding), 0.0
    g = prompts_per_step(load, site.rules)
    few = np.minimum(1.0, g)
    one = steps.with_prompts_s(few)
    alone = decode + each_own * (one - base) / few
    k = np.minimum(np.maximum(1.0, each_own / alone * one), g)
    return decode + each_own * (steps.with_prompts_s(k) - base) / k


def _batch_at(site: Site, steps: Steps, rate: Array, full_s: Array) -> Array:
    """Sequences that decode together when `rate` requests a second are served, `full_s` being tpot at the cap.

    Formula:  b = rate O tpot(b): Little's law
    Source:   Little 1961; all points a few rounds, those that have not arrived some more
    """
    asked = np.asarray(rate * site.outputs.mean + 0.0 * site.cap, float)  # sequences per second of TPOT
    least = asked * tpot_open(site, steps, 1.0)  # tpot is the same for one and for less
    low, high = np.ones_like(asked), site.cap + 0.0 * asked
    ends = high, high - asked * full_s, low, np.minimum(low - least, 0.0)
    batch, ends = _crossing(lambda b: b - asked * tpot_open(site, steps, b), *ends, rounds=SEARCHES)
    far = (np.abs(batch - ends[0]) > NEAR * batch) & (least > 1.0)
    if np.any(far):
        few, goal = _picked(site, far), asked[far]
        beside = step_kinds(few.table, few.load(1.0), few.rules)
        batch, ends = np.array(batch), (np.asarray(x)[far] for x in ends)
        batch[far], _ = _crossing(
            lambda b: b - goal * tpot_open(few, beside, b), *ends, rounds=MORE, start=batch[far]
        )  # fmt: skip
    return np.where(least > 1.0, batch, least)


def _crossing(
    f: Callable[[Array], Array], x1: Array, f1: Array, x2: Array, f2: Array, rounds: int, start: Array | None = None
) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    """Where f crosses zero between x1 and x2, at which it is f1 and f2, of different sign.

    Formula:  inverse quadratic interpolation where the last three points allow it, else regula falsi
    Returns:  the root after so many evaluations, and the two points around it (the last one first) with their values
    Source:   Chandrupatla 1997; regula falsi with the Illinois rule
    """
    weight = f2
    x = x2 - f2 * (x1 - x2) / np.where(f1 != f2, f1 - f2, 1.0) if start is None else start
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(rounds):
            value = f(x)
            same = (value < 0) == (f1 < 0)
            x3, f3 = np.where(same, x1, x2), np.where(same, f1, f2)
            x2, f2, weight = np.where(same, x2, x1), np.where(same, f2, f1), np.where(same, weight * 0.5, f1)
            x1, f1 = x, value
            part, rise = (x1 - x2) / (x3 - x2), (f1 - f2) / (f3 - f2)
            smooth = (rise * rise < part) & ((1.0 - rise) ** 2 < 1.0 - part)
            share = f1 / (f2 - f3) * (f3 / (f2 - f1) - (x3 - x1) / (x2 - x1) * f2 / (f3 - f1))
            share = np.where(smooth, share, f1 / (f1 - weight))
            x = x1 + np.clip(np.where(np.isfinite(share), share, 0.0), 0.0, 1.0) * (x2 - x1)
    return x, (x1, f1, x2, f2)


def _picked(site: Site, where: np.ndarray) -> Site:
    """The points of a site at which `where` is true, in a row."""

    def chosen(x: Array) -> Array:
        return np.broadcast_to(x, where.shape)[where] if np.ndim(x) else x

    def each(record):
        return replace(record, **{f.name: chosen(getattr(record, f.name)) for f in fields(record)})

    rows = each(site.rules), each(site.prompts), each(site.outputs)
    return Site(site.table, *rows, chosen(site.cached), chosen(site.cap), site.padding, site.grown)


def _met(site: Site, beat: Rhythm, mean_s: Array, rate: Array) -> Spread:
    """TTFT of an open loop from its mean: who arrives beside no other prompt waits for a step, the others for crowds.

    Formula:  calm, with probability 1 - p, p = min(rate S, 1): C = L0 + f + (late + U) D + S(1) + out D, U uniform 0..1
              crowded: C + a gamma wait that brings the mean to the given one, its deviation 0.9 of its mean
    Assumes:  0.9 from the event simulator
    Source:   derivation
    """
    r, decode = site.rules, beat.decode_s
    least = r.front_s + r.request_s + (r.late + r.emit) * decode + beat.alone_s
    calm = np.minimum(least + 0.5 * decode, mean_s)
    met = np.clip(rate * beat.step_s / beat.inside, 1e-3, 1.0)
    wait = (mean_s - calm) / met
    return Spread(calm, wait, 0.9 * wait, 1.0 - met, calm - 0.5 * decode, calm + 0.5 * decode)


def _floor(beat: Rhythm, steady: Array) -> tuple[Array, Array]:
    """The part of a mean TTFT that every request pays, and the rest: steps under way on arrival, company, holding."""
    floor = np.maximum(steady - beat.decode_s - (beat.step_s - beat.decode_s) * 0.5, 0.5 * steady)
    return floor, steady - floor


def _spread(beat: Rhythm, rest: Array) -> Array:
    """Standard deviation of the rest: a uniform residual of a step, and what company adds."""
    return np.sqrt((beat.step_s**2) / 12.0 + np.maximum(rest - beat.decode_s, 0.0) ** 2)


def _end_to_end(site: Site, ttft: Spread, tpot: Spread) -> tuple[Spread, Spread, Spread]:
    """TTFT, TPOT, and the time to the last token: the first and the gaps after it, both spreads independent."""
    gaps = np.maximum(site.outputs.mean - 1.0, 0.0)
    decoding = gaps * tpot.mean
    sd = np.sqrt((decoding * site.outputs.cv) ** 2 + (gaps * tpot.sd_s) ** 2 + ttft.sd_s**2)
    return ttft, tpot, Spread(0.5 * decoding, ttft.mean + 0.5 * decoding, sd)
