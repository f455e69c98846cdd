"""An accelerator under an engine, as the kernel models see it: peaks, links, and the roofline of one op."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import numpy as np

from roofline.arrays import Array, larger
from roofline.calibrated import Calibrated, calibrated, candidates
from roofline.kernels.chip import Chip
from roofline.kernels.times import OpTime, exactly
from roofline.ops import MATMULS, Collective, Op
from roofline.precision import Format
from roofline.specs.engine import Engine
from roofline.specs.hardware import BLOCK_SCALED, Accelerator

CARDS_PER_HOST = 8  # PCIe cards in one server
ATTENTION_FORMAT = "bf16"  # queries and probabilities are 16 bits wide whatever the cache is


@dataclass(frozen=True)
class Machine:
    """Numeric view of an accelerator and an engine."""

    accelerator: Accelerator
    engine: Engine
    chip: Chip
    _found: dict[tuple, Any] = field(default_factory=dict, compare=False, repr=False)

    def constants(self, op: str, fmt: str, default: Any, kernel: str | None = None) -> Calibrated:
        """The constants of kernel model `op`: see `calibrated`."""
        key = (op, fmt, kernel, type(default))
        if key not in self._found:
            elsewhere = self.engine.step.measured_on.get(op, ())
            self._found[key] = calibrated(self.accelerator, op, fmt, self.stack, default, kernel, elsewhere)
        return self._found[key]

    def kernels(self, op: str, fmt: str, default: Any) -> list[Calibrated]:
        """The constants of all kernels that the engine can choose from: see `candidates`."""
        key = (op, fmt, "all", type(default))
        if key not in self._found:
            self._found[key] = candidates(self.accelerator, op, fmt, self.stack, default)
        return self._found[key]

    @property
    def stack(self) -> str:
        """The engine as kernel tables name it."""
        return {"tensorrt-llm": "trtllm"}.get(self.engine.name, self.engine.name)

    def matmul_flops_per_s(self, fmt: Format) -> float:
        """Peak of a matmul with weights of `fmt` [FLOP/s].

        Weight-only formats multiply in 16 bits; a format that the matrix unit lacks is widened, never narrowed. Sums in
        16 bits count where the engine has them and the device is faster with them.
        """
        operand = self.operand(fmt)
        halves = self.accelerator.compute.fp16_sums if self.engine.step.sums == "fp16" else None
        return halves if halves and operand in ("bf16", "fp16") else self.accelerator.peak_flops_per_s(operand)

    def operand(self, fmt: Format) -> str:
        """The compute format of the operands of a matmul with weights of `fmt`."""
        if fmt.act_bits >= 16 and fmt.bits < 16:
            return "bf16"
        return fmt.name if fmt.name in BLOCK_SCALED else fmt.matmul

    def peak_flops_per_s(self, op: Op) -> float:
        """Peak of the arithmetic that an op is made of [FLOP/s]."""
        if op.kind in MATMULS:
            return self.matmul_flops_per_s(op.weight)
        if op.kind == "index_scores":
            return self.accelerator.peak_flops_per_s("fp8")
        if op.kind == "latent_attention" and self.accelerator.is_native(op.kv.matmul):
            return self.accelerator.peak_flops_per_s(op.kv.matmul)
        return self.accelerator.peak_flops_per_s(ATTENTION_FORMAT)

    def inside_domain(self, op: Collective) -> bool:
        """Whether all ranks of a collective reach each other without the network between nodes.

        Cards without links of their own talk over PCIe; eight of them share a host.
        """
        a = self.accelerator
        return not op.across_nodes and op.ranks <= (a.domain if a.scale_up else max(a.domain, CARDS_PER_HOST))

    def staged(self, op: Collective) -> bool:
        """Whether what the ranks exchange goes through the memory of their host.

        Always where the engine copies it there; else between cards of one host that have neither links nor peer access.
        """
        a = self.accelerator
        if op.pattern == "host_gather":
            return True
        linked = a.scale_up is not None and op.ranks <= a.domain
        return not (linked or a.peer_to_peer or op.across_nodes or op.ranks > CARDS_PER_HOST)

    @property
    def reduces_in_switch(self) -> bool:
        """Whether the scale-up switch adds up (NVLink SHARP: third generation of NVSwitch on, Hopper and later)."""
        a = self.accelerator
        switched = a.scale_up is not None and a.scale_up.topology == "switch"
        return switched and a.architecture in ("Hopper", "Blackwell")

    def link_bytes_per_s(self, op: Collective) -> float:
        """Bandwidth of a rank's links for a collective, one direction [B/s].

        Ranks beyond the scale-up domain talk over the network between nodes; where no network is on record, over the
        host link. What is staged in host memory passes that link.
        """
        a = self.accelerator
        if self.staged(op) and a.host_bytes_per_s:
            return a.host_bytes_per_s
        inside = self.inside_domain(op)
        link = a.link_bytes_per_s if inside else (a.scale_out_bytes_per_s or a.host_bytes_per_s)
        return link or a.bandwidth_bytes_per_s

    def datasheet(self, op: Op) -> OpTime:
        """The roofline of one op: the longest of its FLOPs, bytes and wire bytes at datasheet peaks.

        Source: Williams, Waterman, Patterson 2009
        """
        compute = op.flops / self.peak_flops_per_s(op)
        memory = op.bytes / self.chip.bandwidth_bytes_per_s
        network = self.wire_s(op)
        total = larger(larger(compute, memory), network)
        return OpTime(op, compute, memory, network, 0.0, total, partial(exactly, total), "datasheet")

    def wire_s(self, op: Op) -> Array:
        """Seconds that a collective's bytes take at link bandwidth; of an exchange, in its quickest way."""
        if op.kind == "collective":
            return op.wire_bytes / self.link_bytes_per_s(op)
        if op.kind == "exchange":
            return reduce(np.minimum, [sum(self.wire_s(c) for c in way) for way in op.alternatives])
        return 0.0


_MACHINES: dict[tuple[int, int], Machine] = {}  # keyed by identity: specs are immutable but not hashable


def machine(accelerator: Accelerator, engine: Engine) -> Machine:
    """The machine that an accelerator is under an engine."""
    key = (id(accelerator), id(engine))
    if key not in _MACHINES:
        if len(_MACHINES) >= 256:
            _MACHINES.clear()
        chip = Chip(
            bandwidth_bytes_per_s=accelerator.bandwidth_bytes_per_s,
            sms=float(accelerator.sms),
            l2_bytes=accelerator.l2_bytes,
            link_bytes_per_s=accelerator.link_bytes_per_s or 0.0,
            pair_bytes_per_s=accelerator.pair_bytes_per_s or 0.0,
        )
        _MACHINES[key] = Machine(accelerator, engine, chip)  # holds both, so that their ids stay taken
    return _MACHINES[key]
