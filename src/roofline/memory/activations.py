"""The peak of the engine's profiling forward, and what it takes outside the framework's allocator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roofline.arrays import Array
from roofline.memory.weights import wide
from roofline.parallel import Plan
from roofline.precision import Precision
from roofline.specs.engine import MemoryProfile
from roofline.specs.model import Layer, Model


def sampler_bytes(
    model: Model, precision: Precision, profile: MemoryProfile, tokens: Array, seqs: Array, cores: int
) -> Array:
    """Peak while the first tokens of `seqs` sequences are sampled, the hidden states of `tokens` still alive.

    Formula:  V (seqs (b + s) + cores c) + hidden b (a tokens + r seqs) + workspace
    Args:     tokens, seqs [-] of the profiling step; b bytes of an activation; s, c, a, r: the profile's logit_bytes,
              logit_core_bytes, sampler_hidden_copies and logit_rows
    Returns:  [B] on every rank: logits are gathered, so tensor parallelism does not cut them
    Error:    0.01 GiB on 10 rows of vLLM 0.19; 38.0 B a logit before 0.17 on 4 rows
    Source:   vLLM v1/sample: raw logits, fp32 logits, probabilities, noise; before 0.17 a sort of the vocabulary
    """
    b = wide(precision)
    seqs, tokens = np.minimum(seqs, tokens), np.asarray(tokens, float)
    logits = model.vocab * (seqs * (b + profile.logit_bytes) + cores * profile.logit_core_bytes)
    rows = model.hidden * b * (profile.sampler_hidden_copies * tokens + profile.logit_rows * seqs)
    return logits + rows + profile.matmul_workspace


def layer_token_bytes(layer: Layer, model: Model, plan: Plan, precision: Precision) -> float:
    """Largest intermediate of one layer per token on one rank, beside the buffers of hidden width.

    Formula:  max(b (up + down), b (projections + attention output)); a quantised matmul adds its narrow input
    Returns:  [B/token]
    Assumes:  a block's input and output buffers live together, earlier ones are reused
    Error:    6 I + 7.5 H bytes a token for a gated block: CodeLlama-7B and Granite-8B within 0.01 GiB
    Source:   derivation; vllm-project/vllm 10517 has 6 I + 6 H for the V0 engine
    """
    b = wide(precision)
    sides = {"ffn": 0.0, "attention": 0.0}
    for w in layer.weights(model.hidden, model.norm_params):
        if w.k == 1 or w.expert or w.role not in ("ffn", "shared", "attention"):
            continue
        part = "attention" if w.role == "attention" else "ffn"
        if w.cut == "k":
            act = precision.of(w.role).act_bits
            sides[part] += w.k / w.ways(plan) * (b + (act / 8.0 if act < 16 else 0.0))
        elif w.cut == "n":
            sides[part] += w.n / w.ways(plan) * b
    return max(sides.values())


def expert_token_bytes(layer: Layer, model: Model, plan: Plan, precision: Precision) -> float:
    """Workspace of the routed experts per token on one rank.

    Formula:  b k (max(I, H) + max(2 I, H)), k experts of width I per rank; MXFP4 kernels: b k (I + H)
    Returns:  [B/token]
    Error:    Mixtral, DeepSeek-V2-Lite and Llama-4-Scout: within 0.02 GiB of 0.15 to 0.66
    Source:   vLLM fused_moe, TritonExperts.workspace_shapes
    """
    experts = [w for w in layer.weights(model.hidden, model.norm_params) if w.expert and w.k > 1]
    up = [w for w in experts if w.cut == "n"]
    down = [w for w in experts if w.cut == "k"]
    if not up or not down:
        return 0.0
    k = up[0].active or up[0].copies
    inner, wide_inner = down[0].k / down[0].ways(plan), sum(w.n / w.ways(plan) for w in up)
    outer = down[0].n
    if precision.of("expert").name.startswith("mxfp4"):
        return wide(precision) * k * (inner + outer)
    return wide(precision) * k * (max(inner, outer) + max(wide_inner, outer))


def image_bytes(model: Model, precision: Precision, profile: MemoryProfile, tokens: Array) -> Array:
    """Embeddings and pixels of the images that the engine profiles with a full encoder budget.

    Formula:  images (t hidden b + pixels b), images = max(floor(tokens / t), 1), t tokens and pixels of the largest one
    Error:    five vision-language models: within 0.015 GiB of 0.04 to 0.28
    Source:   vLLM multimodal profiling: the encoder budget is the step's, at least one item
    """
    vision = model.vision
    if vision is None or not profile.image_inputs or not vision.image_tokens:
        return 0.0 * np.asarray(tokens, float)
    images = np.maximum(np.floor(np.asarray(tokens, float) / vision.image_tokens), 1.0)
    return images * wide(precision) * (vision.image_tokens * model.hidden + vision.image_values)


@dataclass(frozen=True, slots=True)
class Widths:
    """What the profiling forward of one stage needs per token or once, as far as it follows from structure."""

    token: float  # bytes per token at the peak of the widest layer
    kept: float  # bytes per token of the experts' workspace that outlives it
    received: float  # bytes per token that a later stage receives
    once: float  # bytes of the latent up-projection


def widths(model: Model, plan: Plan, precision: Precision, profile: MemoryProfile, stage: int = 0) -> Widths:
    """Bytes per token and once that `activation_bytes` multiplies out.

    Formula:  token = widest layer + hidden copies b H; kept: experts' workspace; received = stage copies b H
    Args:     model, plan, precision, profile; stage [-]; everything found is in [B]
    Returns:  Widths, of one rank
    Source:   derivation, constants of the profile
    """
    row = wide(precision) * model.hidden
    layers = [layer for layer, _ in model.stage_runs(plan.pp, stage)]
    experts = [expert_token_bytes(x, model, plan, precision) for x in layers]
    keeps = profile.moe_workspace and not precision.of("expert").name.startswith("mxfp4")
    copies, received = profile.hidden_copies, 0.0
    if plan.pp > 1:
        copies += profile.first_stage_copies if stage == 0 else profile.stage_copies
        received = profile.stage_copies * row
    token = 0.0
    if profile.hidden_copies:
        used = [layer_token_bytes(x, model, plan, precision) + (0.0 if keeps else e) for x, e in zip(layers, experts)]
        token = max(used, default=0.0) + copies * row
    kept = max(experts, default=0.0) if keeps else 0.0
    return Widths(token, kept, received, mla_prefill_bytes(model, plan, precision, profile, stage))


def activation_bytes(
    model: Model,
    plan: Plan,
    precision: Precision,
    profile: MemoryProfile,
    tokens: Array,
    seqs: Array,
    cores: int,
    stage: int = 0,
    structure: Widths | None = None,
) -> Array:
    """Peak of the profiling step on one rank of a stage: that of its widest layer, or of the sampler if it has one.

    Formula:  max(tokens widest + once + workspace, sampler + received) + kept tokens + images
    Args:     tokens, seqs [-]: max_num_batched_tokens and max_num_seqs; cores: SMs of the device; structure: `widths`
    Returns:  [B]
    Error:    mean 0.4 % over 43 rows of vLLM 0.19 (docs/memory.md)
    Source:   derivation, constants of the profile
    """
    found = structure or widths(model, plan, precision, profile, stage)
    tokens = np.asarray(tokens, float) / plan.cp
    peak = tokens * found.token + found.once + profile.matmul_workspace
    if stage == plan.pp - 1:
        sampler = sampler_bytes(model, precision, profile, tokens, seqs, cores)
        peak = np.maximum(peak, sampler + found.received * tokens)
    if stage == 0:
        peak = peak + image_bytes(model, precision, profile, tokens)
    return peak + found.kept * tokens


def mla_prefill_bytes(model: Model, plan: Plan, precision: Precision, profile: MemoryProfile, stage: int) -> float:
    """Keys and values of a chunk of cached latents that MLA prefill expands at once.

    Formula:  chunk x heads per rank x (nope + v) x b
    Source:   vLLM MLACommonImpl profiles this buffer
    """
    found = 0.0
    for layer, _ in model.stage_runs(plan.pp, stage):
        for w in layer.attention.weights(model.hidden) if layer.attention is not None else ():
            if w.name == "kv_b":
                found = max(found, profile.mla_prefill_tokens * w.n / w.ways(plan) * wide(precision))
    return found


def non_torch_bytes(plan: Plan, profile: MemoryProfile, switched: bool = True) -> float:
    """Growth outside the framework's allocator while profiling: kernels, contexts, communication buffers.

    Formula:  tp = 1: base; tp > 1: base + pair + rank log2(tp / 2); pipeline stages with tp = 1: their own constant
    Args:     switched: the devices are joined by a switch, for which engines keep larger buffers
    Error:    0.01 GiB on the dev rows, one of which (Granite-8B at tp 1) has 0.2 GiB more
    Source:   fitted, see the profile
    """
    if plan.tp > 1:
        if not switched:
            return profile.non_torch + profile.non_torch_tp_plain
        return profile.non_torch + profile.non_torch_tp + profile.non_torch_rank * float(np.log2(plan.tp / 2.0))
    return profile.non_torch_pp if plan.pp > 1 and profile.non_torch_pp else profile.non_torch


def context_bytes(model: Model, plan: Plan, profile: MemoryProfile, switched: bool = True) -> float:
    """Taken on a device before the engine looks at free memory: driver, context, communicators.

    Formula:  context + (tp > 1 behind a switch) (context_tp + (experts) context_moe), or + context_pp over stages alone
    Returns:  [B]
    Source:   fitted on free memory at start, see the profile
    """
    moe = any(w.expert for r, _ in model.stage_runs(plan.pp, 0) for w in r.weights(model.hidden, model.norm_params))
    more = (profile.context_tp + profile.context_moe * moe) if plan.tp > 1 and switched else 0.0
    return profile.context + more + (profile.context_pp if plan.pp > 1 and plan.tp == 1 else 0.0)


def graph_bytes(
    model: Model, plan: Plan, precision: Precision, profile: MemoryProfile, stage: int = 0, sizes: Array | None = None
) -> Array:
    """Pool of captured CUDA graphs on one rank.

    Formula:  base + (layers layer + special layers special / tp) sizes / 50
    Args:     sizes [-]: captured batch sizes, None: the profile's
    Returns:  [B]
    Error:    mean 10 % on the rows of vLLM 0.19, 13 % on models left out of the fit
    Source:   fitted, see the profile; why latent attention and MXFP4 kernels need more was not looked into
    """
    per_size = graph_bytes_per_size(model, plan, precision, profile, stage)
    return profile.graph_base + np.asarray(profile.graph_sizes if sizes is None else sizes, float)[()] * per_size


def graph_bytes_per_size(
    model: Model, plan: Plan, precision: Precision, profile: MemoryProfile, stage: int = 0
) -> float:
    """The part of `graph_bytes` that one captured batch size adds."""
    layers = special = 0.0
    mxfp4 = precision.of("expert").name.startswith("mxfp4")
    for layer, count in model.stage_runs(plan.pp, stage):
        layers += count * layer.loops
        expert = any(w.expert for w in layer.weights(model.hidden, model.norm_params))
        special += count * (hasattr(layer.attention, "kv_rank") or (mxfp4 and expert))
    return (layers * profile.graph_layer + special * profile.graph_special / plan.tp) / 50.0
