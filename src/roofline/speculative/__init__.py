"""Speculative decoding: a drafter proposes tokens, the target verifies them in one step."""

from roofline.speculative.acceptance import (
    Acceptance,
    ByPosition,
    TokenTree,
    acceptance_of,
    expected_by_position,
    expected_tokens,
    ranked_rates,
    walltime_factor,
)
from roofline.speculative.cycle import (
    Speculation,
    best_draft_length,
    break_even_batch,
    kv_tokens,
    most_sequences,
    speculate,
)
from roofline.speculative.drafters import (
    Drafter,
    DraftHead,
    DraftModel,
    MedusaHeads,
    PromptLookup,
    drafter_named,
    eagle,
    eagle3,
    mtp,
)

__all__ = [
    "Acceptance",
    "ByPosition",
    "DraftHead",
    "DraftModel",
    "Drafter",
    "MedusaHeads",
    "PromptLookup",
    "Speculation",
    "TokenTree",
    "acceptance_of",
    "best_draft_length",
    "break_even_batch",
    "drafter_named",
    "eagle",
    "eagle3",
    "expected_by_position",
    "expected_tokens",
    "kv_tokens",
    "most_sequences",
    "mtp",
    "ranked_rates",
    "speculate",
    "walltime_factor",
]
