"""Steady state of a replica: from the time of a step to TTFT, TPOT and throughput under a load, without a loop over
requests.

The letters: `batch` sequences decode per attention-data-parallel rank, each step may also carry prompts. Everything is
a few array evaluations over tabulated steps, so a point costs a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from roofline.arrays import Array
from roofline.deployment import Deployment
from roofline.errors import InputError, check_numbers
from roofline.serving.capacity import Room, prompts_again, room_of, time_evicted
from roofline.serving.lengths import Lengths, as_lengths, in_cycles
from roofline.serving.load import Load, Rules, prompt_s, prompts_per_step, rules, step_kinds
from roofline.serving.queueing import Latencies, Spread, end_to_end, full_share, queue_wait
from roofline.serving.rhythm import (
    CALM,
    Rhythm,
    apart,
    closed_rhythm,
    lockstep,
    open_rhythm,
    ttft_burst,
    ttft_closed,
    ttft_open,
)
from roofline.serving.steps import Steps, StepTable, step_table
from roofline.speculative.acceptance import cycles_spread, expected_cycles

SEARCHES, MORE = 3, 8  # rounds in search of the batch that a rate comes to: of all points, and of those not yet there
NEAR = 1e-4  # relative step at which a search has arrived
RARELY = 1e-12  # requests per second in place of none
CROWDED = 0.9  # rise of TPOT with company above which crowds are not extrapolated
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
    r = rules(deployment.engine.scheduler, prompts.mean, deployment.plan.dp, knobs)
    room = room_of(deployment, prompts, outputs, cached, prefixes, max_seqs)
    feasible = np.minimum(room.fits, room.most) >= 1.0
    site = Site(step_table(deployment), r, prompts, outputs, np.asarray(cached, float), room)
    s = deployment.speculation
    if s is not None:
        r = replace(r, verified=site.table.verified)
        site = replace(site, rules=r, outputs=in_cycles(outputs, s.shares), grown=s.tokens)
    if concurrency is not None:
        state = _closed(site, np.asarray(concurrency, float), burst_share, deployment.plan.dp, feasible)
    else:
        site = replace(site, padding=(site.table.graph_batch - 1.0) / 2.0)
        state = _open(site, np.asarray(rate_per_s, float), arrivals_cv2, deployment.plan.dp, feasible)
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
    room: Room
    padding: float = 0.0  # a batch that comes and goes is, on average, padded by half the distance of two graphs
    grown: float = 1.0  # tokens that a step brings a sequence; outputs count steps

    @property
    def cap(self) -> Array:
        """Sequences that can run together."""
        return self.room.seats

    def load(self, batch: Array, prompts: Array = 1.0) -> Load:
        """What `batch` such requests ask of it, `prompts` of them computed for each answer."""
        new, o = np.maximum(self.prompts.mean - self.cached, 1.0), self.outputs
        cv2 = np.square(o.cv)
        return Load(new, self.cached, o.mean, o.ratio_min, o.longest, batch, self.padding, self.grown, cv2, prompts)


def _closed(site: Site, concurrency: Array, burst_share: Array, dp: int, feasible: Array) -> SteadyState:
    wanted = np.maximum(concurrency / dp, 1.0)
    room, most = site.room, np.minimum(wanted, site.cap)
    waves, spread = np.inf, 1.0
    if started := bool(np.any(np.asarray(burst_share) > 0)):
        waves = np.where(np.asarray(burst_share) > 0, wanted / most / np.maximum(burst_share, 1e-12), np.inf)
        spread = apart(site.load(most), site.rules, waves)
    batch, short = room.running(wanted, spread)
    waiting, gone = np.maximum(wanted / batch - 1.0, 0.0), time_evicted(room, batch, site.outputs)
    few = waiting / np.maximum(gone, 1e-9)
    gone, again = gone * np.tanh(few / 2.0), np.minimum(short, np.tanh(few)) * prompts_again(room, batch, site.outputs)
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


def _open(site: Site, rate: Array, arrivals_cv2: Array, dp: int, feasible: Array) -> SteadyState:
    lam, osl = rate / dp, site.outputs.mean
    kinds = step_kinds(site.table, site.load(1.0), site.rules)
    full_s = tpot_open(site, kinds, site.cap)
    fastest = site.cap / (osl * full_s)
    inside, utilisation = np.minimum(np.maximum(lam, RARELY), fastest), lam / fastest
    wanted = batch_at(site, kinds, inside, full_s)
    level = np.maximum(wanted, 1.0)
    here = wanted / (osl * inside)  # Little's law
    slope = np.maximum(tpot_open(site, kinds, level * 1.1) - here, 0.0) / (0.1 * level)
    free, rho = np.maximum(site.cap - level, 0.0), np.minimum(utilisation, CALM)
    more, sd = _company(wanted, np.minimum(slope * wanted / here, CROWDED), free, arrivals_cv2)
    more = np.clip(osl * inside * full_s - level, 0.0, more)  # tokens come no slower than from full seats
    load = site.load(np.minimum(level + more, site.cap))
    beat = open_rhythm(site.table, load, site.rules, inside)
    steady = ttft_open(site.rules, beat)
    extra_s = (beat.step_s - (beat.decode_s if site.rules.mixed else 0.0)) / beat.inside  # of one prompt
    # crowds of Poisson arrivals are in the rhythm of mixed steps; where prompts stop decodes they queue by themselves
    queue_cv2 = np.maximum(arrivals_cv2 - 1.0, 0.0) if site.rules.mixed else arrivals_cv2
    crowd = queue_wait(np.minimum(inside * extra_s, CALM), beat.step_s, 1.0, queue_cv2)
    full = np.where(utilisation < 1.0, full_share(free, rho, np.maximum(arrivals_cv2, 0.1)), 1.0)
    seat_s = (arrivals_cv2 + site.outputs.cv**2) / 2.0 / (fastest * (1.0 - rho))  # for a seat, where all are taken
    texts = queue_wait(np.minimum(inside * site.rules.request_s, CALM), site.rules.request_s, 1.0, arrivals_cv2)
    ttft = replace(_met(site, beat, steady + crowd + texts, inside, slope * sd), late_share=full, late_s=seat_s)
    # as many prompts as there are companions come while a request stays, and more come where there are more companions
    prompts_s = np.sqrt(np.maximum(arrivals_cv2, 0.1) * wanted) * extra_s / osl
    tpot = Spread(0.0, here * (1.0 + more / wanted), np.hypot(slope * sd, prompts_s))
    e2e = end_to_end(ttft, tpot, osl, site.outputs.cv)
    return SteadyState(
        ttft,
        tpot,
        e2e,
        batch=load.batch * dp,
        concurrency=np.minimum(rate, fastest * dp) * e2e.mean,
        requests_per_s=np.minimum(rate, fastest * dp),
        utilisation=utilisation,
        osl=osl,
        kv_occupancy=load.batch / site.cap,
        feasible=feasible,
        seat_s=full * seat_s,
    )


def _company(level: Array, drag: Array, free: Array, arrivals_cv2: Array) -> tuple[Array, Array]:
    """How many more run on average than where Little's law is met, and by how much the company of a stay varies.

    Formula:  more = ca2 e/(1 - e) min(b, 1), at most free;  s^2 = ca2 b/(1 - e), at most free^2
              sd = s sqrt(2 (x - 1 + exp(-x)))/x,  x = 1 - e
    Args:     level b [-]: sequences where Little's law is met; drag e [-]: rise of TPOT with one more, times b/TPOT;
              free [-]: seats beyond b; arrivals_cv2 ca2 [-]
    Returns:  both [-]
    Assumes:  one more is as likely as one less times the rate over the pace of so many, see `full_share`. With a TPOT
              linear in company that is a negative binomial distribution: crowds slow themselves down, last and grow.
              What a stay sees is the mean over it of a fluctuation that lasts a stay/(1 - e)
    Source:   derivation: mean and variance of that distribution; mean of an Ornstein-Uhlenbeck process over a time
    """
    spread, x = np.maximum(arrivals_cv2, 0.1), 1.0 - drag
    variance = np.minimum(spread * level / x, free**2)
    more = np.minimum(spread * drag / x * np.minimum(level, 1.0), free)
    return more, np.sqrt(variance * 2.0 * (x - 1.0 + np.exp(-x))) / x


def tpot_open(site: Site, steps: Steps, batch: Array) -> Array:
    """Mean seconds per output token where `batch` sequences run and others arrive at the rate at which they end.

    Formula:  k = max(1, b/(O tp1) S(1)), tp1 = D + b/O (S(1) - D): D + b/O (S(k) - D)/k; prompts first: S(k)/k alone
    Args:     steps: of this site beside any batch
    Returns:  [s]
    Source:   derivation, as `open_rhythm` in one round
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


def batch_at(site: Site, steps: Steps, rate: Array, full_s: Array) -> Array:
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

    rules, *rows = each(site.rules), each(site.prompts), each(site.outputs)
    return Site(site.table, rules, *rows, chosen(site.cached), each(site.room), site.padding, site.grown)


def _met(site: Site, beat: Rhythm, mean_s: Array, rate: Array, step_sd_s: Array) -> Spread:
    """TTFT of an open loop from its mean: who arrives beside no other prompt waits for a step, the others for crowds.

    Formula:  calm, with probability 1 - p, p = min(rate S, 1): C = L0 + f + (late + U) D + S(1) + out D, U uniform 0..1
              and wider by what the length of all these steps varies
              crowded: C + a gamma wait that brings the mean to the given one, its deviation 0.9 of its mean
    Assumes:  0.9 from the event simulator
    Source:   derivation
    """
    r, decode = site.rules, beat.decode_s
    least = r.front_s + r.request_s + (r.late + r.emit) * decode + beat.alone_s
    calm = np.minimum(least + 0.5 * decode, mean_s)
    met = np.clip(rate * beat.step_s / beat.inside, 1e-3, 1.0)
    wait = (mean_s - calm) / met
    half = np.minimum(np.hypot(0.5 * decode, np.sqrt(3.0) * step_sd_s * calm / beat.decode_s), calm)
    return Spread(calm, wait, 0.9 * wait, 1.0 - met, calm - half, calm + half)


def _floor(beat: Rhythm, steady: Array) -> tuple[Array, Array]:
    """The part of a mean TTFT that every request pays, and the rest: steps under way on arrival, company, holding."""
    floor = np.maximum(steady - beat.decode_s - (beat.step_s - beat.decode_s) * 0.5, 0.5 * steady)
    return floor, steady - floor


def _spread(beat: Rhythm, rest: Array) -> Array:
    """Standard deviation of the rest: a uniform residual of a step, and what company adds."""
    return np.sqrt((beat.step_s**2) / 12.0 + np.maximum(rest - beat.decode_s, 0.0) ** 2)
