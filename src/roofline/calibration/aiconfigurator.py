"""Reads the parquet performance tables of ai-dynamo/aiconfigurator as tables in our columns.

A file holds one op: `gemm_perf`, `generation_attention_perf`, `context_attention_perf`, `generation_mla_perf`,
`context_mla_perf`, `mla_bmm_perf`, `moe_perf`, `custom_allreduce_perf`, `nccl_perf`. Latencies are milliseconds; the
message size of a collective counts elements. The device, where no column says it, is the folder under `data/`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from roofline.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

STACKS = {"trtllm": "trtllm", "tensorrt-llm": "trtllm", "vllm": "vllm", "sglang": "sglang"}
FORMATS = {
    "bfloat16": "bf16", "float16": "bf16", "half": "bf16", "fp16": "bf16", "bf16": "bf16", "fp8": "fp8",
    "fp8_block": "fp8_block", "nvfp4": "nvfp4", "int8_wo": "w8a16", "int4_wo": "w4a16", "sq": "w8a8_int8",
    "w4a16_mxfp4": "w4a16_mxfp4", "w4a8_mxfp4_mxfp8": "w4a8_mxfp4_mxfp8",
}  # fmt: skip
ELEMENT_BYTES = {"half": 2.0, "float16": 2.0, "bfloat16": 2.0, "int8": 1.0, "fp8": 1.0, "float32": 4.0, "float": 4.0}
# A file whose name starts so is of that kind; longer names first, `context_mla` is not `mla_bmm`.
READERS: dict[str, Callable[[pd.DataFrame], tuple[str, pd.DataFrame]]] = {}


def read_perf_table(path: str | Path) -> dict[str, pd.DataFrame]:
    """The rows of one parquet file: {op: table}.

    Errors: InputError where pyarrow is not installed, or the file is of no known op
    """
    import pandas as pd

    path = Path(path)
    kind = next((name for name in READERS if path.name.startswith(name)), None)
    if kind is None:
        raise InputError(f"'{path.name}' is none of the tables that are read: {', '.join(READERS)} (.parquet)")
    try:
        frame = pd.read_parquet(path)
    except ImportError:
        raise InputError(
            f"reading '{path.name}' needs a parquet reader, which is not installed: pip install pyarrow"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' is not a parquet table: {error}") from None
    op, rows = convert(kind, frame, path.name)
    device = _device(path)
    return {op: rows.assign(gpu=device) if device else rows}


def convert(kind: str, frame: pd.DataFrame, where: str) -> tuple[str, pd.DataFrame]:
    """A table of `kind` in our columns; duplicates of one point become their median.

    Errors: InputError naming the first column that is missing
    """
    try:
        op, rows = READERS[kind](frame)
        seconds = 1e-3 * frame["latency"].astype(float)
    except KeyError as missing:
        name = str(missing.args[0])
        name = next((c for c in re.findall(r"'(\w+)'", name) if c not in frame), name)
        raise InputError(f"'{where}' lacks the column '{name}' that a table of {kind} has") from None
    rows = rows.assign(
        time_s=seconds,
        stack=_stack(frame),
        stack_version=frame["version"].astype(str) if "version" in frame else "",
        kernel=frame["kernel_source"].astype(str) if "kernel_source" in frame else "any",
    )
    points = [c for c in rows.columns if c != "time_s"]
    rows = rows[rows["time_s"] > 0]
    return op, rows.groupby(points, as_index=False, dropna=False)["time_s"].median()


def _stack(frame: pd.DataFrame):
    if "framework" not in frame:
        return "any"
    return frame["framework"].astype(str).str.lower().map(lambda name: STACKS.get(name, name))


def _formats(column: pd.Series) -> pd.Series:
    return column.astype(str).map(lambda name: FORMATS.get(name, name))


def _device(path: Path) -> str | None:
    parts = path.parts
    return parts[parts.index("data") + 1] if "data" in parts[:-2] else None


def _reader(name: str):
    def register(function):
        READERS[name] = function
        return function

    return register


def _columns(frame: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    return frame[list(names)].rename(columns=names)


@_reader("gemm_perf")
def _gemm(frame: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    rows = _columns(frame, {"m": "m", "n": "n", "k": "k"})
    dtype = _formats(frame["gemm_dtype"])
    # the collectors quantise activations inside the timed region for formats with dynamic scales
    return "gemm", rows.assign(dtype=dtype, act_quant_timed=dtype.isin(("fp8", "fp8_block", "nvfp4", "w8a8_int8")) * 1)


_ATTENTION = {"batch_size": "batch", "num_heads": "heads", "num_key_value_heads": "kv_heads", "head_dim": "head_dim"}


@_reader("generation_attention_perf")
def _decode(frame: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    rows = _columns(frame, _ATTENTION)
    window = frame["window_size"] if "window_size" in frame else 0
    context = frame["isl"] + frame["step"]
    return "decode_attention", rows.assign(context=context, window=window, kv_dtype=_formats(frame["kv_cache_dtype"]))


@_reader("context_attention_perf")
def _prefill(frame: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    frame_rows = _columns(frame, _ATTENTION | {"isl": "seq"})
    window = frame["window_size"] if "window_size" in frame else 0
    formats = {"attn_dtype": _formats(frame["attn_dtype"]), "kv_dtype": _formats(frame["kv_cache_dtype"])}
    return "prefill_attention", frame_rows.assign(window=window, **formats)


def _mla(frame: pd.DataFrame, phase: str, length: pd.Series) -> tuple[str, pd.DataFrame]:
    rows = _columns(frame, {"batch_size": "batch", "num_heads": "heads"})
    return "mla", rows.assign(phase=phase, seq=length, dtype=_formats(frame["kv_cache_dtype"]))


@_reader("generation_mla_perf")
def _mla_decode(frame: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    return _mla(frame, "decode", frame["isl"] + frame["step"])


@_reader("context_mla_perf")
def _mla_prefill(frame: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    return _mla(frame, "prefill", frame["isl"])


@_reader("mla_bmm_perf")
def _absorb(frame: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    rows = _columns(frame, {"num_tokens": "batch", "num_heads": "heads"})
    before = frame["op_name"].astype(str).str.contains("pre")
    phase = before.map({True: "absorb_q", False: "absorb_v"})
    return "mla", rows.assign(phase=phase, seq=1, dtype=_formats(frame["bmm_dtype"]))


@_reader("moe_perf")
def _moe(frame: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    names = {
        "num_tokens": "tokens", "hidden_size": "hidden", "inter_size": "inter", "topk": "topk",
        "num_experts": "experts", "moe_tp_size": "tp", "moe_ep_size": "ep", "distribution": "routing",
    }  # fmt: skip
    rows = _columns(frame, names)
    routing = rows["routing"].astype(str).map(lambda r: r if re.fullmatch(r"power_law_[\d.]+", r) else "balanced")
    return "moe", rows.assign(dtype=_formats(frame["moe_dtype"]), routing=routing)


def _collective(frame: pd.DataFrame, dtype: str) -> pd.DataFrame:
    rows = _columns(frame, {"num_gpus": "ranks"})
    element = frame[dtype].astype(str).map(lambda name: ELEMENT_BYTES.get(name, 2.0))
    return rows.assign(bytes=frame["message_size"] * element, dtype=frame[dtype].astype(str))


@_reader("custom_allreduce_perf")
def _all_reduce(frame: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    rows = _collective(frame, "allreduce_dtype")
    return "collective", rows.assign(collective="all_reduce", library=_stack(frame), mode="graph")


@_reader("nccl_perf")
def _nccl(frame: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    rows = _collective(frame, "nccl_dtype")
    kind = frame["op_name"].astype(str).replace({"allreduce": "all_reduce", "allgather": "all_gather"})
    return "collective", rows.assign(collective=kind, library="nccl", mode="stream")
