"""Fits the constants of decode, prefill and latent attention to tables of measured kernels of one GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from roofline.calibration.fit import Columns, Entry, Fit, entry, errors, fit, held_out_residuals
from roofline.kernels.chip import Chip
from roofline.kernels.decode import AttentionTerms, DecodeConstants, decode_terms
from roofline.kernels.mla import (
    MLA_DECODE,
    MLA_PREFILL,
    AbsorbConstants,
    absorb_terms,
    mla_decode_terms,
    mla_prefill_terms,
)
from roofline.kernels.prefill import PrefillConstants, prefill_terms

KV_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
# Rows of one layout err together, so quantiles of few layouts are too close: 80 % bands held 75-78 % of other layouts,
# and 79-82 % with log bounds times this.
BAND_WIDENING = 1.1
PULL_SIGMA = 1.0  # [-] in ln: a factor e away from the ordinary value costs as much as one row 10 % off
ONE_SIDED = 0.04  # [-] median error up to which constants of one kernel may stand for all engines ...
WORTH = 0.7  # [-] ... and share of the pooled fit's error that they must stay under if they are more one-sided
USUAL_HEAD_DIM = 128  # an engine's kernel for this head_dim without a window stands for the engine as a whole


@dataclass(frozen=True, slots=True)
class Model:
    """One kernel model as the fit sees it: its rows as columns, its seconds, where to start, what is held out."""

    op: str
    columns: Callable[[Columns, Chip, Mapping[str, float]], dict[str, np.ndarray]]
    terms: Callable[[Any, Columns], AttentionTerms]
    starts: Sequence[Any]  # kinds of kernel that occur: the fit keeps the one that explains the rows best
    pooled: Sequence[Any]  # the same for rows of several engines
    free: Sequence[str]
    groups: Sequence[str]  # columns whose values together make a shape group
    format: Callable[[Columns], np.ndarray]

    def predicted_s(self, constants: Any, x: Columns) -> np.ndarray:
        """Return predicted seconds of the rows of `columns`."""
        return self.terms(constants, x).time_s


def _numbers(rows: Columns, names: Sequence[str], chip: Chip) -> dict[str, np.ndarray]:
    x = {name: np.asarray(rows[name], float) for name in names}
    ones = np.ones(len(x[names[0]]))
    return x | {
        "bandwidth": ones * chip.bandwidth_bytes_per_s,
        "sms": ones * chip.sms,
        "l2": ones * chip.l2_bytes,
        "cold": np.zeros(len(ones)) + np.asarray(rows.get("cold", 0.0), float),  # tables re-read the same buffers
    }


def _chip(x: Columns) -> Chip:
    return Chip(x["bandwidth"], x["sms"], x["l2"])


def _peaks(formats: np.ndarray, peaks: Mapping[str, float]) -> np.ndarray:
    """A GPU without 8-bit floating point multiplies in 16 bits."""
    return np.array([peaks.get(f) or peaks["bf16"] for f in formats], float)


def _bytes(formats: np.ndarray) -> np.ndarray:
    return np.array([KV_BYTES[f] for f in formats], float)


def decode_columns(rows: Columns, chip: Chip, peaks: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Return the arguments of `decode_terms` for a table with the columns batch, context, heads, kv_heads, head_dim,
    window (0 = none), kv_dtype; `context` counts the new token."""
    x = _numbers(rows, ("batch", "context", "heads", "kv_heads", "head_dim", "window"), chip)
    x["window"] = np.where(x["window"] > 0, x["window"], np.inf)
    x["b"] = _bytes(np.asarray(rows["kv_dtype"]).astype(str))
    x["peak"] = np.full(len(x["b"]), float(peaks["bf16"]))
    return x


def _decode(c: DecodeConstants, x: Columns) -> AttentionTerms:
    return decode_terms(
        x["batch"], x["context"] - 1.0, x["heads"], x["kv_heads"], x["head_dim"], window=x["window"],
        kv_bytes_per_el=x["b"], chip=_chip(x), peak_flops_per_s=x["peak"], constants=c, cold=x["cold"],
    )  # fmt: skip


def prefill_columns(rows: Columns, chip: Chip, peaks: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Return the arguments of `prefill_terms` for a table with the columns batch, seq, heads, kv_heads, head_dim,
    window (0 = none), attn_dtype, kv_dtype."""
    x = _numbers(rows, ("batch", "seq", "heads", "kv_heads", "head_dim", "window"), chip)
    x["window"] = np.where(x["window"] > 0, x["window"], np.inf)
    x["b"] = _bytes(np.asarray(rows["kv_dtype"]).astype(str))
    x["peak"] = _peaks(np.asarray(rows["attn_dtype"]).astype(str), peaks)
    return x


def _prefill(c: PrefillConstants, x: Columns) -> AttentionTerms:
    return prefill_terms(
        x["batch"], x["seq"], x["heads"], x["kv_heads"], x["head_dim"], window=x["window"], kv_bytes_per_el=x["b"],
        chip=_chip(x), peak_flops_per_s=x["peak"], constants=c, cold=x["cold"],
    )  # fmt: skip


def mla_columns(rows: Columns, chip: Chip, peaks: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Return the arguments of the MLA models for a table with the columns batch, seq, heads, dtype."""
    x = _numbers(rows, ("batch", "seq", "heads"), chip)
    form = np.asarray(rows["dtype"]).astype(str)
    return x | {"b": _bytes(form), "peak": _peaks(form, peaks)}


def _mla_prefill(c: PrefillConstants, x: Columns) -> AttentionTerms:
    return mla_prefill_terms(
        x["batch"], x["seq"], x["heads"], cache_bytes_per_el=x["b"], chip=_chip(x), peak_flops_per_s=x["peak"],
        constants=c, cold=x["cold"],
    )  # fmt: skip


def _mla_decode(c: DecodeConstants, x: Columns) -> AttentionTerms:
    return mla_decode_terms(
        x["batch"], x["seq"] - 1.0, x["heads"], cache_bytes_per_el=x["b"], chip=_chip(x), peak_flops_per_s=x["peak"],
        constants=c, cold=x["cold"],
    )  # fmt: skip


def _absorb(c: AbsorbConstants, x: Columns) -> AttentionTerms:
    return absorb_terms(
        x["batch"], x["heads"], weight_bytes_per_el=x["b"], chip=_chip(x), peak_flops_per_s=x["peak"], constants=c,
        cold=x["cold"],
    )  # fmt: skip


def _free(kind: type, *left_out: str) -> list[str]:
    return [name for name in kind.BOUNDS if name not in left_out]


def prefill_format(matmul: str, cache: str) -> str:
    """Return the format label of prefill constants: the matmul's, with the cache's where the two differ.

    >>> prefill_format("bf16", "bf16"), prefill_format("bf16", "fp8")
    ('bf16', 'bf16_fp8kv')
    """
    return matmul if matmul == cache else f"{matmul}_{cache}kv"


def _labels(rows: Columns, name: str) -> np.ndarray:
    return np.asarray(rows[name]).astype(str)


_SPLITTING = DecodeConstants()
_WHOLE = replace(_SPLITTING, max_splits=1.0, mha_max_splits=1.0)
_KINDS = [
    _SPLITTING,
    _WHOLE,
    replace(_SPLITTING, max_splits=8.0, mha_max_splits=8.0),
    replace(_SPLITTING, fixed_splits=8.0),
    replace(_SPLITTING, max_splits=1.0),
    replace(_SPLITTING, mha_max_splits=1.0, window_grouped=0.0),
]
_MLA_KINDS = [
    MLA_DECODE,
    replace(MLA_DECODE, max_splits=1.0),
    replace(MLA_DECODE, group_rows=128.0),
    *(replace(MLA_DECODE, group_rows=16.0, row_tile=16.0, max_splits=s) for s in (8.0, 128.0)),
    replace(MLA_DECODE, group_rows=16.0, row_tile=16.0, fixed_splits=8.0),
]
_LAYOUT = ("heads", "kv_heads", "head_dim", "window")
_SHAPE = ("batch", "seq", "heads")

DECODE = Model(
    "decode_attention", decode_columns, _decode, _KINDS, [_SPLITTING], _free(DecodeConstants, "reread"), _LAYOUT,
    lambda rows: _labels(rows, "kv_dtype"),
)  # fmt: skip
PREFILL = Model(
    "prefill_attention", prefill_columns, _prefill, [PrefillConstants()], [PrefillConstants()],
    _free(PrefillConstants), _LAYOUT,
    lambda rows: np.array([prefill_format(*f) for f in zip(_labels(rows, "attn_dtype"), _labels(rows, "kv_dtype"))]),
)  # fmt: skip
MLA: dict[str, Model] = {
    "prefill": Model(
        "mla_prefill", mla_columns, _mla_prefill, [MLA_PREFILL], [MLA_PREFILL],
        _free(PrefillConstants, "cache_passes", "wide_fraction"), _SHAPE, lambda rows: _labels(rows, "dtype"),
    ),
    "decode": Model(
        "mla_decode", mla_columns, _mla_decode, _MLA_KINDS, _MLA_KINDS[:2], _free(DecodeConstants, "mha_block_s"),
        _SHAPE, lambda rows: _labels(rows, "dtype"),
    ),
    "absorb_q": Model(
        "mla_absorb", mla_columns, _absorb, [AbsorbConstants()], [AbsorbConstants()], _free(AbsorbConstants), _SHAPE,
        lambda rows: _labels(rows, "dtype"),
    ),
}  # fmt: skip
MLA["absorb_v"] = MLA["absorb_q"]


def regimes(model: Model, constants: Any, x: Columns) -> np.ndarray:
    """Return which part of the time is largest, per row: launch, memory, compute or latency."""
    t = model.terms(constants, x)
    parts = np.stack([t.launch_s, t.memory_s, t.compute_s, t.latency_s])
    return np.array(["launch", "memory", "compute", "latency"])[parts.argmax(0)]


def calibrate_decode(rows: Columns, chip: Chip, peaks: Mapping[str, float], **about: Any) -> list[Entry]:
    """Return `achieved` entries of decode attention for one GPU; arguments as for `calibrate`."""
    return calibrate(DECODE, rows, chip, peaks, **about)


def calibrate_prefill(rows: Columns, chip: Chip, peaks: Mapping[str, float], **about: Any) -> list[Entry]:
    """Return `achieved` entries of prefill attention for one GPU; arguments as for `calibrate`."""
    return calibrate(PREFILL, rows, chip, peaks, **about)


def calibrate_mla(rows: Columns, chip: Chip, peaks: Mapping[str, float], **about: Any) -> dict[str, list[Entry]]:
    """Return `achieved` entries of MLA for one GPU by op; the column `phase` says which product a row is.

    Entries of the absorbing products carry absorb_q or absorb_v as their kernel.
    """
    phases = _labels(rows, "phase")
    out: dict[str, list[Entry]] = {}
    for phase, model in MLA.items():
        here = _take(rows, np.flatnonzero(phases == phase))
        if len(here["time_s"]):
            kernel = phase if phase.startswith("absorb") else "any"
            here["kernel"] = np.full(len(here["time_s"]), kernel)
            out.setdefault(model.op, []).extend(calibrate(model, here, chip, peaks, whole=kernel, **about))
    return out


def calibrate(
    model: Model,
    rows: Columns,
    chip: Chip,
    peaks: Mapping[str, float],
    *,
    date: str,
    source: str,
    folds: int = 5,
    whole: str = "any",
) -> list[Entry]:
    """Return `achieved` entries for one GPU: per format, engine and kernel, per engine, and with engine `any`.

    An engine with several kernels has one entry for each and, as `whole`, the one it uses for usual shapes (head_dim
    128, no window) once more: engines choose by shape, and averaging their kernels would describe none of them.

    Args:     rows: columns as the model wants them plus `stack` (engine), `kernel` and `time_s` [s];
              peaks: format -> dense peak [FLOP/s]
    """
    formats, engines, kernels = model.format(rows), _labels(rows, "stack"), _labels(rows, "kernel")
    record = dict(date=date, source=source, method=f"soft-L1 log ratio; {folds} folds by {' '.join(model.groups)}")
    out = []
    for form in sorted(set(formats.tolist())):
        of_form = formats == form
        found = []
        for engine in sorted(set(engines[of_form].tolist())):
            here = of_form & (engines == engine)
            names = sorted(set(kernels[here].tolist()))
            cells = {name: _cell(model, rows, here & (kernels == name), chip, peaks, folds) for name in names}
            found += cells.values()
            usual = cells[_usual_kernel(rows, here, kernels)]
            out.append(usual.entry(model, format=form, engine=engine, kernel=whole, **record))
            if len(names) > 1:
                out += [c.entry(model, format=form, engine=engine, kernel=name, **record) for name, c in cells.items()]
        out.append(_for_all(model, rows, of_form, chip, peaks, folds, found).entry(
            model, format=form, engine="any", kernel=whole, **record
        ))  # fmt: skip
    return out


@dataclass(frozen=True, slots=True)
class _Cell:
    """A fit, the rows it is about, and ln(predicted / measured) of each when it was not fitted on the row's group."""

    found: Fit
    where: np.ndarray
    x: dict[str, np.ndarray]
    held: np.ndarray

    def entry(self, model: Model, **about: Any) -> Entry:
        e = entry(self.found, self.held, regimes(model, self.found.constants, self.x), **about)
        wider = {name: [round(v**BAND_WIDENING, 3) for v in band] for name, band in e.bands.items()}
        return replace(e, bands=wider)


def _usual_kernel(rows: Columns, here: np.ndarray, kernels: np.ndarray) -> str:
    names, counts = np.unique(kernels[here], return_counts=True)
    if len(names) == 1:
        return str(names[0])
    plain = (np.asarray(rows["head_dim"]) == USUAL_HEAD_DIM) & (np.asarray(rows["window"]) == 0)
    at_usual = [np.sum(here & plain & (kernels == name)) for name in names]
    return str(names[int(np.lexsort((counts, at_usual))[-1])])


def _cell(model, rows, mask, chip, peaks, folds, starts=None) -> _Cell:
    where = np.flatnonzero(mask)
    mine = _take(rows, where)
    x, seconds = model.columns(mine, chip, peaks), np.asarray(mine["time_s"], float)
    starts = starts or model.starts
    tried = [fit(model.predicted_s, s, x, seconds, free=model.free, priors=_pulls(model, s)) for s in starts]
    found = min(tried, key=lambda f: f.cost)
    # the kind of kernel is a fact about the engine, known when new shapes are asked for; its constants are refitted
    kind = starts[tried.index(found)]
    groups = ["/".join(f"{v:g}" for v in row) for row in zip(*(x[n] for n in model.groups))]
    held = held_out_residuals(
        model.predicted_s, kind, x, seconds, groups, folds=folds, free=model.free, priors=_pulls(model, kind)
    )
    return _Cell(replace(found, at_bound=_meaningful(found)), where, x, held)


def _pulls(model: Model, start: Any) -> dict[str, tuple[float, float]]:
    """Return weak pulls towards ordinary values, which settle constants that a cell's few layouts leave open."""
    return {name: (getattr(start, name), PULL_SIGMA) for name in model.free}


def _for_all(model, rows, mask, chip, peaks, folds, cells: Sequence[_Cell]) -> _Cell:
    """Return the constants for somebody who names no engine: fitted to all engines, or those of one kernel.

    Where kernels differ several-fold their mean describes none; then the constants of the kernel that predicts the
    rows of all of them best are taken, unless they are one-sided and little better.
    """
    pool = _cell(model, rows, mask, chip, peaks, folds, model.pooled)
    if len(cells) < 2:
        return pool
    seconds = np.asarray(rows["time_s"], float)[pool.where]
    best, least = pool, errors(pool.held).mape
    for cell in cells:
        held = np.log(model.predicted_s(cell.found.constants, pool.x) / seconds)
        held[np.searchsorted(pool.where, cell.where)] = cell.held
        e = errors(held)
        if e.mape < least and (abs(e.bias) < ONE_SIDED or e.mape < WORTH * errors(pool.held).mape):
            best, least = _Cell(cell.found, pool.where, pool.x, held), e.mape
    return best


def _meaningful(found: Fit) -> dict[str, str]:
    """Return the constants on their bounds that the time depends on: a latency at its lower bound is simply absent."""
    c, bounds = found.constants, type(found.constants).BOUNDS
    absent = {n for n, side in found.at_bound.items() if side == "low" and bounds[n][0] < 1e-2}
    if isinstance(c, DecodeConstants) and not c.fixed_splits and c.max_splits == 1 and c.mha_max_splits == 1:
        absent.add("split_s")
    return {n: side for n, side in found.at_bound.items() if n not in absent}


def _take(rows: Columns, where: np.ndarray) -> dict[str, np.ndarray]:
    return {name: np.asarray(column)[where] for name, column in rows.items()}


def constants_of(e: Entry) -> DecodeConstants | PrefillConstants | AbsorbConstants:
    """Return the constants record of an entry; its fields say which of the three it is."""
    names = set(e.constants)
    for kind in (DecodeConstants, PrefillConstants, AbsorbConstants):
        if names == {f.name for f in fields(kind)}:
            return kind(**e.constants)
    raise KeyError(f"{e.format} {e.engine} {e.kernel}: not constants of an attention model")
