"""From measured tables to the `achieved` block of a device: which model is fitted to what, and how good it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from roofline.calibration import gemm, moe
from roofline.calibration.adapters import ADAPTERS, FEWEST
from roofline.calibration.fit import flow_line
from roofline.calibration.subject import Result, Subject, rows_of, subject_of
from roofline.calibration.tables import Tables
from roofline.errors import InputError
from roofline.specs.hardware import Accelerator
from roofline.specs.library import build, locate
from roofline.specs.yaml_file import read_yaml

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Subject", "achieved_text", "calibrate", "residual_table", "rows_of", "spec_text", "subject_of"]


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
