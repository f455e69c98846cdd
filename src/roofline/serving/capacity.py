"""How many sequences the KV pool of a deployment holds at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from roofline.arrays import Array
from roofline.deployment import Deployment
from roofline.memory.footprint import limits
from roofline.serving.lengths import Lengths, of_mean

LENGTHS = np.concatenate(([1.0], 2.0 ** np.arange(6, 22.01, 0.5)))


def held_tokens(isl: Array, osl: Array | Lengths, reserved: bool = False) -> Array:
    """Cached tokens of a running sequence, on average.

    Formula:  I + O (1 + cv^2)/2; I + O (1 + cv^2) where room for the whole answer is taken on admission
    Source:   derivation: a long answer is met more often than a short one, and on average half of it is there
    """
    outputs = osl if isinstance(osl, Lengths) else of_mean(osl)
    biased = np.asarray(outputs.mean, float) * (1.0 + np.square(outputs.cv))
    return isl + (1.0 if reserved else 0.5) * biased


@dataclass(frozen=True, slots=True)
class Room:
    """What a rank has for the KV of running sequences, and how they fill it."""

    fits: Array  # running sequences, of the mean length of those
    most: Array  # sequences that the engine lets run together
    growth: Array = 0.0  # room of a sequence at its end over that at its start, less 1; 0 where all is taken at once
    spread: Array = 0.0  # standard deviation of what a running sequence holds, over its mean

    @property
    def held(self) -> Array:
        """Sequences that run on average where some always wait, as far as the pool is concerned.

        Formula:  fits - 1/(2 + a): half of what the next one needs to start is left over on average
        Source:   derivation
        """
        return self.fits - 1.0 / (2.0 + self.growth)

    @property
    def seats(self) -> Array:
        """Sequences that can run together, at least one."""
        return np.maximum(np.minimum(self.held, self.most), 1.0)

    def running(self, wanted: Array, apart: Array = 1.0) -> tuple[Array, Array]:
        """Of `wanted` requests those that run on average, and the share of the time in which not all can.

        Formula:  n = min(C, most), x = n - held, b = n - (f(x + h)^2 - f(x - h)^2)/(4 h), share d(n - b)/dn,
                  f(y) = s ln(1 + e^(y/s)), s = 1.15 spread sqrt(n)
                  h = n a (1 - apart)/(2 + a), a: growth
        Args:     wanted C [-]; apart [-]: share of an answer's time over which the starts of all are spread; 1: evenly,
                  0: all start together, and all are long at the same time
        Returns:  both [-]
        Assumes:  what n sequences hold lies evenly within h of its mean, as they grow together, and by chance nearly
                  normally about that; h = 0: (n - b) at held as for a normal one
        Source:   mean and share of the excess over what there is; a sawtooth averaged over `apart` of its period
        """
        n = np.minimum(wanted, self.most)
        x, s = n - self.held, np.maximum(1.15 * self.spread * np.sqrt(n), 1e-9)
        h = np.maximum(n * self.growth * (1.0 - apart) / (2.0 + self.growth), 1e-3 * s)
        h = np.maximum(h, 1e-6 * n)  # a smaller difference drowns in rounding where nothing varies
        high, low = (s * np.logaddexp(0.0, y / s) for y in (x + h, x - h))
        share = [y * (0.5 + 0.5 * np.tanh(0.5 * z / s)) for y, z in ((high, x + h), (low, x - h))]
        ran = n - (high - low) * (high + low) / (4.0 * h)
        return np.clip(ran, 1.0, n), np.clip((share[0] - share[1]) / (2.0 * h), 0.0, 1.0)


def prompts_again(room: Room, batch: Array, outputs: Lengths) -> Array:
    """Prompts that are computed again for each answer, because sequences were evicted, where some always wait.

    Formula:  a E[max(1 - N (1 + 1/a)/v, 0)], N Poisson with mean v = b/O; a exp(-v) while b < I + O
    Args:     room: growth a [-]; batch b [-]; outputs: mean O [steps]
    Returns:  [prompts], counted by the room that a prompt takes
    Assumes:  while a step ends no answer the batch grows by b tokens, which those who were let in last have to give
              back: an answer's length, O = a prompts, between two ends. N answers that end in a step leave room for
              N (1 + a) prompts, against the b/I that the step takes; of N the terms up to 3 are summed
    Error:    against a loop over single steps, a from 0.1 to 40, b/O up to 0.4: 7 %
    Source:   derivation: room is conserved; who was let in last, or has made least, gives way (vLLM, SGLang)
    """
    ends, a = batch / outputs.mean, np.maximum(room.growth, 1e-12)
    left = sum(
        ends**n / math.factorial(n) * np.maximum(1.0 - n * (1.0 + 1.0 / a) / ends, 0.0) for n in range(4)
    )  # fmt: skip
    return room.growth * np.exp(-ends) * left


def time_evicted(room: Room, batch: Array, outputs: Lengths) -> Array:
    """Time for which a sequence is evicted over that of its decoding, where some always wait.

    Formula:  d = min(max(g, 0)/4 + 1/(b/N1 + sqrt(b)/N2), most/fits - 1)
              by waves:  g = ln((a^2 + (1 + a)^2 t^2)/(a^2 + t^2))/2 + ln(sin(pi w)/(pi w)), t = 2 pi
              by chance: N1 = (a + a^2 (1 + c^2)/2) exp(-b/O), N2 = a sqrt((1 + c^2)(1 + 5 c^2)/12)
    Args:     batch b [-]; outputs: mean O, c = cv, width of their range over the mean w, at most 1
    Returns:  [-]
    Assumes:  a: growth of the room. An end leaves room for 1 + a prompts, which end together one answer later: a wave
              grows by exp(g) each time unless lengths spread it again; it stops growing when that share of the
              sequences is put off by up to half an answer, a quarter on average.
              By chance the number let in so far runs ahead of those that have room by N1 (ends at random against even
              growth), and by no more than what all hold varies, sqrt(b) N2
    Error:    against a loop over single steps, 40 to 500 sequences, a from 0.1 to 16: 0.03 to 0.1; answers of exactly
              one length up to 0.4 low
    Source:   derivation: roots near 2 pi i of (1 - f(z))(1 + z I) = -z f'(z), f the transform of the lengths: room is
              conserved while all run on; highest point so far of a random walk with that drift
    """
    a, c2, turn = room.growth, np.square(outputs.cv), 4.0 * np.pi**2
    width = np.minimum((1.0 - outputs.ratio_min) * outputs.longest / outputs.mean, 1.0)
    grows = np.log((a**2 + (1.0 + a) ** 2 * turn) / (a**2 + turn)) / 2.0 + np.log(np.maximum(np.sinc(width), 1e-9))
    ahead = a * (1.0 + a * (1.0 + c2) / 2.0) * np.exp(-batch / outputs.mean)
    varies = a * np.sqrt((1.0 + c2) * (1.0 + 5.0 * c2) / 12.0)
    chance = 1.0 / (batch / np.maximum(ahead, 1e-12) + np.sqrt(batch) / np.maximum(varies, 1e-12))
    seats_left = np.maximum(room.most / np.maximum(room.fits, 1.0) - 1.0, 0.0)
    return np.minimum(np.maximum(grows, 0.0) / 4.0 + chance, seats_left)


def room_of(
    deployment: Deployment,
    prompts: Lengths,
    outputs: Lengths,
    cached: Array = 0.0,
    prefixes: Array = 0.0,
    most: Array | None = None,
) -> Room:
    """The room of one attention-data-parallel rank for sequences of these lengths.

    Formula:  fits at I + O (1 + c^2)/2 (`held_tokens`); growth a = s(I + O)/s(I) - 1, s: share of the pool;
              spread hypot(cv of prompts, a sqrt((1 + c^2)(1 + 5 c^2)/12))/(1 + a (1 + c^2)/2);
              where room for whole answers is taken: fits at I + O (1 + c^2), growth 0, spread of that
    Args:     prompts, outputs [tokens]; cached, prefixes, most: as `kv_sequences` has them
    Returns:  Room
    Source:   derivation: moments of what is there of an answer under way, lengths gamma distributed
    """
    limit = most_seqs(deployment) if most is None else most
    reserved = deployment.engine.scheduler.reserve_output
    isl, osl, c2 = np.asarray(prompts.mean, float), np.asarray(outputs.mean, float), np.square(outputs.cv)
    fits = kv_sequences(deployment, held_tokens(isl, outputs, reserved), cached, prefixes, np.inf)
    if reserved:
        spread = np.hypot(prompts.cv * isl, outputs.cv * np.sqrt(1.0 + c2) * osl) / (isl + (1.0 + c2) * osl)
        return Room(fits, limit, 0.0, spread)
    first, last = (kv_sequences(deployment, x, cached, prefixes, np.inf) for x in (isl, isl + osl))
    growth = np.where(last > 0, first / np.maximum(last, 1e-12) - 1.0, 0.0)
    varied = np.hypot(prompts.cv, growth * np.sqrt((1.0 + c2) * (1.0 + 5.0 * c2) / 12.0))
    mean = 1.0 + growth * (1.0 + c2) / 2.0
    return Room(fits, limit, growth, varied / mean)


def most_seqs(deployment: Deployment) -> float:
    """Sequences that the engine lets run together on a rank [sequences].

    Formula:  max_num_seqs; mixed steps with chunks: min(max_num_seqs, floor(token budget / tokens a sequence verifies))
    Source:   scheduler rules of vLLM: running sequences take their tokens out of the budget first
    """
    engine, s = deployment.engine, deployment.speculation
    most = float(limits(engine.memory, deployment.accelerator.usable_bytes)[0])
    if s is None or engine.scheduler.policy != "mixed" or not engine.scheduler.chunked_prefill:
        return most
    return min(most, float(engine.scheduler.token_budget // s.verified))


def kv_sequences(
    deployment: Deployment, tokens: Array, shared: Array = 0.0, prefixes: Array = 0.0, most: Array | None = None
) -> Array:
    """Sequences that fit on one attention-data-parallel rank, at most the engine's own limit.

    Formula:  min((1 - p s(shared)) / (s(tokens) - s(shared)), max_num_seqs), s(n): share of the pool that n tokens take
    Args:     tokens [tokens] cached by a sequence; the first `shared` of them are one of `prefixes` p different ones,
              each held once; most [sequences]: None takes the engine's limit
    Returns:  [sequences], 0 where not even one fits
    Assumes:  bytes of a sequence are linear in length between the points of a table (exact but for block rounding)
    Source:   `roofline.memory`
    """
    kept = vars(deployment)
    if "_kv_sequences" not in kept:
        held = np.maximum(np.asarray(deployment.footprint(LENGTHS).max_concurrency, float), 1e-9)
        kept["_kv_sequences"] = 1.0 / held, most_seqs(deployment)
    share, limit = kept["_kv_sequences"]

    def taken(n: Array) -> Array:
        x = np.asarray(n, float)
        return np.interp(x, LENGTHS, share) * np.maximum(x / LENGTHS[-1], 1.0)

    whole = taken(tokens)
    if np.any(np.asarray(prefixes) > 0):
        common = np.where(np.asarray(prefixes) > 0, taken(shared), 0.0)
        free, own = np.maximum(1.0 - prefixes * common, 0.0), np.maximum(whole - common, 1e-12)
    else:
        free, own = 1.0, whole
    fit = np.where(whole < 1e6, free / own, 0.0)
    return np.minimum(fit, limit if most is None else most)
