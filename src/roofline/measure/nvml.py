"""Clocks, power, temperature, throttling and utilisation of an NVIDIA GPU, sampled beside a measurement.

Utilisation as the driver reports it is the share of time in which any kernel ran: 100 % says nothing about how well
the device is used. It is recorded to show exactly that, beside MFU and MBU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

Probe = Callable[[], Mapping[str, Any]]

# Bits of nvmlDeviceGetCurrentClocksEventReasons that mean: slower than asked for (NVML API reference)
THROTTLES = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal, software",
    0x40: "thermal, hardware",
    0x80: "power brake",
}


def nvml_probe(index: int = 0) -> Probe | None:
    """A function that reads the sensors of GPU `index` once; None where NVML is not to be had."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError:
        return None

    def probe() -> dict[str, Any]:
        readings: dict[str, Callable[[], Any]] = {
            "sm_clock_hz": lambda: 1e6 * pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "memory_clock_hz": lambda: 1e6 * pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            "power_w": lambda: 1e-3 * pynvml.nvmlDeviceGetPowerUsage(handle),
            "temperature_c": lambda: float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
            "gpu_utilisation": lambda: 0.01 * pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "memory_utilisation": lambda: 0.01 * pynvml.nvmlDeviceGetUtilizationRates(handle).memory,
            "throttle": lambda: throttle_reasons(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        }
        out = {}
        for name, read in readings.items():
            try:
                out[name] = read()
            except pynvml.NVMLError:  # a sensor that this board lacks
                continue
        return out

    return probe


def throttle_reasons(bits: int) -> list[str]:
    """What the bits of the driver's event mask say.

    >>> throttle_reasons(0x04 | 0x40)
    ['power cap', 'thermal, hardware']
    """
    return [reason for bit, reason in THROTTLES.items() if bits & bit]


def driver_facts(index: int = 0) -> dict[str, Any]:
    """Driver version, power limit and memory of GPU `index`; empty where NVML is not to be had."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        return {
            "driver": str(pynvml.nvmlSystemGetDriverVersion()),
            "power_limit_w": 1e-3 * pynvml.nvmlDeviceGetEnforcedPowerLimit(handle),
            "memory_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        }
    except ImportError:
        return {}
    except pynvml.NVMLError:
        return {}


class Sampler:
    """Reads a probe every `interval_s` in a thread of its own while the `with` block runs."""

    def __init__(self, probe: Probe | None, interval_s: float = 0.05):
        self.probe, self.interval_s = probe, interval_s
        self.readings: list[Mapping[str, Any]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Sampler:
        if self.probe is not None:
            self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self.readings.append(self.probe())
            if self._stop.wait(self.interval_s):
                return

    def summary(self) -> dict[str, Any]:
        """Medians of what was read, the range of the SM clock, the highest power, and every throttle reason seen."""
        out: dict[str, Any] = {}
        numbers = sorted({k for r in self.readings for k, v in r.items() if isinstance(v, (int, float))})
        for name in numbers:
            values = [float(r[name]) for r in self.readings if name in r]
            out[name] = float(f"{median(values):.5g}")
            if name == "sm_clock_hz":
                out["sm_clock_min_hz"], out["sm_clock_max_hz"] = min(values), max(values)
            if name == "power_w":
                out["power_max_w"] = float(f"{max(values):.5g}")
        reasons = sorted({reason for r in self.readings for reason in r.get("throttle", ())})
        if reasons:
            out["throttle"] = reasons
        return out
