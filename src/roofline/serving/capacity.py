"""How many sequences the KV pool of a deployment holds at once."""

from __future__ import annotations

import numpy as np

from roofline.arrays import Array
from roofline.deployment import Deployment
from roofline.memory.footprint import limits

FILLED = 0.6  # mean share of its output that a running sequence holds, when admission waits for the pool
LENGTHS = np.concatenate(([1.0], 2.0 ** np.arange(6, 22.01, 0.5)))


def held_tokens(isl: Array, osl: Array, reserved: bool = False) -> Array:
    """Cached tokens of a running sequence as the pool sees them on average.

    Formula:  I + 0.6 O; I + O where room for the whole answer is taken on admission
    Source:   step model of the end-to-end rows: a little above the mean, as engines keep a reserve to avoid preemption
    """
    return isl + (1.0 if reserved else FILLED) * np.asarray(osl, float)


def evicted(waiting: Array, growth: Array) -> Array:
    """Time that an evicted sequence waits for its room again, over that of its decoding.

    Formula:  (w^-3 + d^-3)^(-1/3), d = a/(1 + 0.65 a): all who wait hold a first token where few wait, and no more than
              were let in while answers were short where many do
    Args:     waiting w [-]: requests without a seat per seat; growth a [-]: by which sequences grow on average after
              they were let in, 0.6 O/I; 0 where room for the whole answer is taken at once
    Returns:  [-], at most w
    Assumes:  a prompt is let in as soon as it fits, the last one in gives way; the constants are tuned to the event
              simulator, 18 loads of 256 to 8,192 + 1,024 to 8,192 tokens and 1.2 to 4 requests a seat: within 0.07
    Source:   derivation
    """
    w, d = np.maximum(waiting, 1e-9), np.maximum(growth / (1.0 + 0.65 * growth), 1e-9)
    return (w**-3.0 + d**-3.0) ** (-1.0 / 3.0)


def outgrown(deployment: Deployment, isl: Array, osl: Array, fits: Array, most: Array | None = None) -> Array:
    """By which share sequences outgrow, on average, the room that they were let in for.

    Formula:  held_tokens/I - 1; 0 where whole answers have their room, or seats are the limit and not the pool
    Args:     isl, osl [tokens]; fits [sequences]: of `kv_sequences`; most [sequences]: None takes the engine's limit
    Returns:  [-]
    Source:   scheduler rules of vLLM, TensorRT-LLM and SGLang
    """
    if deployment.engine.scheduler.reserve_output:
        return 0.0
    limit = most_seqs(deployment) if most is None else most
    return np.where(fits < limit, held_tokens(isl, osl) / isl - 1.0, 0.0)


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
