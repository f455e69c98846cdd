"""Attention-data-parallel ranks under one clock: their experts are the same, so a step ends for all of them together.

Each rank has its own queue, batch and KV pool and forms its own step. A step lasts as long as the longest rank's own
part (attention and whatever else counts its own tokens) and the part that they share (experts, dispatch and combine, by
the tokens of all). A prompt on one rank delays all; ranks without work run dummy batches, which cost nothing here.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from roofline.simulation.jumps import steps_to
from roofline.simulation.log import Log
from roofline.simulation.replica import Replica


@dataclass(frozen=True, slots=True)
class Lockstep:
    """What ranks share: seconds of experts and exchange over the mean tokens of a rank, linear between nodes."""

    ranks: int
    nodes: list[float]
    shared_s: list[float]
    launch_floor_s: float = 0.0  # least of a step with prompts outside a graph, as in `StepCosts`

    def seconds(self, tokens: float) -> float:
        """Seconds of the shared part when all ranks together work on `tokens` tokens.

        Formula:  S(tokens / ranks), S linear between nodes
        Args:     tokens [tokens] of all ranks
        Returns:  [s]
        Source:   linear interpolation
        """
        mean, nodes, row = tokens / self.ranks, self.nodes, self.shared_s
        j = bisect_left(nodes, mean, 1, len(nodes) - 1)
        return row[j - 1] + (row[j] - row[j - 1]) * (mean - nodes[j - 1]) / (nodes[j] - nodes[j - 1])


class Group:
    """Ranks in lockstep, moved like one `Replica`: requests are submitted to its ranks."""

    def __init__(self, ranks: Sequence[Replica], rules: Lockstep):
        self.ranks, self.rules = ranks, rules
        self.now = self.last_start = 0.0

    @property
    def log(self) -> Log:
        """Where its ranks write."""
        return self.ranks[0].log

    @property
    def next_s(self) -> float:
        """Time at which the next step can start; inf when idle."""
        return min(r.next_s for r in self.ranks)

    @property
    def earliest_finish_s(self) -> float:
        """No request of these ranks finishes before."""
        return min(r.earliest_finish_s for r in self.ranks)

    def advance(self, until: float = math.inf, stop_at_finish: bool = False) -> list[tuple[int, float]]:
        """As `Replica.advance`: to the first step boundary at or after `until`."""
        while self.now < until and (self._step(until) or self._wake(until)):
            if stop_at_finish and (found := [pair for r in self.ranks for pair in r.finished]):
                return found
        return []

    def _wake(self, until: float) -> bool:
        """Nothing runs: on to the next arrival, if that is before `until`."""
        at = self.next_s
        if at >= until:
            return False
        self._all_at(max(at, self.now), max(at, self.now))
        return True

    def _all_at(self, now: float, start: float) -> None:
        self.now, self.last_start = now, start
        for r in self.ranks:
            r.now, r.last_start = now, start

    def _step(self, until: float) -> bool:
        """One step of all ranks, or several in which nothing but decoding happens; False where none has work."""
        runs = []
        for r in self.ranks:
            r.finished = []
            run = r.run(math.inf, True, alone=False)
            if (offer := next(run, None)) is not None:
                runs.append((run, offer))
        if not runs:
            return False
        first_s, growth, most, *_ = max((offer for _, offer in runs), key=lambda offer: offer[:2])
        tokens, floor = 0.0, 0.0
        for _, (d0, g, k, next_s, own, prompts) in runs:
            tokens += own
            if prompts:
                floor = self.rules.launch_floor_s
            most = min(most, k)
            until = min(until, next_s)
            if g > growth:  # from then on this rank is the longest
                most = min(most, int((first_s - d0) / (g - growth)) + 1)
        for r in self.ranks:  # those without work look as soon as somebody asks them
            if not r.running and r.sent:
                until = min(until, r.log.ready[r.sent[0]])
        first_s = max(first_s + self.rules.seconds(tokens), floor)
        if most > 1 and until < math.inf:
            most = min(most, steps_to(until - self.now, first_s, growth) or 1)
        for run, _ in runs:
            try:
                run.send((most, first_s, growth))
            except StopIteration:
                continue
            raise AssertionError("a rank in lockstep takes one step at a time")
        seconds = most * first_s + growth * (most * (most - 1) / 2)
        self._all_at(self.now + seconds, self.now + seconds - (first_s + growth * (most - 1)))
        return True
