"""Reads measured kernel times, whatever file they come in, as one table per op.

Three kinds of file: what `roofline measure` writes (JSON lines), CSV tables in the columns named below, and the parquet
tables of ai-dynamo/aiconfigurator. Seconds and bytes everywhere; `gpu` is a name of the hardware library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roofline.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

# op -> columns without which a table is not of that op; the first op whose columns are all there is meant
COLUMNS: dict[str, tuple[str, ...]] = {
    "collective": ("collective", "dtype", "ranks", "bytes"),
    "moe": ("dtype", "tokens", "hidden", "inter", "topk", "experts"),
    "mla": ("phase", "dtype", "batch", "seq", "heads"),
    "prefill_attention": ("attn_dtype", "kv_dtype", "batch", "seq", "heads", "kv_heads", "head_dim"),
    "decode_attention": ("kv_dtype", "batch", "context", "heads", "kv_heads", "head_dim"),
    "gemm": ("dtype", "m", "n", "k"),
}
# what is meant where a column is absent
DEFAULTS: dict[str, dict[str, Any]] = {
    "collective": {"library": "nccl"},
    "moe": {"tp": 1, "ep": 1, "routing": "balanced"},
    "prefill_attention": {"window": 0},
    "decode_attention": {"window": 0},
    "gemm": {"act_quant_timed": 0},
}
MOST_QUIET = 0.5  # [-] share of an op's rows that must be undisturbed for the others to be left out
TEXT = {"stack": "torch", "stack_version": "", "kernel": "any"}


@dataclass(frozen=True)
class Tables:
    """Measured rows per op, and the session where they come from `roofline measure`."""

    by_op: Mapping[str, pd.DataFrame]
    session: Mapping[str, Any] | None = None

    @property
    def gpus(self) -> list[str]:
        """Names of the devices in the tables; empty where no row says."""
        return sorted({str(g) for frame in self.by_op.values() for g in frame["gpu"].dropna().unique()})

    def of(self, gpu: str | None) -> Tables:
        """The rows of one device: those that name it, or name none."""
        if gpu is None:
            return self
        kept = {op: f[f["gpu"].isna() | (f["gpu"] == gpu)].reset_index(drop=True) for op, f in self.by_op.items()}
        return Tables({op: f for op, f in kept.items() if len(f)}, self.session)


def read_tables(paths: Iterable[str | Path]) -> Tables:
    """The tables of several files, rows of one op together.

    Errors: InputError that names the file and what is wrong with it
    """
    import pandas as pd

    parts: dict[str, list[pd.DataFrame]] = {}
    session = None
    for path in map(Path, paths):
        if not path.is_file():
            raise InputError(f"there is no file '{path}'")
        if path.suffix in (".jsonl", ".json"):
            found, own = _measured(path)
            if session is not None and own["device"] != session["device"]:
                raise InputError(f"'{path}' is about {own['device']}, another file about {session['device']}")
            session = own
        elif path.suffix == ".parquet":
            from roofline.calibration.aiconfigurator import read_perf_table

            found = read_perf_table(path)
        else:
            found = _csv(path)
        for op, frame in found.items():
            parts.setdefault(op, []).append(_checked(op, frame, path))
    return Tables({op: pd.concat(frames, ignore_index=True) for op, frames in parts.items()}, session)


def op_of_columns(columns: Iterable[str]) -> str | None:
    """The op that a table with these columns is about.

    >>> op_of_columns(["gpu", "dtype", "m", "n", "k", "time_s"])
    'gemm'
    """
    have = set(columns)
    return next((op for op, needed in COLUMNS.items() if have >= set(needed)), None)


def _csv(path: Path) -> dict[str, pd.DataFrame]:
    import pandas as pd

    try:
        frame = pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"'{path}' is not a CSV table: {error}") from None
    op = op_of_columns(frame.columns)
    if op is None:
        kinds = "; ".join(f"{name}: {', '.join(columns)}" for name, columns in COLUMNS.items())
        raise InputError(f"'{path}' has the columns of no op. Needed besides time_s are, for {kinds}")
    return {op: frame}


def _measured(path: Path) -> tuple[dict[str, pd.DataFrame], Mapping[str, Any]]:
    """Rows of a measurement file by op, without those that other work disturbed unless too few are left."""
    from roofline.measure.records import read_measurements

    frame = read_measurements(path)
    session = frame.attrs["session"]
    out = {}
    for op, rows in frame.groupby("op", sort=False):
        rows = rows.dropna(axis=1, how="all").assign(gpu=session["hardware"], cold=True)
        quiet = rows[~rows["disturbed"]]
        out[str(op)] = (quiet if len(quiet) >= MOST_QUIET * len(rows) else rows).reset_index(drop=True)
    return out, session


def _checked(op: str, frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    import numpy as np
    import pandas as pd

    from roofline.specs.library import canonical

    if "time_s" not in frame:
        raise InputError(f"'{path}' has no column time_s: nothing was measured")
    frame = frame.copy()
    frame["time_s"] = pd.to_numeric(frame["time_s"], errors="coerce")
    bad = ~(np.isfinite(frame["time_s"]) & (frame["time_s"] > 0))
    if bad.any():
        raise InputError(
            f"'{path}', row {int(np.flatnonzero(bad)[0]) + 1}: time_s must be a positive number of seconds"
        )
    for name in COLUMNS.get(op, ()):
        if frame[name].isna().any():
            raise InputError(f"'{path}', row {int(np.flatnonzero(frame[name].isna())[0]) + 1}: {name} is empty")
    for name, value in (TEXT | DEFAULTS.get(op, {})).items():
        frame[name] = frame[name].fillna(value) if name in frame else value
    frame["gpu"] = [
        canonical(str(g)) if isinstance(g, str) and g else None for g in frame.get("gpu", [None] * len(frame))
    ]
    if "cold" not in frame:
        frame["cold"] = False
    frame["cold"] = frame["cold"].fillna(False).astype(bool)
    return frame
