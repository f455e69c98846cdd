"""`roofline measure`: times every case of a run and writes each as soon as it is known."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from roofline.errors import InputError, RooflineError
from roofline.measure.cases import Case, cases, op_of, scope
from roofline.measure.ceilings import utilisation
from roofline.measure.collectives import time_collectives
from roofline.measure.device import Device, busy, open_device
from roofline.measure.identify import hardware_name, is_empirical
from roofline.measure.kernels import KERNELS, Work
from roofline.measure.records import Log
from roofline.measure.timing import Timing, summary, time_calls
from roofline.measure.transformer import RandomTransformer, enough_layers, truncated
from roofline.specs.hardware import Accelerator
from roofline.specs.library import hardware
from roofline.specs.refs import load_model

Progress = Callable[[int, int, str], None]  # cases done, cases in all, what comes next
CACHED = 4.0  # [-] below this many times the cache, bytes may come from it: no bandwidth ceiling then


def measure(
    device: str | Device = "auto",
    *,
    out: str | Path,
    quick: bool = False,
    only: Sequence[str] = (),
    resume: bool = False,
    hw: str | None = None,
    progress: Progress | None = None,
    todo: Sequence[Case] | None = None,
) -> Path:
    """Measure kernels and small whole models on `device`, and return the file that holds the results.

    Args:     device: 'auto', 'cuda', 'rocm', 'mps', 'cpu', or an open Device; out: JSON lines, rewritten after every
              case; quick: a minute instead of tens; only: some of `cases.OPS`; resume: go on with the file; hw: name in
              the library where it is not recognised; progress: called before every case; todo: other cases
    Returns:  Path
    Errors:   InputError (no torch, no such device, the file exists), UnknownNameError
    """
    where = open_device(device) if isinstance(device, str) else device
    facts = where.facts()
    name = hw or hardware_name(facts["device"], facts["cores"] if where.kind == "cpu" else None)
    accelerator = hardware(name) if name else None
    count = devices(where)
    if todo is None:
        todo = cases(where.kind, where.memory_bytes, quick=quick, devices=count, only=only)
    log = Log(out, resume=resume)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    session = log.start(
        facts | {"date": today, "hardware": name, "devices": count, "quick": quick, "busy": busy(facts)}
    )
    done = log.done()
    left = [c for c in todo if c.key not in done]
    budget_s = scope(where.kind, where.memory_bytes, quick=quick).budget_s
    finished = len(todo) - len(left)
    for _, group in groupby(left, key=_together):
        batch = list(group)
        together = batch[0].op == "collective"
        if progress:
            progress(finished, len(todo), f"{len(batch)} collectives" if together else batch[0].key)
        if together:
            _collectives(where, batch, log, session, accelerator)
        else:
            _one(where, batch[0], log, session, accelerator, budget_s)
        finished += len(batch)
    if progress:
        progress(len(todo), len(todo), "done")
    return Path(out)


def _together(case: Case) -> Any:
    """Collectives of so many ranks run in one set of processes; everything else alone."""
    return (case.op, case.shape["ranks"] if case.op == "collective" else case.key)


def devices(where: Device) -> int:
    """How many devices of the kind there are; collectives over CPU processes say nothing about serving."""
    return int(where.torch.cuda.device_count()) if where.kind in ("cuda", "rocm") else 1


def _one(where: Device, case: Case, log: Log, session: int, accelerator: Accelerator | None, budget_s: float) -> None:
    watch = where.watch()
    try:
        with watch:
            shape, timing = time_case(where, case, budget_s)
        check(case, shape, timing, accelerator, where.cache_bytes)
    except (RuntimeError, NotImplementedError, ValueError, RooflineError) as error:  # what torch raises for 'cannot'
        where_ = " ".join(str(error).split())[:300]
        log.add("skipped", {"case": case.key, "op": case.op, "session": session, "reason": where_})
        return
    _add(log, case, shape, timing, session, watch.summary())


def _add(log: Log, case: Case, shape: dict, timing: Timing, session: int, sensors: dict) -> None:
    log.add(
        "row",
        {
            "case": case.key,
            "op": case.op,
            "session": session,
            "shape": shape,
            "timing": timing.to_dict(),
            "sensors": sensors,
        },
    )


def time_case(where: Device, case: Case, budget_s: float) -> tuple[dict[str, Any], Timing]:
    """The shape of a case as it was run, and its timing."""
    if case.op == "model":
        return _model(where, case, budget_s)
    work: Work = KERNELS[case.op](where, case.shape)
    return dict(case.shape), time_calls(where, work.calls, budget_s=budget_s, cold=work.cold, per=work.per)


def _model(where: Device, case: Case, budget_s: float) -> tuple[dict[str, Any], Timing]:
    s = dict(case.shape)
    whole = load_model(s["model"]).model
    s["layers"] = int(s["layers"]) or enough_layers(whole, where)
    runner = RandomTransformer(
        truncated(whole, s["layers"]), where, batch=int(s["batch"]), context=int(s["context"]), dtype=s["dtype"]
    )
    call = runner.decode if s["phase"] == "decode" else runner.prefill
    s["graph"] = bool(where.graphs and s["phase"] == "decode" and not runner.data_dependent)
    return s, time_calls(where, [where.graphed(call) if s["graph"] else call], budget_s=budget_s)


def _collectives(where: Device, batch: list[Case], log: Log, session: int, accelerator: Accelerator | None) -> None:
    shapes = [c.shape for c in batch]
    for case, samples in zip(batch, time_collectives(where.kind, shapes), strict=True):
        shape = dict(case.shape) | {"library": "nccl", "mode": "stream"}
        try:
            if isinstance(samples, str):
                raise InputError(samples)
            timing = summary(samples)
            check(case, shape, timing, accelerator, where.cache_bytes)
        except RooflineError as error:
            log.add("skipped", {"case": case.key, "op": case.op, "session": session, "reason": str(error)})
            continue
        _add(log, case, shape, timing, session, {})


def check(case: Case, shape: dict, timing: Timing, accelerator: Accelerator | None, cache_bytes: float) -> None:
    """Nothing, where a row keeps within the peaks of its device.

    Errors: InputError naming the ceiling that it exceeds
    """
    op = op_of(case.op, shape)
    if accelerator is None or op is None or is_empirical(accelerator):
        return
    if op.flops:
        fmt = shape.get("dtype", "bf16")
        peak = accelerator.peak_flops_per_s({"fp16": "fp16"}.get(fmt, fmt))
        utilisation(float(op.flops) / timing.time_s, peak, "FLOP/s", case.key, accelerator.name)
    if op.bytes > CACHED * cache_bytes:
        peak = accelerator.bandwidth_bytes_per_s
        utilisation(float(op.bytes) / timing.time_s, peak, "B/s", case.key, accelerator.name)
