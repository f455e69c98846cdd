"""The schema of a hardware YAML, and what its numbers mean.

Conventions: peaks are dense (never 2:4 sparse) with FP32 accumulation; link bandwidths are of one device in one
direction; `usable` memory is what the driver offers to a process before any runtime context. Each block names its
source; `unverified` lists fields whose value the source does not carry.
"""

from __future__ import annotations

import datetime
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from roofline.errors import SpecError
from roofline.units import Bytes, BytesPerS, FlopPerS, Hertz, Seconds, Watts

Confidence = Literal[
    "A", "B", "C"
]  # A: vendor figure seen in two sources; B: one source, or arithmetic; C: partly recalled
Count = Annotated[int, Field(strict=True, gt=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Text = Annotated[str, Field(min_length=1, max_length=1000)]

ComputeFormat = Literal["fp64", "fp64_matrix", "fp32", "tf32", "bf16", "fp16", "fp8", "fp6", "fp4", "int8", "int4"]

# A block-scaled format runs at the rate of its element type, but only where the matrix unit takes its scales.
BLOCK_SCALED = {"nvfp4": "fp4", "mxfp4": "fp4", "mxfp6": "fp6", "mxfp8": "fp8"}
BlockScaled = Literal["nvfp4", "mxfp4", "mxfp6", "mxfp8"]

# What a device computes in when its matrix unit lacks a format: the first of the list that it has. Narrow operands are
# widened on the fly to bf16 (weight-only kernels: Marlin for fp8 and 4-bit on Ampere, mxfp4 on Hopper), never narrowed.
_WIDE = ("bf16", "fp16", "fp32")
COMPUTES_IN: dict[str, tuple[str, ...]] = {
    "fp64": ("fp64_matrix", "fp64"),
    "fp64_matrix": ("fp64_matrix", "fp64"),
    "fp32": ("fp32", "tf32", "bf16", "fp16"),  # TPUs emulate fp32 with several bf16 passes: optimistic there
    "tf32": ("tf32", "fp32", "bf16", "fp16"),
    "bf16": ("bf16", "fp16", "fp32"),  # Volta and Turing have fp16 tensor cores only
    "fp16": ("fp16", "bf16", "fp32"),
} | {narrow: (narrow, *_WIDE) for narrow in ("fp8", "fp6", "fp4", "int8", "int4", *BLOCK_SCALED)}


class Block(BaseModel):
    """A group of facts: immutable, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Sourced(Block):
    """A block that names its sources (keys of the file's `sources`)."""

    source: Annotated[tuple[Text, ...], Field(min_length=1)]
    confidence: Confidence | None = None  # where it differs from the file's

    @model_validator(mode="before")
    @classmethod
    def _one_source(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("source"), str):
            data = data | {"source": [data["source"]]}
        return data


class Memory(Sourced):
    """The memory that holds weights and cache: HBM, GDDR, LPDDR, or SRAM where there is nothing else."""

    capacity: Bytes  # as the label says it
    type: Text
    bandwidth: BytesPerS
    bandwidth_rival: BytesPerS | None = None  # another published figure, not used
    best_read: BytesPerS | None = None  # fastest read found by experiment: a ceiling for efficiency
    usable: Bytes | None = None  # total that a process sees (torch, cudaMemGetInfo)
    driver_total: Bytes | None = None  # total that the driver reports (nvidia-smi)
    unified: bool = False  # shared with the CPU and the operating system
    gpu_fraction: Fraction | None = None  # share of a unified memory that the GPU may use by default
    inline_ecc: bool = False  # error-correcting codes lie in the memory itself: 1/16 of it, and of what crosses its bus

    @model_validator(mode="after")
    def _consistent(self) -> Memory:
        if self.gpu_fraction is not None and not self.unified:
            raise ValueError("gpu_fraction is for unified memory only; set unified: true or give usable")
        if self.best_read is not None and self.best_read > self.bandwidth:
            raise ValueError("best_read is above bandwidth")
        for name in ("usable", "driver_total"):
            value = getattr(self, name)
            if value is not None and not 0.05 * self.capacity <= value <= 1.1 * self.capacity:
                raise ValueError(f"{name} {value:.4g} B does not go with capacity {self.capacity:.4g} B")
        return self


class Compute(Sourced):
    """Peak rates of one device and the caches near them."""

    dense: Annotated[dict[ComputeFormat, FlopPerS], Field(min_length=1)]
    block_scaled: tuple[BlockScaled, ...] = ()  # formats whose scales the matrix unit applies itself
    fp16_sums: FlopPerS | None = None  # of fp16 products that are added up in fp16, where that is more than dense.fp16
    best_matmul: dict[ComputeFormat, FlopPerS] = {}  # fastest matmul found by search over shapes: a ceiling
    cores: Count  # SM, CU, TPC, NeuronCore, TensorCore, CPU core: what runs one thread block at a time
    clock: Hertz | None = None  # reproduces the dense peak where that was checked
    l2: Bytes | None = None  # cache shared by the whole device
    llc: Bytes | None = None  # a further shared level: Infinity Cache, SLC, CMEM, L3, Gaudi SRAM
    sram_per_core: Bytes | None = None  # private per core (NVIDIA: L1 and shared memory together)
    tmem_per_core: Bytes | None = None  # tensor memory of Blackwell SMs

    @model_validator(mode="after")
    def _consistent(self) -> Compute:
        for element in {BLOCK_SCALED[f] for f in self.block_scaled} - set(self.dense):
            raise ValueError(f"block_scaled formats need a rate of their element type: dense.{element} is missing")
        if self.fp16_sums is not None and self.fp16_sums < self.dense.get("fp16", 0):
            raise ValueError("fp16_sums is below dense.fp16, which adds up in FP32")
        for fmt, rate in self.best_matmul.items():
            if rate > self.dense.get(fmt, 0):
                raise ValueError(f"best_matmul.{fmt} is above dense.{fmt}")
        return self


class ScaleUp(Sourced):
    """Links between devices of one domain (NVLink, Infinity Fabric, ICI)."""

    link: Text
    topology: Literal["switch", "mesh", "torus", "bridge", "direct"]
    bandwidth: BytesPerS | None = None  # all links of one device together, one direction
    pair_bandwidth: BytesPerS | None = None  # between one pair, one direction; equals bandwidth behind a switch
    links: Count | None = None
    domain: Count  # devices that reach each other without leaving the fabric
    latency: Seconds | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ScaleUp:
        if self.bandwidth and self.pair_bandwidth and self.pair_bandwidth > self.bandwidth:
            raise ValueError("pair_bandwidth is above bandwidth, the sum over all links")
        return self


class ScaleOut(Sourced):
    """The network between domains, as the usual server has it; share of one device, one direction."""

    nic: Text
    bandwidth: BytesPerS
    latency: Seconds | None = None


class Host(Sourced):
    """The link to the CPU's memory, one direction, after line encoding."""

    link: Text
    bandwidth: BytesPerS | None = None
    peer_to_peer: bool = True  # cards reach each other's memory over it; else they meet in the host's


class Power(Sourced):
    """Board or module power."""

    tdp: Watts


class Achieved(Block):
    """Fitted constants of one kernel model on this device, and how well they predict rows they were not fitted on.

    Written by calibration. `constants` are checked by the kernel model that reads them; `mape` and `bias` are relative
    errors on held-out folds; `bands` give [p10, p90] of measured / predicted by regime.
    """

    format: Text = "any"
    engine: Text = "any"
    kernel: Text = "any"
    constants: dict[Text, FiniteFloat]
    rows: Count | None = None
    mape: Annotated[FiniteFloat, Field(ge=0)] | None = None
    bias: FiniteFloat | None = None
    bands: dict[Text, Annotated[tuple[FiniteFloat, FiniteFloat], Field()]] = {}
    date: datetime.date
    source: Text
    method: Text | None = None
    at_bound: dict[Text, Literal["low", "high"]] = {}  # constants that the fit left on a bound of their model

    @model_validator(mode="after")
    def _ordered(self) -> Achieved:
        for regime, (low, high) in self.bands.items():
            if not 0 < low <= high:
                raise ValueError(f"bands.{regime}: [{low:g}, {high:g}] must be positive and ascending")
        return self


class Accelerator(Block):
    """One device that runs models, in SI units: what `hardware_specs/*/*.yaml` describes."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]*$", max_length=80)]
    title: Text
    aliases: tuple[Text, ...] = ()
    vendor: Text
    kind: Literal[
        "gpu-datacentre",
        "gpu-workstation",
        "soc-desktop",
        "soc-edge",
        "tpu",
        "accelerator-datacentre",
        "accelerator-sram",
        "cpu",
    ]
    architecture: Text
    isa: Text | None = None  # sm_90, gfx942
    form_factor: Text | None = None
    year: Annotated[int, Field(strict=True, ge=2005, le=2100)] | None = None
    confidence: Confidence
    memory: Memory
    compute: Compute
    scale_up: ScaleUp | None = None
    scale_out: ScaleOut | None = None
    host: Host | None = None
    power: Power | None = None
    sources: Annotated[dict[Text, Text], Field(min_length=1)]
    unverified: tuple[Text, ...] = ()  # dotted fields that the sources do not carry or that are recalled
    notes: tuple[Text, ...] = ()
    achieved: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], tuple[Achieved, ...]] = {}

    @model_validator(mode="after")
    def _consistent(self) -> Accelerator:
        for block in self.blocks().values():
            for key in block.source:
                if key not in self.sources:
                    raise ValueError(f"source '{key}' is not among sources: {', '.join(self.sources)}")
        for path in self.unverified:
            if _at(self, path) is None:
                raise ValueError(f"unverified names '{path}', which is not given")
        return self

    def __repr__(self) -> str:
        return f"<Accelerator {self.name}: {self.title}>"

    def blocks(self) -> dict[str, Sourced]:
        """The sourced blocks that are present, by field name."""
        fields = ("memory", "compute", "scale_up", "scale_out", "host", "power")
        return {name: block for name in fields if (block := getattr(self, name)) is not None}

    # The numbers that formulas ask for, in SI units.

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Peak bandwidth of the memory that holds weights and cache [B/s]."""
        return self.memory.bandwidth

    @property
    def usable_bytes(self) -> float:
        """Memory that a process sees before any runtime context [B]: never silently the label read as GiB."""
        m = self.memory
        if m.usable is not None:
            return m.usable
        if m.gpu_fraction is not None:
            return m.gpu_fraction * m.capacity
        return m.driver_total if m.driver_total is not None else m.capacity

    def compute_format(self, fmt: str) -> str:
        """The format in which this device multiplies operands of `fmt`: a key of `compute.dense`; see COMPUTES_IN."""
        chain = COMPUTES_IN.get(fmt)
        if chain is None:
            raise SpecError(f"unknown compute format '{fmt}'; known: {', '.join(COMPUTES_IN)}")
        for candidate in chain:
            if candidate in self.compute.block_scaled:
                return BLOCK_SCALED[candidate]
            if candidate in self.compute.dense:
                return candidate
        raise SpecError(f"{self.name} has no rate for '{fmt}'; it has {', '.join(self.compute.dense)}")

    def is_native(self, fmt: str) -> bool:
        """True where the matrix unit takes `fmt` itself."""
        return fmt in self.compute.dense or fmt in self.compute.block_scaled

    def peak_flops_per_s(self, fmt: str) -> float:
        """Dense peak for operands of `fmt` on both sides [FLOP/s], in the format of `compute_format`.

        `fmt` is what enters the matrix unit, not how weights are stored: 4-bit weights with 16-bit activations
        compute in bf16.
        """
        return self.compute.dense[self.compute_format(fmt)]

    def ridge_point(self, fmt: str = "bf16") -> float:
        """Arithmetic intensity at which compute and memory take equally long [FLOP/B].

        Formula:  peak / bandwidth
        Args:     fmt, a compute format
        Returns:  [FLOP/B]
        Assumes:  datasheet peaks
        Error:    none: a definition
        Source:   Williams, Waterman, Patterson 2009 (roofline model)
        """
        return self.peak_flops_per_s(fmt) / self.bandwidth_bytes_per_s

    @property
    def sms(self) -> int:
        """Cores that run one thread block at a time (SM, CU, ...)."""
        return self.compute.cores

    @property
    def l2_bytes(self) -> float:
        """Cache shared by the whole device [B]; 0 where there is none or it is not known."""
        return self.compute.l2 or 0.0

    @property
    def llc_bytes(self) -> float:
        """Largest cache shared by the whole device [B]; 0 where there is none or it is not known."""
        return max(self.compute.l2 or 0.0, self.compute.llc or 0.0)

    @property
    def domain(self) -> int:
        """Devices in one scale-up domain; 1 where there are no links."""
        return self.scale_up.domain if self.scale_up else 1

    @property
    def host_bytes_per_s(self) -> float | None:
        """Bandwidth to host memory, one direction [B/s]; None where there is no separate host or it is not known."""
        return self.host.bandwidth if self.host else None

    @property
    def peer_to_peer(self) -> bool:
        """Whether devices without links of their own reach each other's memory over the host link."""
        return self.host is None or self.host.peer_to_peer

    @property
    def link_bytes_per_s(self) -> float | None:
        """Bandwidth from one device to its peers, all links, one direction [B/s]; the host link where it has none."""
        return (self.scale_up.bandwidth if self.scale_up else None) or self.host_bytes_per_s

    @property
    def pair_bytes_per_s(self) -> float | None:
        """Bandwidth between one pair of devices, one direction [B/s]; one link of a mesh or torus where not given."""
        up = self.scale_up
        if up is None or up.bandwidth is None or up.pair_bandwidth is not None:
            return (up.pair_bandwidth if up else None) or self.link_bytes_per_s
        return up.bandwidth / up.links if up.topology in ("mesh", "torus") and up.links else up.bandwidth

    @property
    def connected(self) -> bool:
        """Whether a way from one device to another is on record: links, a host link, or a network."""
        return bool(self.link_bytes_per_s or self.scale_out_bytes_per_s)

    @property
    def scale_out_bytes_per_s(self) -> float | None:
        """Network bandwidth of one device, one direction [B/s]; None where no usual server is on record."""
        return self.scale_out.bandwidth if self.scale_out else None

    @property
    def tdp_w(self) -> float | None:
        """Board power [W]; None where it is not published."""
        return self.power.tdp if self.power else None


def _at(value: Any, path: str) -> Any:
    for key in re.split(r"\.", path):
        value = value.get(key) if isinstance(value, dict) else getattr(value, key, None)
    return value
