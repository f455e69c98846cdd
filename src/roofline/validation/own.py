"""The project's own validation tables: published figures and own measurements, each beside its prediction.

`validation/` of the checkout has a folder per source: `source.yaml` says where the figures come from and under which
conditions, the CSV files hold them in one schema. Nothing is fitted on these rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field

from roofline.errors import InputError, SpecError
from roofline.estimates import Estimate, Value, estimate
from roofline.kernels.times import OpTime
from roofline.machine import machine
from roofline.ops import Attention, Gemm, Op
from roofline.parallel import Plan
from roofline.precision import format_named
from roofline.pricing import op_times
from roofline.specs.engine import Engine, engine_named
from roofline.specs.library import PACKAGE, build, hardware
from roofline.workload import Sequences

if TYPE_CHECKING:
    import pandas as pd

FOLDER = PACKAGE.parents[1] / "validation"
TABLES = ("decode", "prefill", "kernels")
STEP_COLUMNS = (
    "model", "hw", "engine", "weights", "kv", "tp", "pp", "ep", "batch", "isl", "osl", "quantity", "value",
)  # fmt: skip
SHOWN = ("rows", "mape_pct", "median_pct", "p90_pct", "bias_pct", "coverage_pct", "datasheet_pct")


class Source(BaseModel):
    """The `source.yaml` of a folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    citation: Annotated[str, Field(min_length=10)]
    year: int
    conditions: str
    engine: str  # which engine ran, and as which it is predicted
    left_out: str  # what of the source is not here, and why
    counted: bool  # False: shown, but not part of the totals
    selected: str = ""


@dataclass(frozen=True)
class Folder:
    """One source with its tables."""

    name: str
    source: Source
    tables: Mapping[str, pd.DataFrame]


def folders(root: Path | None = None) -> Iterator[Folder]:
    """Every source under `root` (the checkout's `validation/`), by name.

    Errors: InputError where the folder is not there: an installed package has none
    """
    import pandas as pd

    root = root or FOLDER
    if not root.is_dir():
        raise InputError(
            "the validation tables are part of a checkout, not of the installed package: clone the repository, or give "
            "a table of your own ('roofline validate --help')"
        )
    for path in sorted(root.glob("*/source.yaml")):
        source = build(Source, yaml.safe_load(path.read_text(encoding="utf-8")), where=str(path))
        tables = {
            name: pd.read_csv(path.parent / f"{name}.csv", keep_default_na=True)
            for name in TABLES
            if (path.parent / f"{name}.csv").exists()
        }
        if not tables:
            raise SpecError(f"{path.parent.name}: no table beside source.yaml; expected one of {', '.join(TABLES)}")
        yield Folder(path.parent.name, source, tables)


# Predictions.


def predicted_value(row: Mapping[str, Any], engine: str | Engine | None = None) -> tuple[float, Value]:
    """The measured seconds of a row of a decode or prefill table, and the predicted ones.

    Rates are turned into seconds per token, so that a positive error is too slow throughout.

    Args:     row: STEP_COLUMNS; engine: another than the row's
    """
    given = {name: row[name] for name in ("weights", "kv") if isinstance(row[name], str) and row[name]}
    e = estimate(
        row["model"], row["hw"], engine=engine or row["engine"], isl=float(row["isl"]), osl=float(row["osl"]),
        batch=float(row["batch"]), **{axis: int(row[axis]) for axis in ("tp", "pp", "ep")}, **given,
    )  # fmt: skip
    quantity, value = row["quantity"], float(row["value"])
    if quantity not in QUANTITIES:
        raise InputError(f"quantity: '{quantity}' is not one of {', '.join(QUANTITIES)}")
    return (value if quantity in ("tpot_s", "ttft_s") else 1.0 / value), QUANTITIES[quantity](e)


QUANTITIES = {
    "tpot_s": lambda e: e.tpot_s,
    "ttft_s": lambda e: e.ttft_s,
    "user_tokens_per_s": lambda e: e.tpot_s,
    "decode_tokens_per_s": lambda e: e.tpot_s.times(1.0 / e.batch),
    "output_tokens_per_s": lambda e: e.tokens_per_s.inverse(),
    "prefill_tokens_per_s": lambda e: _per_prompt_token(e),
}


def _per_prompt_token(e: Estimate) -> Value:
    return e.ttft_s.times(1.0 / (e.batch * e.isl))


def kernel_op(row: Mapping[str, Any]) -> Op:
    """The op of a row of a kernels table."""
    if row["op"] == "gemm":
        fmt = format_named(row["format"])
        return Gemm("gemm", float(row["m"]), float(row["n"]), float(row["k"]), fmt, static_scales=True)
    if row["op"] == "prefill_attention":
        sequences = Sequences(float(row["batch"]), float(row["seq"]))
        heads = (float(row["heads"]), float(row["kv_heads"]), float(row["head_dim"]), float(row["head_dim"]))
        return Attention("attention", sequences, *heads, causal=bool(row["causal"]))
    raise InputError(f"op: '{row['op']}' is not one of gemm, prefill_attention")


def kernel_time(op: Op, hw: str, engine: Engine) -> OpTime:
    """The time of one op on a device, as a step would price it."""
    return op_times([op], machine(hardware(hw), engine), Plan())[0]


def _predicted(table: str, row: Mapping[str, Any], engine: Engine | None) -> tuple[float, Value]:
    if table != "kernels":
        return predicted_value(row, engine)
    named = engine or engine_named("vllm").model_copy(update={"name": row["engine"]})
    t = kernel_time(kernel_op(row), row["hw"], named)
    return float(row["time_s"]), Value(float(t.total_s), float(t.low_s), float(t.high_s))


def predictions(root: Path | None = None) -> pd.DataFrame:
    """Every row of every folder: what it is, measured, predicted with its band, and datasheet seconds.

    Returns:  DataFrame with table, source, counted, hw, format, engine, load, measured_s, predicted_s, low_s, high_s,
              datasheet_s
    """
    import pandas as pd

    ideal = engine_named("ideal")
    out = []
    for folder in folders(root):
        for table, frame in folder.tables.items():
            for row in frame.to_dict("records"):
                measured, value = _predicted(table, row, None)
                _, sheet = _predicted(table, row, ideal)
                fmt = row["format"] if table == "kernels" else row["weights"]
                out.append(
                    {
                        "table": table, "source": folder.name, "counted": folder.source.counted, "hw": row["hw"],
                        "format": fmt if isinstance(fmt, str) else "native", "engine": row["engine"],
                        "load": _load(table, row), "measured_s": measured, "predicted_s": value.value,
                        "low_s": value.low, "high_s": value.high, "datasheet_s": sheet.value,
                    }
                )  # fmt: skip
    return pd.DataFrame(out)


def _load(table: str, row: Mapping[str, Any]) -> str:
    if table == "kernels":
        return str(row["op"])
    return "batch 1" if float(row["batch"]) == 1 else "batched"


# Errors.


def errors_of(frame: pd.DataFrame) -> dict[str, float]:
    """Errors of predictions [%]: mean, median and 90th percentile of |predicted / measured - 1|, median signed error.

    `coverage_pct` is the share of measurements inside the 80 % band, `datasheet_pct` the mean error of the datasheet
    roofline on the same rows.
    """
    ratio = (frame["predicted_s"] / frame["measured_s"]).to_numpy()
    size = 100.0 * np.abs(ratio - 1.0)
    inside = (frame["low_s"] <= frame["measured_s"]) & (frame["measured_s"] <= frame["high_s"])
    sheet = 100.0 * np.abs(frame["datasheet_s"] / frame["measured_s"] - 1.0)
    values = (len(frame), size.mean(), np.median(size), np.quantile(size, 0.9), 100.0 * (np.median(ratio) - 1.0),
              100.0 * inside.mean(), sheet.mean())  # fmt: skip
    return {name: float(v) if i else int(v) for i, (name, v) in enumerate(zip(SHOWN, values, strict=True))}


def error_table(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Errors of groups of rows, one line each."""
    import pandas as pd

    lines = [
        dict(zip(by, key if isinstance(key, tuple) else (key,), strict=True)) | errors_of(part)
        for key, part in frame.groupby(list(by), sort=True)
    ]
    return pd.DataFrame(lines, columns=[*by, *SHOWN]).round(dict.fromkeys(SHOWN[1:], 1))


def own_tables(root: Path | None = None) -> dict[str, pd.DataFrame]:
    """The error tables that `roofline validate` prints: title -> DataFrame, errors in percent."""
    from roofline.validation.measured import measured_predictions

    frame = predictions(root)
    counted = frame[frame["counted"]]
    out = {
        "published figures, in short": error_table(counted, ("table", "load")),
        "published decode, by source": error_table(frame[frame["table"] == "decode"], ("source", "load")),
        "published decode, by device and format": error_table(counted[counted["table"] == "decode"], ("hw", "format")),
        "published prompts, by source": error_table(frame[frame["table"] == "prefill"], ("source", "load")),
        "published kernels": error_table(counted[counted["table"] == "kernels"], ("source", "hw", "load", "format")),
    }
    own = measured_predictions(root)
    if len(own):
        out["own measurements, shapes left out of the fit"] = error_table(own, ("hw", "load", "format"))
    return out


def markdown(tables: Mapping[str, pd.DataFrame]) -> str:
    """The tables as Markdown, for the README and the docs."""
    parts = []
    for title, table in tables.items():
        rows = [[_cell(v) for v in row] for row in table.itertuples(index=False)]
        numeric = [name in SHOWN for name in table.columns]
        head = "| " + " | ".join(_heading(str(c)) for c in table.columns) + " |"
        rule = "|" + "|".join("---:" if right else "---" for right in numeric) + "|"
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        parts.append("\n".join([f"**{title[0].upper()}{title[1:]}**", "", head, rule, *lines]))
    return "\n\n".join(parts) + "\n"


def _heading(name: str) -> str:
    names = {"mape_pct": "mean %", "median_pct": "median %", "p90_pct": "P90 %", "bias_pct": "bias %",
             "coverage_pct": "in 80 % band", "datasheet_pct": "datasheet %", "hw": "device"}  # fmt: skip
    return names.get(name, name)


def _cell(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)
