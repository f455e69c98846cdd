"""Seconds of kernels with a state instead of a cache (linear attention, SSM) and of the sparse indexer's scores.

No table of measured kernels covers these; the constants are ordinary values of kernels that move the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from roofline.arrays import Array
from roofline.kernels.chip import Chip
from roofline.workload import attended_pairs, kv_tokens_read

CHUNK = 64.0  # tokens that a chunked scan turns into matrix products


@dataclass(frozen=True, slots=True)
class StateConstants:
    """How well state and indexer kernels do; the defaults serve any GPU."""

    memory_fraction: Array = 0.75  # [-] of datasheet bandwidth
    compute_fraction: Array = 0.30  # [-] of the dense 16-bit peak in chunked scans: small products, triangular masks
    score_fraction: Array = 0.50  # [-] of the dense peak of the score format in the indexer's products
    launch_s: Array = 4.0e-6  # [s] one call
    chunk_s: Array = 1.5e-6  # [s] one chunk of the serial recurrence

    BOUNDS: ClassVar[dict[str, tuple[float, float]]] = {
        "memory_fraction": (0.1, 1.0),
        "compute_fraction": (0.02, 1.0),
        "score_fraction": (0.05, 1.0),
        "launch_s": (0.0, 3e-5),
        "chunk_s": (0.0, 1e-5),
    }


IDENTITY = StateConstants(memory_fraction=1.0, compute_fraction=1.0, score_fraction=1.0, launch_s=0.0, chunk_s=0.0)


def state_update_time(
    batch: Array,
    new: Array,
    heads: Array,
    key_dim: Array,
    value_dim: Array,
    *,
    chip: Chip,
    peak_flops_per_s: Array,
    state_bytes: Array,
    flops_per_element: Array = 6.0,
    constants: StateConstants | None = None,
) -> Array:
    """Return seconds of carrying a recurrent state over `new` tokens of each of `batch` sequences.

    Formula:  t_launch + (ceil(new/64) - 1) t_chunk
              + max((2 B state + 2 B new heads 2 (dk + dv)) / (f_m BW), u B new heads dk dv / (f_c P))
    Args:     batch B, new tokens per sequence, heads, key_dim dk, value_dim dv [-]; state_bytes of one sequence on
              this rank [B]; flops_per_element u [FLOP] per state element and token; peak_flops_per_s P [FLOP/s]
    Returns:  [s]
    Assumes:  the state is read and written once a call; longer inputs are scanned in chunks of 64 tokens
    Error:    not measured alone. The decode form (4 us, 0.75 of bandwidth) gives 11.6 % on TPOT of 94 served runs of
              linear-attention models, in which it is a small part
    Source:   derivation; Yang et al. 2024 (Gated DeltaNet), chunked form
    """
    c = StateConstants() if constants is None else constants
    moved = 2.0 * batch * state_bytes + batch * new * heads * 2.0 * (key_dim + value_dim) * 2.0
    flops = flops_per_element * batch * new * heads * key_dim * value_dim
    chunks = np.ceil(np.asarray(new, float) / CHUNK) - 1.0
    memory = moved / (chip.bandwidth_bytes_per_s * c.memory_fraction)
    return c.launch_s + chunks * c.chunk_s + np.maximum(memory, flops / (peak_flops_per_s * c.compute_fraction))


def index_scores_time(
    batch: Array,
    new: Array,
    past: Array,
    heads: Array,
    dim: Array,
    *,
    chip: Chip,
    peak_flops_per_s: Array,
    key_bytes: Array,
    constants: StateConstants | None = None,
) -> Array:
    """Return seconds of scoring every cached key for every new token, as sparse attention does before its top-k.

    Formula:  t_launch + max(Y / (f_m BW), 2 B heads dim pairs / (f_s P))
              Y = B (key_bytes (past + new) + new heads dim + 2 pairs): keys, queries in 8 bits, scores in 16
    Args:     batch B, new and past [tokens] per sequence, heads and dim of the indexer [-], key_bytes [B] per cached
              token; peak_flops_per_s P [FLOP/s] of the score format (fp8 where the GPU has it)
    Returns:  [s]
    Assumes:  the top-k selection is a kernel of its own, counted with the small kernels
    Error:    not measured
    Source:   DeepSeek-V3.2 report, section 2.1; derivation
    """
    c = StateConstants() if constants is None else constants
    pairs = attended_pairs(new, past)
    moved = batch * (key_bytes * kv_tokens_read(new, past) + new * heads * dim + 2.0 * pairs)
    flops = 2.0 * batch * heads * dim * pairs
    memory = moved / (chip.bandwidth_bytes_per_s * c.memory_fraction)
    return c.launch_s + np.maximum(memory, flops / (peak_flops_per_s * c.score_fraction))
