"""Speculation in a simulator that counts steps: outputs become cycles, lengths are counted in what a cycle yields."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from roofline.simulation.costs import StepCosts
from roofline.simulation.scheduler import Scheduler
from roofline.speculative.acceptance import drawn_cycles


@dataclass(frozen=True, slots=True)
class Cycles:
    """Every decode step is a cycle: `verified` tokens of each sequence are checked, and some of them stay."""

    shares: tuple[float, ...]  # of cycles that yield 1, 2, .. tokens
    seed: int = 0

    @property
    def verified(self) -> int:
        """Tokens of a sequence in a step."""
        return len(self.shares)

    @property
    def tokens(self) -> float:
        """Tokens that a cycle yields on average."""
        return float(np.dot(self.shares, np.arange(1, self.verified + 1)))

    def steps(self, osl: np.ndarray) -> np.ndarray:
        """Steps in which each request makes `osl` tokens: that of its prompt, then cycles, drawn from the seed."""
        return 1 + drawn_cycles(osl - 1, self.shares, np.random.default_rng((self.seed, self.verified)))

    def counted(self, costs: StepCosts, scheduler: Scheduler) -> tuple[StepCosts, Scheduler]:
        """Costs and rules where a token of context stands for what a cycle yields, so that it grows by one a step.

        Formula:  kv' = E kv;  block' = block / E to a whole number, blocks' so that the pool holds as many tokens
        """
        each = self.tokens
        block = max(round(scheduler.block_tokens / each), 1)
        rules = replace(
            scheduler, block_tokens=block, stream_interval=max(round(scheduler.stream_interval / each), 1),
            kv_blocks=max(scheduler.kv_blocks * scheduler.block_tokens / (each * block), 1.0),
        )  # fmt: skip
        return replace(costs, kv_s=[each * x for x in costs.kv_s], verified=self.verified), rules
