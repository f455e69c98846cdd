"""How a pool of memory holds the caches of sequences: blocks, groups of unlike layers, waste."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roofline.arrays import Array
from roofline.parallel import Plan
from roofline.precision import Precision
from roofline.specs.engine import MemoryProfile
from roofline.specs.model import Model

FAR = 2.0**40  # tokens, further than any window


@dataclass(frozen=True, slots=True)
class CacheKind:
    """`layers` layers of one rank and stage whose caches are alike."""

    layers: int
    token_bytes: float  # per cached token and layer
    state_bytes: float = 0.0  # per sequence and layer, whatever its length
    window: float = np.inf  # tokens that are held at most
    chunked: bool = False  # the window does not slide: a chunk is dropped as a whole

    @property
    def recurrent(self) -> bool:
        """A state instead of tokens."""
        return self.token_bytes == 0.0


@dataclass(frozen=True, slots=True)
class Pool:
    """What a KV pool holds on the rank that holds least."""

    blocks: Array  # physical blocks; of the shared pool where layers are grouped
    tokens: Array  # as the engine prints them
    concurrency: Array  # sequences of `length` tokens that fit together
    length: Array

    @property
    def capacity(self) -> Array:
        """Tokens that sequences of `length` really have: what is printed divides shared blocks by the groups."""
        return self.concurrency * self.length


def cache_kinds(model: Model, plan: Plan, precision: Precision, stage: int = 0) -> list[CacheKind]:
    """The kinds of cache of a stage, read off from what its layers say they hold at 0, 1 and very many tokens.

    Assumes:  at most linear growth up to a window (compressed caches: their mean rate)
    """
    found: dict[tuple[float, float, float, bool], int] = {}
    for layer, count in model.stage_runs(plan.pp, stage):
        none, far, farther = (float(layer.cache_bytes(t, plan, precision)) for t in (0.0, FAR, 2.0 * FAR))
        if not farther:
            continue
        grows, token = farther > far, (farther - far) / FAR
        if not grows and far > none:  # a window: its width is what the attention says, its rate follows
            window = float(getattr(layer.attention, "window", None) or getattr(layer.attention, "chunk", None) or 1)
            key = ((far - none) / window, none, window, bool(getattr(layer.attention, "chunk", None)))
        else:
            key = (token, none, np.inf, False)
        found[key] = found.get(key, 0) + count
    return [CacheKind(n, *key) for key, n in found.items()]


def held_tokens(kind: CacheKind, length: Array, step_tokens: Array, profile: MemoryProfile) -> Array:
    """Tokens that one layer reserves for a sequence of `length`.

    Formula:  full: T; window W: min(T, W), or with window_holds 'step' min(T, W - 1 + step), a chunk min(T, C + step)
    Args:     length, step_tokens [tokens]: the sequence, and the most new tokens of a step
    Returns:  [tokens]
    Source:   vLLM v1/kv_cache_interface.py max_memory_usage_bytes; llama.cpp llama_kv_cache_iswa (window + n_ubatch)
    """
    if not np.isfinite(kind.window) or profile.window_holds == "all":
        return np.asarray(length, float)
    more = 0.0
    if profile.window_holds == "step":
        sliding = 0.0 if kind.chunked or profile.pool_rule == "contiguous" else 1.0
        more = np.asarray(step_tokens, float) - sliding
    cells = up_to_cells(kind.window + more, profile.cell_multiple)
    return np.minimum(length, cells)


def up_to_cells(tokens: Array, multiple: int) -> Array:
    """Tokens rounded up to the multiple that a contiguous cache is allocated in."""
    return np.ceil(np.asarray(tokens, float) / max(multiple, 1)) * max(multiple, 1)


def sequence_bytes(
    kinds: list[CacheKind], length: Array, step_tokens: Array, profile: MemoryProfile, block: int | None = None
) -> Array:
    """Bytes that one sequence of `length` tokens reserves on a rank, whole blocks of every layer.

    Formula:  sum over kinds of layers (ceil(held / block) block token_bytes + state_bytes)
    Args:     length, step_tokens [tokens]; block [tokens], None: the profile's
    Returns:  [B]
    Source:   derivation

    >>> llama = [CacheKind(32, 4096.0)]
    >>> float(sequence_bytes(llama, 8192, 8192, MemoryProfile())) / 2**30
    1.0
    """
    size = block or profile.block_size
    total = 0.0
    for kind in kinds:
        blocks = np.ceil(held_tokens(kind, length, step_tokens, profile) / size)
        slides = profile.window_holds == "step" and profile.pool_rule != "contiguous"
        if np.isfinite(kind.window) and slides and not kind.chunked:
            blocks = blocks + 1.0  # a sliding window seldom starts at the start of a block
        total = total + kind.layers * (blocks * size * kind.token_bytes + kind.state_bytes)
    return total


def pool(pool_bytes: Array, kinds: list[CacheKind], length: Array, step_tokens: Array, profile: MemoryProfile) -> Pool:
    """Blocks, tokens and concurrency that `pool_bytes` of one rank come to.

    Formula:  one kind of layer: blocks = floor(pool / page), page = block x token bytes of all layers, tokens =
              blocks x block, concurrency = blocks / blocks of a sequence. Unlike kinds share a pool of equal pages
              where the engine groups them (`grouped_pool`); elsewhere concurrency = pool / sequence_bytes and tokens
              = concurrency x length
    Args:     pool_bytes [B], length [tokens], step_tokens [tokens]; floats or arrays that broadcast
    Error:    block counts of the development logs are met exactly, given their pool (docs/memory.md)
    Source:   vLLM v1/core/kv_cache_utils.py
    """
    pool_bytes, length = np.maximum(np.asarray(pool_bytes, float), 0.0), np.asarray(length, float)
    if not kinds:
        return Pool(np.inf, np.inf, np.inf, length)
    windowed = any(np.isfinite(k.window) for k in kinds)
    growing = any(not k.recurrent for k in kinds)
    if profile.hybrid_groups and growing and (windowed or any(k.recurrent for k in kinds)):
        return grouped_pool(pool_bytes, kinds, length, step_tokens, profile)
    block = profile.block_size
    if windowed or not growing:
        concurrency = pool_bytes / sequence_bytes(kinds, length, step_tokens, profile)
        return Pool(np.floor(concurrency * length / block), np.floor(concurrency * length), concurrency, length)
    page = sum(k.layers * (block * k.token_bytes) for k in kinds)
    states = sum(k.layers * k.state_bytes for k in kinds)
    blocks = np.floor(pool_bytes / page)
    per_sequence = np.ceil(length / block) + states / page
    return Pool(blocks, blocks * block, blocks / per_sequence, length)


def grouped_pool(
    pool_bytes: Array, kinds: list[CacheKind], length: Array, step_tokens: Array, profile: MemoryProfile
) -> Pool:
    """A pool of equal pages that groups of like layers share.

    Formula:  every group has as many layers as the rarest kind (the commonest, where that is less than 1.5 times as
              many); a page is one block of one group; blocks = floor(pool / page); tokens printed = floor(blocks /
              groups) x block; concurrency = blocks / sum over groups of their blocks for `length`
    Assumes:  kinds with smaller pages get larger blocks until pages are equal; a recurrent state takes one page, and
              the block of the growing kind is the smallest multiple whose page holds it
    Error:    exact on Gemma-2 and -3, gpt-oss and Llama-4 given the pool; recurrent hybrids not measured
    Source:   vLLM v1/core/kv_cache_utils.py (_get_kv_cache_groups_uniform_page_size), v1/kv_cache_interface.py
    """
    block = float(profile.block_size)
    state = max((k.state_bytes for k in kinds if k.recurrent), default=0.0)
    smallest = min(k.token_bytes for k in kinds if not k.recurrent)
    if state:
        block = np.ceil(state / smallest / block) * block
    page = max(block * k.token_bytes for k in kinds if not k.recurrent)
    counts = [k.layers for k in kinds]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups = [-(-n // size) for n in counts]
    blocks = np.floor(pool_bytes / (page * size))
    wanted = 0.0
    for kind, n in zip(kinds, groups):
        own = page / kind.token_bytes if kind.token_bytes else 1.0
        held = np.ceil(held_tokens(kind, length, step_tokens, profile) / own)
        sliding = np.isfinite(kind.window) and not kind.chunked and profile.window_holds == "step"
        wanted = wanted + n * (1.0 if kind.recurrent else held + float(sliding))
    tokens = np.floor(blocks / sum(groups)) * block
    return Pool(blocks, tokens, blocks / wanted, length)


def swap_blocks(model: Model, plan: Plan, precision: Precision, profile: MemoryProfile) -> float:
    """Blocks of host memory that preempted sequences can be swapped to.

    Formula:  floor(swap / (block x KV bytes of a token on a rank))
    Returns:  [blocks]
    Source:   vLLM V0 worker; printed counts in vllm-project/vllm 10517, 13882, 5248
    """
    token = sum(k.layers * k.token_bytes for k in cache_kinds(model, plan, precision))
    return float(np.floor(profile.swap / (profile.block_size * token))) if token else 0.0


def paged_waste(block: Array, length: Array) -> Array:
    """Expected share of allocated KV that paging leaves empty.

    Formula:  w / (T + w), w = (block - 1) / 2: the last block is filled by 1 to `block` tokens with equal chance
    Args:     block [tokens], length T [tokens]; floats or arrays that broadcast
    Returns:  [-]
    Assumes:  lengths spread evenly over a block
    Source:   derivation; Kwon et al. 2023 (vLLM) state under 4 %

    >>> round(float(paged_waste(16, 180)), 4)
    0.04
    """
    empty = (np.asarray(block, float) - 1.0) / 2.0
    return empty / (np.asarray(length, float) + empty)


def length_of_waste(block: Array, waste: Array) -> Array:
    """Mean length at which `paged_waste` comes to `waste`.

    Formula:  w / waste - w, w = (block - 1) / 2
    Returns:  [tokens]
    Source:   derivation

    >>> float(length_of_waste(16, 0.04))
    180.0
    """
    empty = (np.asarray(block, float) - 1.0) / 2.0
    return empty / np.asarray(waste, float) - empty


def contiguous_waste(length: Array, reserved: Array) -> Array:
    """Share of KV that contiguous reservation of the longest length leaves empty.

    Formula:  1 - T / reserved
    Args:     length, reserved [tokens]; floats or arrays that broadcast
    Returns:  [-]
    Source:   derivation; Kwon et al. 2023 figure 2 measures 62 to 80 % in serving systems before paging

    >>> float(contiguous_waste(512, 2048))
    0.75
    """
    return 1.0 - np.minimum(length, reserved) / reserved
