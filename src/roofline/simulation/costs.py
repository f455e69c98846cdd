"""The few numbers of a step model that a scheduler needs, tabulated once: no op is built inside the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from roofline.arrays import Array
from roofline.errors import InputError


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of any step of one replica, from sums over its sequences.

        step = base[b] + kv[b] ctx
             + [n > 0] (max(prompt_token n + prompt_step[b], prompt_least[b]) + pair sum x (x + 2p))

    A step with prompt tokens that does not fit a captured graph pays `eager_s` and lasts at least `launch_floor_s`.
    `b` sequences decode over `ctx` cached tokens in all; `n` prompt tokens come in chunks of x on top of p. Tables are
    indexed by b, from 0 (a step of prompts alone) to the largest batch, and are plain lists: indexing numpy in a Python
    loop is slow.
    """

    base_s: list[float]  # decode step without its KV reads; [0]: what a prompt-only step pays besides the prompt
    kv_s: list[float]  # per cached token read
    prompt_token_s: float  # per prompt token: linear layers and collectives
    pair_s: float  # attention, per token^2 where a chunk counts x (x + 2p) = (p + x)^2 - p^2
    prompt_step_s: list[float]  # per step with a prompt; negative where weights that decode reads hide under it
    prompt_least_s: list[float]  # least extra of any prompt: experts that the decode step does not read
    eager_s: float = 0.0  # per prompt step outside a CUDA graph: host work that does not scale
    launch_floor_s: float = 0.0  # kernels of such a step, launched one by one
    graph_tokens: int = 0  # prompt steps of at most so many tokens run in a graph: neither of the two
    max_error: float = 0.0  # largest and median relative error of the table, where it was made from a step model
    median_error: float = 0.0
    notes: str = field(default="", compare=False)

    @property
    def max_batch(self) -> int:
        """Largest batch the tables cover."""
        return len(self.base_s) - 1

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
        extra = self.prompt_token_s * prompt_tokens + self.prompt_step_s[batch]
        least = self.prompt_least_s[batch]
        seconds += (extra if extra > least else least) + self.pair_s * pairs
        if prompt_tokens + batch <= self.graph_tokens:
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

    return StepCosts(
        table(base), table(kv), float(prompt_token_s), float(pair_s), [0.0] * (base.size + 1), table(experts),
        float(eager_s), float(launch_floor_s), int(graph_tokens),
    )  # fmt: skip


def tabulate(
    step_s: Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray],
    max_batch: int,
    contexts: tuple[float, float] = (512.0, 4096.0),
    prompts: tuple[float, float] = (64.0, 8192.0),
    eager_s: float = 0.0,
    launch_floor_s: float = 0.0,
    graph_tokens: int = 0,
) -> StepCosts:
    """`StepCosts` of a step model, from about 200 evaluations in three vectorised calls.

    Formula:  base, kv: exact at both ends of `contexts`; pair: slope over past; prompt_token, prompt_step: least
              squares of relative error over the upper half of `prompts`; prompt_least: at the shortest; batches
              between the grid's are interpolated linearly
    Args:     step_s(decode_count, decode_context, prefill_new, prefill_past) -> s, arrays that broadcast, counts may be
              0; decode_context is the mean per sequence; max_batch [sequences];
              contexts, prompts: range that the load will visit [tokens];
              eager_s, launch_floor_s, graph_tokens: of the engine, on top of the step model
    Returns:  `StepCosts` with `max_error` and `median_error`, measured at points off the grid
    Assumes:  time is linear in context inside the range (an attention window bends it: narrow the range)
    Error:    its own fields, for each step model
    Source:   derivation
    """
    if max_batch < 1 or not 0 < contexts[0] < contexts[1] or not 0 < prompts[0] < prompts[1]:
        raise InputError(
            f"tabulate: max_batch {max_batch}, contexts {contexts}, prompts {prompts}; allowed: a batch of 1 or more "
            "and increasing ranges of positive lengths"
        )
    grid = np.unique(np.concatenate((np.arange(1, min(max_batch, 4) + 1), np.geomspace(1, max_batch, 20).round())))
    ends = np.array(contexts, float)
    decode = np.asarray(step_s(grid[:, None], ends, np.zeros(1), np.zeros(1)), float)
    kv = np.maximum(decode[:, 1] - decode[:, 0], 0.0) / (grid * (ends[1] - ends[0]))
    base = decode[:, 0] - kv * grid * ends[0]

    new = np.geomspace(prompts[0], prompts[1], 9).round()
    over = ends[1]
    # slope over past, at the largest chunk: linear layers cancel
    cold, warm = np.asarray(step_s(np.zeros(1), np.zeros(1), new[-1:], np.array([[0.0], [over]])), float).ravel()
    pair = max(warm - cold, 0.0) / (2.0 * new[-1] * over)
    batches = np.concatenate(([0.0], grid))
    middle = ends.mean()
    prompt = np.asarray(step_s(batches[:, None], np.where(batches > 0, middle, 0.0)[:, None], new, np.zeros(1)), float)
    decode_part = np.concatenate(([0.0], base + kv * grid * middle))
    extra = prompt - decode_part[:, None] - pair * new**2
    upper = new >= np.sqrt(new[0] * new[-1])
    weight = 1.0 / prompt[:, upper]
    # one slope for all batches, one offset each: centre both sides by batch, then a weighted regression
    mean_n = (weight**2 * new[upper]).sum(1) / (weight**2).sum(1)
    mean_y = (weight**2 * extra[:, upper]).sum(1) / (weight**2).sum(1)
    dn, dy = new[upper] - mean_n[:, None], extra[:, upper] - mean_y[:, None]
    token = max(float((weight**2 * dn * dy).sum() / (weight**2 * dn**2).sum()), 0.0)
    offset = mean_y - token * mean_n
    least = np.maximum(extra[:, 0], 0.0)
    # what prompt-only steps pay whatever their length is their base, so that both tables stay meaningful
    base0 = max(min(float(offset[0]), float(least[0])), 0.0)
    offset[0] -= base0
    least[0] -= base0

    every = np.arange(max_batch + 1.0)

    def table(values, first):
        return [float(first), *np.interp(every[1:], grid, values).tolist()]

    costs = StepCosts(
        table(base, base0), table(kv, 0.0), token, pair, table(offset[1:], offset[0]), table(least[1:], least[0]),
    )  # fmt: skip
    errors = _table_errors(costs, step_s, grid, contexts, prompts)
    return replace(
        costs, eager_s=eager_s, launch_floor_s=launch_floor_s, graph_tokens=graph_tokens,
        max_error=float(errors.max()), median_error=float(np.median(errors)),
        notes=f"batch 1 to {max_batch}, context {ends[0]:g} to {ends[1]:g}, prompts {new[0]:g} to {new[-1]:g}",
    )  # fmt: skip


def _table_errors(costs: StepCosts, step_s, grid, contexts, prompts) -> np.ndarray:
    """Relative errors at batches, contexts and prompts between those that made the table."""
    between = np.unique(np.concatenate(([0.0], ((grid[1:] + grid[:-1]) / 2).round(), grid[-1:])))
    context = np.array([0.75 * contexts[0] + 0.25 * contexts[1], 0.25 * contexts[0] + 0.75 * contexts[1]])
    new = np.concatenate(([0.0], np.geomspace(prompts[0], prompts[1], 6).round()))
    b, c, n = (a.ravel() for a in np.meshgrid(between, context, new, indexing="ij"))
    keep = (b > 0) | (n > 0)
    b, c, n = b[keep], np.where(b > 0, c, 0.0)[keep], n[keep]
    truth = np.asarray(step_s(b, c, n, np.zeros_like(b)), float)
    ours = np.array([costs.step_s(int(x), x * y, z, z * z) for x, y, z in zip(b.tolist(), c.tolist(), n.tolist())])
    return np.abs(ours / truth - 1.0)
