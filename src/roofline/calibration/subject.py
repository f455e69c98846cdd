"""The device that is calibrated, what is found for it, and rows that no device can have been measured at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.calibration.fit import Columns, Entry
from roofline.calibration.tables import Tables
from roofline.errors import InputError
from roofline.kernels.chip import Chip
from roofline.machine import Machine, machine
from roofline.measure.identify import accelerator_of, empirical_spec
from roofline.precision import format_named
from roofline.specs.engine import engine_named
from roofline.specs.hardware import Accelerator
from roofline.specs.library import hardware

if TYPE_CHECKING:
    import pandas as pd

BEYOND = 1.02  # [-] times faster than this share of the datasheet time are refused


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
