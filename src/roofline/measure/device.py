"""The devices that torch knows, as far as timing needs them: one small adapter each for CUDA/ROCm, MPS and CPU."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from roofline.errors import InputError
from roofline.measure.interruptions import Interruptions
from roofline.measure.nvml import Sampler, driver_facts, nvml_probe

KINDS = ("auto", "cuda", "rocm", "mps", "cpu")
EVICTED = 2.0  # [-] caches are evicted by reading this many times their size
LARGEST_CACHE = 256 * 2**20  # [B] of MI300X; where the size of the last level is not reported


def load_torch() -> Any:
    """The torch module.

    Errors: InputError that says how to install it
    """
    try:
        import torch
    except ImportError:
        raise InputError(
            "measuring needs torch, which is not installed: pip install 'roofline[measure]' (on a machine without an "
            "NVIDIA GPU install the torch build for it first, see pytorch.org)"
        ) from None
    return torch


class Device:
    """A CPU; the base of the other devices, which differ in how they wait, time and report themselves."""

    kind = "cpu"
    where = "cpu"  # as torch calls it
    graphs = False  # can capture a sequence of launches and replay it as one

    def __init__(self, torch: Any):
        self.torch = torch
        self._evictor: Any = None

    # Time.

    def synchronize(self) -> None:
        """Wait until everything submitted is done."""

    def samples(self, calls: Sequence[Callable[[], object]], *, cold: bool) -> list[float]:
        """Seconds of each call, one after another; caches are evicted before each where `cold`."""
        out = []
        for call in calls:
            if cold:
                self.evict()
            begin = time.perf_counter()
            call()
            out.append(time.perf_counter() - begin)
        return out

    def graphed(self, call: Callable[[], object]) -> Callable[[], object]:
        """The call as one launch where the device can, else the call itself."""
        return call

    def evict(self) -> None:
        """Fill the caches with other data by reading: no dirty lines are left to be written back meanwhile."""
        if self._evictor is None:
            elements = int(EVICTED * self.cache_bytes / 4)
            self._evictor = self.torch.ones(elements, dtype=self.torch.float32, device=self.where)
        self._evictor.sum()

    # Facts.

    @property
    def name(self) -> str:
        """What the device calls itself."""
        return _cpu_name()

    @property
    def cache_bytes(self) -> float:
        """The last level of cache."""
        return _cpu_cache_bytes()

    @property
    def cores(self) -> int:
        """What runs one thread block at a time; of a CPU, the threads that torch uses."""
        return int(self.torch.get_num_threads())

    @property
    def memory_bytes(self) -> float:
        """Memory of the device."""
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))

    def watch(self) -> Sampler | Interruptions:
        """A context that observes the device while something is timed; its `summary()` goes beside the row."""
        return Interruptions()

    def facts(self) -> dict[str, Any]:
        """What a reader of the measurements has to know about where they come from."""
        from roofline import __version__

        versions = {"torch": self.torch.__version__, "python": platform.python_version(), "roofline": __version__}
        return {
            "device": self.name, "kind": self.kind, "cores": self.cores, "cache_bytes": self.cache_bytes,
            "memory_bytes": self.memory_bytes, "system": platform.system(), "versions": versions | self._versions(),
            "load_1min": _load(), "host_cores": os.cpu_count(),
        }  # fmt: skip

    def _versions(self) -> dict[str, str]:
        return {"isa": str(self.torch.backends.cpu.get_cpu_capability())}


class GPU(Device):
    """An NVIDIA GPU, or an AMD one: torch calls both 'cuda'."""

    where = "cuda"
    graphs = True

    def __init__(self, torch: Any, index: int = 0):
        super().__init__(torch)
        self.index = index
        self.kind = "rocm" if torch.version.hip else "cuda"
        self.properties = torch.cuda.get_device_properties(index)
        torch.cuda.set_device(index)

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()

    def samples(self, calls: Sequence[Callable[[], object]], *, cold: bool) -> list[float]:
        pairs = []
        for call in calls:
            if cold:
                self.evict()  # also keeps the queue full, so that the events lie on the device's own clock
            begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            pairs.append((begin, end))
        self.synchronize()
        return [1e-3 * begin.elapsed_time(end) for begin, end in pairs]

    def graphed(self, call: Callable[[], object]) -> Callable[[], object]:
        side = self.torch.cuda.Stream()
        side.wait_stream(self.torch.cuda.current_stream())
        with self.torch.cuda.stream(side):
            for _ in range(3):
                call()
        self.torch.cuda.current_stream().wait_stream(side)
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            call()
        return graph.replay

    @property
    def name(self) -> str:
        return str(self.properties.name)

    @property
    def cache_bytes(self) -> float:
        level2 = float(getattr(self.properties, "L2_cache_size", 0))
        return max(level2, LARGEST_CACHE) if self.kind == "rocm" or not level2 else level2

    @property
    def cores(self) -> int:
        return int(self.properties.multi_processor_count)

    @property
    def memory_bytes(self) -> float:
        return float(self.properties.total_memory)

    def watch(self) -> Sampler:
        return Sampler(nvml_probe(self.index) if self.kind == "cuda" else None)

    def facts(self) -> dict[str, Any]:
        return super().facts() | (driver_facts(self.index) if self.kind == "cuda" else {})

    def _versions(self) -> dict[str, str]:
        v = self.torch.version
        return {"hip": str(v.hip)} if self.kind == "rocm" else {"cuda": str(v.cuda)}


class MPS(Device):
    """The GPU of an Apple chip."""

    kind = "mps"
    where = "mps"

    def synchronize(self) -> None:
        self.torch.mps.synchronize()

    def samples(self, calls: Sequence[Callable[[], object]], *, cold: bool) -> list[float]:
        out = []
        for call in calls:
            if cold:
                self.evict()
            self.synchronize()
            begin = time.perf_counter()
            call()
            self.synchronize()
            out.append(time.perf_counter() - begin)
        return out

    @property
    def cache_bytes(self) -> float:
        return float(LARGEST_CACHE)  # the system-level cache is not reported; at most 96 MB


def open_device(kind: str = "auto") -> Device:
    """The device of that kind; 'auto' is the fastest that torch finds: CUDA or ROCm, then MPS, then the CPU.

    Errors: InputError where torch or the device is not there
    """
    if kind not in KINDS:
        raise InputError(f"device: '{kind}' is not one of {', '.join(KINDS)}")
    torch = load_torch()
    gpu = torch.cuda.is_available()
    mps = hasattr(torch.backends, "mps") and torch.backends.mps.is_available()
    if kind in ("cuda", "rocm", "auto") and gpu:
        found = GPU(torch)
        if kind in ("auto", found.kind):
            return found
        raise InputError(f"device: '{kind}' was asked for, but this torch is built for {found.kind}")
    if kind in ("mps", "auto") and mps:
        return MPS(torch)
    if kind in ("cpu", "auto"):
        return Device(torch)
    raise InputError(f"device: torch {torch.__version__} finds no {kind} device here; try --device cpu")


def busy(facts: dict[str, Any]) -> str | None:
    """A warning where other work runs on the cores that are measured or that launch kernels; else None.

    >>> busy({"load_1min": 6.0, "host_cores": 2})
    'the machine is busy (load 6.0 on 2 cores): times will be too long, and scatter'
    """
    load, cores = facts.get("load_1min"), facts.get("host_cores")
    if load is None or not cores or load < 0.5 * cores:
        return None
    return f"the machine is busy (load {load:.1f} on {cores} cores): times will be too long, and scatter"


def _load() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists() and (found := re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)):
        return found[1].strip()
    return platform.processor() or platform.machine()


def _cpu_cache_bytes() -> float:
    """The largest cache that the system reports; 32 MiB where it reports none."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        number, unit = re.fullmatch(r"(\d+)([KM]?)", path.read_text().strip()).groups()
        sizes.append(float(number) * {"": 1, "K": 2**10, "M": 2**20}[unit])
    return max(sizes, default=32.0 * 2**20)
