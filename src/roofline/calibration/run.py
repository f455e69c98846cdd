"""From measured tables to the `achieved` block of a device: which model is fitted to what, and how good it is.

GPUs go to the adapters of each op, which know the labels of engines' kernels; processors without tiles (CPU) are fitted
here, few constants pulled towards what they are expected to be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import yaml

from roofline.calibration import attention, collective, gemm, moe
from roofline.calibration.fit import Columns, Entry, entry, fit, flow_line, held_out_residuals
from roofline.calibration.tables import Tables
from roofline.errors import InputError
from roofline.kernels import collective as collective_kernels
from roofline.kernels import decode, mla, prefill
from roofline.kernels import gemm as gemm_kernels
from roofline.kernels import moe as moe_kernels
from roofline.kernels.chip import Chip
from roofline.kernels.decode import DecodeConstants
from roofline.kernels.gemm import GemmConstants
from roofline.kernels.moe import MoeConstants
from roofline.kernels.prefill import PrefillConstants
from roofline.machine import Machine, machine
from roofline.measure.identify import accelerator_of, empirical_spec
from roofline.precision import format_named
from roofline.specs.engine import engine_named
from roofline.specs.hardware import Accelerator
from roofline.specs.library import build, hardware, locate
from roofline.specs.yaml_file import read_yaml

if TYPE_CHECKING:
    import pandas as pd

FEWEST = 6  # rows of one format under one engine; below, nothing is fitted
FOLDS = 5
SIGMA = 1.5  # pull towards the start, in units of ln: a factor of 4.5 costs as much as one row that is off by 20 %
FAR = 1e9  # in place of infinity, which YAML files may not hold
BEYOND = 1.02  # [-] times faster than this share of the datasheet time are refused

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


@dataclass(frozen=True)
class Result:
    """An entry of the achieved block, and how the datasheet roofline does on the same rows."""

    op: str
    entry: Entry
    datasheet_mape: float


@dataclass(frozen=True)
class Subject:
    """The device that is calibrated, as kernel models see it."""

    accelerator: Accelerator
    machine: Machine
    date: str
    source: str
    ceilings: bool = True  # whether its peaks are a datasheet's; rates that were measured can be exceeded

    @property
    def tiled(self) -> bool:
        """Whether matrix units are fed block by block, as those of GPUs are."""
        return self.accelerator.kind.startswith(("gpu", "soc"))

    def chip(self, cold: bool) -> Chip:
        """The chip; without its cache where caches were evicted before every call."""
        return replace(self.machine.chip, l2_bytes=0.0) if cold else self.machine.chip

    def peaks(self, formats: Sequence[str]) -> dict[str, float]:
        """Dense peak of each table format [FLOP/s]."""
        return {name: self.machine.matmul_flops_per_s(format_named(name)) for name in formats}


def subject_of(tables: Tables, hw: str | None, *, date: str, source: str) -> tuple[Subject, dict[str, Any] | None]:
    """The device that the tables are about; and its spec as data where the library has none.

    Args:     hw: name or YAML; None: as the tables say, or peaks as they were measured
    Errors:   InputError where the tables are of several devices and none is named
    """
    if hw is None and len(tables.gpus) > 1:
        raise InputError(f"the tables are of {', '.join(tables.gpus)}: say which to calibrate (--name)")
    name = hw or (tables.gpus[0] if tables.gpus else None)
    data = None
    if name is not None:
        accelerator = hardware(name)
    elif tables.session is not None:
        data = empirical_spec(tables.session, *_rates(tables))
        accelerator = accelerator_of(data)
    else:
        raise InputError("no row says which device it was measured on: name it (--name h100-sxm)")
    return Subject(accelerator, machine(accelerator, engine_named("vllm")), date, source, data is None), data


def _rates(tables: Tables) -> tuple[float, dict[str, float]]:
    """Highest memory bandwidth [B/s] and matmul rates [FLOP/s] in a measurement file, at the tenth percentile."""
    bandwidth, peaks = 0.0, {}
    if (frame := tables.by_op.get("bandwidth")) is not None:
        large = frame[frame["bytes"] >= 4.0 * tables.session["cache_bytes"]]
        passes = large["kernel"].map({"read": 1.0, "copy": 2.0})
        bandwidth = float((passes * large["bytes"] / large["p10_s"]).max()) if len(large) else 0.0
    if (frame := tables.by_op.get("gemm")) is not None:
        rates = 2.0 * frame["m"] * frame["n"] * frame["k"] / frame["p10_s"]
        peaks = {str(name): float(r.max()) for name, r in rates.groupby(frame["dtype"])}
    return bandwidth, peaks


def calibrate(tables: Tables, subject: Subject) -> tuple[list[Result], list[str]]:
    """Fit every op that the tables hold and that has a kernel model.

    Returns:  results, and notes on what was left out or ended on a bound
    Errors:   InputError for rows beyond 100 % of a ceiling, or where nothing can be fitted
    """
    results: list[Result] = []
    notes: list[str] = []
    for op, adapter in ADAPTERS.items():
        frame = tables.by_op.get(op)
        if frame is None:
            continue
        known = _known(op, frame, notes)
        for cold, part in known.groupby("cold", sort=True):
            if len(part):
                results += adapter(part.reset_index(drop=True), subject, bool(cold))
    alone = [r for r in results if not np.isfinite(r.entry.mape)]
    notes += [f"{_label(r)} is left out: all rows are of one shape group, none can be held out" for r in alone]
    worse = [r for r in results if r.entry.mape >= r.datasheet_mape]
    results = [r for r in results if r not in worse and r not in alone]
    notes += [
        f"{_label(r)} is left out: {r.entry.mape:.0%} off on shapes that "
        f"were held out, the datasheet {r.datasheet_mape:.0%}"
        for r in worse
    ]
    if not results:
        held = ", ".join(f"{op} ({len(frame)} rows)" for op, frame in tables.by_op.items()) or "no rows"
        reasons = "".join(f"; {note}" for note in notes)
        raise InputError(f"nothing to fit: the tables hold {held}; {FEWEST} rows of a format are needed{reasons}")
    notes += [
        f"{_label(r)}: {name} = {r.entry.constants[name]:.4g} is at its {side} bound"
        for r in results
        for name, side in r.entry.at_bound.items()
    ]
    return results, notes


def _label(r: Result) -> str:
    return f"{r.op} {r.entry.format} {r.entry.engine} {r.entry.kernel}"


def _known(op: str, frame: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Rows whose format the kernel model knows."""
    formats = {"gemm": gemm.WEIGHT_BYTES, "moe": moe.WEIGHT_BYTES}.get(op)
    if formats is None:
        return frame
    keep = frame["dtype"].isin(list(formats))
    if not keep.all():
        left = ", ".join(sorted(set(frame["dtype"][~keep])))
        notes.append(f"{op}: {int((~keep).sum())} rows of {left} are left out: the kernel model has no such format")
    return frame[keep]


def rows_of(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """The columns of a table as arrays, absent optional ones left out."""
    return {str(name): frame[name].to_numpy() for name in frame.columns}


def refuse_impossible(
    frame: pd.DataFrame, datasheet: Callable[[Columns], np.ndarray], x: Columns, what: str, subject: Subject
) -> None:
    """Nothing, where every row takes at least its time at datasheet peaks: FLOPs always, bytes where caches were cold.

    Errors: InputError for the worst row
    """
    if not subject.ceilings:
        return
    limit = x if frame["cold"].all() else dict(x) | {"bandwidth": np.full(len(frame), np.inf)}
    least, seconds = datasheet(limit), frame["time_s"].to_numpy(float)
    worst = int(np.argmax(least / seconds))
    if least[worst] > BEYOND * seconds[worst]:
        raise InputError(
            f"{what}, row {worst + 1}: {seconds[worst]:.3g} s is {least[worst] / seconds[worst]:.0%} of what the peaks "
            f"of {subject.accelerator.name} allow ({least[worst]:.3g} s). More than 100 % of a ceiling is an input "
            "error: is it another device, is the peak of one die, or was the data in a cache?"
        )


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


# What is written and shown.


def residual_table(results: Sequence[Result]) -> pd.DataFrame:
    """How well each entry predicts rows that it was not fitted on, beside the datasheet roofline on the same rows."""
    import pandas as pd

    return pd.DataFrame(
        {
            "op": r.op, "format": r.entry.format, "engine": r.entry.engine, "kernel": r.entry.kernel,
            "rows": r.entry.rows, "datasheet_pct": round(100.0 * r.datasheet_mape, 1),
            "held_out_pct": round(100.0 * r.entry.mape, 1), "bias_pct": round(100.0 * r.entry.bias, 1),
            "band": "{} to {}".format(*r.entry.bands.get("all", ("", ""))),
        }
        for r in results
    )  # fmt: skip


def achieved_text(results: Sequence[Result], kept: Mapping[str, Sequence[Mapping]] | None = None) -> str:
    """The `achieved` block as YAML, one line per entry; `kept` are entries that were not fitted anew."""
    blocks: dict[str, list[str]] = {}
    for op, entries in (kept or {}).items():
        dumped = [
            yaml.safe_dump(dict(e), default_flow_style=True, sort_keys=False, width=10**6).strip() for e in entries
        ]
        blocks[op] = dumped
    for r in results:
        blocks.setdefault(r.op, []).append(flow_line(replace(r.entry, at_bound={})))
    lines = ["achieved: # fitted by 'roofline calibrate': fractions of the datasheet peaks, and seconds"]
    for op in sorted(op for op, entries in blocks.items() if entries):
        lines += [f"  {op}:", *(f"    - {line}" for line in blocks[op])]
    return "\n".join(lines) + "\n"


def spec_text(results: Sequence[Result], subject: Subject, data: Mapping[str, Any] | None, hw: str | None) -> str:
    """A whole hardware YAML with the achieved block in it, on the library's, the named file's or the measured facts.

    Errors: SpecError if it does not read back as a spec
    """
    kept: dict[str, Any] = {}
    if data is not None:
        head = yaml.safe_dump(dict(data), sort_keys=False, width=120, allow_unicode=True)
    else:
        path: Path = locate("hardware", hw or subject.accelerator.name)
        old = read_yaml(path).get("achieved") or {}
        fitted = {(r.op, r.entry.format, r.entry.engine, r.entry.kernel) for r in results}
        for op, entries in old.items():
            labels = [tuple(e.get(n, "any") for n in ("format", "engine", "kernel")) for e in entries]
            kept[op] = [e for e, label in zip(entries, labels, strict=True) if (op, *label) not in fitted]
        head = _without_achieved(path.read_text(encoding="utf-8"))
    text = head + achieved_text(results, kept)
    build(Accelerator, yaml.safe_load(text), where="the calibrated spec")
    return text


def _without_achieved(text: str) -> str:
    """A hardware YAML without its achieved block: from that key to the next one at the left margin."""
    out, inside = [], False
    for line in text.splitlines():
        if line.startswith("achieved:"):
            inside = True
        elif inside and line and line[0] not in " #-":
            inside = False
        if not inside:
            out.append(line)
    return "\n".join(out).rstrip("\n") + "\n"
