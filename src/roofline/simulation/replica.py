"""One replica, moved from event to event.

State between events: the clock; a counter of decode steps `s`; the running batch as a heap of the steps at which its
members finish; the sum of their contexts; the requests sent but not seen, and those seen but not admitted; one partly
prefilled prompt. While nothing but decoding happens, k steps are one jump of
`k d0 + g k (k - 1) / 2` seconds, d0 = base[b] + kv[b] ctx, g = kv[b] b. About two events a request, however long the
output. Everything in the loop is a plain float, int or list: numpy scalars are slower by a factor of three.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Generator
from heapq import heapify, heappop, heappush

from roofline.errors import InfeasibleError, InputError
from roofline.serving.prefix import PrefixCache
from roofline.serving.tiers import KVTiers
from roofline.simulation.costs import StepCosts
from roofline.simulation.jumps import blocks_of, steps_to, steps_until_full
from roofline.simulation.log import Log
from roofline.simulation.scheduler import Scheduler

# A step as a rank in lockstep offers it: seconds of its own part, by how much they grow from step to step, how many
# steps nothing else happens in, until when nobody arrives, tokens, and whether prompts run outside a graph.
Offer = tuple[float, float, int, float, float, bool]
Beat = tuple[int, float, float]  # what it is told: steps, seconds of the first, growth


class Replica:
    """A replica with its queue. `submit` in order of time, then `advance`."""

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

    def advance(self, until: float = math.inf, stop_at_finish: bool = False) -> list[tuple[int, float]]:
        """Run to the first step boundary at or after `until`; (request, time of receipt) of those that finished.

        With `stop_at_finish` it returns as soon as some finish.
        """
        for _ in self.run(until, stop_at_finish):
            raise AssertionError("a replica of its own waits for nobody")
        return self.finished

    def run(self, until: float, stop_at_finish: bool, alone: bool = True) -> Generator[Offer, Beat, None]:
        """`advance` as a generator: not `alone`, it offers one step, is sent how long that takes, and ends after it."""
        log, rules, costs, cache, tiers = self.log, self.scheduler, self.costs, self.cache, self.tiers
        isl, held_, osl, cached, hits, prefilled = log.isl, log.held, log.osl, log.cached, log.hits, log.prefilled
        sent_s, ready, seen, admitted, first, finish = (
            log.sent, log.ready, log.seen, log.admitted, log.first, log.finish)  # fmt: skip
        gap_s, gap_count, chunks, decodes, handed = log.gap_s, log.gap_count, log.chunks, log.decodes, log.handed
        base, kv, step_s, verified, step_tokens = (
            costs.base_s,
            costs.kv_s,
            costs.step_s,
            costs.verified,
            log.step_tokens,
        )
        mixed, chunked, continuous, late = rules.mixed, rules.chunked, rules.continuous, rules.seen_late
        budget, max_seqs, poll, hold = rules.token_budget, rules.max_seqs, rules.poll_steps, rules.hold_steps
        hold_tokens = rules.hold_ratio * budget
        block, capacity, emit_steps = rules.block_tokens, rules.kv_blocks, rules.emit_steps
        limited = capacity < math.inf
        grows, reserves = limited and not rules.reserve_output, limited and rules.reserve_output
        withheld = 0 if rules.stream_first else rules.stream_interval - 1
        per_request, per_token, latency = (
            rules.tokenizer_s_per_request / rules.tokenizers,
            rules.tokenizer_s_per_token / rules.tokenizers,
            rules.front_end_s,
        )
        shared_blocks = log.ids_tokens / (block * step_tokens) if cache is not None else 0
        pinned = cache.pinned if cache is not None else ()
        n_requests, index = len(isl), self.index

        now, last_start, s, next_poll = self.now, self.last_start, self.step, self.next_poll
        running, sent, waiting, fetching = self.running, self.sent, self.waiting, self.fetching
        b, ctx, private, active = self.batch, self.context, self.private, self.active
        partial, left, held, reserved = self.partial, self.left, self.held, self.reserved
        residues, birth, generated, priority = self.residues, self.birth, self.generated, self.priority
        pending_first, stalled, backlog = self.pending_first, self.stalled, self.backlog
        tokenizer_free = self.tokenizer_free
        steps = seat_steps = prompt_steps = prompt_tokens = 0
        busy_s = decode_area = 0.0
        tick, done = self.tick, log.done
        finished = self.finished = []
        completing: list[int] = []
        tokens, before = 0, -1

        try:
            while now < until:
                before = done
                # -- who is seen
                if poll == 1:
                    look = True
                elif s < next_poll:
                    look = False
                else:
                    past_poll = (s - next_poll) % poll
                    look = past_poll == 0
                    next_poll = s + poll - past_poll
                if look and sent:
                    horizon = last_start if late else now
                    while sent and ready[sent[0]] <= horizon:
                        i = sent.popleft()
                        seen[i] = now
                        if cache is not None:
                            self.expected_hits[i] = self.known_blocks(i) * log.ids_tokens
                        if tiers is not None and (end := self._fetch(i, now)) > now:
                            insort(fetching, (end, i))
                        else:
                            waiting.append(i)
                while fetching and fetching[0][0] <= now:
                    waiting.append(fetching.pop(0)[1])

                # -- KV full: the batch gives way until the next step fits
                preempted = False
                if grows and running:
                    parked = (partial >= 0 and self._parked_blocks(partial)) + len(pinned) * shared_blocks
                    while private / block + b + parked > capacity and (
                        blocks_of(residues, s, block, private, b) + parked > capacity
                    ):
                        if partial >= 0:
                            victim, partial, left = partial, -1, 0
                        else:
                            victim = self._victim(s)
                            got = s - birth.pop(victim)
                            generated[victim] = got
                            running.remove((victim_finish := s - got + osl[victim]) * n_requests + victim)
                            heapify(running)
                            assert victim_finish > s, "a finished request cannot be preempted"
                            own = self._private_prompt(victim) + got - 1
                            ctx -= held_[victim] + got - 1
                            private -= own
                            residues[(own - s) % block] -= 1
                            b -= 1
                            active -= 1
                        if cache is not None:
                            cache.release(log.ids[victim])
                        log.preempted[victim] += 1
                        self.preemptions += 1
                        waiting.appendleft(victim)
                        preempted = True
                        parked = self._parked_blocks(partial) + len(pinned) * shared_blocks

                # -- a prompt step
                tokens = 0
                release = waiting and not preempted and (continuous or not running) and b < max_seqs
                if release and hold and running and held < hold:
                    total = b * verified
                    for i in waiting:
                        total += isl[i] - max(cached[i], self.expected_hits.get(i, 0))
                        if total >= hold_tokens:
                            break
                    release = total >= hold_tokens
                if release and not continuous and rules.batch_wait_s and len(waiting) < max_seqs:
                    start = self._gather(now)
                    if start > now:
                        self.resume_s = start
                        if start >= until:
                            break
                        now = start
                        continue
                if partial >= 0 or release:
                    room = budget - b * verified if mixed else budget
                    seats = b
                    pairs = 0.0
                    parts = []
                    parked = 0
                    if partial >= 0:
                        x = left if left < room else room
                        if x > 0:
                            past = isl[partial] + int(generated.get(partial, 0) * step_tokens) - left
                            pairs = x * (x + 2 * past)
                            tokens = x
                            left -= x
                            room -= x
                            parts.append((partial, x))
                        seats += 1
                        if limited:
                            parked = self._parked_blocks(partial)
                        if left == 0:
                            completing.append(partial)
                            partial = -1
                    if release and partial < 0:
                        if cache is not None and limited:  # what running requests took since, the cache lost
                            used = reserved if reserves else blocks_of(residues, s, block, private, b) + parked
                            cache.shrink((capacity - used) / shared_blocks)
                        while waiting and seats < max_seqs:
                            if room <= 0 and (chunked or tokens):
                                break
                            i = waiting[0]
                            got = generated.get(i, 0) if generated else 0
                            if cache is not None:
                                ids = log.ids[i]
                                hit = cache.match(ids)
                                past = hit * log.ids_tokens
                                fresh = (len(ids) - sum(block_id in pinned for block_id in ids)) * shared_blocks
                                own = self._private_prompt(i)
                            else:
                                past, fresh, own = cached[i], 0, held_[i]
                            total = isl[i] + int(got * step_tokens)
                            x = total - past
                            if x < 1:
                                x, past = 1, total - 1  # the last token is computed again: its logits are wanted
                            if handed:
                                x = 0
                            if not chunked and x > room and tokens:
                                break
                            if limited:
                                if reserves:
                                    need = -((-own - osl[i]) // block)
                                    used = reserved
                                else:
                                    need = -((-own - got) // block)
                                    used = private / block + b + parked
                                    if used + need + fresh + len(pinned) * shared_blocks > capacity:
                                        used = blocks_of(residues, s, block, private, b) + parked
                                if used + need + fresh + len(pinned) * shared_blocks > capacity:
                                    break
                                parked += need
                                if reserves:
                                    reserved += need
                            waiting.popleft()
                            if cache is not None:
                                cache.pin(ids)
                                if limited:
                                    cache.shrink((capacity - (reserved if reserves else used + need)) / shared_blocks)
                            if got == 0:
                                admitted[i] = now
                                if not handed:
                                    hits[i] = past
                                    if cache is not None:
                                        log.hit_blocks[i] = hit
                            if grows:
                                priority[i] = self.admissions
                                self.admissions += 1
                            if chunked and x > room:
                                partial, left = i, x - room
                                x = room
                            else:
                                completing.append(i)
                            seats += 1
                            pairs += x * (x + 2 * past)
                            tokens += x
                            room -= x
                            if chunks is not None and x:
                                parts.append((i, x))
                            if partial >= 0:
                                break
                    if tokens or completing:
                        held = 0
                    if tokens:
                        start = now
                        seconds = step_s(b, ctx, tokens, pairs) if mixed else step_s(0, 0, tokens, pairs)
                        if not self.warm:
                            self.warm = True
                            seconds += rules.cold_start_s
                        if not alone:
                            beside = b * verified if mixed else 0
                            outside = tokens + beside > costs.graph_tokens
                            _, seconds, _ = yield seconds, 0.0, 1, math.inf, tokens + beside, outside
                        now += seconds
                        last_start = start
                        busy_s += now - start
                        steps += 1
                        prompt_steps += 1
                        prompt_tokens += tokens
                        seat_steps += active + seats - b
                        if b:
                            decode_area += b * (now - start)
                            if mixed:
                                gap_s.append(now - start)
                                gap_count.append(b)
                                ctx += b
                                private += b
                            elif not stalled:
                                stalled.append((b, start))
                        if mixed:
                            s += 1
                        next_poll = s
                        if chunks is not None:
                            for i, x in parts:
                                chunks.append((i, index, start, now, x))
                    if completing:
                        joined = 0
                        emit = emit_steps * base[b + len(completing)]
                        for i in completing:
                            got = generated.pop(i, 0) if generated else 0
                            if got == 0:
                                prefilled[i] = now
                                if withheld and not handed:
                                    heappush(pending_first, (s + min(withheld, osl[i] - 1)) * n_requests + i)
                                else:
                                    first[i] = now + emit
                            end = s - got - 1 + osl[i]
                            heappush(running, end * n_requests + i)
                            total = held_[i] + got
                            ctx += total
                            if end > s:
                                joined += 1
                            if grows or cache is not None:
                                own = total if cache is None else self._private_prompt(i) + got
                                private += own
                                residues[(own - s) % block] += 1
                                birth[i] = s - got - 1
                            if tiers is not None and tiers.inclusive:
                                tiers.store(log.ids[i])
                        b += len(completing)
                        active += len(completing)
                        completing.clear()
                        if not mixed and joined and tokens:
                            stalled.append((joined, now))

                # -- nothing to compute: to the next arrival
                if tokens == 0 and not running:
                    next_s = ready[sent[0]] if sent else math.inf
                    if fetching and fetching[0][0] < next_s:
                        next_s = fetching[0][0]
                    if not alone:
                        next_poll = s
                        break
                    if next_s >= until or next_s == math.inf:
                        assert not waiting or next_s < math.inf, "an idle replica refused its queue"
                        break
                    if now < next_s:
                        now = next_s
                    last_start = now
                    next_poll = s
                    continue

                # -- decodes only: jump
                if tokens == 0 and running[0] // n_requests > s:
                    k = running[0] // n_requests - s
                    if pending_first and (soon := pending_first[0] // n_requests - s) < k:
                        k = soon
                    d0 = base[b] + kv[b] * ctx
                    g = kv[b] * b
                    if k > 1:
                        if release is False and waiting and hold and continuous and hold - held < k and b < max_seqs:
                            k = hold - held if hold > held else 1
                        if (
                            (sent or fetching)
                            and alone
                            and (
                                # a full replica need not know who arrives, unless it would be seen at a poll on the way
                                poll > 1
                                or tiers is not None
                                or (b < max_seqs and continuous and (not waiting or held < hold))
                            )
                        ):
                            next_s = ready[sent[0]] if sent else math.inf
                            wait = 0 if next_s == math.inf else steps_to(next_s - now, d0, g)
                            soon = wait + 1 if late else (wait or 1)
                            if poll > 1:
                                ahead = next_poll - s
                                soon = ahead if soon <= ahead else ahead + -(-(soon - ahead) // poll) * poll
                            if next_s < math.inf and soon < k:
                                k = soon
                            if fetching and (soon := steps_to(fetching[0][0] - now, d0, g) or 1) < k:
                                k = soon
                        if alone and until < math.inf and (soon := steps_to(until - now, d0, g) or 1) < k:
                            k = soon
                        if grows:
                            parked = (partial >= 0 and self._parked_blocks(partial)) + len(pinned) * shared_blocks
                            if private / block + b + parked + b * (k // block + 1) > capacity:
                                free = int(capacity - parked - blocks_of(residues, s, block, private, b))
                                k = min(k, steps_until_full(residues, s, block, b, free))
                    if not alone:
                        k, next_s = self._look_at(now, next_poll - s, k)
                        k, d0, g = yield d0, g, k, next_s, b * verified, False
                    dt = k * d0 + g * (k * (k - 1) / 2)
                    if stalled:
                        for count, since in stalled:
                            gap_s.append(now + d0 - since)
                            gap_count.append(count)
                        stalled.clear()
                        if k > 1:
                            gap_s.append((dt - d0) / (k - 1))
                            gap_count.append((k - 1) * active)
                    else:
                        gap_s.append(dt / k)
                        gap_count.append(k * active)
                    if decodes is not None:
                        decodes.append((index, now, now + dt, k, active))
                    last_start = now + dt - (d0 + g * (k - 1))
                    now += dt
                    s += k
                    ctx += b * k
                    private += b * k
                    if waiting:
                        held += k
                    steps += k
                    seat_steps += k * active
                    busy_s += dt
                    decode_area += active * dt

                # -- who is done
                limit = (s + 1) * n_requests
                while pending_first and pending_first[0] < limit:
                    first[heappop(pending_first) % n_requests] = now + emit_steps * base[b]
                if running and running[0] < limit:
                    received = now + emit_steps * base[b]
                    while running and running[0] < limit:
                        i = heappop(running) % n_requests
                        finish[i] = received
                        active -= 1
                        done += 1
                        if continuous:
                            b -= 1
                            ctx -= held_[i] + osl[i] - 1
                        if grows or cache is not None:
                            own = (held_[i] if cache is None else self._private_prompt(i)) + osl[i] - 1
                            private -= own
                            residues[(own - s) % block] -= 1
                            birth.pop(i, None)
                        if reserves:
                            own = held_[i] if cache is None else self._private_prompt(i)
                            reserved -= -((-own - osl[i]) // block)
                        if cache is not None:
                            cache.release(log.ids[i])
                        if backlog:
                            j = backlog.pop()
                            sent_s[j] = received
                            if received > tokenizer_free:
                                tokenizer_free = received
                            tokenizer_free += per_request + per_token * isl[j]
                            ready[j] = tokenizer_free + latency
                            log.replica[j] = index
                            sent.append(j)
                        if stop_at_finish:
                            finished.append((i, received))
                    if not running and not continuous:
                        b = ctx = private = 0
                    if done >= tick:
                        log.done = done
                        tick += self.tick_every
                        self.on_tick(done)
                    if finished:
                        break
                if not alone:
                    break
        finally:
            self.now, self.last_start, self.step, self.next_poll = now, last_start, s, next_poll
            self.batch, self.context, self.private, self.active = b, ctx, private, active
            self.partial, self.left, self.held, self.reserved = partial, left, held, reserved
            self.tokenizer_free, self.tick, log.done = tokenizer_free, tick, done
            if before >= 0:
                self.last_finished, self.last_tokens = done - before, tokens
            self.steps += steps
            self.prompt_steps += prompt_steps
            self.seat_steps += seat_steps
            self.prompt_tokens += prompt_tokens
            self.busy_s += busy_s
            self.decode_area += decode_area

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
