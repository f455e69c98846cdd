"""The memory table of a deployment: per device and pipeline stage, adding up to the memory that is visible."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roofline.arrays import Array
from roofline.memory import activations as act
from roofline.memory.paging import CacheKind, Pool, cache_kinds, pool, sequence_bytes, up_to_cells
from roofline.memory.weights import weight_bytes
from roofline.parallel import Plan
from roofline.precision import Precision
from roofline.specs.engine import Engine, MemoryProfile
from roofline.specs.hardware import Accelerator
from roofline.specs.model import Model
from roofline.units import format as text_of

ROWS = ("context", "weights", "activation", "non_torch", "kv_pool", "graphs", "rest")


@dataclass(frozen=True, slots=True)
class StageMemory:
    """One device of a pipeline stage. All bytes; floats or arrays."""

    stage: int
    visible: Array
    requested: Array  # what the engine allows itself
    context: Array
    weights: Array
    activation: Array
    non_torch: Array
    kv_pool: Array  # negative: that much is missing before a single token is cached
    graphs: Array
    kinds: tuple[CacheKind, ...] = ()

    @property
    def total_non_kv(self) -> Array:
        """Weights, activation peak and growth outside the allocator."""
        return self.weights + self.activation + self.non_torch

    @property
    def rest(self) -> Array:
        """Visible memory that nothing is planned for."""
        used = self.context + self.total_non_kv + np.maximum(self.kv_pool, 0.0) + self.graphs
        return self.visible - used

    def rows(self) -> dict[str, Array]:
        """The table; its values add up to `visible` while the pool is not negative."""
        return {name: getattr(self, name) for name in ROWS}


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory of a deployment: what every stage holds, how many tokens remain, and why it would not start."""

    stages: tuple[StageMemory, ...]
    pool: Pool  # of the stage that holds least
    reasons: tuple[tuple[str, Array], ...]  # what would stop it, and where that is so

    @property
    def tightest(self) -> StageMemory:
        """The stage with the smallest pool (of a scalar footprint)."""
        return min(self.stages, key=lambda s: float(np.min(s.kv_pool)))

    @property
    def fits(self) -> Array:
        """True where it starts and holds one sequence of the asked length."""
        return np.logical_not(np.any(np.broadcast_arrays(*(v for _, v in self.reasons)), axis=0))[()]

    @property
    def kv_tokens(self) -> Array:
        """Tokens of cache, as the engine prints them."""
        return self.pool.tokens

    @property
    def max_concurrency(self) -> Array:
        """Sequences of the asked length that are cached together, on one attention-data-parallel rank."""
        return self.pool.concurrency

    @property
    def failure(self) -> str | None:
        """Why a scalar deployment does not start; None where it does."""
        return next((text for text, where in self.reasons if bool(np.all(where))), None)


@dataclass(frozen=True, slots=True)
class Beside:
    """What shares the memory of a rank with the model: the drafter of speculative decoding, on the last stage."""

    weights: float  # bytes
    kinds: tuple[CacheKind, ...] = ()
    slots: Array = 0.0  # tokens that every sequence keeps for drafts


# What CUDA and its libraries take, in the profiles of engines that were measured on GPUs.
_CUDA = (
    "context", "context_tp", "context_pp", "context_moe", "non_torch", "non_torch_tp", "non_torch_rank",
    "non_torch_pp", "graph_base", "graph_layer", "matmul_workspace",
)  # fmt: skip


def _on_device(profile: MemoryProfile, accelerator: Accelerator) -> MemoryProfile:
    """The profile without what only a GPU runtime takes, on devices that are not GPUs."""
    if accelerator.kind.startswith("gpu") or profile.context == 0:
        return profile
    return profile.model_copy(update=dict.fromkeys(_CUDA, 0))


def limits(profile: MemoryProfile, visible: Array) -> tuple[Array, Array]:
    """The engine's own limits: sequences and tokens of a step, by the memory of the device."""
    small = np.asarray(visible) < profile.small_device
    seqs = np.where(small, profile.small_max_num_seqs, profile.max_num_seqs)
    tokens = np.where(small, profile.small_max_num_batched_tokens, profile.max_num_batched_tokens)
    return seqs[()], tokens[()]


def footprint(
    model: Model,
    accelerator: Accelerator,
    plan: Plan,
    precision: Precision,
    engine: Engine,
    length: Array = 0.0,
    beside: Beside | None = None,
    *,
    utilisation: Array | None = None,
    max_num_seqs: Array | None = None,
    max_num_batched_tokens: Array | None = None,
    visible_bytes: Array | None = None,
    graph_sizes: Array | None = None,
) -> Footprint:
    """The memory table of a deployment and what its KV pool holds.

    Formula:  by the engine's pool_rule
              after_peak          pool = utilisation x visible - weights - activation - non-torch
              fraction_of_total   pool = utilisation x (visible - context) - weights; all else is in the remainder
              fraction_of_free    pool = utilisation x (visible - context - weights - activation - non-torch)
              contiguous          pool = what the asked number of sequences of `length` reserve
    Args:     length [tokens]: max_model_len, for concurrency and the checks; beside: a drafter, in the same pool;
              utilisation [-], max_num_seqs, max_num_batched_tokens, visible_bytes [B], graph_sizes: None takes the
              profile's or the device's; they broadcast
    Returns:  Footprint
    Error:    docs/memory.md holds the table against engine logs
    Source:   vLLM gpu_worker, SGLang model_runner, TensorRT-LLM KvCacheConfig, llama.cpp
    """
    profile = _on_device(engine.memory, accelerator)
    visible = accelerator.usable_bytes if visible_bytes is None else visible_bytes
    seqs, tokens = limits(profile, visible)
    settings = Settings(
        np.maximum(np.asarray(length, float), 1.0)[()],
        profile.utilisation if utilisation is None else utilisation,
        seqs if max_num_seqs is None else max_num_seqs,
        tokens if max_num_batched_tokens is None else max_num_batched_tokens,
        visible,
        profile.graph_sizes if graph_sizes is None else graph_sizes,
    )
    others = [None] * (plan.pp - 1) + [beside]
    stages = tuple(_stage(model, accelerator, plan, precision, profile, settings, s, b) for s, b in enumerate(others))
    held = settings.length + (0.0 if beside is None else beside.slots)
    pools = [pool(s.kv_pool, list(s.kinds), held, settings.tokens, profile) for s in stages]
    least = _least(pools, settings.length)
    sampler = act.sampler_bytes(model, precision, profile, settings.tokens, settings.seqs, accelerator.sms)
    return Footprint(stages, least, _reasons(model, profile, stages, least, settings, sampler))


@dataclass(frozen=True, slots=True)
class Settings:
    """What a deployment is asked for; floats or arrays that broadcast."""

    length: Array  # tokens of the longest sequence
    utilisation: Array
    seqs: Array  # most sequences of a step
    tokens: Array  # most tokens of a step
    visible: Array  # bytes
    graph_sizes: Array


@dataclass(frozen=True, slots=True)
class _Structure:
    """What a stage holds whatever the settings: computed once for a model, plan, precision and profile."""

    weights: float
    widths: act.Widths
    growth: float
    context: float
    graph_per_size: float
    kinds: tuple[CacheKind, ...]


_KNOWN: dict[tuple, tuple[tuple, _Structure]] = {}


def _structure(
    model: Model, plan: Plan, precision: Precision, profile: MemoryProfile, switched: bool, stage: int
) -> _Structure:
    """Kept by identity of the records: hashing a model takes longer than the arithmetic. They stay alive with it."""
    key = (id(model), id(precision), id(profile), plan, switched, stage)
    if key not in _KNOWN:
        if len(_KNOWN) >= 512:
            _KNOWN.clear()
        found = _Structure(
            weight_bytes(model, plan, precision, profile, stage),
            act.widths(model, plan, precision, profile, stage),
            act.non_torch_bytes(plan, profile, switched),
            act.context_bytes(model, plan, profile, switched),
            act.graph_bytes_per_size(model, plan, precision, profile, stage),
            tuple(cache_kinds(model, plan, precision, stage)),
        )
        _KNOWN[key] = ((model, precision, profile), found)
    return _KNOWN[key][1]


def _stage(
    model: Model,
    accelerator: Accelerator,
    plan: Plan,
    precision: Precision,
    profile: MemoryProfile,
    asked: Settings,
    stage: int,
    beside: Beside | None = None,
) -> StageMemory:
    switched = accelerator.scale_up is not None and accelerator.scale_up.topology == "switch"
    fixed = _structure(model, plan, precision, profile, switched, stage)
    activation = act.activation_bytes(
        model, plan, precision, profile, asked.tokens, asked.seqs, accelerator.sms, stage, fixed.widths
    )
    graphs = profile.graph_base + asked.graph_sizes * fixed.graph_per_size
    weights, kinds = fixed.weights, fixed.kinds
    if beside is not None:
        weights, kinds = weights + beside.weights, kinds + beside.kinds
    taken = weights + activation + fixed.growth
    requested = asked.utilisation * np.asarray(asked.visible, float)
    room = asked.visible - fixed.context
    if profile.pool_rule == "after_peak":
        free = requested - taken - (graphs if profile.graphs_in_budget else 0.0)
    elif profile.pool_rule == "fraction_of_total":
        free = asked.utilisation * room - weights
    elif profile.pool_rule == "fraction_of_free":
        free = asked.utilisation * (room - taken)
    else:
        drafts = 0.0 if beside is None else beside.slots
        cells = up_to_cells(asked.length + drafts, profile.cell_multiple)
        free = np.minimum(asked.seqs * sequence_bytes(list(kinds), cells, asked.tokens, profile), room - taken)
    return StageMemory(
        stage,
        asked.visible,
        requested,
        fixed.context,
        weights,
        activation,
        fixed.growth,
        free,
        graphs,
        kinds,
    )


def _least(pools: list[Pool], length: Array) -> Pool:
    if len(pools) == 1:
        return pools[0]
    fields = [[getattr(p, f) for p in pools] for f in ("blocks", "tokens", "concurrency")]
    return Pool(*(np.min(np.broadcast_arrays(*f), axis=0)[()] for f in fields), length)


def _reasons(
    model: Model,
    profile: MemoryProfile,
    stages: tuple[StageMemory, ...],
    least: Pool,
    asked: Settings,
    sampler: Array,
) -> tuple[tuple[str, Array], ...]:
    """What would stop the start, in the order in which an engine meets it."""
    found = []
    if model.max_positions:
        text = f"max_model_len {_number(asked.length)} is above the model's limit of {model.max_positions:,}"
        found += [(text, asked.length > model.max_positions)]
    for s in stages:
        where = f" on stage {s.stage}" if len(stages) > 1 else ""
        room = s.visible - s.context
        found += [(f"weights of {_gib(s.weights)} exceed the {_gib(room)} of one device{where}", s.weights > room)]
        text = f"weights of {_gib(s.weights)}, activations and buffers leave nothing for the KV cache{where}"
        found += [(text, np.asarray(s.kv_pool) <= 0.0)]
    wanted = asked.seqs if profile.pool_rule == "contiguous" else 1.0
    text = f"{_gib(stages[0].weights)} of weights leave no room for one sequence of {_number(asked.length)} tokens"
    found += [(text, np.asarray(least.concurrency) < np.asarray(wanted) * (1.0 - 1e-9))]
    if profile.pool_rule == "after_peak" and profile.warmup_headroom:
        last = stages[-1]
        free = last.visible - last.context - last.requested - last.graphs
        text = f"the CUDA graphs and warming the sampler with {_number(asked.seqs)} sequences do not fit"
        found += [(f"{text} outside the engine's share of memory", free < profile.warmup_headroom * sampler)]
    return tuple((text, np.asarray(where)) for text, where in found)


def _gib(value: Array) -> str:
    value = np.asarray(value, float)
    return text_of(float(value.flat[0]), "GiB") if value.size == 1 else "several sizes"


def _number(value: Array) -> str:
    value = np.asarray(value, float)
    return f"{float(value.flat[0]):,.0f}" if value.size == 1 else "(several)"
