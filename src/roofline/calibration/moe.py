"""Fits `MoeConstants` to tables of measured MoE layers: per kernel, per format over all engines, and for kin GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from roofline.calibration.fit import Columns, Entry, Fit, entry, fit, group_folds, sample_rows
from roofline.kernels.chip import Chip
from roofline.kernels.moe import MoeConstants, MoeTerms, moe_terms
from roofline.kernels.routing import Loads, even_loads, power_law_loads

# bytes per element of weights (scales included; int4 with one 16-bit scale per 128) and of the activations multiplied
WEIGHT_BYTES = {
    "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625, "mxfp4": 0.53125, "w8a16": 1.0,
    "w4a16": 0.515625, "w4a16_mxfp4": 0.53125, "w4a8_mxfp4_mxfp8": 0.53125, "w8a8_int8": 1.0,
}  # fmt: skip
ACT_BYTES = WEIGHT_BYTES | {"w8a16": 2.0, "w4a16": 2.0, "w4a16_mxfp4": 2.0, "w4a8_mxfp4_mxfp8": 1.0}
WIDENED = ("w4a16_mxfp4",)  # formats that some kernels turn into 16-bit weights when they load them

FAMILIES = ("marlin", "min_latency", "deepgemm", "cutlass", "trtllm", "triton")  # found in kernel labels, in this order
# (kernel, format): found by their times under expert parallelism, which follow T k and not the rank's own pairs
UNMASKED = {("sglang_marlin_moe", "w4a16_mxfp4"), ("moe_torch_flow_triton_fp8_block", "fp8_block")}
LAYOUT = ("hidden", "inter", "topk", "experts", "tp", "ep")

# Pulls of each stage of a fit towards the one before (see `fit`): default -> family -> kernel -> kernel on this GPU.
FAMILY_SIGMA, KERNEL_SIGMA, GPU_SIGMA = 1.0, 0.7, 0.35
STAGE_ROWS = 240  # rows per kernel that the first stages look at


@dataclass(frozen=True, slots=True)
class Table:
    """Measured MoE layers of one GPU, with what is needed to predict them."""

    rows: (
        Columns  # stack, kernel, dtype, tokens, hidden, inter, topk, experts, tp, ep, routing[, stack_version], time_s
    )
    chip: Chip
    peaks: Mapping[str, float]  # format -> dense peak [FLOP/s] of the operands it multiplies


def family(kernel: str) -> str:
    """Return the kind of kernel that a label names, the label itself where it is none of FAMILIES.

    >>> family("vllm_fp8moe_flashinfer_cutlass_flashinferexperts"), family("sglang_fused_moe_triton")
    ('cutlass', 'triton')
    """
    return next((f for f in FAMILIES if f in kernel), kernel)


def benchmark_loads(rows: Columns) -> tuple[np.ndarray, Loads, np.ndarray]:
    """Return tokens entering the timed kernels, loads of the timed rank and number of routings cycled, per row.

    `routing` is `balanced` or `power_law_<exponent>` (the busiest rank, mean over five routings). With expert
    parallelism not every timed kernel sees the batch as it is: SGLang 0.5.10's get only the tokens
    that use the rank; and some kernels (UNMASKED) compute the choices that other ranks own as well. These are facts
    about the timing, not about serving.
    """
    names = np.asarray(rows["routing"]).astype(str)
    tokens, experts, top_k, ep = (np.asarray(rows[n], float) for n in ("tokens", "experts", "topk", "ep"))
    skewed = names != "balanced"
    exponent = np.array([float(re.sub(r"^power_law_", "", n)) if s else 1.1 for n, s in zip(names, skewed)])
    even, skew = even_loads(tokens, experts, top_k, ep), power_law_loads(tokens, experts, top_k, ep, exponent)
    pairs, active = np.where(skewed, skew.pairs, even.pairs), np.where(skewed, skew.active, even.active)
    load = np.where(skewed[:, None], skew.tokens, even.tokens)
    weight = np.where(skewed[:, None], skew.weight, 1.0 / load.shape[-1])

    version = np.asarray(rows.get("stack_version", np.full(len(names), ""))).astype(str)
    selected = (np.asarray(rows["stack"]).astype(str) == "sglang") & (version == "0.5.10") & (ep > 1)
    kernel, form = np.asarray(rows["kernel"]).astype(str), np.asarray(rows["dtype"]).astype(str)
    unmasked = np.array([(k, f) in UNMASKED for k, f in zip(kernel, form, strict=True)], bool)
    foreign = selected | (unmasked & (ep > 1))
    using = np.where(skewed, tokens * (1.0 - (1.0 - np.minimum(pairs / (top_k * tokens), 1.0)) ** top_k), pairs)
    tokens = np.where(selected, np.clip(using, 1.0, tokens), tokens)
    more = np.where(foreign, np.maximum(tokens * top_k - pairs, 0.0), 0.0)
    load = load * (1.0 + more / pairs)[:, None]  # padding of the added rows is small beside the rows themselves
    return tokens, Loads(pairs + more, active, load, weight), np.where(skewed, 5.0, 1.0)


def moe_columns(table: Table) -> dict[str, np.ndarray]:
    """Return the arguments of `moe_terms` for the rows of a table, as columns."""
    rows, form = table.rows, np.asarray(table.rows["dtype"]).astype(str)
    ones = np.ones(len(form))
    tokens, loads, routings = benchmark_loads(rows)
    return {
        **{n: np.asarray(rows[n], float) for n in LAYOUT},
        "tokens": tokens,
        "routings": routings,
        "pairs": loads.pairs,
        "active": loads.active,
        "load": loads.tokens,
        "share": loads.weight,
        "w": np.array([WEIGHT_BYTES[f] for f in form]),
        "a": np.array([ACT_BYTES[f] for f in form]),
        "peak": np.array([table.peaks[f] for f in form], float),
        "bandwidth": ones * table.chip.bandwidth_bytes_per_s,
        "sms": ones * table.chip.sms,
        "l2": ones * table.chip.l2_bytes,
    }


def terms(constants: MoeConstants, x: Columns) -> MoeTerms:
    """Return `moe_terms` of the rows of `moe_columns`, with warm buffers as in the benchmark."""
    return moe_terms(
        x["tokens"], x["hidden"], x["inter"], x["experts"], x["topk"],
        tp=x["tp"], ep=x["ep"], loads=Loads(x["pairs"], x["active"], x["load"], x["share"]),
        chip=Chip(x["bandwidth"], x["sms"], x["l2"]), peak_flops_per_s=x["peak"],
        weight_bytes_per_el=x["w"], act_bytes_per_el=x["a"], constants=constants, cold=False, routings=x["routings"],
    )  # fmt: skip


def predicted_s(constants: MoeConstants, x: Columns) -> np.ndarray:
    """Return predicted seconds of the rows of `moe_columns`."""
    return terms(constants, x).time_s


def regimes(constants: MoeConstants, x: Columns) -> np.ndarray:
    """Return which part of the time is largest, per row: launch, memory, compute, latency or rows."""
    t = terms(constants, x)
    parts = np.stack([t.launch_s, t.memory_s, t.compute_s, t.latency_s, t.rows_s])
    return np.array(["launch", "memory", "compute", "latency", "rows"])[parts.argmax(0)]


# --- fitting -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pool:
    """Rows of several GPUs as columns, with the labels that sort them into cells."""

    x: dict[str, np.ndarray]
    seconds: np.ndarray
    gpu: np.ndarray  # 0 is the GPU that is calibrated, others are its kin
    form: np.ndarray
    engine: np.ndarray
    kernel: np.ndarray
    layout: np.ndarray

    def where(self, mask: np.ndarray) -> _Pool:
        return _Pool(
            {n: v[mask] for n, v in self.x.items()},
            *(getattr(self, n)[mask] for n in ("seconds", "gpu", "form", "engine", "kernel", "layout")),
        )


def _pool(tables: Sequence[Table]) -> _Pool:
    columns = [moe_columns(t) for t in tables]
    labels = [[np.asarray(t.rows[n]).astype(str) for t in tables] for n in ("dtype", "stack", "kernel")]
    x = {n: np.concatenate([c[n] for c in columns]) for n in columns[0]}
    sizes = [len(c["tokens"]) for c in columns]
    return _Pool(
        x,
        np.concatenate([np.asarray(t.rows["time_s"], float) for t in tables]),
        np.repeat(np.arange(len(tables)), sizes),
        *(np.concatenate(parts) for parts in labels),
        np.array(["x".join(f"{v:.0f}" for v in row) for row in zip(*(x[n] for n in LAYOUT))]),
    )


def _pulled(pool: _Pool, starts: Sequence[MoeConstants], towards: MoeConstants, sigma: float, limit: int | None) -> Fit:
    """Return a fit of a pool that is pulled towards constants known from more rows."""
    if limit is not None:
        cell = np.char.add(np.char.add(pool.engine, pool.kernel), pool.gpu.astype(str))
        keep = np.zeros(len(cell), bool)
        for name in np.unique(cell):
            at = np.flatnonzero(cell == name)
            keep[at[sample_rows(len(at), limit)]] = True
        pool = pool.where(keep)
    pull = {n: (getattr(towards, n), sigma) for n in MoeConstants.BOUNDS}
    return fit(predicted_s, list(starts), pool.x, pool.seconds, priors=pull, max_evaluations=25, start_rows=150)


def _alternatives(start: MoeConstants, form: str) -> list[MoeConstants]:
    return [start, replace(start, stored_bytes=2.0)] if form in WIDENED else [start]


def _family_fit(pool: _Pool, form: str, kind: str) -> MoeConstants:
    of_kind = np.array([family(k) == kind for k in pool.kernel], bool)
    mine = pool.where((pool.form == form) & of_kind)
    start = MoeConstants()
    if len(np.unique(np.char.add(mine.engine, mine.kernel))) < 2:
        return start
    return _pulled(mine, _alternatives(start, form), start, FAMILY_SIGMA, STAGE_ROWS).constants


def _kernel_fit(pool: _Pool, form: str, engine: str, kernel: str, towards: MoeConstants) -> Fit:
    mine = pool.where((pool.form == form) & (pool.engine == engine) & (pool.kernel == kernel))
    starts = _alternatives(replace(towards, stored_bytes=0.0), form)
    if not np.any(mine.gpu > 0):
        return _pulled(mine, starts, towards, KERNEL_SIGMA, None)
    several = _pulled(mine, starts, towards, KERNEL_SIGMA, STAGE_ROWS)
    own = mine.where(mine.gpu == 0)
    if not len(own.seconds):
        return several
    return _pulled(own, [several.constants], several.constants, GPU_SIGMA, None)


def _pooled_fit(pool: _Pool, form: str) -> Fit:
    mine = pool.where((pool.form == form) & (pool.gpu == 0))
    return _pulled(mine, _alternatives(MoeConstants(), form), MoeConstants(), FAMILY_SIGMA, None)


def held_out_moe(table: Table, kin: Sequence[Table] = (), *, folds: int = 4) -> dict[tuple[str, str, str], tuple]:
    """Return, per (format, engine, kernel), the fit on all rows, held-out residuals and regimes of the GPU's own rows.

    Args:  as `calibrate_moe`; residuals are ln(predicted / measured), nan where a fold left nothing to fit
    """
    pool = _pool([table, *kin])
    fold, own = group_folds(pool.layout, folds), pool.gpu == 0
    cells = sorted(set(zip(pool.form[own], pool.engine[own], pool.kernel[own], strict=True)))
    forms = sorted({form for form, _, _ in cells})
    kinds = sorted({(form, family(kernel)) for form, _, kernel in cells})

    def fitted(rows: _Pool) -> dict[tuple, Fit]:
        towards = {(form, kind): _family_fit(rows, form, kind) for form, kind in kinds}
        found = {}
        for form, engine, kernel in cells:
            start = towards[form, family(kernel)]
            here = _of_cell(rows, (form, engine, kernel)).any()
            nothing = Fit(start, np.zeros(0), {}, np.nan)
            found[form, engine, kernel] = _kernel_fit(rows, form, engine, kernel, start) if here else nothing
        return found | {(f, "any", "any"): _pooled_fit(rows, f) for f in forms if np.any(rows.form[rows.gpu == 0] == f)}

    whole = fitted(pool)
    held = {key: np.full(len(pool.seconds), np.nan) for key in whole}
    for f in range(folds):
        for key, found in fitted(pool.where(fold != f)).items():
            out = (fold == f) & own & _of_cell(pool, key)
            if key in held and out.any():
                rows = pool.where(out)
                held[key][out] = np.log(predicted_s(found.constants, rows.x) / rows.seconds)
    masks = {key: own & _of_cell(pool, key) for key in whole}
    return {k: (f, held[k][masks[k]], regimes(f.constants, pool.where(masks[k]).x)) for k, f in whole.items()}


def calibrate_moe(table: Table, kin: Sequence[Table] = (), *, date: str, source: str, folds: int = 4) -> list[Entry]:
    """Return `achieved` entries of one GPU: one per format, engine and kernel, and per format with engine `any`.

    Args:  table: the GPU's own measurements; kin: tables of GPUs of the same architecture, which its constants are
           pulled towards; folds: expert layouts (hidden, inter, top_k, experts, tp, ep) held out together, over all
           tables
    """
    method = f"soft-L1 log ratio; {folds} folds by expert layout; pulled to kernel family and kin GPUs"
    return [
        entry(found, held, names, format=f, engine=e, kernel=k, date=date, source=source, method=method)
        for (f, e, k), (found, held, names) in held_out_moe(table, kin, folds=folds).items()
    ]


def _of_cell(pool: _Pool, key: tuple[str, str, str]) -> np.ndarray:
    form, engine, kernel = key
    return (pool.form == form) & ((engine == "any") | ((pool.engine == engine) & (pool.kernel == kernel)))


def constants_of(e: Any) -> MoeConstants:
    """Return the constants record of an entry."""
    known = {f.name for f in fields(MoeConstants)}
    return MoeConstants(**{k: v for k, v in e.constants.items() if k in known})


def nearest_entry(entries: Iterable[Any], form: str, engine: str, kernel: str) -> Any | None:
    """Return the entry that says most about a kernel: its own, its family's under the engine, its family's, any.

    Among several of a family the most accurate one is taken; None without an entry of the format.
    """
    mine = [e for e in entries if e.format == form]
    kind = family(kernel)
    for fits in (
        lambda e: e.engine == engine and e.kernel == kernel,
        lambda e: e.engine == engine and family(e.kernel) == kind,
        lambda e: family(e.kernel) == kind,
        lambda e: e.engine == "any",
    ):
        found = [e for e in mine if fits(e)]
        if found:
            return min(found, key=lambda e: e.mape if e.mape == e.mape else np.inf)
    return None
