"""What stands behind an estimate: sources, evidence, what is left out; and the estimate as plain data."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from roofline.estimates import Estimate, Value

EVIDENCE = {
    "measured": "kernel constants fitted to measurements on this device",
    "transferred": "kernel constants carried over from the nearest measured device (or the generic set)",
    "datasheet": "datasheet peaks only: a bound, not a prediction",
}


def sources(e: Estimate) -> list[str]:
    """Where the numbers of an estimate come from: device facts, model, engine, price, kernel constants."""
    accelerator, model = e.deployment.accelerator, e.deployment.model
    cited = {key for block in accelerator.blocks().values() for key in block.source}
    found = [f"{accelerator.name}: {accelerator.sources[key]}" for key in sorted(cited)]
    found += [f"{model.name}: {model.source}"] if model.source else []
    found += [f"price: {e.price_source}"] if e.usd_per_h is not None else []
    return [*found, f"kernels: {EVIDENCE[e.evidence]}"]


def not_modelled(e: Estimate) -> list[str]:
    """What an estimate of this deployment leaves out."""
    out = ["clocks lowered by power or heat", "other work on the same devices", "variance between engine releases"]
    if e.load == "static batch":
        out += ["queueing and admission (give concurrency for continuous batching)", "tokeniser and HTTP front end"]
    if e.deployment.engine.step.kernels == "datasheet":
        out += ["kernel efficiency, launches and small kernels: this engine is the datasheet roofline"]
    if any(t.op.kind == "experts" for t in e.decode.times):
        out += ["skewed expert routing (uniform is assumed)"]
    if e.cycle is not None:
        out += ["drafts of unequal length, acceptance that changes with batch or context"]
    return [*out, *e.notes]


def as_dict(e: Estimate) -> dict[str, Any]:
    """An estimate as plain data: SI units, names as in the docs."""
    d = e.deployment

    def value(v: Value | None) -> dict[str, float] | None:
        return None if v is None else asdict(v)

    regime = e.regime
    return {
        "model": d.model.name,
        "hardware": d.accelerator.name,
        "plan": asdict(d.plan) | {"gpus": d.plan.gpus},
        "precision": {"weights": d.precision.name, "kv": d.precision.kv.name},
        "engine": d.engine.name,
        "load": {"kind": e.load, "isl": e.isl, "osl": e.osl, "batch": e.batch, "cached": e.cached},
        "fits": e.fits,
        "violations": e.violations,
        "memory": memory_dict(e),
        "ttft_s": value(e.ttft_s),
        "tpot_s": value(e.tpot_s),
        "ttft_parts_s": e.ttft_parts_s,
        "tpot_parts_s": e.tpot_parts_s,
        "e2e_s": value(e.e2e_s),
        "tokens_per_s_user": value(e.tokens_per_s_user),
        "tokens_per_s_gpu": value(e.tokens_per_s_gpu),
        "tokens_per_s": value(e.tokens_per_s),
        "mfu": e.mfu,
        "mfu_prefill": e.mfu_prefill,
        "mbu": e.mbu,
        "arithmetic_intensity": e.intensity,
        "ridge_point": e.ridge_point,
        "critical_batch": e.critical_batch,
        "regime": {
            "name": regime.name,
            "shares": regime.shares,
            "next_batch": regime.next_batch,
            "next_context": regime.next_context,
        },
        "usd_per_h": e.usd_per_h,
        "price_source": e.price_source,
        "usd_per_mtok_output": value(e.usd_per_mtok_output),
        "usd_per_mtok_blended": value(e.usd_per_mtok_blended),
        "usd_per_mtok_split": e.usd_per_mtok_split,
        "joules_per_token": e.joules_per_token,
        "joules_per_token_expected": e.joules_per_token_expected,
        "evidence": e.evidence,
        "prefill": [asdict(row) for row in e.prefill_table],
        "decode": [asdict(row) for row in e.decode_table],
        "speculation": None if e.cycle is None else speculation_dict(e),
        "parts_s": {
            "prefill": {k: float(v) for k, v in e.prefill.parts_s.items()},
            "decode": {k: float(v) for k, v in e.decode.parts_s.items()},
        },
        "sources": e.sources,
        "not_modelled": e.not_modelled,
    }


def speculation_dict(e: Estimate) -> dict[str, Any]:
    """A cycle of speculation as plain data; `pays_up_to` is None where it pays at the largest batch too."""
    s, c = e.deployment.speculation, e.cycle
    names = ("tokens", "cost", "speedup", "draft_s", "verify_s", "fixed_s", "plain_s")
    ends = e.pays_up_to if np.isfinite(e.pays_up_to) else None
    return {"drafter": s.drafter.name, "drafts": s.drafts, "cycles": e.steps, "pays_up_to": ends} | {
        name: float(getattr(c, name)) for name in names
    }


def memory_dict(e: Estimate) -> dict[str, Any]:
    """The memory table as plain data, in bytes per device and pipeline stage."""
    m = e.memory
    return {
        "stages": [
            {name: float(v) for name, v in stage.rows().items()}
            | {"stage": stage.stage, "visible": float(stage.visible)}
            for stage in m.stages
        ],
        "kv_tokens": float(m.kv_tokens),
        "resident_requests": e.resident,
        "failure": m.failure,
    }


def plain(value: Any) -> Any:
    """Data that JSON can hold: numpy scalars and arrays become numbers and lists, NaN and infinity None.

    >>> plain({"tpot_s": np.float64(0.5), "usd": float("nan"), "batch": np.array([1, 2])})
    {'tpot_s': 0.5, 'usd': None, 'batch': [1, 2]}
    """
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_text(value: Any, indent: int | None = 1) -> str:
    """`value` as JSON, see `plain`; records that are not plain data as what they print."""
    return json.dumps(plain(value), indent=indent, default=str, allow_nan=False)
