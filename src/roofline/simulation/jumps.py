"""How far decoding can jump: to a time, or to a KV pool that is full."""

from __future__ import annotations

import math
from itertools import chain
from operator import mul


def blocks_of(residues: list[int], step: int, block: int, private: int, batch: int) -> int:
    """KV blocks that the running batch holds once the step at counter `step` has its token slots.

    Formula: sum over sequences of floor(c / B) + 1 = (sum of c - sum of c mod B) / B + batch, where c mod B is the
    sequence's residue, counted at step 0, plus the step.
    """
    turn = step % block
    odd = sum(map(mul, residues, chain(range(turn, block), range(turn))))
    return (private - odd) // block + batch


def steps_until_full(residues: list[int], step: int, block: int, batch: int, free: int) -> int:
    """Decode steps that can run before the batch wants a block that is not there; the step at `step` fits."""
    cycles = free // batch  # every sequence takes one block in `block` steps
    free -= cycles * batch
    k = cycles * block + 1
    while (wanted := residues[-(step + k) % block]) <= free:
        free -= wanted
        k += 1
    return k


def steps_to(seconds: float, d0: float, g: float) -> int:
    """Smallest k of at least 0 with k d0 + g k (k - 1) / 2 >= seconds."""
    if seconds <= 0.0:
        return 0
    a = d0 - 0.5 * g
    k = math.ceil(2.0 * seconds / (a + math.sqrt(a * a + 2.0 * g * seconds)))
    # the root may round either way; one look at both neighbours makes it exact
    if k * d0 + g * (k * (k - 1) / 2) < seconds:
        return k + 1
    if k > 0 and (k - 1) * d0 + g * ((k - 1) * (k - 2) / 2) >= seconds:
        return k - 1
    return k
