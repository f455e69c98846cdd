"""What a replica holds between events: its queue, its batch, its KV pool; and who gives way when the pool is full."""

from __future__ import annotations

import math
from collections import deque
from heapq import heapify

from roofline.errors import InfeasibleError, InputError
from roofline.serving.prefix import PrefixCache
from roofline.serving.tiers import KVTiers
from roofline.simulation.costs import StepCosts
from roofline.simulation.jumps import blocks_of
from roofline.simulation.log import Log
from roofline.simulation.scheduler import Scheduler


class Queue:
    """State of a replica between events, and the questions that routers ask of it. `submit` in order of time."""

    def __init__(
        self,
        costs: StepCosts,
        scheduler: Scheduler,
        log: Log,
        index: int = 0,
        tiers: KVTiers | None = None,
        caching: bool = False,
    ):
        if scheduler.max_seqs > costs.max_batch:
            raise InputError(
                f"max_seqs {scheduler.max_seqs} exceeds the largest tabulated batch {costs.max_batch}; "
                "tabulate more or lower max_seqs"
            )
        if caching and log.ids is None:
            raise InputError("prefix caching needs block ids in the trace (column hash_ids)")
        self.costs, self.scheduler, self.log, self.index, self.tiers = costs, scheduler, log, index, tiers
        self.cache = PrefixCache(on_evict=tiers.demote if tiers is not None else None) if caching else None
        if caching and log.step_tokens == 1.0 and log.ids_tokens % scheduler.block_tokens:
            raise InputError(
                f"prefix blocks of {log.ids_tokens} tokens are not a multiple of block_tokens {scheduler.block_tokens}"
            )
        self.now = self.last_start = self.resume_s = 0.0
        self.step = self.next_poll = 0
        self.running: list[int] = []  # heap of finish_step * n + request
        self.batch = self.context = self.private = self.active = 0
        self.sent: deque[int] = deque()
        self.waiting: deque[int] = deque()
        self.fetching: list[tuple[float, int]] = []
        self.partial, self.left = -1, 0
        self.held = 0
        self.reserved = 0
        self.residues = [0] * scheduler.block_tokens
        self.birth: dict[int, int] = {}  # step at which a request would have had 0 tokens
        self.generated: dict[int, int] = {}  # of preempted ones
        self.expected_hits: dict[int, int] = {}  # prompt tokens found at submission
        self.priority: dict[int, int] = {}
        self.admissions = 0
        self.pending_first: list[int] = []  # heap of step * n + request: first chunks that are not full yet
        self.stalled: list[tuple[int, float]] = []  # decodes that wait for prompt-only steps: how many, since when
        self.tokenizer_free = -math.inf
        self.warm = scheduler.cold_start_s == 0.0
        self.backlog: list[int] = []  # closed loop: requests still to be sent, next one last
        self.last_finished = self.last_tokens = 0  # in the last step
        self.finished: list[tuple[int, float]] = []  # and when, since it was last moved
        self.steps = self.prompt_steps = self.seat_steps = self.prompt_tokens = 0
        self.busy_s = self.decode_area = 0.0
        self.preemptions = 0
        self.tick, self.on_tick, self.tick_every = math.inf, None, 0

    @property
    def idle(self) -> bool:
        """Nothing runs, waits or is on its way."""
        return not (self.running or self.waiting or self.sent or self.fetching or self.partial >= 0)

    @property
    def next_s(self) -> float:
        """Time at which the next step can start; inf when idle."""
        if self.running or self.waiting or self.partial >= 0:
            return max(self.now, self.resume_s)
        ahead = [self.log.ready[self.sent[0]]] if self.sent else []
        return max(self.now, min(ahead + [t for t, _ in self.fetching[:1]], default=math.inf))

    @property
    def earliest_finish_s(self) -> float:
        """No request of this replica finishes before; inf when idle. Arrivals can only make it later."""
        full = self.running and (self.batch >= self.scheduler.max_seqs or not self.scheduler.continuous)
        if self.partial >= 0 or (not full and (self.waiting or self.sent or self.fetching)):
            return self.next_s
        if not self.running:
            return math.inf
        k = self.running[0] // len(self.log.isl) - self.step
        g = self.costs.kv_s[self.batch] * self.batch
        d0 = self.costs.base_s[self.batch] + self.costs.kv_s[self.batch] * self.context
        return (self.now + k * d0 + g * (k * (k - 1) / 2)) * (1.0 - 1e-12)  # sums of split jumps round otherwise

    def outstanding(self, at_s: float) -> int:
        """Requests in this replica at `at_s`, queue included; its last step may end after that."""
        waiting = len(self.sent) + len(self.waiting) + len(self.fetching) + (self.partial >= 0)
        return len(self.running) + waiting + (self.last_finished if self.now > at_s else 0)

    def queued_tokens(self, at_s: float) -> float:
        """Prompt tokens whose prefill has not ended at `at_s`, as far as hits were known when they came."""
        isl, cached, hits = self.log.isl, self.log.cached, self.expected_hits
        queue = (*self.sent, *self.waiting, *(i for _, i in self.fetching))
        in_step = self.last_tokens if self.now > at_s else 0
        return in_step + self.left + sum(isl[i] - max(cached[i], hits.get(i, 0)) for i in queue)

    def submit(self, i: int, at_s: float) -> None:
        """Send request i at `at_s`: it passes the tokeniser, then waits to be seen."""
        rules, log = self.scheduler, self.log
        log.sent[i] = at_s
        work = (rules.tokenizer_s_per_request + rules.tokenizer_s_per_token * log.isl[i]) / rules.tokenizers
        self.tokenizer_free = max(self.tokenizer_free, at_s) + work
        log.ready[i] = self.tokenizer_free + rules.front_end_s
        log.replica[i] = self.index
        if self.cache is not None:
            self.expected_hits[i] = self.known_blocks(i) * log.ids_tokens
        self.sent.append(i)

    def known_blocks(self, i: int) -> int:
        """Leading prefix blocks of request i that are in this replica's pool or, after those, in a tier below it."""
        ids = self.log.ids[i]
        hits = self.cache.match(ids)
        return hits if self.tiers is None else hits + len(self.tiers.find(ids[hits:]))

    def check(self, i: int) -> None:
        """Raise InfeasibleError if request i could not run even alone."""
        rules, log = self.scheduler, self.log
        shared = len(log.ids[i]) * log.ids_tokens / log.step_tokens if self.cache is not None else 0
        need = rules.request_blocks(shared) + rules.request_blocks(self._private_prompt(i) + log.osl[i])
        if need > rules.kv_blocks:
            raise InfeasibleError(
                f"request {i} ({log.isl[i]} prompt and {log.osl[i] * log.step_tokens:.0f} output tokens) needs {need} "
                f"KV blocks of {rules.block_tokens * log.step_tokens:.3g} tokens; the replica has {rules.kv_blocks:g}"
            )

    def _give_way(self, step: int, pinned: int, shared_blocks: float) -> bool:
        """Preempt until the next step has room in the KV pool; whether anything had to go."""
        log, rules, residues = self.log, self.scheduler, self.residues
        block, preempted = rules.block_tokens, False
        while True:
            parked = self._parked_blocks(self.partial) + pinned * shared_blocks
            if blocks_of(residues, step, block, self.private, self.batch) + parked <= rules.kv_blocks:
                return preempted
            if self.partial >= 0:
                victim, self.partial, self.left = self.partial, -1, 0
            else:
                victim = self._victim(step)
                got = step - self.birth.pop(victim)
                self.generated[victim] = got
                ends = step - got + log.osl[victim]
                assert ends > step, "a finished request cannot be preempted"
                self.running.remove(ends * len(log.isl) + victim)
                heapify(self.running)
                own = self._private_prompt(victim) + got - 1
                self.context -= log.held[victim] + got - 1
                self.private -= own
                residues[(own - step) % block] -= 1
                self.batch -= 1
                self.active -= 1
            if self.cache is not None:
                self.cache.release(log.ids[victim])
                pinned = len(self.cache.pinned)
            log.preempted[victim] += 1
            self.preemptions += 1
            self.waiting.appendleft(victim)
            preempted = True

    def _look_at(self, now: float, to_poll: int, most: int) -> tuple[int, float]:
        """Steps, at most `most`, and the time until which a rank in lockstep need not look who arrived."""
        ahead = [self.log.ready[self.sent[0]]] if self.sent else []
        next_s = min(ahead + [t for t, _ in self.fetching[:1]], default=math.inf)
        if next_s > now:
            return most, next_s
        return min(most, to_poll if self.scheduler.poll_steps > 1 else 1), math.inf

    def _private_prompt(self, i: int) -> int:
        """What request i holds of its prompt outside the shared prefix blocks."""
        log = self.log
        if self.cache is None:
            return log.held[i]
        own = max(log.isl[i] - len(log.ids[i]) * log.ids_tokens, 0)
        return own if log.step_tokens == 1.0 else round(own / log.step_tokens)

    def _parked_blocks(self, i: int) -> int:
        """KV blocks of the partly prefilled prompt, which is not in the running batch yet."""
        return 0 if i < 0 else self.scheduler.request_blocks(self._private_prompt(i) + self.generated.get(i, 0))

    def _victim(self, step: int) -> int:
        """Running request that gives way."""
        n = len(self.log.isl)
        requests = [key % n for key in self.running]
        if self.scheduler.preempt == "latest":
            return max(requests, key=self.priority.__getitem__)
        return min(requests, key=lambda i: (step - self.birth[i], -self.priority[i]))

    def _gather(self, now: float) -> float:
        """Time at which an idle static replica starts its batch: when it is full, or when the wait is over."""
        ready, wanted = self.log.ready, self.scheduler.max_seqs - len(self.waiting)
        deadline = ready[self.waiting[0]] + self.scheduler.batch_wait_s
        full = ready[self.sent[wanted - 1]] if len(self.sent) >= wanted else math.inf
        return max(now, min(full, deadline))

    def _fetch(self, i: int, now: float) -> float:
        """Start to bring what lower tiers hold of request i's prefix, if that beats computing it; end of the fetch."""
        log, cache, costs = self.log, self.cache, self.costs
        ids = log.ids[i]
        resident = cache.match(ids)
        found = self.tiers.find(ids[resident:])
        if not found:
            return now
        tokens, past = len(found) * log.ids_tokens, resident * log.ids_tokens
        rest = max(log.isl[i] - past - tokens, 1)
        compute = costs.prompt_extra_s(0, rest + tokens) - costs.prompt_extra_s(0, rest)
        compute += costs.pair_s * tokens * (tokens + 2 * past)
        if self.tiers.fetch_end_s(now, found) - now >= compute:
            return now
        end = self.tiers.take(now, ids[resident:], found)
        cache.insert(ids[: resident + len(found)])
        return end
