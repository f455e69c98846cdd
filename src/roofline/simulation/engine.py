"""`simulate`: a trace through a pool of replicas, or through a prefill and a decode pool.

Replicas meet only when a request is sent, handed over or finished. The replica with the earliest clock moves first, to
the first step boundary at or after the next event or the earliest time at which another could finish something: nothing
is ever sent into a replica's past.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np

from roofline.errors import InputError, check_number
from roofline.serving.tiers import KVTiers, fetch_s
from roofline.simulation.costs import StepCosts
from roofline.simulation.cycles import Cycles
from roofline.simulation.lockstep import Group, Lockstep
from roofline.simulation.log import Log
from roofline.simulation.replica import Replica
from roofline.simulation.result import Result, collect
from roofline.simulation.routing import CacheAware, FreshWarm, LeastLoaded, RoundRobin
from roofline.simulation.scheduler import Scheduler
from roofline.simulation.trace import Trace

Mover = Replica | Group  # what moves by itself
Router = RoundRobin | LeastLoaded | CacheAware | FreshWarm


@dataclass(frozen=True, slots=True)
class Pool:
    """Like replicas behind one router.

    `prefix_caching` keeps prompt blocks in the KV pool of each replica (scheduler.kv_blocks), the least recent evicted.
    `tiers` is called once a replica and returns its tiers below the GPU; one object each time is a common store.
    With `lockstep` so many replicas in turn are attention-data-parallel ranks that step together: `costs` are then of a
    rank's own part. With `cycles` a decode step is a cycle of speculation, and `costs` are those of cycles.
    """

    costs: StepCosts
    scheduler: Scheduler
    replicas: int = 1
    router: Router = field(default_factory=RoundRobin)
    prefix_caching: bool = False
    tiers: Callable[[], KVTiers] | None = None
    cycles: Cycles | None = None
    lockstep: Lockstep | None = None

    def __post_init__(self):
        check_number("replicas", self.replicas, low=1, integer=True)
        if isinstance(self.router, (CacheAware, FreshWarm)) and not self.prefix_caching:
            raise InputError(f"router {type(self.router).__name__} looks at prefix caches: set prefix_caching=True")
        if isinstance(self.router, FreshWarm) and self.replicas <= self.router.fresh:
            raise InputError(f"router FreshWarm: {self.router.fresh} fresh of {self.replicas} replicas leave none warm")
        if self.lockstep is not None and (self.replicas % self.lockstep.ranks or not self.scheduler.continuous):
            raise InputError(f"lockstep: {self.replicas} replicas of continuous batching are not whole groups of "
                             f"{self.lockstep.ranks} ranks")  # fmt: skip
        if self.tiers is not None and not self.prefix_caching:
            raise InputError("tiers hold what the prefix cache evicts: set prefix_caching=True")

    def start(self, log: Log) -> list[Replica]:
        """Fresh replicas that write to `log`."""
        costs, rules = self.costs, self.scheduler
        if self.cycles is not None:
            costs, rules = self.cycles.counted(costs, rules)
        return [
            Replica(costs, rules, log, r, self.tiers() if self.tiers else None, self.prefix_caching)
            for r in range(self.replicas)
        ]

    def movers(self, ranks: list[Replica]) -> Sequence[Mover]:
        """What moves by itself: replicas, or groups of ranks in lockstep."""
        if self.lockstep is None:
            return ranks
        n = self.lockstep.ranks
        return [Group(ranks[i : i + n], self.lockstep) for i in range(0, len(ranks), n)]

    def log(self, trace: Trace, only_prompts: bool = False, **how: bool) -> Log:
        """An empty log of the requests of `trace`: what they ask of this pool."""
        osl = np.ones_like(trace.osl) if only_prompts else trace.osl
        each = 1.0 if self.cycles is None else self.cycles.tokens
        steps = osl if self.cycles is None else self.cycles.steps(osl)
        cached = None if trace.cached is None or how.get("handed") else trace.cached.tolist()
        return Log(trace.isl.tolist(), steps.tolist(), cached, trace.block_ids, trace.block_tokens, each, **how)


@dataclass(frozen=True, slots=True)
class Link:
    """Path of the KV from each prefill replica to the decode pool; one request at a time.

    `overlap` is the share of a transfer that hides under the prefill (layer by layer).
    """

    kv_bytes_per_token: float
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    overlap: float = 0.0

    def __post_init__(self):
        check_number("kv_bytes_per_token", self.kv_bytes_per_token)
        check_number("bandwidth_bytes_per_s", self.bandwidth_bytes_per_s, low=1e-9)
        check_number("latency_s", self.latency_s)
        check_number("overlap", self.overlap, high=1)


def simulate(
    trace: Trace,
    pool: Pool,
    *,
    decode: Pool | None = None,
    link: Link | None = None,
    progress: Callable[[int, int], None] | None = None,
    timeline: bool = False,
) -> Result:
    """What every request of `trace` lives through in `pool`.

    Args:     trace: open loop (arrival times) or closed loop (`trace.concurrency` clients that send the next request as
              soon as one is answered); pool: serves whole requests, or only prompts if `decode` is given; decode: takes
              over after the KV has crossed `link`; a request's first token leaves when it gets a decode seat;
              progress(done, total): called about a hundred times; timeline: also keep every prompt chunk and decode run
    Returns:  `Result`; after an interrupt (Ctrl-C) it has what was done and `complete` is False
    Assumes:  replicas of a pool are alike; a step's time depends on the sums in `StepCosts`; no failures
    Error:    against a step-by-step loop with the same rules: rounding (tests/test_simulation_engine.py)
    Source:   derivation; scheduler rules as in `Scheduler`
    """
    if (decode is None) != (link is None):
        raise InputError("disaggregation needs both: decode=Pool(...) and link=Link(...)")
    requests, whole = len(trace), decode is None
    log = pool.log(trace, only_prompts=not whole, timeline=timeline)
    if not whole:  # the decode pool's front end is the one that users see
        pool = dataclasses.replace(pool, scheduler=dataclasses.replace(pool.scheduler, emit_steps=0.0))
    replicas = pool.start(log)
    last_log, last = log, []
    if not whole:
        silent = {"tokenizer_s_per_token": 0.0, "tokenizer_s_per_request": 0.0, "front_end_s": 0.0, "cold_start_s": 0.0}
        last_log = decode.log(trace, handed=True, timeline=timeline)
        last = dataclasses.replace(decode, scheduler=dataclasses.replace(decode.scheduler, **silent)).start(last_log)
    for replica in (*replicas[:1], *last[:1]):
        if math.isfinite(replica.scheduler.kv_blocks):
            for i in range(requests):
                replica.check(i)
    if progress is not None:
        every = max(1, requests // 100)
        for replica in last or replicas:
            replica.tick, replica.tick_every = every, every
            replica.on_tick = lambda done: progress(done, requests)
    complete = True
    try:
        apart = trace.concurrency is None and not pool.router.looks and pool.tiers is None
        if whole and (len(replicas) == 1 or apart):
            _independent(trace, replicas, pool.router, pool.movers(replicas))
        else:
            movers = pool.movers(replicas), decode.movers(last) if decode else []
            _together(trace, replicas, pool.router, last, decode.router if decode else None, link, *movers)
        if progress is not None:
            progress(last_log.done, requests)
    except KeyboardInterrupt:
        complete = False
    return collect(trace, log, last_log, replicas, last, complete)


def _independent(trace: Trace, replicas: list[Replica], router: Router, movers: Sequence[Mover] = ()) -> None:
    """Replicas that never have to look at each other: each runs through at once."""
    if trace.concurrency is not None:
        (replica,) = replicas
        waiting = list(range(len(trace.isl) - 1, -1, -1))
        for _ in range(min(trace.concurrency, len(waiting))):
            replica.submit(waiting.pop(), 0.0)
        replica.backlog = waiting
    else:
        for i, at in enumerate(trace.arrived_s.tolist()):
            replicas[router.pick(replicas, i, i, at) if len(replicas) > 1 else 0].submit(i, at)
    for mover in movers or replicas:
        mover.advance()


def _together(trace, replicas, router, last, last_router, link: Link | None, movers=(), last_movers=()) -> None:
    """Replicas whose requests, hand-overs and completions interleave."""
    movers, last_movers = movers or replicas, last_movers or last
    closed = trace.concurrency is not None
    n = len(trace.isl)
    waiting = list(range(n - 1, -1, -1)) if closed else []
    # (time, order, request or -1 for the next one, goes to the decode pool)
    if closed:
        events = [(0.0, k, -1, False) for k in range(min(trace.concurrency, n))]
    else:
        events = [(at, i, i, False) for i, at in enumerate(trace.arrived_s.tolist())]
    heapify(events)
    order, turns = n, [0, 0]
    link_free = [0.0] * len(replicas)
    everyone = movers + last_movers
    stores = [r.tiers for r in replicas if r.tiers is not None]
    feeders = everyone if closed or len({id(s) for s in stores}) < len(stores) else movers if last else []
    while True:
        clocks = [r.next_s for r in everyone]
        first = min(range(len(everyone)), key=clocks.__getitem__)
        event_s = events[0][0] if events else math.inf
        if event_s <= clocks[first]:
            if event_s == math.inf:
                return
            at, _, i, handed = heappop(events)
            if i < 0:  # only now is it sure that no other client asks earlier
                if not waiting:
                    continue
                i = waiting.pop()
            group, route = (last, last_router) if handed else (replicas, router)
            pick = route.pick(group, i, turns[handed], at)
            turns[handed] += 1
            group[pick].submit(i, at)
            continue
        mover = everyone[first]
        until = min([event_s] + [r.earliest_finish_s for r in feeders if r is not mover])
        until = max(until, math.nextafter(clocks[first], math.inf))
        for i, at in mover.advance(until, stop_at_finish=bool(feeders)):
            if last and first < len(movers):
                sender = mover.log.replica[i]
                move = float(fetch_s(trace.isl[i], link.kv_bytes_per_token, link.bandwidth_bytes_per_s))
                start = max(at, link_free[sender])
                link_free[sender] = start + move * (1.0 - link.overlap)
                heappush(events, (link_free[sender] + link.latency_s, order, i, True))
                order += 1
            elif closed:
                heappush(events, (at, order, -1, False))
                order += 1
