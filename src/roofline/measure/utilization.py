"""Decodes a real model for some seconds and says how well the device was used, beside what the cost model expects."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from roofline.deployment import Deployment
from roofline.errors import check_number
from roofline.measure.ceilings import utilisation
from roofline.measure.device import Device, open_device
from roofline.measure.identify import accelerator_of, empirical_spec, hardware_name, is_empirical
from roofline.measure.interruptions import DISTURBED
from roofline.measure.kernels import bandwidth, gemm, launch
from roofline.measure.profile import torch_engine
from roofline.measure.timing import time_calls
from roofline.measure.transformer import RandomTransformer, truncated
from roofline.parallel import Plan
from roofline.precision import precision_named
from roofline.specs.hardware import Accelerator
from roofline.specs.library import hardware
from roofline.specs.model import Model
from roofline.specs.refs import load_model
from roofline.step import StepTime


@dataclass(frozen=True, slots=True)
class DecodeUtilization:
    """Measured and predicted decode; MBU and MFU count what a step must read and multiply, over the peaks."""

    model: str
    layers: int
    hardware: str
    batch: int
    context: int
    steps: int
    tokens_per_s: float
    step_s: float  # median
    step_p10_s: float
    step_p90_s: float
    mbu: float
    mfu: float
    predicted_tokens_per_s: float
    predicted_mbu: float
    predicted_mfu: float
    evidence: str  # measured | transferred | datasheet: what stands behind the prediction
    sensors: dict[str, Any]  # what the device's own sensors said: NVML of an NVIDIA GPU

    @property
    def error(self) -> float:
        """Predicted over measured time of a step, minus one."""
        return self.tokens_per_s / self.predicted_tokens_per_s - 1.0

    def __str__(self) -> str:
        rows = [
            ("tokens/s", f"{self.tokens_per_s:.4g}", f"{self.predicted_tokens_per_s:.4g}"),
            ("step", f"{1e3 * self.step_s:.4g} ms", f"{1e3 * self.batch / self.predicted_tokens_per_s:.4g} ms"),
            ("MBU", f"{self.mbu:.1%}", f"{self.predicted_mbu:.1%}"),
            ("MFU", f"{self.mfu:.2%}", f"{self.predicted_mfu:.2%}"),
        ]
        busy = self.sensors.get("gpu_utilisation")
        if busy is not None:
            rows.append(("NVML utilisation", f"{busy:.0%}", "of the time some kernel ran"))
        head = (
            f"{self.model}, {self.layers} layers, on {self.hardware}: batch {self.batch} at {self.context} tokens, "
            f"{self.steps} steps"
        )
        lines = [f"{name:18}{measured:>14}{predicted:>14}" for name, measured, predicted in rows]
        rate = self.sensors.get("interruptions_per_s", 0.0)
        if rate > DISTURBED:
            lines.append(
                f"other work took the processor away {rate:.0f} times a second: measure again on a quiet machine"
            )
        return "\n".join([head, f"{'':18}{'measured':>14}{'predicted':>14}", *lines])


def measure_decode_utilization(
    model: str | Model,
    hw: str | Accelerator | None = None,
    seconds: float = 5.0,
    batch: int = 1,
    *,
    context: int = 1024,
    layers: int | None = None,
    dtype: str = "bf16",
    device: str | Device = "auto",
) -> DecodeUtilization:
    """Decode a model with random weights for some seconds: tokens/s, MBU, MFU, NVML utilisation, and the prediction.

    Formula:  MBU = (weight bytes + KV bytes of a step) / (median step time x peak bandwidth);
              MFU = 2 x active matmul weights x batch / (median step time x dense peak)
    Args:     model: name or spec; hw: its name in the library or a spec, None: recognised, else peaks as measured
              here and now; seconds of decoding [s]; batch [sequences]; context: cached tokens of each, held constant;
              layers: only the first so many, None: all; dtype of weights and cache; device: as for `measure`
    Returns:  DecodeUtilization
    Errors:   InputError, UnsupportedError (layers that cannot be built), InfeasibleError (does not fit)
    """
    seconds = check_number("seconds", seconds, low=0.01, high=3600)
    batch = int(check_number("batch", batch, low=1, high=65536, integer=True))
    context = int(check_number("context", context, low=1, high=2**24, integer=True))
    where = open_device(device) if isinstance(device, str) else device
    whole = load_model(model).model
    if layers is not None:
        layers = int(check_number("layers", layers, low=1, high=whole.stored_layers, integer=True))
        whole = truncated(whole, layers)
    accelerator = hw if isinstance(hw, Accelerator) else _accelerator(where, hw, dtype)
    runner = RandomTransformer(whole, where, batch=batch, context=context, dtype=dtype)
    graph = bool(where.graphs and not runner.data_dependent)
    times, sensors = _decode(where, where.graphed(runner.decode) if graph else runner.decode, seconds)
    step_s, low, high = (float(q) for q in np.quantile(times, (0.5, 0.1, 0.9)))
    where_run = Deployment(whole, accelerator, Plan(), precision_named(dtype), torch_engine(_launch_s(where, graph)))
    predicted = where_run.decode_step(float(batch), float(context - 1))
    needed, flops = _work(predicted)
    shares = []
    for done, peak, unit in (
        (needed, accelerator.bandwidth_bytes_per_s, "B/s"),
        (flops, accelerator.peak_flops_per_s(dtype), "FLOP/s"),
    ):
        if not is_empirical(accelerator):  # rates that were measured can be exceeded
            utilisation(done / step_s, peak, unit, f"decode of {whole.name}", accelerator.name)
        shares.append(done / peak)
    expected_s = float(predicted.total_s)
    return DecodeUtilization(
        model=whole.name, layers=whole.stored_layers, hardware=accelerator.name, batch=batch, context=context,
        steps=len(times), tokens_per_s=batch / step_s, step_s=step_s, step_p10_s=low, step_p90_s=high,
        mbu=shares[0] / step_s, mfu=shares[1] / step_s, predicted_tokens_per_s=batch / expected_s,
        predicted_mbu=shares[0] / expected_s, predicted_mfu=shares[1] / expected_s, evidence=predicted.evidence,
        sensors=sensors,
    )  # fmt: skip


def _launch_s(where: Device, graph: bool) -> float:
    """Fixed time of one small kernel, on its own or in a graph."""
    work = launch(where, {"mode": "graph" if graph else "stream"})
    return time_calls(where, work.calls, budget_s=0.05, cold=False, per=work.per).time_s


def _work(step: StepTime) -> tuple[float, float]:
    """Bytes of weights and cache that a step has to read, and FLOPs of its matmuls."""
    return float(step.weight_bytes + step.kv_bytes), float(step.matmul_flops)


def _decode(where: Device, call: Any, seconds: float) -> tuple[list[float], dict[str, Any]]:
    for _ in range(3):
        call()
    where.synchronize()
    times: list[float] = []
    with where.watch() as watch:
        begin = time.perf_counter()
        while not times or time.perf_counter() - begin < seconds:
            times += where.samples([call], cold=False)
    return times, watch.summary()


def _accelerator(where: Device, hw: str | None, dtype: str) -> Accelerator:
    """The named or recognised hardware; else a spec from a quick look at bandwidth and matmul."""
    facts = where.facts()
    name = hw or hardware_name(facts["device"], facts["cores"] if where.kind == "cpu" else None)
    if name:
        return hardware(name)
    size, side = 4.0 * where.cache_bytes, 2048.0
    read = time_calls(where, bandwidth(where, {"kernel": "read", "bytes": size}).calls, budget_s=0.3)
    product = time_calls(where, gemm(where, {"dtype": dtype, "m": side, "n": side, "k": side}).calls, budget_s=0.3)
    rates = {dtype: 2.0 * side**3 / product.p10_s}
    return accelerator_of(empirical_spec(facts | {"date": "just now"}, size / read.p10_s, rates))
