"""Step times of one deployment, tabulated once, so that a million serving points build no op.

A step is additive in three parts that depend on few numbers each: ops that count tokens only, attention of decodes,
attention of prompts. Each part is tabulated through the step model itself and interpolated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roofline.arrays import Array
from roofline.deployment import Deployment
from roofline.kernels.times import OpTime
from roofline.ops import Op
from roofline.workload import Sequences

# Products that belong to one group of sequences and not to all tokens of a step: MLA's two forms.
GROUP_PRODUCTS = ("attn.absorb_q", "attn.absorb_v", "attn.kv_b")
TOKENS = np.unique(np.concatenate((np.arange(1, 33), np.round(2.0 ** np.arange(5, 18.01, 0.125))))).astype(float)
BATCHES = np.unique(np.round(2.0 ** np.arange(0, 14.01, 0.5))).astype(float)
CONTEXTS = np.concatenate(([1.0], 2.0 ** np.arange(6, 21.01, 1.0)))
PROMPTS = 2.0 ** np.arange(0, 20.01, 0.5)
PASTS = np.concatenate(([0.0], 2.0 ** np.arange(8, 20.01, 2.0)))
MANY = 16.0  # prompts in one step at which the cost of one more is taken

# How many kernels an op launches where they are not captured in a graph.
LAUNCHES = {"experts": 5.0, "exchange": 2.0}


@dataclass(frozen=True)
class StepTable:
    """Seconds of any step of one rank's share of a deployment: `batch` decodes beside some prompt tokens.

    All arguments count sequences and tokens of ONE attention-data-parallel rank; other ranks are assumed to do the same.
    With pipeline stages a step is a round trip of all micro-batches.

    Error: interpolation only; 0.5 % median and 3 % at most against the step model (tests/test_serving_steps.py)
    """

    schedule: str
    tokens_s: np.ndarray  # [lane, token]
    head_s: np.ndarray  # [lane, batch]
    decode_s: np.ndarray  # [lane, batch, context]
    prompt_s: np.ndarray  # [lane, prompt, past], one prompt
    prompt_more_s: np.ndarray  # [lane, prompt, past], each further prompt
    pipeline: float  # pp
    host_gap_s: float
    layers: float
    layer_s: float  # per layer of a step with prompt tokens that no graph holds
    launch_s: float  # all kernels of a step launched one by one
    graph_tokens: float

    def decode(self, batch: Array, context: Array) -> Array:
        """Seconds of a step of `batch` decodes over `context` cached tokens each."""
        return self._combined(self._decode_lanes(batch, context))

    def mixed(self, batch: Array, context: Array, prompts: Array, new: Array, past: Array = 0.0) -> Array:
        """Seconds of a step of `batch` decodes (0: prompts alone) and `prompts` prompts of `new` tokens over `past`.

        `prompts` may be a fraction: a chunk of a longer prompt, at its average cost.

        Formula:  max(tokens(b + k x) + head(b + k) + decode(b, ctx) + prompt attention + layers t_layer, launches t_launch);
                  a step of at most graph_tokens pays neither t_layer nor launches
        """
        work = prompts * new
        lanes = self._lanes_of_tokens(batch + work) + self._lanes_of_head(batch + np.minimum(prompts, np.ceil(prompts)))
        lanes = lanes + np.where(np.asarray(batch) > 0, self._attention(np.maximum(batch, 1.0), context), 0.0)
        lanes = lanes + self._prompt_attention(prompts, new, past)
        eager = self._combined(lanes) + self.layers * self.layer_s
        graphed = batch + work <= self.graph_tokens
        return np.where(graphed, self._combined(lanes), np.maximum(eager, self.launch_s))

    def _decode_lanes(self, batch: Array, context: Array) -> Array:
        return self._lanes_of_tokens(batch) + self._lanes_of_head(batch) + self._attention(batch, context)

    def _lanes_of_tokens(self, tokens: Array) -> Array:
        return _interp(self.tokens_s, TOKENS, np.asarray(tokens, float) / self.pipeline)

    def _lanes_of_head(self, rows: Array) -> Array:
        return _interp(self.head_s, BATCHES, np.asarray(rows, float) / self.pipeline)

    def _attention(self, batch: Array, context: Array) -> Array:
        return _grid(self.decode_s, BATCHES, CONTEXTS, np.asarray(batch, float) / self.pipeline, context)

    def _prompt_attention(self, prompts: Array, new: Array, past: Array) -> Array:
        prompts = np.asarray(prompts, float)
        first = _grid(self.prompt_s, PROMPTS, PASTS, new, past) * np.minimum(prompts, 1.0)
        more = _grid(self.prompt_more_s, PROMPTS, PASTS, new, past) * np.maximum(prompts - 1.0, 0.0)
        return (first + more) / self.pipeline

    def _combined(self, lanes: Array) -> Array:
        if self.schedule == "serial":
            return lanes[0] + self.host_gap_s
        if self.schedule == "overlapped":
            return np.maximum(lanes[0] - lanes[1], lanes[1]) + self.host_gap_s
        return np.maximum(np.maximum(lanes[0], lanes[1]), lanes[2]) + self.host_gap_s


def launches(op: Op) -> float:
    """Kernels that one execution of an op launches."""
    if op.kind == "elementwise":
        return float(np.max(op.kernels))
    if op.kind == "gemm" and op.weight.act_bits < 16 and not op.static_scales:
        return 2.0
    return LAUNCHES.get(op.kind, 1.0)


def step_table(deployment: Deployment) -> StepTable:
    """The table of a deployment, made on first use and kept beside its other cached properties."""
    kept = vars(deployment)
    if "_step_table" not in kept:
        kept["_step_table"] = _tabulated(deployment)
    return kept["_step_table"]


def _tabulated(deployment: Deployment) -> StepTable:
    profile, pp, dp = deployment.engine.step, deployment.plan.pp, deployment.plan.dp
    schedule = profile.schedule

    def lanes(*groups: Sequences, which: str) -> np.ndarray:
        times = [t for t in deployment.step(*groups).times if _part(t.op) == which]
        shape = np.broadcast_shapes(*(np.shape(g.count) for g in groups), *(np.shape(g.new) for g in groups),
                                    *(np.shape(g.past) for g in groups))  # fmt: skip
        return np.stack([np.broadcast_to(sum((t.op.count * s for t, s in lane), 0.0), shape) for lane in _lanes(times, schedule)])

    decodes = Sequences(TOKENS * dp, 1.0, 1.0)
    slow = _slowest(deployment, decodes)
    tokens = lanes(Sequences(TOKENS * dp, 1.0, 1.0, 0.0), which="tokens") * slow
    head = lanes(Sequences(BATCHES * dp, 1.0, 1.0), which="head")
    attention = lanes(Sequences(BATCHES[:, None] * dp, 1.0, CONTEXTS), which="attention")
    prompt = lanes(Sequences(float(dp), PROMPTS[:, None], PASTS), which="attention")
    many = lanes(Sequences(MANY * dp, PROMPTS[:, None], PASTS), which="attention")
    one = deployment.step(Sequences(float(dp), 1.0, 1.0), Sequences(float(dp), 512.0, 0.0))
    count = sum(float(np.max(t.op.count)) * launches(t.op) for t in one.times)
    return StepTable(
        schedule, tokens, head, attention, prompt, (many - prompt) / (MANY - 1.0), float(pp), float(profile.host_gap_s),
        float(deployment.model.executed_layers), float(profile.mixed_layer_s), count * float(profile.launch_s),
        float(profile.graph_tokens),
    )  # fmt: skip


def _part(op: Op) -> str:
    if hasattr(op, "sequences") or op.name in GROUP_PRODUCTS:
        return "attention"
    return "head" if op.name.startswith(("head.", "lm_head")) else "tokens"


def _lanes(times: list[OpTime], schedule: str) -> list[list[tuple[OpTime, Array]]]:
    """What adds up over the ops of a step: one sum, or one for each resource that others may hide."""
    total = [(t, t.total_s) for t in times]
    if schedule == "serial":
        return [total]
    if schedule == "overlapped":
        return [total, [(t, s) for t, s in total if t.op.kind == "collective"]]
    return [[(t, t.lane_s(lane)) for t in times] for lane in ("compute", "memory", "network")]


def _slowest(deployment: Deployment, group: Sequences) -> Array:
    """Round trip over pipeline stages in units of a pass: more than 1 where the slowest stage holds the others up."""
    pp = deployment.plan.pp
    if pp == 1:
        return 1.0
    stages = np.max([deployment.step(group, stage=s).total_s for s in range(pp)], axis=0)
    return np.maximum(pp * stages / deployment.step(group).total_s, 1.0)


def _place(grid: np.ndarray, x: Array, log: bool) -> tuple[np.ndarray, np.ndarray]:
    """Index of the cell and the share of the way through it, clipped at the low end, extrapolated at the high one."""
    x = np.maximum(np.asarray(x, float), grid[0])
    i = np.clip(np.searchsorted(grid, x, side="right") - 1, 0, len(grid) - 2)
    low, high = grid[i], grid[i + 1]
    return i, (np.log(x / low) / np.log(high / low) if log else (x - low) / (high - low))


def _interp(table: np.ndarray, grid: np.ndarray, x: Array) -> np.ndarray:
    """Linear in x between grid points, for every lane."""
    i, share = _place(grid, x, log=False)
    low = table[:, i]
    return low + share * (table[:, i + 1] - low)


def _grid(table: np.ndarray, first: np.ndarray, second: np.ndarray, x: Array, y: Array) -> np.ndarray:
    """Linear in x and y between grid points, for every lane."""
    i, u = _place(first, x, log=False)
    j, v = _place(second, y, log=False)
    a = table[:, i, j]
    b = table[:, i, j + 1]
    c = table[:, i + 1, j]
    d = table[:, i + 1, j + 1]
    low = a + v * (b - a)
    return low + u * (c + v * (d - c) - low)
