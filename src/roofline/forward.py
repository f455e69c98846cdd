"""The ops of one step on the busiest rank: what a model, a step and a plan come to, as a list of shapes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from roofline.arrays import Array
from roofline.kernels.elementwise import warm_share
from roofline.ops import ACTIVATION_BYTES, Collective, Elementwise, Gemm, Op
from roofline.parallel import Plan, padded_vocab
from roofline.precision import Precision
from roofline.specs.model import Model
from roofline.workload import Sequences


def on_rank(group: Sequences, plan: Plan) -> Sequences:
    """The share of a group that the busiest rank works on.

    Attention data parallelism deals whole sequences out, at least one to the busiest rank. Context parallelism cuts a
    prompt's new tokens so that each rank attends to the same number of pairs (zig-zag), and a decode's past tokens,
    those inside a window as evenly as the others (they are dealt in turn).

    Formula:  dp: max(count / dp, min(count, 1)); cp, prompts: new' = new / cp, past' = past + (new - new') / 2;
              cp, few new tokens: past' = past / cp, window' = window / cp
    Args:     group: sequences [-] with new and past [tokens]
    Source:   derivation: with these, pairs' = pairs / cp up to rounding
    """
    count = group.count
    if plan.dp > 1:
        count = np.maximum(np.asarray(count, float) / plan.dp, np.minimum(count, 1.0))
    if plan.cp == 1:
        return replace(group, count=count)
    prompt = np.asarray(group.new, float) >= plan.cp
    new = np.where(prompt, np.asarray(group.new, float) / plan.cp, group.new)
    past = np.where(prompt, group.past + (group.new - new) / 2.0, np.asarray(group.past, float) / plan.cp)
    return Sequences(count, new, past, group.logits, np.where(prompt, 1.0, plan.cp))


def step_ops(
    model: Model,
    groups: tuple[Sequences, ...],
    plan: Plan,
    precision: Precision,
    stage: int | None = None,
    encoder_tokens: Array = 0.0,
    llc_bytes: Array = 0.0,
) -> list[Op]:
    """The ops that the busiest rank executes for one step, in order; `count` says how many layers do the same.

    Args:     groups: what the whole replica works on in this step; stage: one pipeline stage, or None for all of them
              one after the other (the latency of a pass); encoder_tokens: length that cross-attention looks at;
              llc_bytes [B]: last-level cache, in which a looped block may stay from one loop to the next
    Returns:  list of Op
    Errors:   InfeasibleError where heads, experts or vocabulary cannot be cut as the plan says
    """
    groups = tuple(on_rank(g, plan) for g in groups)
    tokens = sum(g.tokens for g in groups)
    logits = sum(g.count * g.logits for g in groups)
    first, last = stage in (None, 0), stage in (None, plan.pp - 1)
    ops: list[Op] = []
    if first:
        ops += model.entry_ops(tokens, plan, precision)
    runs = [
        (layer.loops, count, layer.ops(model.hidden, groups, plan, precision, encoder_tokens))
        for layer, count in model.stage_runs(plan.pp, stage)
    ]
    looped = sum(count * op.count * op.bytes for loops, count, found in runs if loops > 1 for op in found)
    for loops, count, found in runs:
        ops += [replace(op, count=op.count * count * loops, **_cached(op, loops, looped, llc_bytes)) for op in found]
    ops += _handover(model, tokens, plan, stage)
    if last and np.any(np.asarray(logits) > 0):  # a chunk that does not end its prompt needs no head
        ops += head_ops(model, logits, plan, precision)
    return ops


def _cached(op: Op, loops: int, block_bytes: Array, llc_bytes: Array) -> dict[str, Array]:
    """What to change of an op of a looped block: matrices may be in the cache since the loop before."""
    return {"cached": loop_hits(loops, block_bytes, llc_bytes)} if loops > 1 and isinstance(op, Gemm) else {}


def loop_hits(loops: Array, block_bytes: Array, llc_bytes: Array) -> Array:
    """Share of the weight reads of a looped block that the last-level cache serves.

    Formula:  (1 - 1/L) h,  h = warm_share(Y, LLC): the first loop always reads from memory
    Args:     loops L [-]; block_bytes Y [B]: everything that one loop reads and writes, weights, KV and activations,
              which is what passes between two uses of a weight; llc_bytes LLC [B]
    Returns:  [-] 0 to 1 - 1/L
    Assumes:  least-recently-used replacement, as `warm_share`; nothing else runs between the loops
    Error:    not measured
    Source:   derivation

    >>> float(loop_hits(8, 35e6, 50e6)), float(loop_hits(1, 1.0, 50e6))
    (0.4375, 0.0)
    """
    return (1.0 - 1.0 / loops) * warm_share(block_bytes, llc_bytes, cold=False)


def gathered(ops: list[Op], plan: Plan) -> list[Op]:
    """The ops of an engine that cuts every matrix by output columns and gathers in the memory of the host.

    Where others cut the second product of a pair by rows and add up its output, here its input is gathered, each rank
    makes its columns of the output, and those are gathered too.

    Formula:  gemm [m, n, k/tp], all_reduce 2 m n  ->  host_gather 2 m k, gemm [m, n/tp, k], host_gather 2 m n
    Source:   ExLlamaV2 0.2, tensor_p.py and ext_tp.cpp: tp_gather copies shards to pinned memory, tp_broadcast copies
              the whole back to every device
    """
    out: list[Op] = []
    for op in ops:
        before = out[-1] if out else None
        if isinstance(op, Collective) and op.pattern == "all_reduce" and isinstance(before, Gemm):
            rows, wide, count = ACTIVATION_BYTES * before.m, before.k * plan.tp, op.count
            out[-1:] = [
                Collective("tp.gather_in", "host_gather", rows * wide, plan.tp, count=count),
                replace(before, n=before.n / plan.tp, k=wide),
                Collective("tp.gather_out", "host_gather", rows * before.n, plan.tp, count=count),
            ]
        else:
            out.append(op)
    return out


def encoder_ops(model: Model, groups: tuple[Sequences, ...], plan: Plan, precision: Precision) -> list[Op]:
    """The pass of an encoder over new prompts, on one rank; empty for decoder-only models."""
    return model.encoder_ops(tuple(on_rank(g, plan) for g in groups), plan, precision) if model.encoder else []


def head_ops(model: Model, logits: Array, plan: Plan, precision: Precision) -> list[Op]:
    """Final norm, the product with the vocabulary and, over tensor-parallel ranks, gathering the logits."""
    rows = padded_vocab(model.vocab, plan.tp) / plan.tp
    ops: list[Op] = [
        Elementwise("head.norm", 4.0 * ACTIVATION_BYTES * logits * model.hidden),
        Gemm("lm_head", logits, rows, model.hidden, precision.of("head")),
    ]
    if plan.tp > 1:
        ops += [Collective("head.gather", "all_gather", ACTIVATION_BYTES * logits * model.vocab, plan.tp)]
    return ops


def _handover(model: Model, tokens: Array, plan: Plan, stage: int | None) -> list[Op]:
    """Activations sent from each pipeline stage to the next."""
    hops = plan.pp - 1 if stage is None else int(stage < plan.pp - 1)
    if not hops:
        return []
    return [Collective("pp.send", "send", ACTIVATION_BYTES * tokens * model.hidden, 2, count=hops)]
