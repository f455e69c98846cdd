"""One question, one answer: does it fit, how fast, how dear, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from roofline.arrays import Array
from roofline.deployment import Deployment, deployment
from roofline.errors import InputError, check_number
from roofline.estimated import (
    Estimate,
    OpRow,
    Value,
    bandwidth_utilisation,
    flops_utilisation,
    op_rows,
)
from roofline.precision import Format, Precision
from roofline.serving.bands import tpot_band, ttft_band
from roofline.serving.steady import steady_state
from roofline.specs.engine import Engine
from roofline.specs.hardware import Accelerator
from roofline.specs.model import Model
from roofline.specs.prices import quote
from roofline.speculative import Speculation, expected_cycles, speculating
from roofline.step import StepTime
from roofline.workload import prefill

EXAMPLE_MODEL, EXAMPLE_HARDWARE = "llama-3.1-8b", "h100-sxm"
__all__ = ["Estimate", "OpRow", "Value", "bandwidth_utilisation", "estimate", "flops_utilisation", "op_rows"]


def estimate(
    model: str | Path | Model | Deployment = EXAMPLE_MODEL,
    hw: str | Path | Accelerator = EXAMPLE_HARDWARE,
    *,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dp: int = 1,
    cp: int = 1,
    weights: str | Precision | None = None,
    kv: str | Format | None = None,
    engine: str | Engine = "vllm",
    isl: float = 1024,
    osl: float = 256,
    batch: float | None = None,
    concurrency: float | None = None,
    rate_per_s: float | None = None,
    cached: float = 0,
    usd_per_h: float | None = None,
    speculation: str | Speculation | None = None,
    specs: str | Path | None = None,
) -> Estimate:
    """What a deployment does for a load, with the reasons.

    Args:     model: name, path or Hub id, or a whole Deployment (then hw to engine are ignored); hw; tp, pp, ep, dp,
              cp; weights, kv: formats, None for what the checkpoint and the engine do; engine: profile;
              isl, osl [tokens per request]; batch: so many requests start together and finish together;
              concurrency: so many are always in flight (continuous batching); rate_per_s: so many arrive per second;
              none of them: one request alone;
              cached: prompt tokens whose KV is already there; usd_per_h: of one device, None for the price list;
              speculation: DRAFTER:DRAFTS:ACCEPTANCE, e.g. 'eagle:3:0.8', see `speculating`
    Returns:  Estimate; one that does not fit still has its numbers, `fits` is False and `memory` says by how much
    Errors:   InputError, UnknownNameError, UnsupportedError, InfeasibleError (cannot be cut so)
    """
    isl = check_number("isl", isl, low=1, high=1e9)
    osl = check_number("osl", osl, low=1, high=1e9)
    cached = check_number("cached", cached, low=0, high=isl - 1)
    given = [
        n for n, v in (("batch", batch), ("concurrency", concurrency), ("rate_per_s", rate_per_s)) if v is not None
    ]
    if len(given) > 1:
        raise InputError(
            f"give one of batch (requests that start together), concurrency (always in flight) and rate_per_s "
            f"(requests per second), not {' and '.join(given)}"
        )
    if rate_per_s is not None:
        rate_per_s = check_number("rate_per_s", rate_per_s, low=1e-9, high=1e9)
    sizes = {"batch": batch, "concurrency": concurrency}
    size = next((check_number(n, v, low=1, high=1e7) for n, v in sizes.items() if v is not None), 1.0)
    if usd_per_h is not None:
        usd_per_h = check_number("usd_per_h", usd_per_h, low=0, high=1e6)
    where = model if isinstance(model, Deployment) else deployment(
        model, hw, tp=tp, pp=pp, ep=ep, dp=dp, cp=cp, weights=weights, kv=kv, engine=engine, specs=specs
    )  # fmt: skip
    where = speculating(where, speculation, specs)
    load = Load(float(isl), float(osl), float(size), float(cached), rate_per_s)
    if cached and where.model.encoder:
        raise InputError(f"cached: {where.model.name} has an encoder, which reads a prompt as a whole; give cached=0")
    answer = _static if concurrency is None and rate_per_s is None else _steady
    return answer(where, load, *_price(where.accelerator, usd_per_h, specs))


@dataclass(frozen=True, slots=True)
class Load:
    """What every request looks like and how many there are at a time."""

    isl: float
    osl: float
    batch: float
    cached: float
    rate_per_s: float | None = None


def _price(accelerator: Accelerator, usd_per_h: float | None, specs: str | Path | None) -> tuple[float | None, str]:
    if usd_per_h is not None:
        return float(usd_per_h), "as given"
    found = quote(accelerator, specs=specs)
    return (None, "no price on record; give usd_per_h") if found is None else (found.usd_per_hour, str(found))


def static_steps(
    where: Deployment, batch: Array, isl: Array, osl: Array, cached: Array = 0.0, running: Array | None = None
) -> tuple[StepTime, StepTime]:
    """The pass over `batch` prompts and a decode step of as many (or `running`) at the mean context; all broadcasts.

    Formula:  decode at isl + osl / 2 cached tokens (an encoder-decoder caches the prompt apart)
    Args:     batch [requests], isl, osl, cached [tokens]
    Returns:  (prefill, decode) StepTime
    Source:   exact while the bound does not change between the first token and the last: times are linear in context
    """
    running = batch if running is None else running
    if where.model.encoder or where.plan.pp > 1:
        prompt = 0.0 if where.model.encoder else isl
        return where.prefill_step(batch, isl, cached), where.decode_step(running, prompt + osl / 2.0, isl - prompt)
    both = where.steps((prefill(batch, isl, cached),), (where.decoding(running, isl + osl / 2.0),))
    return both[0], both[1]


def static_times(
    where: Deployment, steps: tuple[StepTime, StepTime], batch: Array, isl: Array, osl: Array, cached: Array = 0.0
) -> tuple[Array, Array]:
    """Times to first and per further output token of a static batch; with speculation drafting beside its `steps`.

    Formula:  TTFT = prefill; TPOT = decode step; speculating: prefill + drafter's pass over the prompts, and
              N/(O - 1) (draft + verification + t_cycle + b t_sequence), N the mean number of cycles for O - 1 tokens
    Args:     steps: of `static_steps`; batch [requests], isl, osl, cached [tokens]
    Returns:  (TTFT, TPOT) [s]
    Source:   derivation
    """
    s = where.speculation
    if s is None:
        return steps[0].total_s, steps[1].total_s
    later = np.maximum(np.asarray(osl, float) - 1.0, 1.0)
    cycle = steps[1].total_s + s.cycle_s(where, batch, isl + osl / 2.0)
    first = steps[0].total_s + s.prompt_s(where, prefill(batch, isl, cached))
    return first, cycle * expected_cycles(later, s.shares) / later


def _static(where: Deployment, load: Load, usd_per_h: float | None, price_source: str) -> Estimate:
    """All requests start together: one pass over the prompts, then osl - 1 decode steps at the mean context."""
    prompt_step, decode_step = both = static_steps(where, load.batch, load.isl, load.osl, load.cached)
    ttft_s, tpot_s = static_times(where, both, load.batch, load.isl, load.osl, load.cached)
    ttft = _banded(float(ttft_s), prompt_step, tpot_band(where))
    tpot = _banded(float(tpot_s), decode_step, tpot_band(where))
    steps = load.osl - 1.0
    e2e = Value(*(getattr(ttft, x) + steps * getattr(tpot, x) for x in ("value", "low", "high")))
    memory = where.footprint(load.isl + load.osl)
    return Estimate(
        where, load.isl, load.osl, load.batch, load.cached, memory, prompt_step, decode_step, ttft, tpot, e2e,
        usd_per_h, price_source, "static batch",
    )  # fmt: skip


def _steady(where: Deployment, load: Load, usd_per_h: float | None, price_source: str) -> Estimate:
    """Continuous batching: requests come and go, prompts share steps with decodes, times are means over requests."""
    asked = {"concurrency": load.batch} if load.rate_per_s is None else {"rate_per_s": load.rate_per_s}
    state = steady_state(where, isl=load.isl, osl=load.osl, cached=load.cached, **asked)
    running = max(float(state.batch), 1.0)
    prompt_step, decode_step = static_steps(where, 1.0, load.isl, load.osl, load.cached, running)
    ttft = _banded(float(state.ttft_s), prompt_step, ttft_band(where))
    tpot, e2e = (_banded(float(x), decode_step, tpot_band(where)) for x in (state.tpot_s, state.e2e_s))
    return Estimate(
        where, load.isl, load.osl, float(state.concurrency), load.cached, where.footprint(load.isl + load.osl),
        prompt_step, decode_step, ttft, tpot, e2e, usd_per_h, price_source,
        "closed loop" if load.rate_per_s is None else "open loop", state=state, running=running,
    )  # fmt: skip


def _banded(value: float, step: StepTime, composed: tuple[float, float]) -> Value:
    """A time with its 80 % band: that of the kernels it is made of, and that of composing kernels to a server's times.

    Formula:  logarithms of the two bands in quadrature
    Assumes:  errors of kernel models and of the composition are independent
    Source:   kernels: held-out rows of the kernel tables; composition: `roofline.serving.bands`
    """
    if step.evidence == "datasheet":
        return Value(value, value, value)
    ends = [
        math.exp(math.copysign(math.hypot(math.log(float(end / step.total_s)), math.log(c)), sign))
        for end, c, sign in zip(step.band_s, composed, (-1.0, 1.0))
    ]
    return Value(value, value * ends[0], value * ends[1])
