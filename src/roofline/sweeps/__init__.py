"""Sweeps: any set of inputs, evaluated as arrays.

`sweep(...)` returns a `Sweep` in memory, or writes a larger one to a folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from roofline.errors import InputError
from roofline.estimates import EXAMPLE_HARDWARE, EXAMPLE_MODEL
from roofline.sweeps.evaluate import Reason, evaluate_blocks
from roofline.sweeps.grid import Block, Grid, grid_of
from roofline.sweeps.metrics import DEFAULT, METRICS, metric
from roofline.sweeps.result import Point, Sweep
from roofline.sweeps.stored import Progress, Stored, store

__all__ = ["METRICS", "Point", "Reason", "Stored", "Sweep", "sweep"]

IN_MEMORY_BYTES = 4e9  # of columns; more is written to a folder


def sweep(
    model: Any = EXAMPLE_MODEL,
    hw: Any = EXAMPLE_HARDWARE,
    *,
    isl: Any = 1024,
    osl: Any = 256,
    tp: Any = 1,
    pp: Any = 1,
    ep: Any = 1,
    dp: Any = 1,
    cp: Any = 1,
    weights: Any = None,
    kv: Any = None,
    engine: Any = "vllm",
    speculation: Any = None,
    metrics: Iterable[str] | None = None,
    together: Iterable[str] = (),
    out: str | Path | None = None,
    progress: bool | Progress = False,
    cluster: Any = None,
    specs: str | Path | None = None,
    **numbers: Any,
) -> Sweep | Stored:
    """Every combination of the inputs that are given as lists, evaluated as arrays.

    Args:     model, hw, tp, pp, ep, dp, cp, weights, kv, engine, speculation: as in `estimate`, each a value or a list
              ('none' among others for plain decoding); isl, osl,
              and as further keywords one of batch, concurrency and rate_per_s, cached, usd_per_h and scheduler knobs
              (token_budget ...): numbers, lists or arrays; metrics: columns, see METRICS, also `ttft_p90_s` and the
              like; together: numeric names that run in pairs instead of all combinations; out: folder for a sweep
              larger than memory, which an interrupted call can go on with; progress: a bar, or a function of (done,
              total); cluster: a dask.distributed Client
    Returns:  Sweep, or Stored with `out`; points that cannot be run are NaN and `reasons` says why
    Assumes:  as `estimate`; a point has the same numbers as `estimate` of its inputs
    Errors:   InputError, UnknownNameError
    """
    inputs = {"model": model, "hw": hw, "tp": tp, "pp": pp, "ep": ep, "dp": dp, "cp": cp, "weights": weights, "kv": kv,
              "engine": engine, "speculation": speculation, "isl": isl, "osl": osl, **numbers}  # fmt: skip
    points = grid_of(inputs, together, specs)
    wanted = _metrics(metrics, points)
    with Bar(progress, points.size) as told:
        if out is not None:
            return store(points, wanted, out, told, cluster)
        if points.size * (8 * len(wanted) + 2) > IN_MEMORY_BYTES:
            raise InputError(f"{points.size:,} points do not fit in memory; give out='folder' to write them to parquet")
        return _evaluated(points, wanted, told, cluster)


def _metrics(names: Iterable[str] | None, points: Grid) -> tuple[str, ...]:
    chosen = DEFAULT if names is None else (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))
    for name in map(str, chosen):
        metric(name)
        if points.load == "batch" and "_p" in name and name.rsplit("_p", 1)[1][0].isdigit():
            raise InputError(f"{name}: percentiles need concurrency or rate_per_s; a static batch has none")
    return chosen


def _evaluated(points: Grid, metrics: tuple[str, ...], progress: Progress | None, cluster: Any) -> Sweep:
    columns = {name: np.empty(points.reduced()) for name in metrics}
    reasons = np.empty(points.reduced(), np.int16)
    messages: dict[int, str] = {}
    done = 0
    every = _remote(points, metrics, cluster) if cluster else evaluate_blocks(points, points.blocks(), metrics)
    for block, found, flags, message in every:
        at = (block.case, *block.slices)
        for name in metrics:
            columns[name][at] = found[name]
        reasons[at] = flags
        if message:
            messages[block.case] = message
        done += block.size
        if progress is not None:
            progress(done, points.size)
    shape = points.shape
    return Sweep(points, {n: c.reshape(shape) for n, c in columns.items()}, reasons.reshape(shape), messages)


def _piece(points: Grid, blocks: list[Block], metrics: tuple[str, ...]) -> list[tuple]:
    """What one worker does: some blocks of one deployment."""
    return list(evaluate_blocks(points, blocks, metrics))


def _remote(points: Grid, metrics: tuple[str, ...], cluster: Any):
    by_case: dict[int, list[Block]] = {}
    for block in points.blocks():
        by_case.setdefault(block.case, []).append(block)
    pieces = [blocks[i : i + 16] for blocks in by_case.values() for i in range(0, len(blocks), 16)]
    for future in [cluster.submit(_piece, points, blocks, metrics, pure=False) for blocks in pieces]:
        yield from future.result()


class Bar:
    """A progress bar on standard error while a sweep runs, or the caller's own function."""

    def __init__(self, progress: bool | Progress, total: int):
        self.given, self.total, self.bar = progress, total, None

    def __enter__(self) -> Progress | None:
        if not self.given:
            return None
        if callable(self.given):
            return self.given
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("points"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self.bar.start()
        task = self.bar.add_task("points", total=self.total)
        return lambda done, total: self.bar.update(task, completed=done)

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()
