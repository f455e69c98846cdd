"""Predicts disaggregated rows of the end-to-end serving table."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from roofline.errors import InputError
from roofline.parallel import Plan
from roofline.serving.bands import POOLS_TPOT, POOLS_TTFT
from roofline.serving.disaggregated import Pools, pooled_state
from roofline.serving.lengths import uniform

HANDOVER_S = 0.1  # router, connector and queue between the pools; a round number, not fitted
RECIPE = re.compile(r"gen(\d+)_(tep|dep|tp)(\d+)_batch(\d+)")


def predict_pools(row: Mapping[str, Any], models_dir) -> list[float]:
    """TTFT, TPOT and their bands of one row."""
    from roofline.validation.serving import REQUESTS_PER_SEAT, deployment_of

    prefill, prefill_workers = _pool(row, "prefill")
    decode, decode_workers = _pool(row, "decode")
    before, _ = deployment_of(row, models_dir, prefill)
    after, _ = deployment_of(row, models_dir, decode)
    ratio = float(row.get("length_ratio_min", 1.0))
    state = pooled_state(
        Pools(before, after, prefill_workers, decode_workers, slots_of(row)),
        isl=uniform(float(row["isl_max_tokens"]), ratio), osl=uniform(float(row["osl_max_tokens"]), ratio),
        concurrency=float(row["concurrency"]), burst_share=1.0 / REQUESTS_PER_SEAT, handover_s=HANDOVER_S,
    )  # fmt: skip
    ttft, tpot = float(state.ttft_s), float(state.tpot_s)
    bands = [ttft * f for f in POOLS_TTFT] + [tpot * f for f in POOLS_TPOT]
    return [ttft, tpot, *bands]


def slots_of(row: Mapping[str, Any]) -> float:
    """Decode slots: a column `decode_slots`, or what the name of a recipe says; infinite where neither is there.

    Formula:  workers x batch, times the ranks where attention is data parallel (dep)
    Source:   names of the public sweep's recipes: ctx1_gen3_tep16_batch1 has 3 decode workers of one slot each

    >>> slots_of({"recipe": "ctx1_gen3_tep16_batch1"}), slots_of({"recipe": "ctx1_gen2_dep8_batch64"})
    (3.0, 1024.0)
    """
    given = row.get("decode_slots")
    if given is not None and not (isinstance(given, float) and math.isnan(given)):
        return float(given)
    if found := RECIPE.search(str(row.get("recipe", ""))):
        workers, kind, ranks, batch = int(found[1]), found[2], int(found[3]), int(found[4])
        return float(workers * batch * (ranks if kind == "dep" else 1))
    return math.inf


def _pool(row: Mapping[str, Any], pool: str) -> tuple[Plan, int]:
    values = {}
    for field, default in (("workers", None), ("tp", None), ("attn_dp", 1), ("moe_ep", 1)):
        value = row.get(f"{pool}_{field}")
        if value is None or (isinstance(value, float) and math.isnan(value)):
            if default is None:
                raise InputError(f"{pool}_{field} is not stated: how the {pool} pool is laid out is not known")
            value = default
        values[field] = int(value)
    return Plan(tp=values["tp"], dp=values["attn_dp"], ep=values["moe_ep"]), values["workers"]
