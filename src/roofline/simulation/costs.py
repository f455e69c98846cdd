"""The few numbers of a step model that a scheduler needs, tabulated once: no op is built inside the simulator."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from roofline.arrays import Array
from roofline.errors import InputError


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of any step of one replica, from sums over its sequences.

        step = base[b] + kv[b] ctx + [n > 0] (max(P[b](n), prompt_least[b]) + pair sum x (x + 2p))

    A step with prompt tokens that does not fit a captured graph pays `eager_s` and lasts at least `launch_floor_s`.
    `b` sequences decode over `ctx` cached tokens in all; `n` prompt tokens come in chunks of x on top of p. P[b] is
    linear between `nodes` and beyond. Tables are indexed by b, from 0 (a step of prompts alone) to the largest batch,
    and are plain lists: indexing numpy in a Python loop is slow.
    """

    base_s: list[float]  # decode step without its KV reads; [0]: what a prompt-only step pays besides the prompt
    kv_s: list[float]  # per cached token read
    pair_s: float  # attention, per token^2 where a chunk counts x (x + 2p) = (p + x)^2 - p^2
    nodes: list[float]  # prompt tokens, increasing, at least two
    prompt_s: list[list[float]]  # [b][node]: what the prompt adds to the step, attention apart
    prompt_least_s: list[float]  # least of it: experts that the decode step does not read
    eager_s: float = 0.0  # per prompt step outside a CUDA graph: host work that does not scale
    launch_floor_s: float = 0.0  # kernels of such a step, launched one by one
    graph_tokens: int = 0  # prompt steps of at most so many tokens run in a graph: neither of the two
    verified: int = 1  # tokens of a decoding sequence in a step: more than one where drafts are verified
    max_error: float = 0.0  # largest and median relative error of the table, where it was made from a step model
    median_error: float = 0.0
    notes: str = field(default="", compare=False)

    @property
    def max_batch(self) -> int:
        """Largest batch the tables cover."""
        return len(self.base_s) - 1

    def prompt_extra_s(self, batch: int, tokens: float) -> float:
        """What `tokens` prompt tokens add to a step of `batch` decodes, attention apart.

        Formula:  max(P[b](n), prompt_least[b]), P linear between nodes
        Args:     batch b; tokens n
        Returns:  [s]
        Source:   linear interpolation
        """
        nodes, row = self.nodes, self.prompt_s[batch]
        j = bisect_left(nodes, tokens, 1, len(nodes) - 1)
        low = row[j - 1]
        extra = low + (row[j] - low) * (tokens - nodes[j - 1]) / (nodes[j] - nodes[j - 1])
        least = self.prompt_least_s[batch]
        return extra if extra > least else least

    def step_s(self, batch: int, context: float, prompt_tokens: float = 0.0, pairs: float = 0.0) -> float:
        """Seconds of one step.

        Formula:  as the class says
        Args:     batch b, context: cached tokens of all b together; prompt_tokens n; pairs: sum of x (x + 2p)
        Returns:  [s]
        Error:    `max_error`, `median_error` against the step model it came from
        Source:   derivation; the validation of the step model it came from
        """
        seconds = self.base_s[batch] + self.kv_s[batch] * context
        if not prompt_tokens:
            return seconds
        seconds += self.prompt_extra_s(batch, prompt_tokens) + self.pair_s * pairs
        if self.graph_tokens and prompt_tokens + batch * self.verified <= self.graph_tokens:
            return seconds
        seconds += self.eager_s
        return seconds if seconds > self.launch_floor_s else self.launch_floor_s


def from_terms(
    base_s: Array,
    kv_s: Array,
    prompt_token_s: float,
    pair_s: float,
    eager_s: float = 0.0,
    experts_s: Array = 0.0,
    launch_floor_s: float = 0.0,
    graph_tokens: int = 0,
) -> StepCosts:
    """`StepCosts` from known terms; tables start at batch 1, and a step of prompts alone pays base[1].

    Formula:  base[b] + kv[b] ctx + max(prompt_token n, experts[b]) + eager + pair sum x (x + 2p)
    Args:     base_s, kv_s, experts_s [max_batch] (or a scalar for the last two) [s]; the rest scalars [s]
    Returns:  `StepCosts`
    Source:   derivation
    """
    base = np.asarray(base_s, float)
    kv, experts = (np.broadcast_to(np.asarray(a, float), base.shape) for a in (kv_s, experts_s))

    def table(a):
        return [float(a[0]), *a.tolist()]

    line = [0.0, float(prompt_token_s)]
    return StepCosts(
        table(base), table(kv), float(pair_s), [0.0, 1.0], [line] * (base.size + 1), table(experts),
        float(eager_s), float(launch_floor_s), int(graph_tokens),
    )  # fmt: skip


def tabulate(
    step_s: Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray],
    max_batch: int,
    contexts: tuple[float, float] = (512.0, 4096.0),
    prompts: tuple[float, float] = (16.0, 8192.0),
    eager_s: float = 0.0,
    launch_floor_s: float = 0.0,
    graph_tokens: int = 0,
    graph_batch: float = np.inf,
) -> StepCosts:
    """`StepCosts` of a step model, from some 400 evaluations in a few vectorised calls.

    Formula:  base, kv: the slope between both ends of `contexts`, exact in their middle; pair: slope over past at the
              largest prompt; P: exact at 14 lengths at the mean context; batches between the grid's are interpolated
              linearly
    Args:     step_s(decode_count, decode_context, prefill_new, prefill_past) -> s, arrays that broadcast, counts may be
              0; decode_context is the mean per sequence; max_batch [sequences];
              contexts, prompts: range that the load will visit [tokens], prompts of a whole step;
              eager_s, launch_floor_s, graph_tokens: of the engine, on top of the step model; graph_batch: the largest
              batch before a jump of the step model, exact there and one further
    Returns:  `StepCosts` with `max_error` and `median_error`, measured at points off the grid
    Assumes:  time is linear in context inside the range (an attention window bends it, and launches that hold short
              ones up: narrow the range)
    Error:    its own fields, for each step model
    Source:   derivation
    """
    if max_batch < 1 or not 0 < contexts[0] < contexts[1] or not 0 < prompts[0] < prompts[1]:
        raise InputError(
            f"tabulate: max_batch {max_batch}, contexts {contexts}, prompts {prompts}; allowed: a batch of 1 or more "
            "and increasing ranges of positive lengths"
        )
    edge = [e for e in (np.floor(graph_batch), np.floor(graph_batch) + 1.0) if 1 <= e <= max_batch]
    every = (np.arange(1, min(max_batch, 4) + 1), np.geomspace(1, max_batch, 24).round(), edge)
    grid = np.unique(np.concatenate(every))
    ends = np.array(contexts, float)
    places = np.array([ends[0], ends.mean(), ends[1]])
    decode = np.asarray(step_s(grid[:, None], places, np.zeros(1), np.zeros(1)), float)
    kv = np.maximum(decode[:, 2] - decode[:, 0], 0.0) / (grid * (ends[1] - ends[0]))
    base = decode[:, 1] - kv * grid * places[1]

    nodes = np.unique(np.concatenate(([1.0], np.geomspace(prompts[0], prompts[1], 13).round())))
    # slope over past, at the largest prompt: linear layers cancel
    cold, warm = np.asarray(step_s(np.zeros(1), np.zeros(1), nodes[-1:], np.array([[0.0], ends[1:]])), float).ravel()
    pair = max(warm - cold, 0.0) / (2.0 * nodes[-1] * ends[1])
    batches = np.concatenate(([0.0], grid))
    context = np.where(batches > 0, ends.mean(), 0.0)
    prompt = np.asarray(step_s(batches[:, None], context[:, None], nodes, np.zeros(1)), float)
    extra = prompt - np.concatenate(([0.0], base + kv * grid * ends.mean()))[:, None] - pair * nodes**2
    # what prompt-only steps pay whatever their length is their base
    base0 = max(float(extra[0].min()), 0.0)
    extra[0] -= base0

    every = np.arange(1.0, max_batch + 1.0)
    rows = np.stack([np.interp(every, grid, column) for column in extra[1:].T], axis=1)
    costs = StepCosts(
        [base0, *np.interp(every, grid, base).tolist()], [0.0, *np.interp(every, grid, kv).tolist()], pair,
        nodes.tolist(), [extra[0].tolist(), *rows.tolist()], [0.0] * (max_batch + 1),
    )  # fmt: skip
    errors = _table_errors(costs, step_s, grid, contexts, prompts)
    return replace(
        costs, eager_s=eager_s, launch_floor_s=launch_floor_s, graph_tokens=graph_tokens,
        max_error=float(errors.max()), median_error=float(np.median(errors)),
        notes=f"batch 1 to {max_batch}, context {ends[0]:g} to {ends[1]:g}, prompts {nodes[0]:g} to {nodes[-1]:g}",
    )  # fmt: skip


def _table_errors(costs: StepCosts, step_s, grid, contexts, prompts) -> np.ndarray:
    """Relative errors at batches, contexts and prompts between those that made the table."""
    between = np.unique(np.concatenate(([0.0], ((grid[1:] + grid[:-1]) / 2).round(), grid[-1:])))
    context = np.array([0.75 * contexts[0] + 0.25 * contexts[1], 0.25 * contexts[0] + 0.75 * contexts[1]])
    new = np.concatenate(([0.0], np.geomspace(prompts[0], prompts[1], 8).round()))
    b, c, n = (a.ravel() for a in np.meshgrid(between, context, new, indexing="ij"))
    keep = (b > 0) | (n > 0)
    b, c, n = b[keep], np.where(b > 0, c, 0.0)[keep], n[keep]
    truth = np.asarray(step_s(b, c, n, np.zeros_like(b)), float)
    ours = np.array([costs.step_s(int(x), x * y, z, z * z) for x, y, z in zip(b.tolist(), c.tolist(), n.tolist())])
    return np.abs(ours / truth - 1.0)
