"""What a simulation writes down while it runs: plain lists, which are faster to index than arrays."""

from __future__ import annotations

import math

NAN = math.nan


class Log:
    """What happened to each request, as plain lists that replicas share and write in place."""

    __slots__ = ("admitted", "cached", "chunks", "decodes", "done", "finish", "first", "gap_count", "gap_s", "handed",
                 "held", "hit_blocks", "hits", "ids", "ids_tokens", "isl", "osl", "preempted", "prefilled", "ready",
                 "replica", "seen", "sent", "step_tokens")  # fmt: skip

    def __init__(self, isl, osl, cached=None, ids=None, ids_tokens=0, step_tokens=1.0, handed=False, timeline=False):
        n = len(isl)
        self.isl, self.osl = list(isl), list(osl)  # tokens of the prompt, steps of the answer
        self.step_tokens = step_tokens  # of an answer; contexts and KV are counted in units of it
        self.held = self.isl if step_tokens == 1.0 else [max(round(x / step_tokens), 1) for x in isl]
        self.cached = list(cached) if cached is not None else [0] * n  # tokens known to be cached, before the run
        self.ids, self.ids_tokens = ids, ids_tokens
        self.handed = handed  # prompts arrive with their KV and first token (decode pool)
        self.sent, self.ready, self.seen, self.admitted, self.prefilled, self.first, self.finish = (
            [NAN] * n for _ in range(7)
        )
        self.hits, self.hit_blocks, self.preempted, self.replica = ([0] * n for _ in range(4))
        self.gap_s: list[float] = []  # token gaps, and how many tokens saw each
        self.gap_count: list[float] = []
        self.chunks: list[tuple] | None = [] if timeline else None  # request, replica, start, end, tokens
        self.decodes: list[tuple] | None = [] if timeline else None  # replica, start, end, steps, batch
        self.done = 0
