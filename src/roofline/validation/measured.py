"""Own measurements beside predictions: constants are fitted to three quarters of the shapes, the last is predicted.

`validation/measured/<device>/` holds files of `roofline measure`. A device that the library lacks is described by the
highest rates of the same file, so that even its datasheet column is a measured roofline.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from roofline.calibration.run import calibrate, spec_text, subject_of
from roofline.calibration.tables import Tables, read_tables
from roofline.deployment import Deployment
from roofline.errors import InputError
from roofline.machine import machine
from roofline.measure.cases import op_of
from roofline.measure.profile import torch_engine
from roofline.measure.transformer import truncated
from roofline.parallel import Plan
from roofline.precision import precision_named
from roofline.pricing import op_times
from roofline.specs.engine import Engine, engine_named
from roofline.specs.hardware import Accelerator
from roofline.specs.library import PACKAGE, build
from roofline.specs.refs import load_model

if TYPE_CHECKING:
    import pandas as pd

FOLDER = PACKAGE.parents[1] / "validation"
# op -> columns that make a group: rows of one group are either fitted or predicted, never both
GROUPS = {
    "gemm": ("n", "k"),
    "decode_attention": ("heads", "kv_heads", "head_dim"),
    "prefill_attention": ("heads", "kv_heads", "head_dim"),
    "moe": ("hidden", "inter", "topk", "experts"),
    "collective": ("bytes",),
}


def split(tables: Tables, part: int, parts: int = 2) -> tuple[Tables, Tables]:
    """Tables to fit and tables to predict: every `parts`-th group of shapes, from `part` on, is left out of the fit.

    Ops without a kernel model to fit stay in the first; whole models, which nothing is fitted to, go to the second.
    """
    fit: dict[str, pd.DataFrame] = {}
    out: dict[str, pd.DataFrame] = {}
    for op, frame in tables.by_op.items():
        if op == "model":
            out[op] = frame
            continue
        columns = GROUPS.get(op)
        if columns is None:
            fit[op] = frame
            continue
        number = frame.groupby(list(columns), sort=True).ngroup().to_numpy()
        left = number % parts == part
        fit[op], out[op] = frame[~left].reset_index(drop=True), frame[left].reset_index(drop=True)
    return Tables(fit, tables.session), Tables({op: f for op, f in out.items() if len(f)}, tables.session)


def launch_s(tables: Tables) -> float:
    """Fixed time of a small kernel in the file: in a graph where that was measured, else launched alone [s]."""
    frame = tables.by_op.get("launch")
    if frame is None:
        raise InputError("the file measures no launch latency; measure the op 'launch', too")
    return float(frame["time_s"].min())


def predict_rows(tables: Tables, accelerator: Accelerator, engine: Engine) -> pd.DataFrame:
    """Every measured row that is one op or one step, with its prediction; columns as `own.predictions`."""
    import pandas as pd

    out = []
    for op, frame in tables.by_op.items():
        for row in frame.to_dict("records"):
            found = _times(op, row, accelerator, engine)
            if found is None:
                continue
            predicted, low, high, sheet = found
            fmt = row.get("dtype", row.get("kv_dtype", "bf16"))
            out.append(
                {
                    "table": "measured", "source": "own", "counted": True, "hw": accelerator.name, "format": fmt,
                    "engine": "torch", "load": f"model {row['phase']}" if op == "model" else op,
                    "measured_s": float(row["time_s"]), "predicted_s": predicted, "low_s": low, "high_s": high,
                    "datasheet_s": sheet,
                }
            )  # fmt: skip
    return pd.DataFrame(out)


def _times(op: str, row: dict[str, Any], accelerator: Accelerator, engine: Engine) -> tuple[float, ...] | None:
    if op == "model":
        return _step(row, accelerator, engine)
    record = op_of(op, row)
    if record is None or op == "bandwidth":
        return None
    priced, sheet = (op_times([record], machine(accelerator, e), Plan())[0] for e in (engine, engine_named("ideal")))
    return float(priced.total_s), float(priced.low_s), float(priced.high_s), float(sheet.total_s)


def _step(row: dict[str, Any], accelerator: Accelerator, engine: Engine) -> tuple[float, ...]:
    model = truncated(load_model(row["model"]).model, int(row["layers"]))
    batch, context, steps = float(row["batch"]), float(row["context"]), []
    for e in (engine, engine_named("ideal")):
        run = Deployment(model, accelerator, Plan(), precision_named(row["dtype"]), e)
        decode = row["phase"] == "decode"
        steps.append(run.decode_step(batch, context - 1.0) if decode else run.prefill_step(batch, context))
    low, high = steps[0].band_s
    return float(steps[0].total_s), float(low), float(high), float(steps[1].total_s)


def held_out(path: str | Path, hw: str | None = None, parts: int = 4) -> pd.DataFrame:
    """Predictions of every shape of a measurement file by constants fitted to the other shapes.

    Args:     hw: the device, if the file does not say; parts: so many fits, each leaving out one part
    Returns:  DataFrame as `own.predictions`; whole models once, by the constants of the first fit
    """
    import pandas as pd

    tables = read_tables([path])
    found = []
    for part in range(parts):
        fit, out = split(tables, part, parts)
        subject, data = subject_of(tables, hw, date=tables.session["date"], source=Path(path).name)
        results, _ = calibrate(fit, subject)
        spec = build(Accelerator, yaml.safe_load(spec_text(results, subject, data, hw)), where="held out")
        if part:
            out = Tables({op: f for op, f in out.by_op.items() if op != "model"}, out.session)
        found.append(predict_rows(out, spec, torch_engine(launch_s(tables))))
    return pd.concat(found, ignore_index=True)


def measured_predictions(root: Path | None = None) -> pd.DataFrame:
    """`held_out` of every file under `measured/`; empty where there is none."""
    import pandas as pd

    files = sorted((root or FOLDER).glob("measured/*/*.jsonl"))
    return pd.concat([held_out(f) for f in files], ignore_index=True) if files else pd.DataFrame()


def spread(frame: pd.DataFrame) -> float:
    """Geometric mean of how many times predictions are off, in either direction.

    >>> import pandas as pd
    >>> round(spread(pd.DataFrame({"predicted_s": [2.0, 1.0], "measured_s": [1.0, 2.0]})), 6)
    2.0
    """
    return float(np.exp(np.abs(np.log(frame["predicted_s"] / frame["measured_s"])).mean()))
