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
from collections.abc import Generator
from heapq import heappop, heappush

from roofline.simulation.jumps import blocks_of, steps_to, steps_until_full
from roofline.simulation.queue import Queue

# A step as a rank in lockstep offers it: seconds of its own part, by how much they grow from step to step, how many
# steps nothing else happens in, until when nobody arrives, tokens, and whether prompts run outside a graph.
Offer = tuple[float, float, int, float, float, bool]
Beat = tuple[int, float, float]  # what it is told: steps, seconds of the first, growth


class Replica(Queue):
    """A replica with its queue. `submit` in order of time, then `advance`."""

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
        refused, settled = False, cache is None and not hold  # until somebody leaves, nothing changes a refusal

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
                    if private / block + b + parked > capacity:
                        self.batch, self.context, self.private, self.active = b, ctx, private, active
                        self.partial, self.left = partial, left
                        preempted = self._give_way(s, len(pinned), shared_blocks)
                        refused = refused and not preempted
                        b, ctx, private, active = self.batch, self.context, self.private, self.active
                        partial, left = self.partial, self.left

                # -- a prompt step
                tokens = 0
                release = waiting and not (preempted or refused) and (continuous or not running) and b < max_seqs
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
                            total = isl[i] + int(got * step_tokens) if got else isl[i]
                            x = total - past
                            if x < 1:
                                x, past = 1, total - 1  # the last token is computed again: its logits are wanted
                            arrives = handed and not got  # with its KV; who was preempted computes again
                            if arrives:
                                x = 0
                            if not chunked and x > room and tokens:
                                break
                            if limited:
                                if reserves:
                                    need = -((-own - osl[i]) // block)
                                    used = reserved
                                else:
                                    need = -((-own - got - arrives) // block)  # who decodes at once has a slot
                                    used = private / block + b + parked
                                    if used + need + fresh + len(pinned) * shared_blocks > capacity:
                                        used = blocks_of(residues, s, block, private, b) + parked
                                if used + need + fresh + len(pinned) * shared_blocks > capacity:
                                    refused = settled
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
                    refused = False
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
