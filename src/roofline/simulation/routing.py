"""Which replica of a pool gets a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roofline.errors import check_number
from roofline.simulation.replica import Replica


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Replicas in turn; looks at nothing."""

    looks = False  # needs the replicas' state at that moment

    def pick(self, replicas: Sequence[Replica], i: int, turn: int, at_s: float) -> int:
        return turn % len(replicas)


@dataclass(frozen=True, slots=True)
class LeastLoaded:
    """The replica with the fewest requests, or the fewest queued prompt tokens; the first of equals."""

    by_tokens: bool = False
    looks = True

    def pick(self, replicas: Sequence[Replica], i: int, turn: int, at_s: float) -> int:
        return min(range(len(replicas)), key=lambda r: _load(replicas[r], self.by_tokens, at_s))


@dataclass(frozen=True, slots=True)
class CacheAware:
    """The replica with the longest cached prefix, unless the load is too uneven or the match too short.

    Then the least loaded one. `min_match` is a share of the prompt's blocks; `max_excess` is how many requests more
    than the least loaded replica the preferred one may have.
    """

    min_match: float = 0.5
    max_excess: float = 16
    looks = True

    def __post_init__(self):
        check_number("min_match", self.min_match, high=1)
        check_number("max_excess", self.max_excess)

    def pick(self, replicas: Sequence[Replica], i: int, turn: int, at_s: float) -> int:
        loads = [r.outstanding(at_s) for r in replicas]
        ids = replicas[0].log.ids[i]
        matches = [r.cache.match(ids) for r in replicas]
        best = max(range(len(replicas)), key=lambda r: (matches[r], -loads[r]))
        if matches[best] < self.min_match * len(ids) or loads[best] > min(loads) + self.max_excess:
            return min(range(len(replicas)), key=lambda r: loads[r])
        return best


@dataclass(frozen=True, slots=True)
class FreshWarm:
    """Two groups: prompts of which less than `min_match` is cached anywhere go to the last `fresh` replicas.

    The others go to the rest, to the longest match among the least loaded. Keeps long cold prefills out of the way of
    short warm ones. Cached means in the replica's own cache or in a store below it.
    """

    fresh: int = 1
    min_match: float = 0.5
    looks = True

    def __post_init__(self):
        check_number("fresh", self.fresh, low=1, integer=True)
        check_number("min_match", self.min_match, high=1)

    def pick(self, replicas: Sequence[Replica], i: int, turn: int, at_s: float) -> int:
        split = max(len(replicas) - self.fresh, 1)
        ids = replicas[0].log.ids[i]
        matches = [r.cache.match(ids) for r in replicas]
        warm = max(r.known_blocks(i) for r in replicas[:split]) >= self.min_match * len(ids)
        group = range(split) if warm else range(split, len(replicas))
        return min(group, key=lambda r: (*_load(replicas[r], True, at_s), -matches[r]))


def _load(replica: Replica, by_tokens: bool, at_s: float) -> tuple[float, float]:
    requests = replica.outstanding(at_s)
    return (replica.queued_tokens(at_s), requests) if by_tokens else (requests, 0.0)
