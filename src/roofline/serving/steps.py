"""Step times of one deployment, tabulated once, so that a million serving points build no op.

A step is additive in four parts that depend on few numbers each: ops that count tokens only, the head, attention of
decodes, attention of prompts. Each is tabulated through the step model itself and interpolated linearly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from roofline.arrays import Array
from roofline.deployment import Deployment
from roofline.errors import UnsupportedError
from roofline.kernels.host import DecodeLaunch
from roofline.kernels.times import OpTime
from roofline.ops import NETWORK, Op
from roofline.serving.grids import Axis, Line, Place, Sheet
from roofline.workload import Sequences

# Products that belong to one group of sequences and not to all tokens of a step: MLA's two forms.
GROUP_PRODUCTS = ("attn.absorb_q", "attn.absorb_v", "attn.kv_b")
SHARED = ("experts", "exchange")  # kinds of ops that ranks which step together do together
MANY = 16.0  # prompts in one step at which the cost of one more is taken

TOKENS, BATCHES, CONTEXTS, PROMPTS, PASTS = Axis(4, 20), Axis(2, 14), Axis(1, 22), Axis(1, 21), Axis(0, 22)


@dataclass(frozen=True, slots=True)
class DraftTable:
    """Seconds of a cycle of speculation beside its verification: drafting, and the host's part."""

    cycle_s: Sheet  # [1, BATCHES, CONTEXTS]
    alone_s: float  # where nothing decodes: one pass
    prompt_s: Sheet  # [1, PROMPTS, PASTS], what one prompt adds
    prompt_more_s: Sheet  # [1, PROMPTS, PASTS], each further prompt


@dataclass(frozen=True, slots=True)
class Stages:
    """What one sequence costs that passes the pipeline, and what it costs where every stage has one to work on."""

    count: float
    tokens_s: float  # of a pass of one sequence: everything that counts tokens
    head_s: float
    waiting: float  # a round trip over a pass, of tokens: the slowest stage holds the others up
    head_waiting: float  # what the head adds to that round trip, over its own time
    head_lanes: np.ndarray  # [lane] of the head for one sequence

    def few(self, share: Array) -> tuple[Array, Array]:
        """Factor on tokens, and lanes to add for the head, where only that share of the stages has work.

        Formula:  m sequences over p stages take max(pass, m x slowest stage); share = m / p, at most 1
        """
        share, alone, head = np.minimum(share, 1.0), self.tokens_s, self.head_s
        tokens = np.maximum(alone, share * alone * self.waiting)
        whole = np.maximum(alone + head, share * (alone * self.waiting + head * self.head_waiting))
        more = (whole - tokens) / head - self.head_waiting
        return tokens / (alone * self.waiting), self.head_lanes.reshape((-1,) + (1,) * np.ndim(more)) * more


@dataclass(frozen=True, slots=True)
class StepTable:
    """Seconds of any step of one rank's share of a deployment: some sequences decode beside some prompt tokens.

    Where the deployment speculates a step is a cycle: `verified` tokens of every sequence, and drafting them.
    All arguments count sequences and tokens of ONE attention-data-parallel rank; others are assumed to do the same. Of
    the table of all ranks that step together (`of_all`) they count those of all of them.
    With pipeline stages a step is a round trip of all micro-batches. Times have a leading axis of `lanes`: one where
    kernels follow one another, more where a schedule lets resources overlap.

    Error: of interpolation, against the step model, 3,000 random steps each of four deployments: decode steps median
           0.03-0.15 %, 10 % above 0.2-0.5 %, at most 4 %: the table smooths the jump at a batch at which a GEMM begins
           another row of tiles; steps with prompts median 0.3-0.4 %, 10 % above 1.0-1.7 %, 1 % above
           5-9 % (several short prompts over long cached ones)
    """

    schedule: str
    tokens_s: Line  # [lane, TOKENS]
    head_s: Line  # [lane, BATCHES]
    decode_s: Sheet  # [lane, BATCHES, CONTEXTS], head and attention
    prompt_s: Sheet  # [lane, PROMPTS, PASTS], one prompt
    prompt_more_s: Sheet  # [lane, PROMPTS, PASTS], each further prompt
    stages: Stages | None  # of a pipeline
    host_gap_s: float
    host_sequence_s: float
    layers_s: float  # what the layers of a step with prompt tokens pay beside their kernels
    launch_s: float  # all kernels of a step launched one by one
    graph_tokens: float  # steps of at most so many tokens pay neither
    graph_batch: float  # decode batches are padded to multiples of this
    decode_launch: DecodeLaunch
    verified: float = 1.0  # tokens of a decoding sequence in a step
    drafts: DraftTable | None = None
    together: float = 1.0  # ranks that step together
    shared_s: Line | None = None  # [lane, TOKENS], of tokens_s: what these do together, by the mean of their tokens
    ranks: float = 1.0  # whose sequences and prompts are counted

    @property
    def of_all(self) -> StepTable:
        """The table of all ranks that step together: requests are dealt in turn, the rank with most sets the pace."""
        return self if self.together == 1.0 else replace(self, ranks=self.together)

    def most(self, number: Array) -> Array:
        """Of so many sequences or prompts, those of the rank that has most.

        Formula:  max(n/ranks, min(n, 1))
        """
        return number if self.ranks == 1.0 else np.maximum(number / self.ranks, np.minimum(number, 1.0))

    @property
    def pipeline(self) -> float:
        """Pipeline stages."""
        return self.stages.count if self.stages else 1.0

    def tokens(self, tokens: Array, mean: Array | None = None) -> Array:
        """Lanes of everything that counts tokens only; `mean` over the ranks that step together, where they differ."""
        if self.shared_s is not None and mean is not None:
            most, mean = TOKENS.place(tokens), TOKENS.place(mean)
            return self.tokens_s.at(most) - self.shared_s.at(most) + self.shared_s.at(mean)
        if self.stages is None:
            return self.tokens_s.at(TOKENS.place(tokens))
        each = np.asarray(tokens, float) / self.pipeline
        return _times(self.tokens_s.at(TOKENS.place(each)), self.stages.few(each / self.verified)[0])

    def head(self, rows: Array) -> Array:
        """Lanes of the head over `rows` positions."""
        return self.head_s.at(BATCHES.place(np.asarray(rows, float) / self.pipeline))

    def prompts(self, new: Array, past: Array) -> tuple[Array, Array]:
        """Lanes of the attention of one prompt of `new` tokens over `past`, and of each further one."""
        at = PROMPTS.place(np.asarray(new, float)), PASTS.place(np.asarray(past, float))
        return tuple(t.at(*at) / self.pipeline for t in (self.prompt_s, self.prompt_more_s))

    def combined(self, lanes: Array) -> Array:
        """Seconds of a step from its lanes."""
        if self.schedule == "serial":
            return lanes[0] + self.host_gap_s
        if self.schedule == "overlapped":
            return np.maximum(lanes[0] - lanes[1], lanes[1]) + self.host_gap_s
        return np.maximum(np.maximum(lanes[0], lanes[1]), lanes[2]) + self.host_gap_s

    def eager(self, seconds: Array) -> Array:
        """Seconds of a step with prompt tokens that no graph holds."""
        return np.maximum(seconds + self.layers_s, self.launch_s)

    def decode(self, batch: Array, context: Array, padding: Array = 0.0) -> Array:
        """Seconds of a step of `batch` decodes over `context` cached tokens each, its graph made for `padding` more."""
        place, most = CONTEXTS.place(context), self.most(batch)
        mean = None if self.ranks == 1.0 else self.verified * batch / self.ranks + padding
        lanes = _sum(self.tokens(self.verified * most + padding, mean), self.fixed_at(most, place))
        return self.replayed(self.combined(lanes), most) + self.drafting(most, place)

    def replayed(self, seconds: Array, batch: Array) -> Array:
        """Seconds of a step of `batch` decodes alone: where no graph holds it, the host launches its kernels."""
        if self.decode_launch.never:
            return seconds
        gap_s = self.host_gap_s + self.host_sequence_s * batch
        return np.maximum(seconds, self.decode_launch.seconds(np.asarray(batch) / self.pipeline) + gap_s)

    def beside(self, batch: Array, context: Array, new: Array, past: Array, padding: Array = 0.0) -> Steps:
        """Steps in which prompts of `new` tokens over `past` run beside `batch` decodes (0: alone)."""
        prompts, place = self.prompts(new, past), CONTEXTS.place(context)
        return Steps(self, place, np.asarray(new, float), *prompts, self.reading(new, past), padding).at(batch)

    def drafting(self, batch: Array, context: Place) -> Array:
        """Seconds of drafting for `batch` decodes; `context`: its place on CONTEXTS."""
        if self.drafts is None:
            return 0.0
        batch = np.asarray(batch, float)
        seconds = self.drafts.cycle_s.at(BATCHES.place(batch), context)[0]
        return np.where(batch > 0, seconds, self.drafts.alone_s)

    def reading(self, new: Array, past: Array) -> tuple[Array, Array]:
        """Seconds that a drafter needs for a prompt of `new` tokens over `past`, and for each further one."""
        if self.drafts is None:
            return 0.0, 0.0
        at = PROMPTS.place(np.asarray(new, float)), PASTS.place(np.asarray(past, float))
        return tuple(t.at(*at)[0] for t in (self.drafts.prompt_s, self.drafts.prompt_more_s))

    def fixed(self, batch: Array, context: Array) -> Array:
        """Lanes of what decodes add to a step beside their tokens; of none: the head alone."""
        return self.fixed_at(batch, CONTEXTS.place(context))

    def fixed_at(self, batch: Array, context: Place) -> Array:
        """The same where the place of the context on its axis is known."""
        batch = np.asarray(batch, float)
        idle = batch <= 0
        if idle.all():
            return self.head(batch)
        each = batch if self.stages is None else batch / self.pipeline
        lanes = self.decode_s.at(BATCHES.place(each), context)
        if self.stages is not None:
            lanes = _sum(lanes, self.stages.few(each)[1])
        if self.host_sequence_s:
            lanes = lanes + self.host_sequence_s * batch
        return np.where(idle, _padded(self.head(batch), lanes.ndim - 1), lanes) if idle.any() else lanes


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of one point of a load: what does not depend on how many prompts join is evaluated once."""

    table: StepTable
    context: Place  # of the decodes, on CONTEXTS
    new: Array
    first: Array  # lanes of a prompt's attention
    more: Array
    reading: tuple[Array, Array]  # seconds of speculation for a prompt, and each further one
    padding: Array  # tokens of a batch that a graph is made for but nobody sent
    batch: Array = 0.0  # of the rank that has most
    decoding: Array = 0.0  # tokens of the batch and of its padding
    mean: Array | None = None  # of these over ranks
    fixed: Array = 0.0  # lanes of head and decode attention
    drafting: Array = 0.0  # seconds of speculation for the batch

    def at(self, batch: Array) -> Steps:
        """The same prompts beside another batch."""
        t, most = self.table, self.table.most(batch)
        return replace(
            self, batch=most, decoding=t.verified * most + self.padding, fixed=t.fixed_at(most, self.context),
            drafting=t.drafting(most, self.context),
            mean=None if t.ranks == 1.0 else t.verified * batch / t.ranks + self.padding,
        )  # fmt: skip

    def decode_s(self) -> Array:
        """Seconds of a step without prompts."""
        tokens = self.table.tokens(self.decoding, self.mean)
        return self.table.replayed(self.table.combined(_sum(tokens, self.fixed)), self.batch) + self.drafting

    def with_prompts_s(self, prompts: Array) -> Array:
        """Seconds of a step that `prompts` prompts join; a fraction is a chunk of a longer prompt, at its average cost.

        Formula:  max(tokens(b + k x) + head(b) + attention + layers t_layer, launches t_launch); a step of at most
                  graph_tokens pays neither t_layer nor launches
        """
        mean = None if self.mean is None else self.mean + prompts / self.table.ranks * self.new
        prompts = self.table.most(prompts)
        tokens = self.decoding + prompts * self.new
        lanes = _sum(self.table.tokens(tokens, mean), self.fixed, _times(self.first, np.minimum(prompts, 1.0)))
        if np.max(prompts, initial=0.0) > 1.0:
            lanes = _sum(lanes, _times(self.more, np.maximum(prompts - 1.0, 0.0)))
        seconds = self.table.combined(lanes)
        held, eager = tokens <= self.table.graph_tokens, self.table.eager(seconds)
        seconds = np.where(held, seconds, eager) if np.any(held) else eager
        if self.table.drafts is None:
            return seconds
        first, more = self.reading
        return seconds + self.drafting + first * np.minimum(prompts, 1.0) + more * np.maximum(prompts - 1.0, 0.0)


def launch_factor(deployment: Deployment) -> float:
    """How much longer than `launch_s` a launch takes with this model's kinds of attention and on this architecture.

    Formula:  largest factor of its kinds of attention x factor of the architecture, 1 where the profile has none
    Source:   the engine profile
    """
    factors = deployment.engine.step.launch_factors
    kinds = {getattr(run.layer.attention, "kind", "") for run in deployment.model.layer_runs}
    return max(factors.get(k, 1.0) for k in kinds) * factors.get(deployment.accelerator.architecture, 1.0)


def step_table(deployment: Deployment) -> StepTable:
    """The table of a deployment, made on first use and kept beside its other cached properties."""
    if deployment.model.encoder:
        raise UnsupportedError(
            f"{deployment.model.name} has an encoder: serving it under a load (concurrency, rate, pools, a plan, a "
            "simulation) is not modelled; estimate it with batch, the requests that start together"
        )
    kept = vars(deployment)
    if "_step_table" not in kept:
        kept["_step_table"] = _tabulated(deployment)
    return kept["_step_table"]


def _tabulated(deployment: Deployment) -> StepTable:
    profile, pp, dp = deployment.engine.step, deployment.plan.pp, deployment.plan.dp
    t, b, c, p, past = (axis.points for axis in (TOKENS, BATCHES, CONTEXTS, PROMPTS, PASTS))

    def lanes(part: str, group: Sequences) -> np.ndarray:
        times = deployment.timed([op for op in deployment.ops(group) if _part(op) == part]).times
        shape = np.broadcast_shapes(np.shape(group.count), np.shape(group.new), np.shape(group.past))
        sums = [sum((x.op.count * s for x, s in lane), 0.0) for lane in _lanes(times, profile.schedule)]
        return np.stack([np.broadcast_to(s, shape) for s in sums])

    every = Sequences(t * dp, 1.0, 1.0, 0.0)
    one, prompt = Sequences(float(dp), 1.0, 1.0), Sequences(float(dp), 512.0, 0.0)
    counts = np.array([1.0, MANY])[:, None, None] * dp
    first, many = np.moveaxis(lanes("attention", Sequences(counts, p[:, None], past)), 1, 0)
    alone = lanes("head", Sequences(b * dp, 1.0, 1.0))
    head = alone if deployment.speculation is None else lanes("head", deployment.decoding(b * dp, 1.0))
    verified = 1.0 if deployment.speculation is None else float(deployment.speculation.verified)
    tokens, stages = lanes("tokens", every), None
    if pp > 1:
        stages, waiting, head_waiting = _waiting(deployment, every, head, verified)
        tokens, head = tokens * waiting, head * head_waiting
    return StepTable(
        profile.schedule,
        Line.of(tokens),
        Line.of(alone),
        Sheet.of(head[..., None] + lanes("attention", deployment.decoding(b[:, None] * dp, c))),
        Sheet.of(first),
        Sheet.of((many - first) / (MANY - 1.0)),
        stages,
        float(profile.host_gap_s),
        float(profile.host_sequence_s),
        deployment.model.executed_layers * float(profile.mixed_layer_s),
        deployment.launched(one, prompt) * float(profile.launch_s) * launch_factor(deployment),
        float(profile.graph_tokens),
        float(profile.graph_batch),
        deployment.decode_launch,
        verified,
        None if deployment.speculation is None else _drafts(deployment),
        *_lockstep(deployment),
    )


def _lockstep(deployment: Deployment) -> tuple[float, Line | None]:
    """Attention-data-parallel ranks that step together, and what of a step they do together.

    The ranks of a mixture of experts do: every layer's dispatch and combine wait for all, and those without requests
    run dummy batches (vLLM with expert parallelism, SGLang's enable-dp-attention). Schedules that overlap kernels with
    the network share nothing: the longest rank's whole step counts.
    """
    dp = deployment.plan.dp
    if dp == 1 or not deployment.model.is_mixture:
        return 1.0, None
    if deployment.engine.step.schedule != "serial":
        return float(dp), None
    ops = [op for op in deployment.ops(Sequences(TOKENS.points * dp, 1.0, 1.0, 0.0)) if op.kind in SHARED]
    seconds = sum((t.op.count * t.total_s for t in deployment.timed(ops).times), np.zeros_like(TOKENS.points))
    return float(dp), Line.of(seconds[None])


def _drafts(deployment: Deployment) -> DraftTable:
    """What speculation takes beside verifying.

    Prompts run through the drafter's first pass beside the tokens that were accepted, so that they add to it what a
    pass over them takes beyond one over a single token.
    """
    s, dp = deployment.speculation, deployment.plan.dp
    b, c, p, past = BATCHES.points[:, None] * dp, CONTEXTS.points, PROMPTS.points[:, None], PASTS.points
    shape = np.broadcast_shapes(p.shape, past.shape)
    alone = float(s.prompt_s(deployment, Sequences(float(dp), 1.0, 0.0)))
    one, many = (
        np.broadcast_to(s.prompt_s(deployment, Sequences(n * dp, p, past)), shape)[None] for n in (1.0, MANY)
    )  # fmt: skip
    cycle = np.broadcast_to(s.cycle_s(deployment, b, c), np.broadcast_shapes(b.shape, c.shape))[None]
    more = np.maximum(many - one, 0.0) / (MANY - 1.0)
    return DraftTable(Sheet.of(cycle), alone, Sheet.of(np.maximum(one - alone, 0.0)), Sheet.of(more))


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
        return [total, [(t, s) for t, s in total if t.op.kind in NETWORK]]
    return [[(t, t.lane_s(lane)) for t in times] for lane in ("compute", "memory", "network")]


def _waiting(
    deployment: Deployment, every: Sequences, head: np.ndarray, verified: float
) -> tuple[Stages, Array, Array]:
    """How much longer than a pass a round trip over pipeline stages is: the slowest stage holds the others up.

    Formula:  round trip of p micro-batches: max(pass, p x slowest stage), the last stage having the head
    Args:     head [lane, BATCHES] of decodes, of which each has `verified` tokens in a step
    Returns:  Stages; factors on what counts tokens [TOKENS] and on the head [BATCHES]
    """
    pp = deployment.plan.pp
    whole, stages = deployment.passes(every)
    once, (*others, last) = whole.total_s, (stage.total_s for stage in stages)
    before = np.max(others, axis=0)
    trip = np.maximum(once, pp * np.maximum(before, last))
    head_s = head.max(axis=0)
    before, last, alone, around = (
        np.interp(verified * BATCHES.points, TOKENS.points, x) for x in (before, last, once, trip)
    )
    with_head = np.maximum(alone + head_s, pp * np.maximum(before, last + head_s))
    waits = (with_head - around) / head_s
    first = float(alone[0]), float(head_s[0]), float(around[0] / alone[0]), float(waits[0])
    return Stages(float(pp), *first, head[:, 0]), trip / once, waits


def _padded(lanes: np.ndarray, ndim: int) -> np.ndarray:
    """Lanes with ones after the lane axis, so that their points broadcast with `ndim` axes of points."""
    if lanes.shape[0] == 1 or lanes.ndim > ndim:
        return lanes
    return lanes.reshape(lanes.shape[:1] + (1,) * (ndim + 1 - lanes.ndim) + lanes.shape[1:])


def _sum(*many: np.ndarray) -> np.ndarray:
    """Lane by lane; the points broadcast."""
    ndim = max(lanes.ndim for lanes in many) - 1
    first, *rest = (_padded(lanes, ndim) for lanes in many)
    return sum(rest, first)


def _times(lanes: np.ndarray, x: Array) -> np.ndarray:
    """Every lane times a number for each point."""
    missing = np.ndim(x) + 1 - lanes.ndim  # axes of points; the first axis stays the lanes'
    return (lanes.reshape(lanes.shape[:1] + (1,) * missing + lanes.shape[1:]) if missing > 0 else lanes) * x
