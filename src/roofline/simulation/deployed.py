"""From a deployment to a pool that the simulator can run: costs from the step model, rules from the engine profile."""

from __future__ import annotations

import numpy as np

from roofline.deployment import Deployment
from roofline.errors import InfeasibleError, UnsupportedError
from roofline.serving.capacity import most_seqs
from roofline.serving.steps import CONTEXTS, TOKENS, step_table
from roofline.simulation.costs import StepCosts, tabulate
from roofline.simulation.cycles import Cycles
from roofline.simulation.engine import Pool
from roofline.simulation.lockstep import Lockstep
from roofline.simulation.scheduler import Scheduler
from roofline.simulation.trace import Trace

NEVER = 1e9  # share of the budget that no prompts fill: a profile's 0


def scheduler_of(where: Deployment, length: float, **knobs) -> Scheduler:
    """The scheduler of one attention-data-parallel rank of a deployment.

    Args:     where; length [tokens]: typical request, at which the KV pool is counted (caches with windows or states
              hold more long requests than their bytes a token suggest); knobs: any of `Scheduler`, in place of the
              profile's
    Returns:  `Scheduler`
    Errors:   InfeasibleError where no such request fits
    Source:   the engine profile
    """
    engine, profile = where.engine, where.engine.scheduler
    if profile.lookahead > 1:
        raise UnsupportedError(f"{engine.name}: a lookahead of {profile.lookahead} steps; the simulator knows 0 and 1")
    memory = engine.memory
    held = float(where.footprint(length).max_concurrency) * length
    if "kv_blocks" not in knobs and held < length:
        raise InfeasibleError(f"{where}: not even one request of {length:g} tokens fits beside the weights")
    block = int(knobs.get("block_tokens", memory.block_size))
    budget = int(profile.token_budget)
    most = int(most_seqs(where))
    rules = {
        "name": engine.name,
        "mixed": profile.policy == "mixed",
        "chunked": profile.chunked_prefill,
        "seen_late": profile.lookahead == 1,
        "reserve_output": profile.reserve_output,
        "preempt": "latest" if profile.policy == "mixed" else "shortest",
        "token_budget": budget,
        "max_seqs": min(most, budget) if profile.policy == "mixed" and profile.chunked_prefill else most,
        "kv_blocks": max(held // block, 1.0) if np.isfinite(held) else np.inf,
        "block_tokens": block,
        "poll_steps": int(profile.poll_interval),
        "hold_steps": int(profile.hold_steps),
        "hold_ratio": float(profile.hold_ratio) or NEVER,
        "stream_interval": int(profile.stream_interval),
        # the ranks of a replica share its tokenisers
        "tokenizer_s_per_token": float(profile.tokenizer_token_s) * where.plan.dp,
        "tokenizer_s_per_request": float(profile.tokenizer_request_s) * where.plan.dp,
        "tokenizers": int(profile.tokenizers),
        "front_end_s": float(profile.front_end_s),
        "emit_steps": float(profile.emit_steps),
        "cold_start_s": float(profile.cold_start_s),
    }
    return Scheduler(**(rules | knobs))


def lockstep_of(where: Deployment) -> Lockstep | None:
    """What the attention-data-parallel ranks of a mixture of experts share; None where ranks need not wait.

    Formula:  S(t) = sum of the experts' and the exchange's times where every rank has t tokens
    Args:     where; schedules that overlap kernels with the network share nothing: the longest rank's whole step counts
    Returns:  `Lockstep`, seconds over tokens
    Source:   `roofline.serving.steps`
    """
    table = step_table(where)
    if table.together == 1.0:
        return None
    shared = np.zeros_like(TOKENS.points) if table.shared_s is None else table.shared_s.values[0]
    return Lockstep(int(table.together), TOKENS.points.tolist(), shared.tolist(), float(table.launch_s))


def costs_of(where: Deployment, trace: Trace, scheduler: Scheduler, lockstep: Lockstep | None = None) -> StepCosts:
    """Step costs of one attention-data-parallel rank, tabulated over what the trace will visit.

    Args:     where, trace, scheduler; lockstep: what ranks share, which is then left out
    Returns:  `StepCosts`; `max_error` and `median_error` say how well they repeat the step model
    Assumes:  without `lockstep`: the other ranks do the same at the same time
    Source:   `roofline.serving.steps`
    """
    table = step_table(where)
    # a batch that comes and goes is, on average, padded by half the distance of two graphs (as `serving.steady` has it)
    padding = (table.graph_batch - 1.0) / 2.0 if trace.concurrency is None else 0.0

    def shared_s(tokens):
        return 0.0 if lockstep is None else np.interp(tokens, lockstep.nodes, lockstep.shared_s)

    def step_s(batch, context, new, past):
        batch, context, new, past = np.broadcast_arrays(*(np.asarray(a, float) for a in (batch, context, new, past)))
        prompt, _ = table.prompts(np.maximum(new, 1.0), past)
        tokens = table.tokens(table.verified * batch + padding + new)
        mixed = table.combined(tokens + table.fixed(batch, context) + prompt)
        drafting, (reading, _) = table.drafting(batch, CONTEXTS.place(context)), table.reading(new, past)
        whole = np.where(new > 0, mixed + drafting + reading, table.decode(batch, context, padding))
        return np.maximum(whole - shared_s(table.verified * batch + new), 0.0)

    low, high = float(trace.isl.min()), float((trace.isl + trace.osl).max())
    most = min(float(scheduler.token_budget), float(trace.isl.max()) * scheduler.max_seqs)
    return tabulate(
        step_s, scheduler.max_seqs, contexts=(low, max(high, 1.5 * low + 64)), prompts=(16.0, max(most, 64.0)),
        eager_s=float(table.layers_s), launch_floor_s=float(table.launch_s) if lockstep is None else 0.0,
        graph_tokens=int(table.graph_tokens), graph_batch=table.pipeline * table.decode_launch.most,
    )  # fmt: skip


def deployed(
    where: Deployment, trace: Trace, replicas: int = 1, pool: dict | None = None, seed: int = 0, **knobs
) -> Pool:
    """A pool of `replicas` of a deployment for the requests of `trace`.

    Args:     where: what `deployment(...)` returns; trace: sets the range of lengths to tabulate; replicas; pool:
              further fields of `Pool` (router, prefix_caching, tiers); seed: of what cycles of speculation yield;
              knobs: scheduler settings, not the engine's
    Returns:  `Pool`; attention-data-parallel ranks become replicas of their own, those of a mixture in lockstep
    Source:   the engine profile and the step model
    """
    if "max_seqs" not in knobs and trace.concurrency is not None:  # a table longer than that is never read
        most = scheduler_of(where, _typical(trace), **knobs).max_seqs
        knobs = knobs | {"max_seqs": min(most, trace.concurrency)}
    scheduler = scheduler_of(where, _typical(trace), **knobs)
    together = lockstep_of(where) if scheduler.continuous else None
    fields = {"replicas": replicas * where.plan.dp, "lockstep": together} | (pool or {})
    if where.speculation is not None:
        fields |= {"cycles": Cycles(where.speculation.shares, seed)}
    return Pool(costs_of(where, trace, scheduler, fields["lockstep"]), scheduler, **fields)


def _typical(trace: Trace) -> float:
    """Mean cached tokens of a request at its end."""
    return float(np.mean(trace.isl + trace.osl))
