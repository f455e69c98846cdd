"""Steady state of a replica: from the time of a step to TTFT, TPOT and throughput under a load, without a loop over
requests.

The letters: `batch` sequences decode per attention-data-parallel rank, each step may also carry prompts. Everything is
a few array evaluations over tabulated steps, so a point costs a microsecond.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from roofline.arrays import Array
from roofline.deployment import Deployment
from roofline.errors import InputError, check_numbers
from roofline.serving.capacity import prompts_again, room_of, time_evicted
from roofline.serving.crowds import CALM, CROWDED, crowd
from roofline.serving.lengths import Lengths, as_lengths, in_cycles
from roofline.serving.little import batch_at, tpot_full
from roofline.serving.load import prompt_s, prompts_per_step, rules, step_kinds
from roofline.serving.queueing import Latencies, Spread, end_to_end, queue_wait
from roofline.serving.rhythm import (
    Rhythm,
    apart,
    closed_rhythm,
    lockstep,
    open_rhythm,
    seen_busy,
    ttft_burst,
    ttft_closed,
    ttft_open,
)
from roofline.serving.site import Site
from roofline.serving.steps import step_table
from roofline.speculative.acceptance import cycles_spread, expected_cycles

RARELY = 1e-12  # requests per second in place of none
TPOT_CV = 0.05  # spread of TPOT from request to request in a crowded closed loop


@dataclass(frozen=True)
class SteadyState(Latencies):
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
    kv_occupancy: Array  # sequences running over those that can, on average
    feasible: Array  # False where not even one sequence fits
    seat_s: Array  # of the mean TTFT: the wait for a seat where all are taken
    requests_per_s: Array  # answered, by Little's law

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
    table = step_table(deployment).of_all
    dp = deployment.plan.dp / table.ranks  # ranks, or groups of them, that know nothing of each other
    r = rules(deployment.engine.scheduler, prompts.mean, dp, knobs)
    room = room_of(deployment, prompts, outputs, cached, prefixes, max_seqs)
    feasible = np.minimum(room.fits, room.most) >= 1.0
    site = Site(table, r, prompts, outputs, np.asarray(cached, float), room)
    s = deployment.speculation
    if s is not None:
        r = replace(r, verified=site.table.verified)
        site = replace(site, rules=r, outputs=in_cycles(outputs, s.shares), grown=s.tokens)
    if concurrency is not None:
        state = _closed(site, np.asarray(concurrency, float), burst_share, dp, feasible)
    else:
        site = replace(site, padding=(site.table.graph_batch - 1.0) / 2.0)
        state = _open(site, np.asarray(rate_per_s, float), arrivals_cv2, dp, feasible)
    return state if s is None else _per_token(state, outputs, s.shares)


def _per_token(state: SteadyState, outputs: Lengths, shares: Array) -> SteadyState:
    """A state whose TPOT is that of cycles, in tokens; requests of one length need more or fewer cycles."""
    later, tpot = np.maximum(np.asarray(outputs.mean, float) - 1.0, 1.0), state.tpot
    cycles = expected_cycles(later, shares)
    per, sd = cycles / later, np.hypot(tpot.sd_s, tpot.mean * cycles_spread(later, shares) / cycles)
    return replace(state, tpot=Spread(tpot.floor_s * per, tpot.mean_s * per, sd * per), osl=outputs.mean)


def _closed(site: Site, concurrency: Array, burst_share: Array, dp: float, feasible: Array) -> SteadyState:
    wanted = np.maximum(concurrency / dp, 1.0)
    room, most = site.room, np.minimum(wanted, site.cap)
    waves, spread = np.inf, 1.0
    if started := bool(np.any(np.asarray(burst_share) > 0)):
        waves = np.where(np.asarray(burst_share) > 0, wanted / most / np.maximum(burst_share, 1e-12), np.inf)
        spread = apart(site.load(most), site.rules, waves)
    each, short = room.running(wanted / site.ranks, spread)
    batch, gone = each * site.ranks, time_evicted(room, each, site.outputs)
    waiting = np.maximum(wanted / batch - 1.0, 0.0)
    few = waiting / np.maximum(gone, 1e-9)
    gone, again = gone * np.tanh(few / 2.0), np.minimum(short, np.tanh(few)) * prompts_again(room, each, site.outputs)
    load = site.load(batch, 1.0 + again)
    beat = closed_rhythm(site.table, load, site.rules, waves)
    steady = ttft_closed(site.rules, beat, np.minimum(load.batch - 1.0, 1.0))
    burst = steady
    if started:
        again = ttft_burst(site.table, load, site.rules, beat.decode_s)
        burst, steady = again + site.rules.cold_s, np.where(lockstep(load, site.rules, waves), again, steady)
    floor, rest = _floor(beat, steady)
    earliest = np.minimum(floor, burst)
    sd = _spread(beat, rest)
    gaps_s = np.maximum(site.outputs.mean - 1.0, 0.0) * beat.tpot_s
    rest = rest + np.maximum(load.prompts * batch * prompt_s(site.table, load, site.rules) - (steady + gaps_s), 0.0)
    # a seat is held from the prompt to the last token; who is evicted waits for one after the first
    seats = waiting * (floor + rest + gaps_s) - gone * gaps_s
    sd, tpot_s = np.hypot(sd, seats * site.outputs.cv), beat.tpot_s * (1.0 + gone)
    # of those that start together the first have seats, and the last wait as long as all do later
    sooner = seats * waiting / (1.0 + waiting)
    ttft = Spread(floor, rest + seats, sd, burst_share, earliest, 2.0 * burst - earliest + sooner)
    tpot = Spread(0.0, tpot_s, TPOT_CV * tpot_s * np.minimum(1.0, np.log1p(load.batch) / 4.0))
    e2e = end_to_end(ttft, tpot, site.outputs.mean, site.outputs.cv)
    return SteadyState(
        ttft,
        tpot,
        e2e,
        batch=batch * dp,
        concurrency=concurrency,
        utilisation=most / site.cap,
        osl=site.outputs.mean,
        kv_occupancy=batch / site.cap,
        feasible=feasible,
        seat_s=seats,
        requests_per_s=concurrency / (e2e.mean + burst_share * (seats - 0.5 * sooner)),  # once as many wait as later
    )


def _open(site: Site, rate: Array, arrivals_cv2: Array, dp: float, feasible: Array) -> SteadyState:
    lam, osl, room, bursts = rate / dp, site.outputs.mean, site.room, np.maximum(arrivals_cv2, 0.1)
    kinds = step_kinds(site.table, site.load(1.0), site.rules)
    again = np.where(room.held < room.most, prompts_again(room, room.seats, site.outputs), 0.0)
    calm_s, full_s = tpot_full(site, kinds, site.cap), tpot_full(site, kinds, site.cap, 1.0 + again)
    fastest = site.cap / (osl * full_s)
    inside, utilisation = np.minimum(np.maximum(lam, RARELY), fastest), lam / fastest
    wanted = batch_at(site, kinds, inside, calm_s, bursts)
    load = site.load(np.maximum(wanted, 1.0))
    level, here = load.batch, wanted / (osl * inside)  # Little's law
    decode, slower, last = (site.table.decode(b, load.context, site.padding) for b in (level, 1.1 * level, site.cap))
    drag = np.clip(10.0 * (slower / decode - 1.0), 0.0, CROWDED)
    beat = open_rhythm(site.table, load, site.rules, inside, bursts)
    prompts, edge = np.clip(inside * beat.more_s, 0.0, CROWDED), level / site.cap * last / decode
    many = crowd(wanted, site.cap, drag, prompts, beat.company, bursts, edge, utilisation)
    # who finds all seats taken waits for those before, as long as the rate is below that of full seats
    seat_s = (arrivals_cv2 + site.outputs.cv**2) / 2.0 / (fastest * (1.0 - np.minimum(utilisation, CALM)))
    texts = queue_wait(np.minimum(inside * site.rules.request_s, CALM), site.rules.request_s, 1.0, arrivals_cv2)
    first = _met(site, beat, ttft_open(site.rules, beat) + texts, inside, drag * decode / level * many.stay)
    ttft = replace(first, late_share=many.full, late_s=seat_s)
    calm_s = np.minimum(here * (1.0 + many.more / wanted), np.maximum(calm_s, here))
    gone = np.where(again > 0, time_evicted(room, room.seats, site.outputs), 0.0)
    longer = np.maximum(many.full - many.beyond, 0.0) / (1.0 - many.beyond)  # full seats that are not in the mean yet
    # mixed steps bring every sequence a token, and none is longer than one whose token budget is full
    longest_s = kinds.at(level).with_prompts_s(prompts_per_step(load, site.rules)) if site.rules.mixed else np.inf
    tpot_s = np.minimum(calm_s + longer * (full_s * (1.0 + gone) - calm_s), longest_s * (1.0 + longer * gone))
    # as many prompts as there are companions come while a request stays, and more come where there are more companions
    prompts_s = np.sqrt(bursts * wanted) / (1.0 - prompts) * beat.more_s / osl
    sd = np.minimum(np.hypot(drag * here / level * many.stay, prompts_s), tpot_s)  # at most that of chance (gamma's 1)
    if site.rules.mixed:  # of all spreads between a decode and the longest step, the widest (Bhatia and Davis 2000)
        sd = np.minimum(sd, np.sqrt(np.maximum((tpot_s - decode) * (longest_s * (1.0 + longer * gone) - tpot_s), 0.0)))
    tpot = Spread(0.0, tpot_s, sd)
    e2e = end_to_end(ttft, tpot, osl, site.outputs.cv)
    batch = np.minimum(np.maximum(osl * inside * tpot_s, 1.0), site.cap)
    return SteadyState(
        ttft,
        tpot,
        e2e,
        batch=batch * dp,
        concurrency=np.minimum(rate, fastest * dp) * e2e.mean,
        requests_per_s=np.minimum(rate, fastest * dp),
        utilisation=utilisation,
        osl=osl,
        kv_occupancy=batch / site.cap,
        feasible=feasible,
        seat_s=many.full * seat_s,
    )


def _met(site: Site, beat: Rhythm, mean_s: Array, rate: Array, step_sd_s: Array) -> Spread:
    """TTFT of an open loop from its mean: who arrives beside no other prompt waits for a step, the others for crowds.

    Formula:  calm, with probability (1 - q)(1 - late p): C = L0 + f + (late + U) D + S(1) + out D, U uniform 0..1 and
              wider by what the length of all these steps varies
              crowded: C + a gamma wait that brings the mean to the given one, of the variation that the three ways to
              meet others have: a prompt step on arrival (U S, and lam S prompts beside mine), one after it, both
    Source:   derivation
    """
    r, decode, step = site.rules, beat.decode_s, beat.step_s
    least = r.front_s + r.request_s + (r.late + r.emit) * decode + beat.alone_s
    calm = np.minimum(least + 0.5 * decode, mean_s)
    during, after = seen_busy(beat)
    after = np.minimum(r.late, 1.0) * after
    met = np.clip(1.0 - (1.0 - during) * (1.0 - after), 1e-3, 1.0)
    each, came = (step - decode) / beat.inside, rate * step
    ways = (
        ((1.0 - during) * after, step - decode, decode**2 / 12.0),
        (during * (1.0 - after), 0.5 * (step - decode) + came * each, step**2 / 12.0 + came * each**2),
        (during * after, 1.5 * (step - decode) + came * each, step**2 / 12.0 + came * each**2),
    )
    total = np.maximum(sum(w for w, _, _ in ways), 1e-12)
    mean = np.maximum(sum(w * x for w, x, _ in ways) / total, 1e-12)
    sd = np.sqrt(np.maximum(sum(w * (v + x * x) for w, x, v in ways) / total - mean**2, 0.0))
    wait = (mean_s - calm) / met
    half = np.minimum(np.hypot(0.5 * decode, np.sqrt(3.0) * (r.late + 1.5) * step_sd_s), calm)
    return Spread(calm, wait, wait * np.clip(sd / mean, 0.1, 2.0), 1.0 - met, calm - half, calm + half)


def _floor(beat: Rhythm, steady: Array) -> tuple[Array, Array]:
    """The part of a mean TTFT that every request pays, and the rest: steps under way on arrival, company, holding."""
    floor = np.maximum(steady - beat.decode_s - (beat.step_s - beat.decode_s) * 0.5, 0.5 * steady)
    return floor, steady - floor


def _spread(beat: Rhythm, rest: Array) -> Array:
    """Standard deviation of the rest: a uniform residual of a step, and what company adds."""
    return np.sqrt((beat.step_s**2) / 12.0 + np.maximum(rest - beat.decode_s, 0.0) ** 2)
