"""How many tokens each expert gets: even, random or skewed routing, on one rank or on the busiest of several."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roofline.kernels.chip import Array
from roofline.ops import distinct_experts

UNIFORM_NODES, SKEWED_NODES = 8, 32  # points at which a distribution of loads is sampled
SKEWNESS = 0.3  # [-] third-order term of the largest of several sums; 1/3 for sums of gamma variables
HALF = 0.56  # [-] the largest of n draws lies, on average, where n (1 - F) is about this (e^-gamma)


@dataclass(frozen=True, slots=True)
class Loads:
    """Tokens per expert on one rank, as a distribution over the experts that get any."""

    pairs: Array  # [-] token-expert pairs of the rank
    active: Array  # [-] experts of the rank that get at least one token
    tokens: Array  # [-] loads of the active experts at some points of their distribution, along a last axis
    weight: Array  # [-] share of the active experts at each point, along the same axis; sums to 1

    def blocks(self, rows: float) -> Array:
        """Return blocks of `rows` rows that the experts' tokens fill, each expert's last block padded.

        Formula:  active x sum over points of weight x ceil(tokens / rows)
        Source:   derivation
        """
        filled = np.ceil(self.tokens / rows - 1e-9)
        return self.active * np.sum(self.weight * np.maximum(filled, 1.0), axis=-1)


def normal_quantile(upper_tail: Array) -> Array:
    """Return the standard normal value that is exceeded with probability `upper_tail`.

    Formula:  rational approximation in sqrt(-2 ln p)
    Args:     upper_tail p [-], 0 < p <= 0.5
    Returns:  [-]
    Assumes:  nothing further
    Error:    below 0.003
    Source:   Abramowitz and Stegun 26.2.22

    >>> round(float(normal_quantile(0.025)), 2)
    1.96
    """
    t = np.sqrt(-2.0 * np.log(upper_tail))
    return t - (2.30753 + 0.27061 * t) / (1.0 + t * (0.99229 + 0.04481 * t))


def even_loads(tokens: Array, experts: Array, top_k: Array, ep: Array = 1.0) -> Loads:
    """Return loads when tokens are spread as evenly as possible (what routers are trained towards).

    Formula:  pairs = max(1, T k / ep), active = min(E/ep, pairs), pairs / active tokens each
    Args:     tokens T, experts E, top_k k, ep [-]; floats or arrays that broadcast
    Returns:  Loads [-]
    Assumes:  the rank has a token at all: one that has none does not hold up the layer
    Error:    2 % mean against loads counted from the even assignment of the benchmark (docs/kernels/moe.md)
    Source:   derivation

    >>> float(even_loads(64, 128, 8).blocks(16)), float(even_loads(64, 128, 8, ep=8).pairs)
    (128.0, 64.0)
    """
    tokens, experts, top_k, ep = (np.asarray(x, float) for x in (tokens, experts, top_k, ep))
    pairs = np.maximum(1.0, tokens * top_k / ep)
    active = np.minimum(experts / ep, pairs)
    return Loads(pairs[()], active[()], (pairs / active)[..., None], np.ones(1))


def uniform_loads(tokens: Array, experts: Array, top_k: Array, ep: Array = 1.0, imbalance: Array = 1.0) -> Loads:
    """Return expected loads when every token draws its experts at random.

    Formula:  pairs = T k / ep x imbalance; active = E/ep (1 - (1 - k/E)^T); loads m + z sqrt(m (1 - k/E)), at least 1,
              with m = pairs / active and z at quantiles of the normal distribution; a rank counts at least one pair
    Args:     tokens T, experts E, top_k k, ep [-]; imbalance: rows of this rank over the mean of all [-]
    Returns:  Loads [-]
    Assumes:  independent, uniform routing; binomial loads, near enough normal
    Error:    not measured
    Source:   derivation

    >>> float(uniform_loads(64, 128, 8).active), float(uniform_loads(1024, 8, 8).blocks(128))
    (125.942..., 64.0)
    """
    tokens, experts, top_k, ep = (np.asarray(x, float) for x in (tokens, experts, top_k, ep))
    local = experts / ep
    active = np.maximum(1.0, np.minimum(distinct_experts(experts, top_k, tokens) / ep, local))
    pairs = np.minimum(tokens * top_k / ep * imbalance, tokens * np.minimum(top_k, local))
    pairs = np.maximum(pairs, active)
    mean = (pairs / active)[..., None]
    spread = np.sqrt(mean * (1.0 - (top_k / experts)[..., None]))
    load = np.maximum(mean + UNIFORM_QUANTILES * spread, 1.0)
    return Loads(pairs[()], active[()], load, np.full(UNIFORM_NODES, 1.0 / UNIFORM_NODES))


def _symmetric_quantiles(points: int) -> np.ndarray:
    upper = normal_quantile((np.arange(points // 2) + 0.5) / points)
    return np.concatenate([-upper, upper[::-1]])


UNIFORM_QUANTILES = _symmetric_quantiles(UNIFORM_NODES)


def busiest_rank_factor(variation: Array, experts_per_rank: Array, ep: Array) -> Array:
    """Return how many times its mean load the busiest of `ep` ranks has, when experts are dealt to ranks at random.

    Formula:  1 + g (z + 0.3 g (z^2 - 1)),  g = cv sqrt((1 - 1/ep) / E_l),  z: normal quantile at 0.56/ep
    Args:     variation cv: standard deviation over mean of the experts' loads [-], experts_per_rank E_l [-], ep [-]
    Returns:  [-], 1 for one rank
    Assumes:  independent loads; not more than what one rank's experts can get (see `power_law_loads`)
    Error:    5 % mean against sampled power-law loads, bias below 1 % (docs/kernels/moe.md)
    Source:   derivation (largest of ep sums, with the Cornish-Fisher term for skewness)

    >>> float(busiest_rank_factor(1.5, 8, 1)), round(float(busiest_rank_factor(1.5, 32, 8)), 2)
    (1.0, 1.39)
    """
    ep = np.asarray(ep, float)
    g = variation * np.sqrt((1.0 - 1.0 / ep) / experts_per_rank)
    z = normal_quantile(HALF / np.maximum(ep, 2.0))
    return np.where(ep > 1.0, 1.0 + g * (z + SKEWNESS * g * (z * z - 1.0)), 1.0)[()]


def power_law_loads(
    tokens: Array, experts: Array, top_k: Array, ep: Array = 1.0, exponent: Array = 1.1, points: int = SKEWED_NODES
) -> Loads:
    """Return loads of the busiest rank when the popularity of experts follows a bounded power law.

    Formula:  popularity x(u) = [(h^(1-a) - l^(1-a)) u + l^(1-a)]^(1/(1-a)) at u = (i + 1/2)/points, (l, h) = (1, 0.8 T)
              if T k > E else (0.01, 2); loads = round(T k x / (E mean x)), at most T, what is missing goes to the least
              loaded. Busiest of ep ranks: `busiest_rank_factor`, at most what the top expert and T min(k, E/ep) allow;
              its active experts E/ep (1 - (1 - share)^factor); loads drawn together by the power sqrt(1 - ep/E), the
              spread of E/ep values around their own mean
    Args:     tokens T, experts E, top_k k, ep [-]; exponent a [-], not 1; floats or arrays that broadcast
    Returns:  Loads [-]
    Assumes:  experts dealt to ranks at random, without rebalancing
    Error:    against sampled loads: pairs 5 %, active experts 3 %, blocks 6 % mean (docs/kernels/moe.md)
    Source:   the load generator described in data/kernels/README.md of the reference data; closed form by derivation

    >>> skewed = power_law_loads(4096, 256, 8, ep=8, exponent=1.2)
    >>> round(float(skewed.pairs / (4096 * 8 / 8)), 1), float(skewed.active)
    (1.7, 32.0)
    """
    t, e, k, p, a = (np.asarray(x, float)[..., None] for x in (tokens, experts, top_k, ep, exponent))
    local, mean = e / p, t * k / e
    low = np.where(t * k > e, 1.0, 0.01)
    high = np.maximum(np.where(t * k > e, 0.8 * t, 2.0), low * 1.0001)

    def popularity(u):
        return ((high ** (1.0 - a) - low ** (1.0 - a)) * u + low ** (1.0 - a)) ** (1.0 / (1.0 - a))

    x = popularity((np.arange(points) + 0.5) / points)
    scale = mean / x.mean(-1, keepdims=True)
    load = _fill_lightest(np.minimum(np.rint(scale * x), t), mean)
    top = np.minimum(scale * popularity(1.0 - HALF / e), t)
    top = np.where(mean < 1.0, np.maximum(np.rint(top), 1.0), top)

    hit = np.minimum(load, 1.0)
    share = hit.mean(-1, keepdims=True)
    variation = load.std(-1, keepdims=True) / load.mean(-1, keepdims=True)
    factor = busiest_rank_factor(variation, local, p)
    factor = np.minimum(factor, np.minimum(np.maximum(top, 1.0) / mean, np.minimum(k, local) * e / (local * k)))
    pairs = np.maximum(mean * local * np.maximum(factor, 1.0), 1.0)
    more = np.where(p > 1.0, pairs / (mean * local), 1.0)
    active = np.clip(local * (1.0 - (1.0 - share) ** more), 1.0, np.minimum(local, pairs))
    shape = np.maximum(load, 1.0) ** np.sqrt(1.0 - np.where(p > 1.0, 1.0 / local, 0.0))
    weight = hit / hit.sum(-1, keepdims=True)
    shape = shape * (pairs / active / np.sum(shape * weight, -1, keepdims=True))
    return Loads(pairs[..., 0][()], active[..., 0][()], shape, weight)


def _fill_lightest(load: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return ascending `load` with what it lacks of `mean` added to its lowest values, like water."""
    points = load.shape[-1]
    total, count = np.cumsum(load, -1), np.arange(1, points + 1)
    lacking = np.maximum(mean * points - total[..., -1:], 0.0)
    raised = np.sum(count * load - total <= lacking, -1, keepdims=True)
    level = (lacking + np.take_along_axis(total, raised - 1, -1)) / raised
    return np.where(count <= raised, np.maximum(load, level), load)
