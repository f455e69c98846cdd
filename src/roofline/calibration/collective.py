"""Fits `CollectiveConstants` to a table of measured collectives of one GPU, per library and kind of collective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np

from roofline.calibration.fit import Columns, Entry, entry, fit, held_out_residuals
from roofline.kernels.chip import Chip
from roofline.kernels.collective import CollectiveConstants, collective_latency, collective_time

SWITCH = ("switch_s", "switch_fraction")
REDUCED_IN_SWITCH = ("bf16", "fp16", "bfloat16", "float16", "half", "fp32", "float32")  # not the integers
DOUBLING_PRIOR = (0.95, 0.05)  # value and sigma (log): between nccl (0.8-0.9) and custom kernels (0.94-1.0) on NVLink
BASE_LIBRARY = "nccl"  # what engines fall back on; `any` pools the engines' own libraries where there are any


def collective_columns(rows: Columns, chip: Chip, *, in_switch: bool) -> dict[str, np.ndarray]:
    """Return the arguments of `collective_time` for a table with the columns ranks, bytes and dtype.

    `in_switch` says whether the interconnect of this GPU can reduce at all.
    """
    formats = np.asarray(rows["dtype"]).astype(str)
    ones = np.ones(len(formats))
    return {
        "bytes": np.asarray(rows["bytes"], float),
        "ranks": np.asarray(rows["ranks"], float),
        "link": ones * chip.link_bytes_per_s,
        "pair": ones * chip.pair_bytes_per_s,
        "in_switch": np.isin(formats, REDUCED_IN_SWITCH) & in_switch,
    }


def model(kind: str, what: Callable = collective_time) -> Callable[[CollectiveConstants, Columns], np.ndarray]:
    """Return the function (constants, columns) -> seconds of one kind of collective."""

    def seconds(constants: CollectiveConstants, x: Columns) -> np.ndarray:
        chip = Chip(1.0, link_bytes_per_s=x["link"], pair_bytes_per_s=x["pair"])
        return what(kind, x["bytes"], x["ranks"], chip=chip, constants=constants, in_switch=x["in_switch"])

    return seconds


def regimes(kind: str, constants: CollectiveConstants, x: Columns) -> np.ndarray:
    """Return, per row, whether fixed times ("launch") or the link ("link") take the larger part."""
    fixed, total = model(kind, collective_latency)(constants, x), model(kind)(constants, x)
    return np.where(fixed > 0.5 * total, "launch", "link")


def starting_points() -> list[CollectiveConstants]:
    """Return where fits begin: a switch and a shared bus, each with one-shot and sharded low-latency algorithms."""
    switch = CollectiveConstants(fast_step_s=1e-6)
    slower = replace(switch, fast_fraction=0.1, bulk_s=1e-5)
    bus = replace(switch, fast_rank_s=3e-6, fast_fraction=0.1, bulk_s=2e-5, bulk_rank_s=5e-6, bulk_fraction=0.3)
    bus = replace(bus, doubling=2.0)
    return [replace(c, one_shot=s) for c in (switch, slower, bus) for s in (1.0, 0.0)]


def calibrate_collective(
    rows: Columns, chip: Chip, *, in_switch: bool, date: str, source: str, folds: int = 5
) -> list[Entry]:
    """Return `achieved` entries for one GPU: `kernel` is the kind of collective, `engine` the library.

    Args:  rows: the columns of `collective_columns` plus `library`, `collective` and `time_s` [s]. Rows held out
           together have one message size. `any` pools the engines' own libraries, or is NCCL where they have none.
    """
    kinds, libraries = np.asarray(rows["collective"]).astype(str), np.asarray(rows["library"]).astype(str)
    out = []
    for kind in sorted(set(kinds)):
        of_kind = sorted(set(libraries[kinds == kind]))
        own = [name for name in of_kind if name != BASE_LIBRARY] or of_kind
        for library in [*of_kind, "any"]:
            here = np.flatnonzero((kinds == kind) & np.isin(libraries, own if library == "any" else [library]))
            part = {name: np.asarray(column)[here] for name, column in rows.items()}
            out.append(_cell(part, chip, in_switch, kind, library, date, source, folds))
    return out


def _cell(rows, chip, in_switch, kind, library, date, source, folds) -> Entry:
    x, seconds = collective_columns(rows, chip, in_switch=in_switch), np.asarray(rows["time_s"], float)
    use_switch = kind == "all_reduce" and bool(np.any(x["in_switch"] & (x["ranks"] > 2)))
    free = [n for n in CollectiveConstants.BOUNDS if use_switch or n not in SWITCH]
    # two rank counts cannot tell how a library scales to 72: then stay near what full switches show
    priors = {"doubling": DOUBLING_PRIOR} if len(np.unique(x["ranks"])) < 3 else {}
    arguments = {"free": free, "priors": priors, "max_evaluations": 60}
    found = fit(model(kind), starting_points(), x, seconds, **arguments)
    held = held_out_residuals(model(kind), starting_points(), x, seconds, x["bytes"], folds=folds, **arguments)
    return entry(
        found, held, regimes(kind, found.constants, x), format="any", engine=library, kernel=kind, date=date,
        source=source, method=f"soft-L1 log ratio; {folds} folds by message size",
    )  # fmt: skip


def constants_of(e: Entry) -> CollectiveConstants:
    """Return the constants record of an entry."""
    known = {f.name for f in fields(CollectiveConstants)}
    return CollectiveConstants(**{k: v for k, v in e.constants.items() if k in known})
