"""What is fitted to the rows of each op: by the op's own adapter on GPUs, and here on processors without tiles (CPU).

Adapters of ops know the labels of engines' kernels; without tiles few constants are pulled towards what they are
expected to be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from roofline.calibration import attention, collective, gemm, moe
from roofline.calibration.fit import Columns, Entry, entry, fit, held_out_residuals
from roofline.calibration.subject import Result, Subject, refuse_impossible, rows_of
from roofline.kernels import collective as collective_kernels
from roofline.kernels import decode, mla, prefill
from roofline.kernels import gemm as gemm_kernels
from roofline.kernels import moe as moe_kernels
from roofline.kernels.decode import DecodeConstants
from roofline.kernels.gemm import GemmConstants
from roofline.kernels.moe import MoeConstants
from roofline.kernels.prefill import PrefillConstants

if TYPE_CHECKING:
    import pandas as pd

FEWEST = 6  # rows of one format under one engine; below, nothing is fitted
FOLDS = 5
SIGMA = 1.5  # pull towards the start, in units of ln: a factor of 4.5 costs as much as one row that is off by 20 %
FAR = 1e9  # in place of infinity, which YAML files may not hold

# Processors without tiles (CPU). Their kernels run on vector units, far below the matrix peak, and start a pool of
# threads: the bounds that hold for GPUs would cut off what is measured.


@dataclass(frozen=True, slots=True)
class _UntiledGemm(GemmConstants):
    BOUNDS: ClassVar = GemmConstants.BOUNDS | {"launch_s": (0.0, 1e-3)}


@dataclass(frozen=True, slots=True)
class _UntiledMoe(MoeConstants):
    BOUNDS: ClassVar = MoeConstants.BOUNDS | {"launch_s": (1e-6, 1e-2)}


@dataclass(frozen=True, slots=True)
class _UntiledDecode(DecodeConstants):
    BOUNDS: ClassVar = DecodeConstants.BOUNDS | {"compute_fraction": (1e-4, 1.0), "launch_s": (1e-6, 1e-3)}


@dataclass(frozen=True, slots=True)
class _UntiledPrefill(PrefillConstants):
    BOUNDS: ClassVar = PrefillConstants.BOUNDS | {"compute_fraction": (1e-3, 1.0), "launch_s": (1e-6, 1e-3)}


def _untiled(kind: type, like: Any, **start: float) -> tuple[Any, tuple[str, ...]]:
    """Constants to begin from, and their names: rates and a fixed time, nothing of blocks and waves."""
    values = {f.name: getattr(like, f.name) for f in fields(like)} | start
    return kind(**{n: min(v, FAR) for n, v in values.items()}), tuple(n for n in start if n in kind.BOUNDS)


_RATES = {"memory_fraction": 0.5, "compute_fraction": 0.5, "launch_s": 1e-5}
UNTILED = {
    "gemm": _untiled(_UntiledGemm, gemm_kernels.UNTILED, **_RATES),
    "moe": _untiled(_UntiledMoe, moe_kernels.IDENTITY, blend=1.0, **_RATES),
    "decode_attention": _untiled(_UntiledDecode, decode.IDENTITY, blend=1.0, **_RATES | {"compute_fraction": 0.02}),
    "prefill_attention": _untiled(_UntiledPrefill, replace(prefill.IDENTITY, overlap=5.0), softmax_dims=30.0, **_RATES),
}


# Ops with adapters of their own.


def _gemm(frame: pd.DataFrame, subject: Subject, cold: bool) -> list[Result]:
    rows = rows_of(frame)
    if cold:
        rows.pop("weight_copies", None)
    chip, peaks = subject.chip(cold), subject.peaks(sorted(set(frame["dtype"])))
    x = gemm.gemm_columns(rows, chip, peaks)
    datasheet = partial(gemm.predicted_s, gemm_kernels.IDENTITY)
    refuse_impossible(frame, datasheet, x, "gemm", subject)
    frame = frame.assign(format=frame["dtype"], ideal_s=datasheet(x), engine=frame["stack"], kernel="any")
    if subject.tiled:
        found = gemm.calibrate_gemm(rows, chip, peaks, date=subject.date, source=subject.source, folds=FOLDS)
        return _judged("gemm", [e for e in found if e.rows >= FEWEST], frame)
    groups = [f"{n:.0f}x{k:.0f}" for n, k in zip(x["n"], x["k"])]
    start, free = UNTILED["gemm"]
    cells = Cells("gemm", gemm.predicted_s, gemm.regimes, start, free, "(n, k)")
    return _cells(cells, frame, x, np.array(groups), subject)


def _moe(frame: pd.DataFrame, subject: Subject, cold: bool) -> list[Result]:
    rows = rows_of(frame)
    table = moe.Table(rows, subject.chip(cold), subject.peaks(sorted(set(frame["dtype"]))))
    x = moe.moe_columns(table)
    datasheet = partial(moe.predicted_s, moe_kernels.IDENTITY)
    refuse_impossible(frame, datasheet, x, "moe", subject)
    frame = frame.assign(format=frame["dtype"], ideal_s=datasheet(x), engine=frame["stack"])
    if not subject.tiled:
        start, free = UNTILED["moe"]
        layouts = frame[["hidden", "inter", "topk", "experts"]].astype(str).agg("/".join, axis=1)
        cells = Cells("moe", moe.predicted_s, moe.regimes, start, free, "expert layout")
        return _cells(cells, frame, x, layouts.to_numpy(), subject)
    found = moe.calibrate_moe(table, date=subject.date, source=subject.source)
    return _judged("moe", [e for e in found if e.rows >= FEWEST], frame)


def _collective(frame: pd.DataFrame, subject: Subject, cold: bool) -> list[Result]:
    rows, in_switch = rows_of(frame), subject.machine.reduces_in_switch
    chip = subject.machine.chip
    ideal = np.zeros(len(frame))
    for kind in frame["collective"].unique():
        here = np.flatnonzero(frame["collective"] == kind)
        x = collective.collective_columns({n: v[here] for n, v in rows.items()}, chip, in_switch=in_switch)
        ideal[here] = collective.model(kind)(collective_kernels.IDENTITY, x)
    frame = frame.assign(format="any", ideal_s=ideal, engine=frame["library"], kernel=frame["collective"])
    found = collective.calibrate_collective(rows, chip, in_switch=in_switch, date=subject.date, source=subject.source)
    return _judged("collective", [e for e in found if e.rows >= FEWEST], frame)


def _judged(op: str, entries: Sequence[Entry], frame: pd.DataFrame) -> list[Result]:
    """Entries with the datasheet's error on their rows."""
    out = []
    for e in entries:
        here = frame["format"] == e.format
        here &= True if e.engine == "any" else frame["engine"].isin([e.engine, "any"])
        here &= True if e.kernel == "any" else frame["kernel"] == e.kernel
        part = frame[here]
        out.append(Result(op, replace(e, at_bound=dict(e.at_bound)), _mape(part["ideal_s"], part["time_s"])))
    return out


def _mape(predicted: Any, measured: Any) -> float:
    return float(np.mean(np.abs(np.asarray(predicted, float) / np.asarray(measured, float) - 1.0)))


# Ops fitted here.


@dataclass(frozen=True)
class Cells:
    """How the rows of one op are fitted, format by format and engine by engine."""

    op: str
    model: Callable[[Any, Columns], np.ndarray]
    regimes: Callable[[Any, Columns], np.ndarray]
    start: Any  # constants to begin from, and to stay near where few rows speak
    free: tuple[str, ...]
    groups: str  # what is held out together, for the record


def _cells(cells: Cells, frame: pd.DataFrame, x: Columns, groups: np.ndarray, subject: Subject) -> list[Result]:
    """Entries per (format, engine), and per format with the engines pooled, with held-out errors."""
    formats, engines = frame["format"].to_numpy(str), frame["engine"].to_numpy(str)
    seconds = frame["time_s"].to_numpy(float)
    out = []
    for form in sorted(set(formats)):
        start = cells.start
        pull = {n: (getattr(start, n), SIGMA) for n in cells.free}
        for engine in [*sorted(set(engines[formats == form])), "any"]:
            here = np.flatnonzero((formats == form) & ((engines == engine) | (engine == "any")))
            if len(here) < FEWEST:
                continue
            part = {name: np.asarray(v)[here] for name, v in x.items()}
            arguments = {"free": cells.free, "priors": pull}
            found = fit(cells.model, start, part, seconds[here], **arguments)
            held = held_out_residuals(cells.model, start, part, seconds[here], groups[here], folds=FOLDS, **arguments)
            made = entry(
                found, held, cells.regimes(found.constants, part), format=form, engine=engine, date=subject.date,
                source=subject.source, method=f"soft-L1 log ratio; {FOLDS} folds by {cells.groups}",
            )  # fmt: skip
            out.append(Result(cells.op, made, _mape(frame["ideal_s"].to_numpy()[here], seconds[here])))
    return out


def _softmax(model: attention.Model, ideal: Any) -> Callable[[pd.DataFrame, Subject, bool], list[Result]]:
    """The adapter of decode or prefill attention."""

    def adapter(frame: pd.DataFrame, subject: Subject, cold: bool) -> list[Result]:
        rows, chip, peaks = rows_of(frame), subject.chip(cold), subject.peaks(attention_formats(frame))
        x = model.columns(rows, chip, peaks)
        datasheet = partial(model.predicted_s, ideal)
        refuse_impossible(frame, datasheet, x, model.op, subject)
        frame = frame.assign(format=model.format(rows), engine=frame["stack"], ideal_s=datasheet(x))
        if subject.tiled:
            found = attention.calibrate(model, rows, chip, peaks, date=subject.date, source=subject.source)
            return _judged(model.op, [e for e in found if e.rows >= FEWEST], frame)
        start, free = UNTILED[model.op]
        cells = Cells(model.op, model.predicted_s, partial(attention.regimes, model), start, free, "head layout")
        layouts = frame[["heads", "kv_heads", "head_dim"]].astype(str).agg("/".join, axis=1)
        return _cells(cells, frame, x, layouts.to_numpy(), subject)

    return adapter


def attention_formats(frame: pd.DataFrame) -> list[str]:
    """The formats that an attention table multiplies in, and 16 bits."""
    return sorted(
        {"bf16", *(str(f) for name in ("attn_dtype", "dtype") if name in frame for f in frame[name].unique())}
    )


def _mla(frame: pd.DataFrame, subject: Subject, cold: bool) -> list[Result]:
    rows, chip, peaks = rows_of(frame), subject.chip(cold), subject.peaks(attention_formats(frame))
    x = attention.mla_columns(rows, chip, peaks)
    ideal = np.zeros(len(frame))
    for phase, identity in _MLA_IDENTITY.items():
        here = np.flatnonzero(frame["phase"] == phase)
        ideal[here] = attention.MLA[phase].predicted_s(identity, {n: v[here] for n, v in x.items()})
    frame = frame.assign(format=frame["dtype"], engine=frame["stack"], ideal_s=ideal)
    out = []
    for op, found in attention.calibrate_mla(rows, chip, peaks, date=subject.date, source=subject.source).items():
        for e in found:
            phases = [e.kernel] if e.kernel in _MLA_IDENTITY else [p for p, m in attention.MLA.items() if m.op == op]
            mine = frame[frame["phase"].isin(phases)].assign(kernel=e.kernel)
            out += _judged(op, [e] if e.rows >= FEWEST else [], mine)
    return out


_MLA_IDENTITY = {
    "prefill": prefill.IDENTITY,
    "decode": decode.IDENTITY,
    "absorb_q": mla.ABSORB_IDENTITY,
    "absorb_v": mla.ABSORB_IDENTITY,
}
ADAPTERS: Mapping[str, Callable[[Any, Subject, bool], list[Result]]] = {
    "gemm": _gemm,
    "decode_attention": _softmax(attention.DECODE, decode.IDENTITY),
    "prefill_attention": _softmax(attention.PREFILL, prefill.IDENTITY),
    "mla": _mla,
    "moe": _moe,
    "collective": _collective,
}
