"""Step-by-step reference of the simulator: the same scheduler rules, one step at a time, one object a request.

Written for clarity, not speed: no jumps, no closed forms, blocks counted sequence by sequence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Request:
    i: int
    isl: int
    osl: int
    cached: int
    send: float = math.nan
    ready: float = math.nan
    first: float = math.nan
    finish: float = math.nan
    generated: int = 0
    left: int = -1  # prompt tokens still to compute; -1: not admitted
    preempted: int = 0
    order: int = -1
    shown: int = 0
    prefilled: bool = False
    gaps: list = field(default_factory=list)
    last: float = math.nan

    @property
    def context(self):  # tokens whose KV is there, once prefilled
        return self.isl + self.generated - 1


def ceil_div(a, b):
    return -(-a // b)


def reference(trace, costs, rules):
    """Requests with their times; also seat-steps, steps."""
    run = steps_of(trace, costs, rules)
    offer, now = next(run), 0.0
    try:
        while True:
            now = max(now, offer[1]) if offer[0] is None else now + offer[0]
            offer = run.send(now)
    except StopIteration as end:
        return end.value


def lockstep_reference(traces, costs, rules, shared):
    """As `reference`, of ranks that step together: the longest own part, and `shared(tokens of all)`."""
    runs = [steps_of(t, costs, rules) for t in traces]
    offers, now, out = [next(r) for r in runs], 0.0, [None] * len(runs)
    while any(result is None for result in out):
        live = [o for o, result in zip(offers, out) if result is None]
        own = [o for o in live if o[0] is not None]
        idle = [o[1] for o in live if o[0] is None]
        start = now
        if own:
            now += max(o[0] for o in own) + shared(sum(o[1] for o in own))
        else:
            now = start = max(now, min(idle))
        for i, run in enumerate(runs):
            if out[i] is None:
                try:
                    offers[i] = run.send((start, now) if offers[i][0] is None else now)
                except StopIteration as end:
                    out[i] = end.value
    return out


def steps_of(trace, costs, rules):
    """The loop of one replica, as a generator: it offers (seconds, tokens) of a step and is sent the time of its end.

    Without work it offers (None, time of the next arrival) and is sent a time, or the start and end of others' step.
    """
    requests = [
        Request(i, int(isl), int(osl), int(trace.cached[i]) if trace.cached is not None else 0)
        for i, (isl, osl) in enumerate(zip(trace.isl, trace.osl))
    ]
    closed = trace.concurrency is not None
    backlog = list(requests)
    sent, waiting, running = [], [], []  # running includes the partly prefilled
    tokenizer_free = -math.inf

    def submit(r, at):
        nonlocal tokenizer_free
        r.send = at
        work = (rules.tokenizer_s_per_request + rules.tokenizer_s_per_token * r.isl) / rules.tokenizers
        tokenizer_free = max(tokenizer_free, at) + work
        r.ready = tokenizer_free + rules.front_end_s
        sent.append(r)

    if closed:
        for _ in range(trace.concurrency):
            if backlog:
                submit(backlog.pop(0), 0.0)
    else:
        for r, at in zip(requests, trace.arrived_s.tolist()):
            submit(r, at)
        backlog = []

    now = start = 0.0
    since_poll, must_poll = 0, True
    held = order = decode_steps = 0
    cold = rules.cold_start_s
    seats = steps = 0
    static_batch = []
    block = rules.block_tokens

    def blocks(r, ahead):
        """KV blocks of an admitted request; `ahead`: with the slot of its next token."""
        if rules.reserve_output:
            return ceil_div(r.isl + r.osl, block)
        if r.left > 0 or not r.prefilled:
            return ceil_div(r.isl + r.generated, block)
        return ceil_div(r.context + ahead, block)

    while True:
        # seen
        if rules.poll_steps == 1 or must_poll or since_poll >= rules.poll_steps:
            horizon = start if rules.seen_late else now
            while sent and sent[0].ready <= horizon:
                waiting.append(sent.pop(0))
            since_poll, must_poll = 0, False
        # preempt until every decode's next token has a slot
        skip = False
        if not rules.reserve_output and math.isfinite(rules.kv_blocks):
            while running and sum(blocks(r, 1) for r in running) > rules.kv_blocks:
                unfinished = [r for r in running if not r.prefilled]
                if unfinished:
                    victim = unfinished[-1]
                elif rules.preempt == "latest":
                    victim = max(running, key=lambda r: r.order)
                else:
                    victim = min(running, key=lambda r: (r.generated, -r.order))
                running.remove(victim)
                victim.left, victim.prefilled = -1, False
                victim.preempted += 1
                waiting.insert(0, victim)
                skip = True
        decoding = [r for r in running if r.prefilled]
        room = rules.token_budget - (len(decoding) if rules.mixed else 0)
        parts = []
        for r in running:
            if not r.prefilled:
                x = min(r.left, room)
                parts.append((r, x))
                room -= x
        release = bool(waiting) and not skip and (rules.continuous or not static_batch)
        release = release and len(decoding) < rules.max_seqs
        if release and rules.hold_steps and decoding and held < rules.hold_steps:
            release = len(decoding) + sum(r.isl - r.cached for r in waiting) >= rules.hold_ratio * rules.token_budget
        if release and all(x == r.left for r, x in parts):
            while waiting and len(running) < rules.max_seqs:
                if room <= 0 and (rules.chunked or parts):
                    break
                r = waiting[0]
                need = max(r.isl + r.generated - r.cached, 1)
                if not rules.chunked and need > room and parts:
                    break
                r.prefilled = False
                used = sum(blocks(q, 1) for q in running)
                if used + (ceil_div(r.isl + r.osl, block) if rules.reserve_output
                           else ceil_div(r.isl + r.generated, block)) > rules.kv_blocks:  # fmt: skip
                    break
                waiting.pop(0)
                r.left, r.order = need, order
                order += 1
                x = min(need, room) if rules.chunked else need
                running.append(r)
                parts.append((r, x))
                room -= x
                if x < need:
                    break
        if parts:
            held = 0
            tokens = sum(x for _, x in parts)
            pairs = sum((r.isl + r.generated - r.left + x) ** 2 - (r.isl + r.generated - r.left) ** 2 for r, x in parts)
            with_decode = decoding if rules.mixed else []
            seconds = costs.step_s(len(with_decode), sum(r.context for r in with_decode), tokens, pairs) + cold
            cold = 0.0
            start, now = now, (yield seconds, tokens + len(with_decode))
            steps += 1
            seats += len(running)
            must_poll = True
            for r, x in parts:
                r.left -= x
            done = [r for r, _ in parts if r.left == 0]
            stepped = with_decode
            if rules.mixed:
                decode_steps += 1
        elif not running:
            if not sent:
                assert not waiting
                break
            told = yield None, sent[0].ready
            start, now = told if isinstance(told, tuple) else (told, told)
            must_poll = True
            continue
        else:
            batch = static_batch or decoding
            seconds = costs.step_s(len(batch), sum(r.context for r in batch))
            start, now = now, (yield seconds, len(batch))
            steps += 1
            seats += len(decoding)
            if waiting:
                held += 1
            since_poll += 1
            decode_steps += 1
            done, stepped = [], decoding
            for r in batch:
                if r not in decoding:
                    r.generated += 1  # a kept seat goes on
        emit_batch = len(static_batch) or len(decoding) + len(done)
        emit = rules.emit_steps * costs.base_s[emit_batch]
        for r in done:
            r.prefilled = True
            if rules.continuous is False:
                static_batch.append(r)
        hold_first = 0 if rules.stream_first else rules.stream_interval - 1
        for r in stepped + done:
            r.generated += 1
            if r.generated == min(1 + hold_first, r.osl) and math.isnan(r.first):
                r.first = now + emit
            if r.last == r.last:
                r.gaps.append(now - r.last)
            r.last = now
        for r in [r for r in running if r.prefilled and r.generated == r.osl]:
            r.finish = now + emit
            running.remove(r)
        if static_batch and not any(r.prefilled for r in running):
            static_batch = []
        for r in sorted((r for r in requests if r.finish == now + emit and not r.shown), key=lambda r: r.i):
            r.shown = 1
            if closed and backlog:
                submit(backlog.pop(0), r.finish)
    return requests, seats, steps
