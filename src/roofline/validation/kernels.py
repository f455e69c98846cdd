"""Predicts tables of measured kernel times and says how far off the predictions are.

A table has the columns that `roofline calibrate` reads: one row per measured point, one file per kind of op. Measured
times may be absent; then rows are only predicted. Which engine and kernel made a row is used where it is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.calibrated import Calibrated, choose
from roofline.calibration import attention, collective, gemm, moe
from roofline.calibration.fit import Columns
from roofline.calibration.run import Subject, rows_of
from roofline.calibration.tables import DEFAULTS, op_of_columns
from roofline.errors import InputError
from roofline.kernels.collective import CollectiveConstants
from roofline.kernels.gemm import GemmConstants
from roofline.kernels.moe import MoeConstants
from roofline.machine import machine
from roofline.pricing.common import band
from roofline.specs.engine import engine_named
from roofline.specs.hardware import Achieved
from roofline.specs.library import hardware

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("bf16", "fp8", "fp8_block", "nvfp4", "w8a16", "w4a16", "w8a8_int8", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8")


@dataclass(frozen=True)
class Kind:
    """How rows of one kind of op are predicted: constants class, arguments from columns, seconds, regimes, format."""

    op: str
    default: Any
    columns: Callable[[Columns, Subject], Columns]
    predicted_s: Callable[[Any, Columns], np.ndarray]
    regimes: Callable[[Any, Columns], np.ndarray]
    format: Callable[[Columns], np.ndarray]


def _peaks(subject: Subject) -> dict[str, float]:
    return subject.peaks(FORMATS)


def _attention_kind(model: attention.Model) -> Kind:
    return Kind(
        model.op,
        model.starts[0],
        lambda rows, s: model.columns(rows, s.chip(False), _peaks(s)),
        model.predicted_s,
        lambda c, x: attention.regimes(model, c, x),
        model.format,
    )


def _collective_kind(kind: str) -> Kind:
    return Kind(
        "collective",
        CollectiveConstants(),
        lambda rows, s: collective.collective_columns(rows, s.chip(False), in_switch=s.machine.reduces_in_switch),
        collective.model(kind),
        lambda c, x: collective.regimes(kind, c, x),
        lambda rows: np.full(len(rows["bytes"]), "any"),
    )


GEMM = Kind(
    "gemm",
    GemmConstants(),
    lambda rows, s: gemm.gemm_columns(rows, s.chip(False), _peaks(s)),
    gemm.predicted_s,
    gemm.regimes,
    lambda rows: np.asarray(rows["dtype"]).astype(str),
)
MOE = Kind(
    "moe",
    MoeConstants(),
    lambda rows, s: moe.moe_columns(moe.Table(rows, s.chip(False), _peaks(s))),
    moe.predicted_s,
    moe.regimes,
    lambda rows: np.asarray(rows["dtype"]).astype(str),
)


def predict_kernels(frame: pd.DataFrame) -> pd.DataFrame:
    """Predicted seconds of every row with their 80 % band: columns id, time_s, time_lo_s, time_hi_s.

    Args:     frame: one table; `gpu`, the columns of its kind of op, and `stack`, `kernel`, `library` where known
    Errors:   InputError where the table is of no known kind, or a GPU is unknown
    """
    import pandas as pd

    op = op_of_columns(frame.columns)
    if op is None:
        raise InputError(f"no kind of kernel has the columns {', '.join(map(str, frame.columns[:12]))}")
    frame = _filled(frame.reset_index(drop=True), op)
    out = pd.DataFrame({"id": frame["id"] if "id" in frame else frame.index, "time_s": np.nan})
    out["time_lo_s"], out["time_hi_s"] = np.nan, np.nan
    labels = _labels(frame, op)
    for (gpu, split, stack, kernel, fmt), part in labels.groupby(list(labels.columns), sort=False):
        where = part.index
        found = _predict(op, gpu, split, stack, kernel, fmt, rows_of(frame.loc[where]))
        out.loc[where, ["time_s", "time_lo_s", "time_hi_s"]] = np.column_stack(found)
    return out


def _filled(frame: pd.DataFrame, op: str) -> pd.DataFrame:
    """The table with what is meant where a column is absent."""
    meant = DEFAULTS.get(op, {}) | {"stack": "any", "kernel": "any", "stack_version": ""}
    meant.pop("library", None)
    return frame.assign(**{name: value for name, value in meant.items() if name not in frame})


def _labels(frame: pd.DataFrame, op: str) -> pd.DataFrame:
    """What decides about the constants of a row: gpu, kind within the op, engine, kernel, format."""
    import pandas as pd

    def text(name: str) -> pd.Series:
        column = frame[name] if name in frame else pd.Series("any", index=frame.index)
        return column.fillna("any").astype(str).replace("", "any")

    split = {"mla": "phase", "allreduce": "collective", "collective": "collective"}.get(op)
    stack = text("library") if "library" in frame else text("stack")
    kind = text(split) if split else pd.Series(op, index=frame.index)
    formats = np.full(len(frame), "any", object)
    for value in kind.unique():
        here = (kind == value).to_numpy()
        formats[here] = _kind(op, value).format(rows_of(frame.loc[here]))
    return pd.DataFrame(
        {"gpu": text("gpu"), "split": kind, "stack": stack, "kernel": text("kernel"), "format": formats}
    )


def _kind(op: str, split: str) -> Kind:
    if op == "gemm":
        return GEMM
    if op == "moe":
        return MOE
    if op == "decode_attention":
        return _attention_kind(attention.DECODE)
    if op == "prefill_attention":
        return _attention_kind(attention.PREFILL)
    if op == "mla":
        if split not in attention.MLA:
            raise InputError(f"phase: '{split}' is not one of {', '.join(attention.MLA)}")
        return _attention_kind(attention.MLA[split])
    return _collective_kind(split)


def _predict(op: str, gpu: str, split: str, stack: str, kernel: str, fmt: str, rows: Columns):
    """Seconds and band of rows that share their constants."""
    accelerator = hardware(gpu)
    subject = Subject(accelerator, machine(accelerator, engine_named("vllm")), "", "")
    kind = _kind(op, split)
    found = choose(accelerator, kind.op, fmt, kind.default, _picker(kind, stack, split if op in SPLIT else kernel, fmt))
    x = kind.columns(rows, subject)
    seconds = kind.predicted_s(found.constants, x)
    low, high = _band(found, kind.regimes(found.constants, x))
    return seconds, seconds * low, seconds * high


SPLIT = ("mla", "allreduce", "collective")  # tables of several kinds of kernel, whose entries are labelled by them


def _picker(kind: Kind, stack: str, kernel: str, fmt: str) -> Callable[[list[Achieved]], Achieved | None]:
    """The entry that says most about a row: its own kernel's, its engine's, the engine-agnostic one."""

    def pick(found: list[Achieved]) -> Achieved | None:
        if kind.op == "moe" and found:
            return moe.nearest_entry(found, found[0].format, stack, kernel)
        if kind.op in ("collective", "mla_absorb"):
            found = [e for e in found if e.kernel == kernel]
        wanted = ((stack, kernel), (stack, "any"), ("any", kernel), ("any", "any"))
        return next((e for key in wanted for e in found if (e.engine, e.kernel) == key), None)

    return pick


def _band(found: Calibrated, regimes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return band(found, np.asarray(regimes))


def error_tables(frame: pd.DataFrame, predicted: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Errors by GPU and format, by GPU, and over all rows; empty where nothing was measured.

    Columns: rows, mape, median, p90 and bias in %, coverage: share of measured times inside the 80 % band in %.
    """
    if "time_s" not in frame or frame["time_s"].isna().all():
        return {}
    op = op_of_columns(frame.columns)
    labels = _labels(_filled(frame.reset_index(drop=True), op), op).rename(columns={"split": "kind"})
    joined = labels.assign(
        measured=frame["time_s"].to_numpy(),
        predicted=predicted["time_s"].to_numpy(),
        low=predicted["time_lo_s"].to_numpy(),
        high=predicted["time_hi_s"].to_numpy(),
    )
    joined = joined[np.isfinite(joined.measured) & (joined.measured > 0)]
    return {
        "by GPU, kind and format": _errors(joined, ["kind", "gpu", "format"]),
        "by GPU": _errors(joined, ["gpu"]),
        "all": _errors(joined.assign(all="all"), ["all"]),
    }


def _errors(joined: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for key, part in joined.groupby(by):
        ratio = part.predicted / part.measured
        off = (ratio - 1.0).abs() * 100.0
        inside = (part.measured >= part.low) & (part.measured <= part.high)
        rows.append(
            dict(zip(by, key))
            | {
                "rows": len(part),
                "mape": off.mean(),
                "median": off.median(),
                "p90": off.quantile(0.9),
                "bias": (ratio.median() - 1.0) * 100.0,
                "coverage": inside.mean() * 100.0,
            }
        )
    return pd.DataFrame(rows)
