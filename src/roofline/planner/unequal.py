"""One replica over cards that differ: equal shards are held back by the smallest, pipeline stages can follow size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from roofline.deployment import Deployment
from roofline.errors import InfeasibleError, InputError
from roofline.forward import head_ops
from roofline.memory import footprint
from roofline.parallel import Plan
from roofline.precision import Precision
from roofline.specs.engine import Engine
from roofline.specs.hardware import Accelerator
from roofline.specs.model import Model
from roofline.units import format as quantity


@dataclass(frozen=True, slots=True)
class Card:
    """A device of a mixed machine, and what a process sees of its memory where that is not the data sheet's."""

    accelerator: Accelerator
    visible_bytes: float | None = None

    @property
    def bytes(self) -> float:
        """Memory that a process sees [B]."""
        return self.accelerator.usable_bytes if self.visible_bytes is None else self.visible_bytes

    def __str__(self) -> str:
        return f"{self.accelerator.name} ({quantity(self.bytes, 'GiB')})"


@dataclass(frozen=True, slots=True)
class Split:
    """How a model lies over unequal cards, and how fast it decodes."""

    cards: tuple[Card, ...]
    kind: str  # "tensor parallel" or "pipeline by size"
    layers: tuple[int, ...]  # per card; of tensor parallelism all on each
    weight_bytes: tuple[float, ...]
    kv_tokens: float  # that all cards hold together
    tpot_s: float  # one sequence alone
    fits: bool
    why: str

    def __str__(self) -> str:
        rows = [f"{self.kind}: {self.why}"]
        for card, n, held in zip(self.cards, self.layers, self.weight_bytes):
            rows.append(f"  {card}: {n} layers, {quantity(held, 'GiB')} of weights")
        if self.fits:
            rows.append(f"  {self.kv_tokens:,.0f} tokens of KV; alone {quantity(self.tpot_s, 's', digits=3)} a token")
        return "\n".join(rows)


def over_cards(
    model: Model, cards: Sequence[Card], precision: Precision, engine: Engine, length: float = 2048.0
) -> list[Split]:
    """The ways to run a model over these cards, the recommended one first.

    Args:     cards: two or more; length [tokens] of the request that has to fit
    Returns:  tensor parallelism and a pipeline whose stages follow memory; those that fit before those that do not, by
              time per token
    Errors:   InfeasibleError where neither fits
    """
    if len(cards) < 2:
        raise InputError("cards: one card is an ordinary deployment; name at least two")
    ways = [tensor_parallel(model, cards, precision, engine, length), by_size(model, cards, precision, engine, length)]
    ways.sort(key=lambda w: (not w.fits, w.tpot_s))
    if not ways[0].fits:
        raise InfeasibleError(f"{model.name} does not fit: " + "; ".join(f"{w.kind}: {w.why}" for w in ways))
    return ways


def tensor_parallel(
    model: Model, cards: Sequence[Card], precision: Precision, engine: Engine, length: float = 2048.0
) -> Split:
    """Equal shards: the smallest card decides what fits, the slowest how fast.

    Formula:  memory of every card as that of the smallest; step = max over cards
    Source:   engines cut every matrix into equal parts (vllm-project/vllm issue 2317)
    """
    plan, n = Plan(tp=len(cards)), model.stored_layers
    layers = (n,) * len(cards)
    smallest = min(cards, key=lambda c: c.bytes)
    try:
        memory = footprint(model, smallest.accelerator, plan, precision, engine, length, visible_bytes=smallest.bytes)
        steps = [_alone(Deployment(model, c.accelerator, plan, precision, engine), length) for c in cards]
    except InfeasibleError as error:
        return Split(tuple(cards), "tensor parallel", layers, (np.nan,) * len(cards), 0.0, np.inf, False, str(error))
    held = float(memory.stages[0].weights)
    stage = memory.stages[0]
    left = float(stage.requested - stage.weights)
    why = f"every card holds {quantity(held, 'GiB')}"
    if not bool(memory.fits):
        why += (
            f", which leaves {quantity(max(left, 0.0), 'GiB')} of what the engine may use on {smallest} "
            f"before activations: {memory.failure}"
        )
    tokens = float(memory.kv_tokens) if bool(memory.fits) else 0.0
    whole = (held,) * len(cards)
    return Split(tuple(cards), "tensor parallel", layers, whole, tokens, max(steps), bool(memory.fits), why)


def by_size(model: Model, cards: Sequence[Card], precision: Precision, engine: Engine, length: float = 2048.0) -> Split:
    """A pipeline in which each card gets layers in proportion to the memory that it has for them.

    Formula:  layers_i = layers x room_i / sum room, rounded by largest remainder; room: the memory that the engine may
              use, less embedding (first card) and head (last); step = sum over cards of their layers' share of one
    Args:     as `over_cards`
    Returns:  Split
    Assumes:  layers alike; cards hand activations on over the host link, which takes no time beside reading weights
    Error:    not measured
    Source:   derivation
    """
    n = model.stored_layers
    allowed = np.array([engine.memory.utilisation * c.bytes for c in cards])
    one = Plan()
    ends = model.weights_around_layers(one)
    around = sum(count * w.bytes_per_rank(one, precision) for w, count in ends)
    layer_bytes = (model.weight_bytes(one, precision) - around) / n
    embed = sum(count * w.bytes_per_rank(one, precision) for w, count in ends if w.role == "embed")
    fixed = np.zeros(len(cards))
    fixed[0] += embed
    fixed[-1] += around - embed + (embed if model.tied else 0.0)
    overhead = engine.memory.context + engine.memory.non_torch
    kv = float(model.kv_bytes_per_sequence(length, one, precision)) / n
    room = np.maximum(allowed - fixed - overhead, 0.0)
    layers = _shares(n, room)
    weights = fixed + layers * layer_bytes
    free = allowed - overhead - weights
    spare = np.where(layers > 0, free / np.maximum(layers, 1) / max(kv, 1e-9), np.inf)
    sequences = float(np.min(spare))
    times = [_part(Deployment(model, c.accelerator, one, precision, engine), k / n, length, i == len(cards) - 1)
             for i, (c, k) in enumerate(zip(cards, layers))]  # fmt: skip
    fits = sequences >= 1.0
    why = (
        f"layers follow memory ({', '.join(str(int(k)) for k in layers)})"
        if fits
        else f"{quantity(float(weights.sum()), 'GiB')} of weights and one request of {length:,.0f} tokens exceed "
        f"{quantity(float(allowed.sum()), 'GiB')} of usable memory"
    )
    return Split(
        tuple(cards), "pipeline by size", tuple(int(k) for k in layers), tuple(float(w) for w in weights),
        max(sequences, 0.0) * length, float(sum(times)), fits, why,
    )  # fmt: skip


def _shares(total: int, room: np.ndarray) -> np.ndarray:
    """Whole layers in proportion to room, the largest remainders rounded up."""
    if room.sum() <= 0:
        return np.zeros(room.size, int)
    exact = total * room / room.sum()
    whole = np.floor(exact).astype(int)
    for i in np.argsort(whole - exact)[: total - int(whole.sum())]:
        whole[i] += 1
    return whole


def _alone(where: Deployment, length: float) -> float:
    """Seconds per token of one sequence alone."""
    return float(where.decode_step(1.0, length).total_s)


def _part(where: Deployment, share: float, length: float, last: bool) -> float:
    """Seconds that a share of the layers takes on a card, the head with the last."""
    whole = _alone(where, length)
    head = float(where.timed(head_ops(where.model, 1.0, where.plan, where.precision)).total_s)
    head -= float(where.engine.step.host_gap_s)
    return share * (whole - head) + (head if last else 0.0)
