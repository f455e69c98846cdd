"""Prices of attention: decode and prompt kernels, latent attention, and what walks a cache without softmax."""

from __future__ import annotations

from functools import partial

import numpy as np

from roofline.kernels.decode import AttentionTerms, DecodeConstants, decode_terms
from roofline.kernels.mla import MLA_DECODE, MLA_PREFILL, mla_decode_terms, mla_prefill_terms
from roofline.kernels.prefill import PrefillConstants, prefill_terms
from roofline.kernels.times import OpTime
from roofline.machine import Machine
from roofline.ops import Attention, LatentAttention
from roofline.precision import Format
from roofline.pricing.common import regime_names, timed

FEW_TOKENS = 16  # up to so many new tokens per sequence engines take the split-KV decode kernel (drafts to verify)


def attentions(sheets: list[OpTime], machine: Machine) -> list[OpTime]:
    """Softmax attention: the decode kernel where few tokens are new, the prompt kernel where many are."""
    return [_attention(sheet, machine) for sheet in sheets]


def _attention(sheet: OpTime, machine: Machine) -> OpTime:
    op: Attention = sheet.op
    if op.expanded_latent:
        return _prompt(sheet, machine)
    few = np.asarray(op.sequences.new) <= FEW_TOKENS
    if not op.causal or not few.any():
        return _prompt(sheet, machine)
    if few.all():
        return _decode(sheet, machine)
    one, other = _decode(sheet, machine), _prompt(sheet, machine)
    chosen = {n: np.where(few, getattr(one, n), getattr(other, n)) for n in ("launch_s", "total_s")}
    return OpTime(
        op, other.compute_s, other.memory_s, other.network_s, **chosen, band=partial(_either_band, few, one, other),
        evidence=one.evidence,
    )  # fmt: skip


def _either_band(first: np.ndarray, one: OpTime, other: OpTime) -> tuple[np.ndarray, np.ndarray]:
    return np.where(first, one.low_s, other.low_s), np.where(first, one.high_s, other.high_s)


def cache_format(kv: Format) -> str:
    """The cache format as kernel tables name it: 8 bits and less are read and widened as fp8 is."""
    return "fp8" if kv.bits <= 8 else "bf16"


def _decode(sheet: OpTime, machine: Machine) -> OpTime:
    op: Attention = sheet.op
    s = op.sequences
    found = machine.constants("decode_attention", cache_format(op.kv), DecodeConstants())
    terms = decode_terms(
        s.count, s.past, op.heads, op.kv_heads, op.qk_dim, new=s.new, v_dim=op.v_dim, window=op.window,
        kv_bytes_per_el=op.kv.element_bytes, chip=machine.chip, constants=found.constants,
        peak_flops_per_s=machine.accelerator.peak_flops_per_s("bf16"),
    )  # fmt: skip
    return _timed(sheet, terms, found)


def _prompt(sheet: OpTime, machine: Machine) -> OpTime:
    op: Attention = sheet.op
    s = op.sequences
    if op.expanded_latent:
        found = machine.constants("mla_prefill", "bf16", MLA_PREFILL)
        terms = mla_prefill_terms(
            s.count, s.new, op.heads, past=s.past, nope=op.qk_dim, rope=0.0, v_dim=op.v_dim, rank=0.0,
            window=op.window, chip=machine.chip, constants=found.constants,
            peak_flops_per_s=machine.accelerator.peak_flops_per_s("bf16"),
        )  # fmt: skip
        return _timed(sheet, terms, found)
    narrow = cache_format(op.kv) == "fp8"
    found = machine.constants("prefill_attention", "bf16_fp8kv" if narrow else "bf16", PrefillConstants())
    matmul = "fp8" if found.format == "fp8" else "bf16"  # some engines multiply in the format of the cache
    terms = prefill_terms(
        s.count, s.new, op.heads, op.kv_heads, op.qk_dim, past=s.past, v_dim=op.v_dim, window=op.window,
        causal=op.causal, kv_bytes_per_el=op.kv.element_bytes, chip=machine.chip, constants=found.constants,
        peak_flops_per_s=machine.accelerator.peak_flops_per_s(matmul),
    )  # fmt: skip
    return _timed(sheet, terms, found)


def latents(sheets: list[OpTime], machine: Machine) -> list[OpTime]:
    """Absorbed MLA over its latent cache; a compressed cache has one entry for `ratio` positions."""
    return [_latent(sheet, machine) for sheet in sheets]


def _latent(sheet: OpTime, machine: Machine) -> OpTime:
    op: LatentAttention = sheet.op
    s = op.sequences
    found = machine.constants("mla_decode", cache_format(op.kv), MLA_DECODE)
    terms = mla_decode_terms(
        s.count, np.asarray(s.past, float) / op.ratio, op.heads, new=s.new, rank=op.rank, rope=op.rope,
        token_bytes=op.token_bytes, cache_bytes_per_el=op.kv.element_bytes, window=op.window, chip=machine.chip,
        constants=found.constants, peak_flops_per_s=machine.peak_flops_per_s(op),
    )  # fmt: skip
    return _timed(sheet, terms, found)


def _timed(sheet: OpTime, terms: AttentionTerms, found) -> OpTime:
    return timed(sheet, terms.time_s, terms.launch_s, found, partial(regime_names, terms))
