"""What a step works on: groups of like sequences, each with new tokens over past tokens.

Prefill is `(b, isl, 0)`, a cached prefix `(b, isl - hit, hit)`, decode `(b, 1, context)`, verifying k drafts
`(b, k + 1, context)`; a chunked step is two groups. No formula asks which of these it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roofline.arrays import Array, larger, smaller


@dataclass(frozen=True, slots=True)
class Sequences:
    """`count` like sequences in one step: `new` tokens each are computed on top of `past` cached ones.

    `logits` is the number of positions per sequence that go through the head: 1, or new when drafts are verified, or
    0 for a chunk that does not end its prompt. `shards` is over how many ranks the cached tokens are dealt: `past`
    counts those of one, and of a window it sees that part.
    """

    count: Array
    new: Array
    past: Array = 0.0
    logits: Array = 1.0
    shards: Array = 1.0

    @property
    def tokens(self) -> Array:
        """Tokens that go through the layers in this step."""
        return self.count * self.new


def prefill(batch: Array, isl: Array, cached: Array = 0.0) -> Sequences:
    """Prompts of `isl` tokens of which the first `cached` already have their KV."""
    return Sequences(batch, isl - cached, cached)


def decode(batch: Array, context: Array) -> Sequences:
    """One new token for each of `batch` sequences over `context` cached tokens."""
    return Sequences(batch, 1.0, context)


def verify(batch: Array, context: Array, drafts: Array) -> Sequences:
    """`drafts` proposed tokens and the one before them, checked in one step: every position needs logits."""
    return Sequences(batch, drafts + 1.0, context, drafts + 1.0)


def attended_pairs(new: Array, past: Array, window: Array = np.inf, causal: bool = True) -> Array:
    """Query-key pairs of one sequence and head.

    Formula:  sum over i = 1..new of min(past + i, window); without the causal mask new (past + new)
    Args:     new, past [tokens], window [tokens, inf = none]; floats or arrays that broadcast
    Returns:  [-]
    Source:   derivation: arithmetic series up to the window, constant after it

    >>> float(attended_pairs(4, 0)), float(attended_pairs(1, 99)), float(attended_pairs(8, 0, 4))
    (10.0, 100.0, 26.0)
    """
    if not causal:
        return new * smaller(past + new, window)
    rising = smaller(larger(window - past, 0.0), new)  # queries that still see everything before them
    flat = new - rising
    capped = flat * smaller(window, 1e300)  # not inf * 0 where there is no window
    return rising * past + rising * (rising + 1.0) / 2.0 + capped


def kv_tokens_read(new: Array, past: Array, window: Array = np.inf) -> Array:
    """Tokens of one sequence whose KV a step has to touch: those that the new queries can see.

    Formula:  min(past + new, window + new - 1)
    Args:     new, past, window [tokens]
    Returns:  [tokens]
    Source:   derivation: the first query reaches back window - 1 tokens

    >>> float(kv_tokens_read(1, 99)), float(kv_tokens_read(1, 9999, 128))
    (100.0, 128.0)
    """
    return smaller(past + new, window + new - 1.0)
