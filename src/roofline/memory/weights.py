"""Weights as an engine holds them on one rank: formats and scales, padding, tables, copies, and allocator rounding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from roofline.arrays import Array
from roofline.layers.weight import Weight
from roofline.parallel import Plan, heads_per_rank
from roofline.precision import FORMATS, Format, Precision
from roofline.specs.engine import MemoryProfile
from roofline.specs.model import Model

MIB = 2.0**20
FP32, BF16 = FORMATS["fp32"], FORMATS["bf16"]

# Projections that engines store as one tensor because they read the same input.
FUSED = (frozenset({"q", "k", "v", "output_gate"}), frozenset({"q_a", "kv_a"}), frozenset({"in", "in_bc"}))


@dataclass(frozen=True, slots=True)
class Tensor:
    """`count` like tensors of `bytes` each on one rank."""

    name: str
    bytes: float
    count: float = 1


def allocated_bytes(size: Array) -> Array:
    """Bytes that torch's caching allocator counts for one tensor.

    Formula:  size >= 10 MiB: taken from a segment rounded up to 2 MiB; 1 to 10 MiB: from a 20 MiB segment shared with
              its likes; a rest above 1 MiB is split off and stays free, a smaller one is counted with the tensor
    Args:     size [B]
    Returns:  [B]
    Assumes:  tensors between 1 and 10 MiB are packed with others of their size; no expandable segments
    Error:    with it the weights of the development logs are met within 0.05 % (Qwen2.5-7B: 0.4 % without)
    Source:   PyTorch c10/cuda/CUDACachingAllocator.cpp (get_allocation_size, should_split)

    >>> (allocated_bytes(np.array([31.5, 24.5, 9.0]) * 2**20) / 2**20).tolist()
    [32.0, 24.5, 9.0]
    """
    size = np.asarray(size, float)
    rest = np.ceil(size / (2 * MIB)) * 2 * MIB - size
    large = size + np.where(rest <= MIB, rest, 0.0)
    packed = np.floor(20 * MIB / np.maximum(size, MIB))
    rest = 20 * MIB - packed * size
    medium = size + np.where(rest <= MIB, rest / np.maximum(packed, 1.0), 0.0)
    return np.where(size >= 10 * MIB, large, np.where(size > MIB, medium, size))[()]


def weight_tensors(
    model: Model, plan: Plan, precision: Precision, profile: MemoryProfile, stage: int = 0
) -> list[Tensor]:
    """What a rank of pipeline stage `stage` holds once the engine has loaded the checkpoint.

    Norms, routers and whatever a layer declares uncut are replicated over tp. The vision tower is cut over tp and sits
    on the first stage.
    """
    out = [
        Tensor(w.name, sum(stored_parts(w, plan, precision)), n) for w, n in model.weights_around_layers(plan, stage)
    ]
    check_cut(model, plan, stage)
    for layer, count in model.stage_runs(plan.pp, stage):
        for tensor in layer_tensors(layer.weights(model.hidden, model.norm_params), plan, precision, profile):
            out += [Tensor(tensor.name, tensor.bytes, tensor.count * count)]
    if profile.rope_tables:
        out += [Tensor("rope table", size) for size in rope_table_bytes(model, plan, precision, stage)]
        out += [Tensor("latent workspace", size) for size in latent_workspaces(model, plan, precision, profile, stage)]
    if model.vision is not None and stage == 0:
        out += [Tensor("vision", model.vision.params / (plan.tp if model.vision.cut else 1) * wide(precision))]
    return out


def check_cut(model: Model, plan: Plan, stage: int) -> None:
    """Raise InfeasibleError where heads or columns of a stage cannot be dealt out evenly."""
    for layer, _ in model.stage_runs(plan.pp, stage):
        heads_per_rank(getattr(layer.attention, "heads", plan.tp), plan.tp)
        for w in layer.weights(model.hidden, model.norm_params):
            if w.k > 1 and w.cut and not w.limit:
                side = "feed-forward columns" if w.role in ("ffn", "shared", "expert") else "projection columns"
                heads_per_rank(w.n if w.cut == "n" else w.k, w.ways(plan), side)


def stored_parts(w: Weight, plan: Plan, precision: Precision) -> tuple[float, float]:
    """Bytes of a weight's elements and of its scales and zero points on one rank: engines keep them apart.

    Vectors follow a model that is run in fp32.
    """
    total = float(w.bytes_per_rank(plan, precision))
    if w.k == 1:
        return total * wide(precision) / 2.0, 0.0
    copies = w.copies / plan.ep if w.expert else w.copies
    elements = min(total, copies * w.n * w.k / w.ways(plan) * precision.of(w.role).bits / 8.0)
    return elements, total - elements


def wide(precision: Precision) -> float:
    """Bytes of an element that is never quantised: 4 for a model run in fp32, else 2."""
    return 4.0 if precision.default.bits >= 32 else 2.0


def layer_tensors(weights: list[Weight], plan: Plan, precision: Precision, profile: MemoryProfile) -> Iterator[Tensor]:
    """The tensors of one layer on one rank, with fused projections as one, and what the engine keeps beside them."""
    done: set[str] = set()
    names = {w.name for w in weights}
    for w in weights:
        if w.name in done:
            continue
        group = next((g for g in FUSED if w.name in g and len(g & names) > 1), frozenset({w.name}))
        parts = [p for p in weights if p.name in group and p.k == w.k]
        done |= {p.name for p in parts}
        packed = w.expert and precision.of(w.role).name.startswith("mxfp4") and profile.mxfp4_scale_copies > 1
        if packed:
            yield from mxfp4_tensors(w, plan, precision.of(w.role), profile)
        else:
            name = "+".join(p.name for p in parts)
            elements, scales = np.sum([stored_parts(p, plan, precision) for p in parts], axis=0)
            yield Tensor(name, float(elements))
            if scales:
                yield Tensor(f"{name} scales", float(scales))
        if w.name == "kv_b" and profile.mla_copies and precision.of(w.role).bits < 16:
            yield Tensor("kv_b halves", float(BF16.bytes(w.n / w.ways(plan), w.k)) / 2.0, 2)


def mxfp4_tensors(w: Weight, plan: Plan, fmt: Format, profile: MemoryProfile) -> Iterator[Tensor]:
    """MXFP4 experts as the Hopper kernel wants them: padded, scales swizzled and also kept as read, biases in fp32.

    Formula:  inner width per rank to a multiple of `mxfp4_multiple`; packed input side to `mxfp4_k_multiple`; output
              rows of the swizzled scales to `mxfp4_scale_multiple`
    Returns:  tensors with their bytes [B]
    Error:    gpt-oss-20b at tp 1, 2 and 4: within 0.01 GiB
    Source:   vLLM mxfp4 layer; triton_kernels tensor_details/layout_details/hopper_value.py, hopper_scale.py
    """
    copies, ways = w.copies / plan.ep, w.ways(plan)
    n, k = (w.n / ways if w.cut == "n" else w.n), (w.k / ways if w.cut == "k" else w.k)
    gates = 2 if w.cut == "n" else 1
    if w.cut == "n":
        n = gates * up_to(n / gates, profile.mxfp4_multiple)
    if w.k == 1:
        yield Tensor(w.name, copies * n * 4.0)
        return
    if w.cut == "k":
        k = up_to(k, profile.mxfp4_multiple)
    yield Tensor(w.name, copies * n * up_to(k, profile.mxfp4_k_multiple) * fmt.bits / 8.0)
    blocks = k / fmt.scale_block[1]
    yield Tensor(f"{w.name} scales", copies * n * blocks * fmt.scale_bits / 8.0)
    kept = copies * up_to(n, profile.mxfp4_scale_multiple) * up_to(blocks, 2) * fmt.scale_bits / 8.0
    yield Tensor(f"{w.name} swizzled scales", kept, profile.mxfp4_scale_copies - 1)


def up_to(value: float, multiple: int) -> float:
    """`value` rounded up to a multiple."""
    return float(np.ceil(value / multiple) * multiple) if multiple > 1 else value


def rope_table_bytes(model: Model, plan: Plan, precision: Precision, stage: int) -> list[float]:
    """Bytes of the cos/sin tables that a stage keeps: one per kind of rope, a row for every position.

    Formula:  positions x scale x rotary width x bytes; linear scaling multiplies the positions
    Assumes:  every rank keeps all positions; latent attention keeps two tables in fp32
    Error:    Gemma 3 4B (0.56 GiB of tables) and Llama 4 Scout (2.5 GiB) within 0.01 GiB
    Source:   vLLM model_executor/layers/rotary_embedding
    """
    if not model.max_positions:
        return []
    kinds = set()
    for layer, _ in model.stage_runs(plan.pp, stage):
        a = layer.attention
        if a is None or not getattr(a, "rope", hasattr(a, "rope_dim")) or not getattr(a, "causal", True):
            continue
        width = getattr(a, "rope_dim", None) or getattr(a, "head_dim", 0)
        kinds.add((width, getattr(a, "rope_scale", 1.0), hasattr(a, "kv_rank")))
    return [model.max_positions * scale * width * (8.0 if mla else wide(precision)) for width, scale, mla in kinds]


def latent_workspaces(
    model: Model, plan: Plan, precision: Precision, profile: MemoryProfile, stage: int
) -> list[float]:
    """Bytes of the buffer into which chunked prefill gathers cached latents, one for all layers alike.

    Formula:  tokens x (kv_rank + rope width) x bytes
    Returns:  [B], one for each buffer
    Source:   vLLM MLACommonMetadataBuilder
    """
    widths = {
        a.kv_rank + a.rope_dim for layer, _ in model.stage_runs(plan.pp, stage)
        if hasattr(a := layer.attention, "kv_rank")
    }  # fmt: skip
    return [profile.mla_workspace_tokens * width * wide(precision) for width in widths]


def weight_bytes(model: Model, plan: Plan, precision: Precision, profile: MemoryProfile, stage: int = 0) -> float:
    """Bytes of weights on one rank of a stage, as loaded.

    Formula:  sum over `weight_tensors` of their bytes, each rounded up by the allocator where the engine uses torch's
    Returns:  [B]
    Error:    see docs/memory.md for the table against start-up logs
    Source:   derivation
    """
    tensors = weight_tensors(model, plan, precision, profile, stage)
    sizes = np.array([t.bytes for t in tensors])
    counts = np.array([t.count for t in tensors])
    return float(np.sum((allocated_bytes(sizes) if profile.allocator_rounding else sizes) * counts))
