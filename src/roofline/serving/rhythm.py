"""When prompts meet: the burst with which a run starts, and the rhythm of a loop after it.

D is a step without prompts, S(k) one with k of them, f the tokeniser's seconds a request, L0 the front end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from roofline.arrays import Array
from roofline.serving.crowds import CALM
from roofline.serving.load import Load, Rules, alone_s, prompts_per_step, step_kinds, steps_to_first
from roofline.serving.queueing import queue_wait
from roofline.serving.steps import Steps, StepTable

CLOSED = 2  # rounds of the fixed point of a closed loop, which only the tokeniser needs


def ttft_burst(table: StepTable, load: Load, r: Rules, decode_s: Array) -> Array:
    """Mean TTFT of a whole batch of requests that arrive at once at an idle replica.

    Formula:  late = 1 - 1/b, q = max(b - 1, 1), n = ceil(q/min(g, q)), k1 = clip(S(1; 1/2)/f, 1, min(g, b))
              L0 + out D + max(f + S(1; 0) + late Q,  f (b + 1)/2 + 1.5 S(k1; 1/2))
              + late N D1 (polling) + late hold D1 (prompts held back)
                Q = mean over n - 1 full steps of g prompts and one of the rest; long prompts:
                    S(g; 1/2) (n + ceil(1/g))/2
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
    held = (b - 1.0) * load.new < r.hold_ratio * r.budget * load.ranks
    waiting = late * alone * (np.where(r.poll > 1, r.poll, 0.0) + np.where(held, r.hold, 0.0))
    return r.front_s + r.emit * decode_s + np.maximum(queued, np.where(f * b > first, paced, 0.0)) + waiting


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How prompts fall into steps once the burst is over, and how long steps then take."""

    steps: Steps
    decode_s: Array  # a step without prompts
    tpot_s: Array
    company: Array  # prompts that are let in together, as one of them meets it
    inside: Array  # in one step, on average over steps that carry any
    step_s: Array  # that step
    rate: Array  # arrivals per second while a generation is replaced
    busy: Array  # share of steps that carry a prompt; prompts first: that follow some
    first_s: Array  # from the step that sees a prompt to its first token
    alone_s: Array = np.nan  # open loop: the same of a prompt that meets no other
    more_s: Array = np.nan  # open loop: seconds that one more prompt adds to all steps
    clumps: Array = 1.0  # open loop: arrivals that come together


def wave_steps(batch: Array, per_step: Array) -> Array:
    """Steps in which the prompts of all seats are computed.

    Formula:  1 + (b - 1)/min(g, b - 1): the first prompt goes alone
    Args:     batch b [-], per_step g [-]
    Returns:  [steps]
    Source:   derivation
    """
    others = np.maximum(batch - 1.0, 0.0)
    return 1.0 + others / np.minimum(per_step, np.maximum(others, 1.0))


def steps_away(load: Load, r: Rules) -> Array:
    """Steps from one prompt of a seat to its next.

    Formula:  O + late [+ 1 mixed]
    Returns:  [steps] without those of a prompt of mine that waits
    Source:   derivation
    """
    return load.osl + r.late + (1.0 if r.mixed else 0.0)


def apart(load: Load, r: Rules, waves: Array) -> Array:
    """Share of an answer's time over which the starts of all who run together are spread.

    Formula:  W/c of `window_steps`
    Args:     waves J [-]: requests of a run per seat, inf where nothing ever started together
    Returns:  [-] at most 1
    Source:   derivation
    """
    cycle = steps_away(load, r)
    wave = wave_steps(load.batch, prompts_per_step(load, r)) if r.mixed else 0.0
    return window_steps(load, cycle, wave, waves)[0] / cycle


def window_steps(load: Load, cycle: Array, wave: Array, waves: Array) -> tuple[Array, Array]:
    """Steps over which the ends of one wave of a closed loop are spread, and how far chance spreads them.

    Formula:  min(c, hypot(2/3 sqrt(J) (1 - r) Omax, e c, n)), at least `bell` of its first two
    Args:     cycle c [steps]: from one prompt of a seat to its next; wave n [steps]: of the prompts of all seats,
              prompts first: 0; waves J: requests of a run per seat, inf where nothing ever started together;
              e: evictions an answer
    Returns:  W [steps], and the share of W^2 that is not the even pace of the first wave [-]
    Assumes:  after j answers of uniform length the ends differ by a deviation sqrt(j) times that of one; 2/3 sqrt(J) is
              the mean of sqrt(j); the first wave is spread by its own prompt steps, unless decodes wait for them all;
              who is evicted falls out of step
    Source:   derivation
    """
    apart = 2.0 / 3.0 * np.sqrt(np.where(np.isfinite(waves), waves, 0.0)) * (1.0 - load.osl_ratio) * load.osl_longest
    spread = np.where(np.isfinite(waves), np.hypot(apart, load.evictions * cycle), cycle)
    whole = np.maximum(np.hypot(spread, wave), 1.0)
    return np.minimum(cycle, np.maximum(whole, bell(load.batch, spread))), (spread / whole) ** 2


def bell(ends: Array, spread: Array) -> Array:
    """Steps with an end in more than half of all cases, where so many are spread as a normal variable.

    Formula:  2 s sqrt(2 ln(x/ln 2)), x = n/(sqrt(2 pi) s) in the middle, s = spread/sqrt(12); 0 where x is below ln 2
    Args:     ends n [-]; spread [steps] of a uniform variable of the same deviation
    Returns:  [steps]
    Source:   derivation: exp(-x) of steps have none
    """
    s = np.maximum(spread, 1e-9) / np.sqrt(12.0)
    middle = ends / (np.sqrt(2.0 * np.pi) * s) / np.log(2.0)
    return 2.0 * s * np.sqrt(2.0 * np.log(np.maximum(middle, 1.0)))


def lockstep(load: Load, r: Rules, waves: Array) -> Array:
    """Whether requests that started together end together.

    Formula:  r = 1, J finite, prompts first: nobody decodes while others wait, so nobody gets ahead; e < 1/2: few are
              evicted
    Args:     waves J [-]
    Returns:  bool
    Source:   derivation
    """
    return (load.osl_ratio >= 1.0) & np.isfinite(waves) & (load.evictions < 0.5) & (not r.mixed)


def together(mean: Array) -> Array:
    """Mean number of a Poisson number of arrivals, where there are any.

    Formula:  x/(1 - exp(-x)), 1 at 0
    Args:     mean x [-]
    Returns:  [-]
    Source:   derivation
    """
    x = np.maximum(mean, 1e-9)
    return x / -np.expm1(-x)


def lone(mean: Array) -> Array:
    """Share of ones among Poisson numbers that are not zero.

    Formula:  x/(exp(x) - 1), 1 at 0
    Args:     mean x [-]
    Returns:  [-]
    Source:   derivation
    """
    x = np.maximum(mean, 1e-9)
    return x / np.expm1(np.minimum(x, 500.0))


def shared_step(steps: Steps, one_s: Array, ones: Array, prompts: Array, per_step: Array) -> tuple[Array, Array]:
    """Prompts in a step that carries any, and its seconds, where one comes alone and others come together.

    Formula:  j = u min(1, g) + (1 - u) min(m, g), u S(1) + (1 - u) S(m), m = (k - u)/(1 - u)
    Args:     one_s S(1) [s]; ones u [-]: share of steps with one prompt; prompts k [-]: mean number; per_step g [-]
    Returns:  j [-], [s]
    Source:   derivation: a mean over two kinds, as two prompts cost less than twice one, or, behind the launches of a
              step or the tokens that a graph holds, more
    """
    others = 1.0 - ones
    many = np.maximum((prompts - ones) / np.maximum(others, 1e-6), 1.0)
    inside = np.minimum(many, per_step)
    return (
        ones * np.minimum(1.0, per_step) + others * inside,
        ones * one_s + others * steps.with_prompts_s(inside),
    )


def closed_rhythm(table: StepTable, load: Load, r: Rules, waves: Array = np.inf) -> Rhythm:
    """How prompts fall into steps where whoever gets an answer asks again.

    Formula:  every step ends as many answers as it gives last tokens, however long it lasts: x = N (b - 1)/W prompts
              arrive between two looks at the queue (N = 1 but for polling); where sequences are evicted, p for each
                W = max(window_steps, b f/S): the tokeniser serves one at a time, while prompt steps run
                k = p x/(1 - exp(-x)) share a step where any do; holding: at least 1 + h (b - 1)/W; lockstep: b;
                    j of them in one step, S: `shared_step` with one alone in x/(exp(x) - 1) of the steps
                tp  = D + m (S - D)/j, m = min(g, (1 - 1/(2 J)) p ((b - k) + (k - j)/2)/a) prompts beside one of my
                      tokens; prompts first: S in place of S - D. Those of my own step do not delay me, of those
                      let in with me half come later; J waves: the last has no next one, whose prompts delay half of it
                a   = O + late [+ 1 mixed] steps without a prompt of mine that waits
                p   = share of steps that carry a prompt: 1 - c min(exp(-x), 1 - rho), rho = p (b - 1)/(W g), c: chance,
                      but not in the 1.5 first of the window; prompts first: of decodes that
                      follow one
                q   = wait for others to be let in: Sakasegawa's for rho, at most sqrt(c b/pi) prompts (a queue that b
                      seats just fill), and by what b/g is longer than a; prompts first: half of the company's steps
    Args:     waves J [-]: requests of a run per seat, inf where nothing ever started together
    Source:   derivation; docs/serving.md holds it against the event simulator
    """
    b, f = load.batch, r.request_s
    g = prompts_per_step(load, r)
    away, running = steps_away(load, r), load
    if r.mixed and np.any(b * load.prompts > g * away):  # who waits for room does not decode
        running = replace(load, batch=np.maximum(np.minimum(b, g * away / load.prompts), 1.0))
        g = prompts_per_step(running, r)
    cycle = np.maximum(away, b * load.prompts / g) if r.mixed else away
    steps = step_kinds(table, running, r)
    decode = steps.decode_s() if r.mixed else table.decode(b, load.context, load.padding)
    base = decode if r.mixed else 0.0
    fewest, most = np.minimum(g, 1.0), np.maximum(b, 1.0)
    one_s = each = steps.with_prompts_s(fewest)
    window, chance = window_steps(load, cycle, wave_steps(b, g) if r.mixed else 0.0, waves)
    locked = lockstep(load, r, waves)
    tp = decode
    for _ in range(CLOSED):
        arrivals = (b - 1.0) / np.maximum(window, b * f / each)  # per step
        seen = arrivals * np.maximum(r.poll, 1.0)
        k = np.maximum(together(seen), np.where(r.hold > 0, 1.0 + arrivals * r.hold, 1.0))
        ones = np.where(locked | (r.hold > 0) | (load.prompts > 1.0), 0.0, lone(seen))
        k = np.minimum(np.where(locked, b, k) * load.prompts, most)
        inside, each = shared_step(steps, one_s, ones, k, g)
        beside = load.prompts * (1.0 - 0.5 / waves) * (b - k + (k - inside) / 2.0) / away
        tp = decode + (np.minimum(beside, g) if r.mixed else beside) * (each - base) / inside
    rho = np.minimum(arrivals * load.prompts / g, 1.0)
    some = 1.0 - chance * np.minimum(np.exp(-seen), 1.0 - rho)
    busy = np.maximum(1.0 - 1.5 / window, 0.0) * some
    company = np.minimum(np.maximum(1.0 + seen, k), most)
    own = steps.with_prompts_s(np.minimum(company, g))
    alone = alone_s(steps, g) if np.any(g < 1.0) else own
    if r.mixed:
        queued = queue_wait(np.minimum(rho, CALM), 1.0 / fewest, np.maximum(g, 1.0), chance, 0.0)
        queued = np.minimum(queued, np.sqrt(chance * b / np.pi) / g) + cycle - away
    else:
        queued = np.maximum(company / g - 1.0 / fewest, 0.0) / 2.0
    first = np.where(g >= 1.0, own, alone) + own * queued
    return Rhythm(steps, decode, tp, company, inside, each, arrivals / tp, busy, first)


def clump(mean: Array, arrivals_cv2: Array) -> Array:
    """Arrivals that come within a time after one of them, that one among them, beyond those of any such time.

    Formula:  1/(1 - (1 + ca2/x)^(-1/ca2)) - x
    Args:     mean x [-]: arrivals in that time on average; arrivals_cv2 ca2 [-]
    Returns:  [-]; 1 for ca2 = 1, (1 + ca2)/2 for a long time
    Assumes:  gaps are gamma distributed; times exponentially about their mean
    Source:   renewal function of those gaps, by its Laplace transform
    """
    x = np.maximum(mean, 1e-9)
    return -1.0 / np.expm1(-np.log1p(arrivals_cv2 / x) / arrivals_cv2) - x


def open_company(
    steps: Steps, decode_s: Array, load: Load, r: Rules, rate: Array, arrivals_cv2: Array = 1.0
) -> tuple[Array, Array, Array]:
    """Prompts that share a step where `rate` arrive per second, those of them in one step, and how long that is.

    Formula:  k = lam S + n c x/(1 - exp(-x)), n = exp(-lam S/c), x = lam N D/c, lam = min(rate, 1/f), c: `clump` of
              lam S/2, S and j of `shared_step` with u = n (lam S + x/(exp(x) - 1))/c; holding: k at least 1 + lam h D;
              at most b
    Args:     steps, decode_s D [s]: beside this load; rate [1/s]; arrivals_cv2 [-]
    Returns:  k, j [-], S [s]
    Assumes:  a step takes who came in the one before: in S by chance lam S; if nobody did, the first to come while
              nothing but decoding happens, with who comes in the same step (N of them where the engine polls). Bursty
              arrivals come in clumps, which come by chance; the others of one come half a step later
    Source:   derivation: means of Poisson numbers
    """
    g, most = prompts_per_step(load, r), np.maximum(load.batch, 1.0)
    lam = np.minimum(rate, 1.0 / np.maximum(r.request_s, 1e-12))
    one_s = each = steps.with_prompts_s(np.minimum(1.0, g))
    size = clump(0.5 * lam * one_s, arrivals_cv2) if np.any(np.asarray(arrivals_cv2) != 1.0) else 1.0
    pace = lam / size
    idle = pace * np.maximum(r.poll, 1.0) * decode_s
    first, alone = size * together(idle), lone(idle)
    least = np.where(r.hold > 0, 1.0 + lam * r.hold * decode_s, 1.0) if np.any(r.hold > 0) else 1.0
    here = pace * one_s
    none = np.exp(-here)
    ones = none * (here + alone) / size
    k = np.clip(lam * one_s + none * first, least, most)
    _, each = shared_step(steps, one_s, ones, k, g)
    more = (each - one_s) / np.maximum(k - 1.0, 1e-9)  # with each prompt
    here, growth = pace * each, lam * more
    none = np.exp(-here)
    ones = none * (here + alone) / size
    k = np.where(growth < 1.0, (lam * one_s - growth + none * first) / np.maximum(1.0 - growth, 1e-9), most)
    k = np.clip(k, least, most)
    return k, *shared_step(steps, one_s, ones, k, g)


def open_rhythm(table: StepTable, load: Load, r: Rules, rate: Array, arrivals_cv2: Array = 1.0) -> Rhythm:
    """How prompts fall into steps where `rate` requests arrive per second, whoever is there.

    Formula:  k prompts share a step, j = min(k, g) of them in one (`open_company`)
                tp  = D + ((b + 1 - k) + (k - j)/2)/O (S(j) - D)/j;  prompts first: S(j) in place of S(j) - D
                q   = min(1, lam S(j)/j): share of the time in which steps carry prompts; of steps: q D/(S - q (S - D))
                k'  = c + lam ((1 - q) D + q S): a prompt and who comes in the same step, c: `clump`; at least k
    Args:     rate [1/s]; arrivals_cv2 [-]
    Source:   derivation
    """
    b = load.batch
    g = prompts_per_step(load, r)
    steps = step_kinds(table, load, r)
    decode = steps.decode_s() if r.mixed else table.decode(b, load.context, load.padding)
    base = decode if r.mixed else 0.0
    lam = np.minimum(rate, 1.0 / np.maximum(r.request_s, 1e-12))
    few = np.minimum(g, 1.0)
    one_s = steps.with_prompts_s(few)
    alone = alone_s(steps, g) if np.any(g < 1.0) else one_s
    k, inside, each = open_company(steps, decode, load, r, rate, arrivals_cv2)
    others = np.maximum(b + 1.0 - k, 0.0) + (k - inside) / 2.0
    tp = decode + others / load.osl * (each - base) / inside
    during = np.minimum(1.0, lam * each / inside)  # share of the time
    busy = during * decode / (each - during * (each - decode))
    came = lam * (decode + during * (each - decode))
    size = clump(came, arrivals_cv2) if np.any(np.asarray(arrivals_cv2) != 1.0) else 1.0
    met = np.maximum(size + came, k)
    own = steps.with_prompts_s(np.minimum(met, g))
    next_s = np.maximum(own - one_s, 0.0) / np.maximum(np.minimum(met, g) - few, 1e-9)
    alone_share = (1.0 - busy) / size
    more = (1.0 - alone_share) * next_s + alone_share * (one_s - base) / few
    return Rhythm(steps, decode, tp, met, inside, each, lam, busy, own * steps_to_first(met, g), alone, more, size)


def rest_of_step(after_s: Array, step_s: Array) -> Array:
    """Mean seconds to the next end of a step, `after_s` seconds after one, where steps of `step_s` follow each other.

    Formula:  s times the mean of ceil(y) - y for y spread evenly over 0.9 to 1.1 of a/s: 1 - a/s for short ones, 1/2
              for long ones; prompts differ by a tenth in the time that their text takes
    Args:     after_s a [s], step_s s [s]
    Returns:  [s]
    Source:   derivation
    """

    def area(y: Array) -> Array:  # under ceil(y) - y
        part = y - np.floor(y)
        return 0.5 * np.floor(y) + part - 0.5 * part**2

    y = np.maximum(after_s, 1e-9) / step_s
    return step_s * (area(1.1 * y) - area(0.9 * y)) / (0.2 * y)


def ttft_closed(r: Rules, beat: Rhythm, others: Array) -> Array:
    """Mean TTFT of a closed loop after the burst is over: a request follows the end of a step.

    Formula:  _ttft(w) with w = (1 - p) R(a, D) + p R(a, S) + late M, M = (1 - p) D + p S, R: rest_of_step,
              a = out D + L0 + f; prompts first: p D + (1 - p) M in place of M, since a decode follows every prompt;
              N D/2 + M/2 in place of R with polling; all of it where others are there: an idle engine starts at once
    Args:     others: probability that anybody else is there [-]
    Returns:  [s]
    Source:   derivation
    """
    decode, step = beat.decode_s, beat.step_s
    after = r.emit * decode + r.front_s + r.request_s
    rest = (1.0 - beat.busy) * rest_of_step(after, decode) + beat.busy * rest_of_step(after, step)
    mean = decode + beat.busy * (step - decode)
    rest = np.where(r.poll > 1, 0.5 * mean + r.poll * decode / 2.0, rest)
    late = r.late * (mean if r.mixed else beat.busy * decode + (1.0 - beat.busy) * mean)
    return _ttft(r, beat, others * (rest + late), others)


def seen_busy(beat: Rhythm) -> tuple[Array, Array]:
    """Shares of arrivals that come while a prompt step runs, and before one that knows nothing of them.

    Formula:  1 - (1 - q)/c, 1 - (1 - p)/c: who is not the first of a clump of c follows others
    Args:     beat: p share of steps with prompts, q = p S/((1 - p) D + p S) of the time
    Returns:  both [-]
    Source:   derivation
    """
    p, decode, step = beat.busy, beat.decode_s, beat.step_s
    during = p * step / (decode + p * (step - decode))
    return 1.0 - (1.0 - during) / beat.clumps, 1.0 - (1.0 - p) / beat.clumps


def ttft_open(r: Rules, beat: Rhythm) -> Array:
    """Mean TTFT of an open loop, queues apart: a request comes at any moment of a step.

    Formula:  _ttft(w) with w = ((1 - q) D + q S)/2 + late ((1 - p) D + p S), and N D/2 with polling; q, p: `seen_busy`
    Returns:  [s]
    Assumes:  who comes in a step is seen by the one after the next (late = 1), which knows nothing of it
    Source:   derivation
    """
    longer = beat.step_s - beat.decode_s
    during, after = seen_busy(beat)
    waits = 0.5 * (beat.decode_s + during * longer) + r.late * (beat.decode_s + after * longer)
    return _ttft(r, beat, waits + np.where(r.poll > 1, r.poll * beat.decode_s / 2.0, 0.0), 1.0)


def _ttft(r: Rules, beat: Rhythm, waits_s: Array, others: Array) -> Array:
    """L0 + f (1 + (k - 1)/4) + w + hold + T + out D, hold = D (h + lam D h^2/2)/(1 + lam D h) for h held steps."""
    decode, gap = beat.decode_s, beat.rate * beat.decode_s
    held = decode * (r.hold + gap * r.hold**2 / 2.0) / (1.0 + gap * r.hold)
    texts = r.request_s * (1.0 + (beat.company - 1.0) / 4.0)
    return r.front_s + texts + waits_s + others * held + beat.first_s + r.emit * decode
