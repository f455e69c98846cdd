"""Predicts tables of what engines report about memory at start-up, and says how far off it is.

One row is one server: model, device, engine and its settings in; weights, activation peak, pool and tokens out, under
the column names that the measured table uses. Measured columns may be absent or empty.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.errors import InfeasibleError, InputError, RooflineError, SpecError, UnknownNameError
from roofline.memory import Footprint, footprint
from roofline.parallel import Plan
from roofline.precision import FORMATS, Precision, format_named, precision_named
from roofline.specs.engine import Engine, engine_named
from roofline.specs.hf import from_hf_config
from roofline.specs.library import build, find, hardware, names
from roofline.specs.model import Model

if TYPE_CHECKING:
    import pandas as pd

GIB = 2.0**30
NOT_PREDICTED = "not predicted"
REQUIRED = ("model", "gpu", "engine")
MEASURED = (
    "status", "failure", "init_free_gib", "requested_gib", "weights_gib", "weights_gib_by_rank", "activation_peak_gib",
    "activation_peak_gib_by_rank", "non_torch_gib", "total_non_kv_gib", "total_non_kv_gib_by_rank", "cuda_graph_gib",
    "kv_pool_gib", "kv_pool_min_rank_gib", "kv_tokens", "num_gpu_blocks", "max_concurrency",
)  # fmt: skip
JUDGED = (
    "weights_gib", "activation_peak_gib", "non_torch_gib", "total_non_kv_gib", "kv_pool_gib", "kv_tokens",
    "max_concurrency", "cuda_graph_gib",
)  # fmt: skip

# What a repository's name says about the format of its linear layers, where no config says it.
_SAID_BY_NAME = (
    ("fp8-dynamic", "fp8_channel"), ("fp8_dynamic", "fp8_channel"), ("w8a8", "int8"), ("w4a16", "int4_g128"),
    ("w8a16", "w8a16"), ("nvfp4", "nvfp4"), ("-awq", "int4_awq"), ("gptq-int4", "int4_gptq"), ("gptq", "int4_gptq"),
    ("fp8", "fp8"),
)  # fmt: skip
# What the engine's `quantization` column says of it by itself; checkpoints of GPTQ layout store zero points.
_ENGINE_SAYS = {
    "fp8": "fp8", "mxfp4": "mxfp4_experts", "awq": "int4_awq", "awq_marlin": "int4_awq", "gptq": "int4_gptq",
    "gptq_marlin": "int4_gptq",
}  # fmt: skip
# Parts of a repository's name that do not change the architecture.
_SUFFIX = re.compile(
    r"[-_.](quantized|dynamic|static|fp8|w8a8|w4a16|w8a16|nvfp4|mxfp4|awq|gptq|int4|int8|marlin|bf16|hf"
    r"|instruct|it|chat|base|sft|rl|pt|v0\.\d|v\d|\d{4})$"
)


@dataclass(frozen=True, slots=True)
class Subject:
    """A model as the table names it, with the formats of its checkpoint (None: as the run says)."""

    model: Model
    precision: Precision | None


def predict_memory(frame: pd.DataFrame, models_dir: str | Path | None = None) -> pd.DataFrame:
    """The frame with the measured columns replaced by predictions, row for row.

    Args:     frame: one server a row; `model`, `gpu` and `engine` are needed, any setting may be absent or empty (the
              engine's default); models_dir: a folder of `config.json` files for models that the library lacks
    Returns:  pandas.DataFrame of the same rows in the same order
    Errors:   InputError for absent columns; a row whose model, device or format is not known has the status
              'not predicted' and the reason as failure (SpecError where that is so for all rows)
    """
    import pandas as pd

    absent = [c for c in REQUIRED if c not in frame.columns]
    if absent:
        raise InputError(f"the table lacks the column{'s' * (len(absent) > 1)} {', '.join(absent)}")
    if models_dir is not None and not Path(models_dir).is_dir():
        raise InputError(f"'{models_dir}' is not a folder of model configs")
    known: dict[str, Subject] = {}
    rows = [_row({k: v for k, v in row.items() if not _empty(v)}, models_dir, known) for row in _records(frame)]
    if rows and all(row["status"] == NOT_PREDICTED for row in rows):
        raise SpecError(rows[0]["failure"])
    out = frame.drop(columns=[c for c in MEASURED if c in frame.columns])
    return pd.concat([out.reset_index(drop=True), pd.DataFrame(rows, columns=list(MEASURED))], axis=1)


def error_table(truth: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """Errors of predictions by column, over the rows where the measured column is given.

    Formula:  mean, median and 90th percentile of |predicted / measured - 1|, mean signed error, and mean of
              |predicted - measured|; `settings` counts distinct rows: the same model at other lengths is one
    Returns:  pandas.DataFrame indexed by column, plus a row `status` with the share of wrong verdicts
    """
    import pandas as pd

    rows = {}
    both = truth.reset_index(drop=True)
    setting = [c for c in ("model", "engine_version", "tp", "pp", "dp", "dtype", "quantization") if c in both.columns]
    for column in JUDGED:
        if column not in both.columns:
            continue
        measured = pd.to_numeric(both[column], errors="coerce")
        said = pd.to_numeric(predicted[column], errors="coerce").reset_index(drop=True)
        use = measured.notna() & said.notna() & (measured != 0)
        if column == "cuda_graph_gib" and "cuda_graph_capture" in both.columns:
            use &= both["cuda_graph_capture"].notna()  # elsewhere it is a change of free memory
        if not use.any():
            continue
        ratio = (said[use] / measured[use] - 1.0) * 100.0
        rows[column] = {
            "rows": int(use.sum()),
            "settings": int(both.loc[use, setting].astype(str).drop_duplicates().shape[0]),
            "mean_pct": ratio.abs().mean(),
            "median_pct": ratio.abs().median(),
            "p90_pct": ratio.abs().quantile(0.9),
            "max_pct": ratio.abs().max(),
            "bias_pct": ratio.mean(),
            "mean_abs": (said[use] - measured[use]).abs().mean(),
        }
    if "status" in both.columns:
        given = both["status"].notna()
        wrong = (both["status"] != predicted["status"].reset_index(drop=True))[given]
        rows["status"] = {"rows": int(given.sum()), "mean_pct": 100.0 * wrong.mean(), "mean_abs": float(wrong.sum())}
    return pd.DataFrame.from_dict(rows, orient="index")


def error_tables(truth: pd.DataFrame, predicted: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The tables that `roofline validate memory` prints; empty where nothing was measured."""
    errors = error_table(truth, predicted)
    return {"memory": errors.rename_axis("column").reset_index()} if len(errors) else {}


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return frame.to_dict(orient="records")


def _empty(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value)) or value == ""


def _row(row: Mapping[str, Any], models_dir, known: dict[str, Subject]) -> dict[str, Any]:
    try:
        return _predicted(row, models_dir, known)
    except RooflineError as error:
        return dict.fromkeys(MEASURED) | {"status": NOT_PREDICTED, "failure": str(error)}


def _predicted(row: Mapping[str, Any], models_dir, known: dict[str, Subject]) -> dict[str, Any]:
    """The measured columns of one row."""
    name = str(row["model"])
    if name not in known:
        known[name] = resolve(name, models_dir)
    subject = known[name]
    precision = run_precision(subject, name, row)
    engine = _engine(row)
    accelerator = hardware(str(row["gpu"]))
    visible = float(row["gpu_total_gib"]) * GIB if "gpu_total_gib" in row else accelerator.usable_bytes
    length = float(row.get("max_model_len", subject.model.max_positions or 2048))
    settings = {
        "utilisation": row.get("gpu_memory_utilization"),
        "max_num_seqs": row.get("max_num_seqs"),
        "max_num_batched_tokens": row.get("max_num_batched_tokens"),
    }
    settings = {k: float(v) for k, v in settings.items() if v is not None}
    if captured := re.search(r"\((\d+) sizes\)", str(row.get("cuda_graph_capture", ""))):
        settings["graph_sizes"] = float(captured[1])
    try:
        plan = Plan(*(int(row.get(k, 1)) for k in ("tp", "pp")), dp=int(row.get("dp", 1)))
        found = footprint(
            subject.model, accelerator, plan, precision, engine, length, visible_bytes=visible, **settings
        )
    except InfeasibleError as error:
        return dict.fromkeys(MEASURED) | {"status": "fails", "failure": str(error)}
    return _columns(found, plan)


def _engine(row: Mapping[str, Any]) -> Engine:
    version = str(row.get("engine_version", ""))
    block = {"block_size": int(row["block_size"])} if "block_size" in row else {}
    return engine_named(str(row["engine"]), version=version or None, **block)


def _columns(found: Footprint, plan: Plan) -> dict[str, Any]:
    def gib(value: Any) -> float:
        return round(float(value) / GIB, 4)

    def by_rank(field: str) -> str:
        return "/".join(f"{gib(getattr(s, field)):.2f}" for s in found.stages for _ in range(plan.tp))

    first, last = found.stages[0], found.stages[-1]
    out = {
        "status": "ok" if found.failure is None else "fails",
        "failure": found.failure,
        "init_free_gib": gib(first.visible - first.context),
        "requested_gib": gib(first.requested),
        "weights_gib": gib(first.weights),
        "weights_gib_by_rank": by_rank("weights"),
        "activation_peak_gib": gib(first.activation),
        "activation_peak_gib_by_rank": by_rank("activation"),
        "non_torch_gib": gib(first.non_torch),
        "total_non_kv_gib": gib(first.total_non_kv),
        "total_non_kv_gib_by_rank": by_rank("total_non_kv"),
        "cuda_graph_gib": gib(last.graphs),
    }
    if float(found.tightest.kv_pool) > 0:
        out |= {
            "kv_pool_gib": gib(first.kv_pool),
            "kv_pool_min_rank_gib": gib(found.tightest.kv_pool),
            "kv_tokens": float(np.asarray(found.kv_tokens)),
            "num_gpu_blocks": float(np.asarray(found.pool.blocks)),
            "max_concurrency": round(float(found.max_concurrency), 4),
        }
    return dict.fromkeys(MEASURED) | out


# Which model, in which formats.


def resolve(name: str, models_dir: str | Path | None = None) -> Subject:
    """The model that a table calls `name`: from the library, else a config in the folder, else a sibling by name.

    A sibling has the same architecture under another training or format ('-Instruct', '-FP8', ...); of it only the
    shape is taken, and the format is read off from the name.
    """
    for candidate in (name, *siblings(name)):
        exact = candidate == name
        if (model := _library(candidate)) is not None:
            return Subject(model, _native(model)) if exact else Subject(_repackaged(model), None)
        if (config := _config_file(candidate, models_dir)) is not None:
            parsed = from_hf_config(config, name=name)
            return Subject(parsed.model, parsed.precision if exact else None)
    where = f"; looked for its config in '{models_dir}', too" if models_dir else "; or give a folder with its config"
    raise UnknownNameError("model", name[:80], names("model"), hint=f"see 'roofline list models'{where}")


def _repackaged(model: Model) -> Model:
    """The same model in the Hugging Face layout, in which engines cut the vision tower, too."""
    if model.vision is None or model.vision.cut:
        return model
    return model.model_copy(update={"vision": model.vision.model_copy(update={"cut": True})})


def siblings(name: str) -> list[str]:
    """Names of the same architecture, nearest first: the repository without its owner, then without suffixes.

    >>> siblings("RedHatAI/Qwen2.5-7B-Instruct-fp8-dynamic")[-1]
    'qwen2.5-7b'
    """
    out = []
    key = name.rsplit("/", 1)[-1].lower()
    while key:
        out.append(key)
        if key.startswith("meta-"):
            out.append(key.removeprefix("meta-"))
        shorter = _SUFFIX.sub("", key)
        if shorter == key:
            return out
        key = shorter
    return out


def run_precision(subject: Subject, name: str, row: Mapping[str, Any]) -> Precision:
    """The formats of a run: those of the checkpoint, of its name, or quantised while loading; dtype; KV."""
    dtype = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}.get(str(row.get("dtype", "")), "")
    said = str(row.get("quantization", ""))
    base = subject.precision
    quantised = base is not None and any(f.bits < 16 for f in base.weights.values())
    if not quantised:
        hint = _ENGINE_SAYS.get(said) or next((fmt for text, fmt in _SAID_BY_NAME if text in name.lower()), None)
        if hint is None and said:
            raise SpecError(f"{name}: quantization '{said}' needs the config of the checkpoint")
        base = precision_named(hint) if hint else (base or precision_named("bf16"))
    wide = FORMATS[dtype or ("fp16" if base.default.name == "fp16" else "bf16")]
    if dtype:
        unquantised = {r: wide if f.bits >= 16 else f for r, f in base.weights.items()}
        base = replace(base, weights=unquantised, default=wide)
    kv = str(row.get("kv_cache_dtype", "auto"))
    if kv == "auto":
        return replace(base, kv=base.kv if base.kv.bits < 16 else wide)
    return replace(base, kv=format_named(kv))


def _native(model: Model) -> Precision | None:
    try:
        return precision_named(model.native)
    except RooflineError:
        return None


def _config_file(name: str, models_dir: str | Path | None) -> Path | None:
    """`<org>--<repo>.json`, `<repo>.json`, `<org>/<repo>/config.json` or `<repo>/config.json` in the folder."""
    if models_dir is None:
        return None
    folder = Path(models_dir)
    wanted = {_key(name), _key(name.rsplit("/", 1)[-1])}
    found = {}
    for path in sorted([*folder.glob("*.json"), *folder.glob("*/config.json"), *folder.glob("*/*/config.json")]):
        if path.name.endswith("hf_quant_config.json"):
            continue
        stem = str(path.relative_to(folder).with_suffix("")).replace("--", "/").removesuffix("/config")
        found.setdefault(_key(stem), path)
        found.setdefault(_key(stem.rsplit("/", 1)[-1]), path)
    return next((found[k] for k in sorted(wanted, key=len, reverse=True) if k in found), None)


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def _library(name: str) -> Model | None:
    try:
        return build(Model, find("model", name), where=name)
    except UnknownNameError:
        return None


__all__ = ["Subject", "error_table", "error_tables", "predict_memory", "resolve", "run_precision", "siblings"]
