"""How many tokens one verification yields: chains of drafts, measured acceptance by position, and token trees.

The letters: a chain of k drafted tokens is verified in one step of the target model, which accepts them up to the first
miss and adds one token of its own (the correction, or a bonus after the last).
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from roofline.arrays import Array
from roofline.errors import InputError, check_numbers


def _checked(name: str, values: Array, low: float, high: float) -> np.ndarray:
    x = np.asarray(values, float)
    check_numbers(name, x, low=low, high=high)
    return x


def expected_tokens(acceptance: Array, drafts: Array) -> Array:
    """Return the tokens that one verification yields when each draft is accepted with the same probability.

    Formula:  (1 - a^(k+1)) / (1 - a), k + 1 for a = 1
    Args:     acceptance a [-] 0 to 1, drafts k [tokens], 0 or more; floats or arrays that broadcast
    Returns:  [tokens] 1 to k + 1
    Assumes:  acceptances are independent and alike; measured ones fall with the position (`expected_by_position`)
    Error:    none as algebra; the text fixes a
    Source:   Leviathan, Kalman, Matias 2023, equation 1

    >>> [round(float(expected_tokens(a, 4)), 4) for a in (0.0, 0.5, 0.7, 0.9, 1.0)]
    [1.0, 1.9375, 2.7731, 4.0951, 5.0]
    """
    a, k = _checked("acceptance", acceptance, 0.0, 1.0), _checked("drafts", drafts, 0.0, np.inf)
    with np.errstate(divide="ignore"):
        missed = -np.expm1((k + 1.0) * np.log(a))
    return np.where(a < 1.0, missed / np.where(a < 1.0, 1.0 - a, 1.0), k + 1.0)[()]


def acceptance_of(tokens: Array, drafts: Array) -> Array:
    """Return the constant acceptance at which `drafts` drafts yield `tokens`: the inverse of `expected_tokens`.

    Formula:  the root a of (1 - a^(k+1)) / (1 - a) = E, by bisection
    Args:     tokens E [tokens] 1 to k + 1, drafts k [tokens]; floats or arrays that broadcast
    Returns:  [-] to 1e-12
    Assumes:  as `expected_tokens`
    Error:    none as algebra
    Source:   Leviathan, Kalman, Matias 2023, equation 1

    >>> round(float(acceptance_of(2.7731, 4)), 4)
    0.7
    """
    e, k = np.broadcast_arrays(_checked("tokens", tokens, 1.0, np.inf), _checked("drafts", drafts, 0.0, np.inf))
    if np.any(e > k + 1.0 + 1e-9):
        raise InputError(f"tokens: {np.max(e):g} is out of range; {np.max(k):g} drafts yield at most {np.max(k) + 1:g}")
    low, high = np.zeros(e.shape), np.ones(e.shape)
    for _ in range(40):
        middle = (low + high) / 2.0
        enough = expected_tokens(middle, k) >= e
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high[()]


def expected_by_position(rates: Array, drafts: Array, *, conditional: bool = True) -> Array:
    """Return the tokens that one verification yields when acceptance was measured for each position.

    Formula:  conditional: 1 + sum over i <= k of p_1 ... p_i;  otherwise 1 + sum over i <= k of p_i
    Args:     rates p [..., positions] [-]; drafts k [tokens], broadcasts with the other axes of rates, fractions
              interpolate; conditional: p_i given that all before it were accepted; False: share of all verifications
              in which draft i was accepted (what vLLM logs)
    Returns:  [tokens]
    Assumes:  nothing beyond the measurement
    Error:    none as algebra
    Source:   definition of the expectation

    >>> float(expected_by_position([0.9, 0.5], 2)), float(expected_by_position([0.9, 0.45], 2, conditional=False))
    (2.35, 2.35)
    """
    p, k = _checked("rates", rates, 0.0, 1.0), _checked("drafts", drafts, 0.0, np.inf)
    if p.ndim == 0:
        raise InputError("rates: a list with one rate per position is needed")
    if np.any(k > p.shape[-1]):
        raise InputError(f"drafts: only {p.shape[-1]} positions were measured")
    reached = np.cumprod(p, -1) if conditional else p
    return 1.0 + np.sum(reached * np.clip(k[..., None] - np.arange(p.shape[-1]), 0.0, 1.0), -1)


@dataclass(frozen=True, slots=True)
class ByPosition:
    """Acceptance measured for each position; stands wherever one number for all positions may stand."""

    rates: tuple[float, ...]
    conditional: bool = True

    def tokens(self, drafts: Array) -> Array:
        """Tokens of a verification of `drafts` drafts."""
        return expected_by_position(self.rates, drafts, conditional=self.conditional)


Acceptance = Array | ByPosition


def tokens_of(acceptance: Acceptance, drafts: Array) -> Array:
    """Tokens of a verification of `drafts` drafts, by either kind of acceptance."""
    return acceptance.tokens(drafts) if isinstance(acceptance, ByPosition) else expected_tokens(acceptance, drafts)


def yield_shares(acceptance: Acceptance, drafts: int) -> np.ndarray:
    """Return how likely each number of tokens of one verification is: of 1, 2, .. drafts + 1 tokens.

    Formula:  P(T = j) = r_(j-1) - r_j;  r_i, the share of verifications that accept draft i: a^i, or measured; r_0 = 1
    Args:     acceptance [-] of each draft, or `ByPosition`; drafts k [tokens], a whole number
    Returns:  [k + 1] shares that add up to 1
    Assumes:  as `expected_tokens`
    Error:    none as algebra
    Source:   definition of the distribution

    >>> yield_shares(0.5, 2).tolist()
    [0.5, 0.25, 0.25]
    """
    reached = np.diff([tokens_of(acceptance, float(i)) for i in range(drafts + 1)], prepend=0.0)
    if np.any(np.diff(reached) > 1e-9):
        raise InputError("acceptance: a later draft cannot be accepted more often than the one before it")
    return np.maximum(-np.diff(np.append(reached, 0.0)), 0.0)


def expected_cycles(tokens: Array, shares: Array) -> Array:
    """Return the mean number of verifications until at least `tokens` tokens are there.

    Formula:  max((n + w) / E, 1), 0 for n = 0;  w = (E[T^2] - E[T]) / (2 E[T]): mean tokens beyond the last wanted one
    Args:     tokens n [tokens]; shares [-] of T = 1, 2, .. tokens, see `yield_shares`
    Returns:  [-]
    Assumes:  verifications are independent; n above a few k (the renewal theorem's limit)
    Error:    1 % from n = 2 (k + 1) on; half a cycle where nearly all cycles yield the same
    Source:   renewal theory: Cox 1962, mean of the residual life

    >>> float(expected_cycles(100.0, [1.0])), float(expected_cycles(99.0, [0.0, 0.0, 1.0]))
    (100.0, 33.333333333333336)
    """
    n, p = np.asarray(tokens, float), np.asarray(shares, float)
    values = np.arange(1.0, p.size + 1.0)
    mean, square = p @ values, p @ values**2
    return np.where(n > 0.0, np.maximum((n + (square / mean - 1.0) / 2.0) / mean, 1.0), 0.0)[()]


def cycles_spread(tokens: Array, shares: Array) -> Array:
    """Return the standard deviation of the number of verifications until `tokens` tokens are there.

    Formula:  sqrt(n Var[T] / E[T]^3)
    Args:     as `expected_cycles`
    Returns:  [-]
    Assumes:  as `expected_cycles`
    Error:    the limit of many cycles
    Source:   renewal theory: Cox 1962
    """
    p = np.asarray(shares, float)
    values = np.arange(1.0, p.size + 1.0)
    mean, square = p @ values, p @ values**2
    return np.sqrt(np.asarray(tokens, float) * np.maximum(square - mean**2, 0.0) / mean**3)


def drawn_cycles(tokens: np.ndarray, shares: Array, rng: np.random.Generator) -> np.ndarray:
    """Draw for each of many requests how many verifications bring its tokens.

    Formula:  m = ceil(n / (k + 1)) cycles are needed in any case: what they yield is multinomial; again for the rest
    Args:     tokens n [tokens] of each request, whole numbers; shares [-] as `expected_cycles`
    Returns:  whole numbers, 0 where no token is wanted
    Source:   definition; exact
    """
    p = np.asarray(shares, float)
    values = np.arange(1, p.size + 1)
    left, drawn = np.array(tokens, np.int64), np.zeros(np.shape(tokens), np.int64)
    while (open_ := np.flatnonzero(left > 0)).size:
        sure = -(-left[open_] // p.size)
        left[open_] -= rng.multinomial(sure, p / p.sum()) @ values
        drawn[open_] += sure
    return drawn


@dataclass(frozen=True)
class TokenTree:
    """Drafts that are verified together as a tree: node (0, 2) is the third candidate after the first candidate."""

    paths: tuple[tuple[int, ...], ...]

    def __post_init__(self):
        known = {(), *self.paths}
        if not self.paths or len(known) != len(self.paths) + 1:
            raise InputError("tree: at least one node is needed, and every node once")
        if orphans := [p for p in self.paths if p[:-1] not in known]:
            raise InputError(f"tree: node {orphans[0]} has no parent in the tree")

    @classmethod
    def chain(cls, drafts: int) -> TokenTree:
        """One candidate after another."""
        return cls(tuple((0,) * n for n in range(1, drafts + 1)))

    @classmethod
    def full(cls, *widths: int) -> TokenTree:
        """Every node of a level has as many children as `widths` says for the next.

        >>> TokenTree.full(2, 3).widths
        (2, 6)
        """
        nodes, level = [], [()]
        for width in widths:
            level = [(*path, rank) for path in level for rank in range(width)]
            nodes += level
        return cls(tuple(nodes))

    @classmethod
    def best(cls, rates: Array, nodes: int) -> TokenTree:
        """The tree of `nodes` nodes that yields most tokens.

        Formula:  always add the node whose path is most probable
        Args:     rates [level, rank] [-]: probability that the candidate of that rank is right, given its parent is
        Assumes:  as `expected_tokens`; adding greedily is optimal, a node being never likelier than its parent
        Source:   Cai et al. 2024 (Medusa), section 2.3.3
        """
        table = _checked("rates", rates, 0.0, 1.0)
        queue = [(-float(table[0, r]), (r,)) for r in range(table.shape[1])]
        heapq.heapify(queue)
        chosen = []
        while queue and len(chosen) < nodes:
            share, path = heapq.heappop(queue)
            chosen.append(path)
            if len(path) < table.shape[0]:
                for rank in range(table.shape[1]):
                    heapq.heappush(queue, (share * float(table[len(path), rank]), (*path, rank)))
        return cls(tuple(sorted(chosen, key=lambda p: (len(p), p))))

    @property
    def nodes(self) -> int:
        """Drafted tokens; the target verifies one more."""
        return len(self.paths)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Nodes of each level."""
        return tuple(n for _, n in sorted(Counter(map(len, self.paths)).items()))

    @property
    def depth(self) -> int:
        """Levels: the most drafts that can be accepted."""
        return len(self.widths)

    def expected_tokens(self, rates: Array) -> Array:
        """Return the tokens that verifying the tree yields: the accepted path and one more.

        Formula:  1 + sum over nodes of the product of p[level, rank] along the node's path
        Args:     rates p [..., level, rank] [-]: probability that the candidate of that rank is the right one, given
                  that its parent is; of one level they add up to at most 1
        Returns:  [tokens] in the shape of the leading axes
        Assumes:  what is accepted at one level does not depend on which path led to it
        Error:    none as algebra
        Source:   Cai et al. 2024 (Medusa), section 2.3.3

        >>> chain, p = TokenTree.chain(4), np.full((4, 1), 0.7)
        >>> round(float(chain.expected_tokens(p)), 4), float(TokenTree.full(2).expected_tokens([[0.6, 0.2]]))
        (2.7731, 1.8)
        """
        p = _checked("rates", rates, 0.0, 1.0)
        if p.ndim < 2 or p.shape[-2] < self.depth or p.shape[-1] <= max(map(max, self.paths)):
            raise InputError("rates: one is needed for every level and rank of the tree, as [level, rank]")
        if np.any(p.sum(-1) > 1.0 + 1e-9):
            raise InputError("rates: candidates of one level exclude one another; their rates add up to at most 1")
        reached: dict[tuple[int, ...], Array] = {(): np.ones(p.shape[:-2])}
        for path in sorted(self.paths, key=len):
            reached[path] = reached[path[:-1]] * p[..., len(path) - 1, path[-1]]
        return sum(reached.values())


def ranked_rates(acceptance: Array, ranks: int, levels: int) -> np.ndarray:
    """Return the rates of candidates by rank when each is tried on its own after those before it were rejected.

    Formula:  p[level, r] = a (1 - a)^r
    Args:     acceptance a [-] of a single candidate, or one for each level [..., level]; ranks, levels [-]
    Returns:  [..., level, rank] [-]
    Assumes:  a candidate that is tried after others were rejected is accepted as often as the first
    Error:    an upper bound in practice: later candidates are less likely
    Source:   derivation

    >>> ranked_rates(0.5, 3, 1)
    array([[0.5  , 0.25 , 0.125]])
    """
    a = _checked("acceptance", acceptance, 0.0, 1.0)
    a = np.broadcast_to(a if a.ndim else a[None], (*a.shape[:-1], levels))[..., None]
    return a * (1.0 - a) ** np.arange(ranks)


def walltime_factor(acceptance: Array, drafts: Array, cost: Array) -> Array:
    """Return how many times faster decoding becomes when verifying costs what one plain step costs.

    Formula:  (1 - a^(k+1)) / ((1 - a) (k c + 1))
    Args:     acceptance a [-], drafts k [tokens], cost c [-]: time of a draft step over that of a target step
    Returns:  [-] below 1 where it does not pay
    Assumes:  verification of k + 1 tokens takes as long as one token; nothing else costs time
    Error:    the limit of `speculate` for dense models at small batches
    Source:   Leviathan, Kalman, Matias 2023, theorem 3.8

    >>> round(float(walltime_factor(0.8, 5, 0.05)), 2)
    2.95
    """
    return expected_tokens(acceptance, drafts) / (np.asarray(drafts, float) * cost + 1.0)
