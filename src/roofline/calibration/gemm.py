"""Fits `GemmConstants` to a table of measured GEMMs of one GPU, per format and engine and with the engines pooled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace

import numpy as np

from roofline.calibration.fit import Columns, Entry, entry, fit, held_out_residuals, sample_rows
from roofline.kernels.chip import Chip
from roofline.kernels.gemm import GemmConstants, GemmTerms, gemm_terms

# bytes per element of weights (scales included) and of the activations that the matrix unit sees
WEIGHT_BYTES = {
    "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625, "mxfp4": 0.53125, "w8a16": 1.0,
    "w4a16": 0.5, "w8a8_int8": 1.0,
}  # fmt: skip
ACT_BYTES = WEIGHT_BYTES | {"w8a16": 2.0, "w4a16": 2.0}

QUANTISER = ("quantise_s", "quantise_row_s", "quantise_fraction")
MATMUL = ("compute_fraction", "memory_fraction", "launch_s", "k_latency_s", "feed_ratio", "wave_loss", "split_s")
# HBM is the same HBM whatever the format, and so is a launch: formats are held near the 16-bit values, because a
# quantiser's time is otherwise traded against them, which spoils cold large weights.
MEMORY_SIGMA, LAUNCH_SIGMA = 0.05, 0.10
POOL_ROWS = 400


def gemm_columns(rows: Columns, chip: Chip, peaks: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Return the arguments of `gemm_terms` for a table with the columns dtype, m, n, k, weight_copies, act_quant_timed.

    `weight_copies` (distinct weights cycled while timing) may be absent: then the rows count as cold.
    """
    formats = np.asarray(rows["dtype"]).astype(str)
    ones = np.ones(len(formats))
    copies = np.asarray(rows.get("weight_copies", ones * np.nan), float)
    return {
        **{name: np.asarray(rows[name], float) for name in ("m", "n", "k")},
        "w": np.array([WEIGHT_BYTES[f] for f in formats]),
        "a": np.array([ACT_BYTES[f] for f in formats]),
        "peak": np.array([peaks[f] for f in formats], float),
        "bandwidth": ones * chip.bandwidth_bytes_per_s,
        "sms": ones * chip.sms,
        "l2": ones * chip.l2_bytes,
        "quantise": np.nan_to_num(np.asarray(rows.get("act_quant_timed", 0 * ones), float)),
        "cold": np.isnan(copies).astype(float),
        "copies": np.nan_to_num(copies, nan=1.0),
    }


def terms(constants: GemmConstants, x: Columns) -> GemmTerms:
    """Return `gemm_terms` of the rows of `gemm_columns`."""
    return gemm_terms(
        x["m"], x["n"], x["k"],
        chip=Chip(x["bandwidth"], x["sms"], x["l2"]),
        peak_flops_per_s=x["peak"], weight_bytes_per_el=x["w"], act_bytes_per_el=x["a"], quantise=x["quantise"],
        constants=constants, cold=x["cold"], weight_copies=x["copies"],
    )  # fmt: skip


def predicted_s(constants: GemmConstants, x: Columns) -> np.ndarray:
    """Return predicted seconds of the rows of `gemm_columns`."""
    return terms(constants, x).time_s


def regimes(constants: GemmConstants, x: Columns) -> np.ndarray:
    """Return which part of the time is largest, per row: launch, memory, compute or latency."""
    t = terms(constants, x)
    parts = np.stack([t.launch_s, t.memory_s + t.quantise_s, t.compute_s, t.latency_s])
    return np.array(["launch", "memory", "compute", "latency"])[parts.argmax(0)]


def pooled_16_bit(rows: Columns, chip: Chip, peaks: Mapping[str, float]) -> GemmConstants | None:
    """Return constants of 16-bit GEMMs with all engines pooled: the anchor of the other formats; None without rows."""
    here = np.flatnonzero(np.isin(np.asarray(rows["dtype"]).astype(str), ("bf16", "fp16")))
    if len(here) < 20:
        return None
    here = here[sample_rows(len(here), POOL_ROWS)]
    x = gemm_columns(_take(rows, here), chip, peaks)
    return fit(predicted_s, GemmConstants(), x, rows["time_s"][here], free=[*MATMUL, "warm_ratio"]).constants


def calibrate_gemm(
    rows: Columns, chip: Chip, peaks: Mapping[str, float], *, date: str, source: str, folds: int = 5
) -> list[Entry]:
    """Return `achieved` entries for one GPU: one per format and engine, and per format with engine `any`.

    Args:  rows: columns of data as in `gemm_columns` plus `stack` (engine) and `time_s` [s]; peaks: format -> [FLOP/s].
           Groups held out together are (n, k) shapes. `warm_ratio` is fitted on 16-bit rows only.
    """
    anchor = pooled_16_bit(rows, chip, peaks)
    formats, engines = np.asarray(rows["dtype"]).astype(str), np.asarray(rows["stack"]).astype(str)
    out = []
    for form in sorted(set(formats)):
        of_form = sorted(set(engines[formats == form]))
        for engine in [*of_form, "any"]:
            here = np.flatnonzero((formats == form) & ((engines == engine) | (engine == "any")))
            out.append(_cell(_take(rows, here), chip, peaks, anchor, form, engine, date, source, folds))
    return out


def starts_and_priors(
    anchor: GemmConstants | None, form: str, quantised: bool
) -> tuple[list[GemmConstants], dict, list[str]]:
    """Return starting constants, priors and the free fields for one format."""
    free = [*MATMUL, *(QUANTISER if quantised else ())]
    begin = anchor or GemmConstants()
    starts = [begin] if form in ("bf16", "fp16") else [begin, replace(begin, max_splits=1.0)]
    priors = {}
    if anchor is not None:
        priors["memory_fraction"] = (anchor.memory_fraction, MEMORY_SIGMA)
        if quantised:
            priors["launch_s"] = (anchor.launch_s, LAUNCH_SIGMA)
    return starts, priors, free


def _cell(rows, chip, peaks, anchor, form, engine, date, source, folds) -> Entry:
    x, seconds = gemm_columns(rows, chip, peaks), np.asarray(rows["time_s"], float)
    starts, priors, free = starts_and_priors(anchor, form, bool(x["quantise"].any()))
    found = fit(predicted_s, starts, x, seconds, free=free, priors=priors)
    if found.constants.max_splits == 1:  # then nothing depends on split_s
        found = replace(found, at_bound={n: side for n, side in found.at_bound.items() if n != "split_s"})
    groups = [f"{n:.0f}x{k:.0f}" for n, k in zip(x["n"], x["k"])]
    held = held_out_residuals(predicted_s, starts, x, seconds, groups, folds=folds, free=free, priors=priors)
    return entry(
        found, held, regimes(found.constants, x), format=form, engine=engine, date=date, source=source,
        method=f"soft-L1 log ratio; {folds} folds by (n, k)",
    )  # fmt: skip


def _take(rows: Columns, where: Iterable[int]) -> dict[str, np.ndarray]:
    return {name: np.asarray(column)[where] for name, column in rows.items()}


def constants_of(e: Entry) -> GemmConstants:
    """Return the constants record of an entry."""
    known = {f.name for f in fields(GemmConstants)}
    return GemmConstants(**{k: v for k, v in e.constants.items() if k in known})
