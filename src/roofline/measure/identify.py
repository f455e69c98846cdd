"""Which hardware spec a device is; or a spec made of the rates it reached, where the library has none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from roofline.errors import InputError
from roofline.specs.hardware import Accelerator
from roofline.specs.library import build, canonical, hardware
from roofline.units import format as quantity

# What drivers call a device -> name in the library; the first that is found in the name decides.
NAMES = (
    (r"GB300", "gb300"), (r"GB200", "gb200"), (r"B300", "b300-sxm"), (r"B200", "b200-sxm"),
    (r"GH200.*96|GH200 480", "gh200-96gb"), (r"GH200", "gh200"),
    (r"H200 NVL", "h200-nvl"), (r"H200", "h200-sxm"), (r"H100 NVL", "h100-nvl"), (r"H100 PCIe", "h100-pcie"),
    (r"H100|H800", "h100-sxm"), (r"\bH20\b", "h20"),
    (r"A100-SXM.*40", "a100-sxm-40gb"), (r"A100-PCI.*40", "a100-pcie-40gb"), (r"A100-PCI|A100.*PCIe", "a100-pcie"),
    (r"A100|A800", "a100-sxm"), (r"\bA40\b", "a40"), (r"\bA10\b", "a10"),
    (r"RTX PRO 6000.*Server", "rtx-pro-6000-server"), (r"RTX PRO 6000", "rtx-pro-6000"),
    (r"RTX 6000 Ada", "rtx-6000-ada"), (r"RTX 5090", "rtx-5090"), (r"RTX 4090", "rtx-4090"),
    (r"RTX 3090(?! Ti)", "rtx-3090"),
    (r"L40S", "l40s"), (r"\bL4\b", "l4"), (r"\bT4\b", "t4"), (r"GB10", "gb10"), (r"Thor", "jetson-thor"),
    (r"Orin", "jetson-orin-64gb"), (r"V100-SXM2-32", "v100-sxm-32gb"), (r"V100-SXM2-16", "v100-sxm-16gb"),
    (r"V100-PCIE-32", "v100-pcie-32gb"),
    (r"MI355X", "mi355x"), (r"MI325X", "mi325x"), (r"MI300X", "mi300x"), (r"MI250X", "mi250x"), (r"MI210", "mi210"),
    (r"7900 XTX", "rx-7900-xtx"), (r"EPYC 9654\b", "epyc-9654"), (r"EPYC 9965\b", "epyc-9965"),
    (r"Apple M4 Max", "m4-max"), (r"Apple M4 Pro", "m4-pro"), (r"Apple M3 Ultra", "m3-ultra"),
    (r"Apple M3 Max", "m3-max"),
    (r"Apple M3$", "m3"), (r"Apple M2 Ultra", "m2-ultra"), (r"Apple M2 Max", "m2-max"), (r"Apple M1 Ultra", "m1-ultra"),
    (r"Apple M1 Max", "m1-max"),
)  # fmt: skip
MEASURED = "measured"  # source key of a spec whose peaks are the highest rates that were reached
COMPUTE = ("bf16", "fp16", "fp32", "fp8", "int8")


def hardware_name(device: str, cores: int | None = None) -> str | None:
    """The name in the library of what a driver calls `device`; None where it is not there.

    A virtual machine that sees some cores of a server CPU is not that CPU: with `cores` a CPU must have them all.

    >>> hardware_name("NVIDIA H100 80GB HBM3"), hardware_name("NVIDIA A100-PCIE-40GB"), hardware_name("AMD EPYC")
    ('h100-sxm', 'a100-pcie-40gb', None)
    """
    name = next((name for pattern, name in NAMES if re.search(pattern, device, re.IGNORECASE)), None)
    if name is None:
        return None
    spec = hardware(name)
    if spec.kind == "cpu" and cores is not None and cores < spec.compute.cores:
        return None
    return name


def empirical_spec(session: Mapping[str, Any], bandwidth_bytes_per_s: float, peaks: Mapping[str, float]) -> dict:
    """A hardware spec as data whose peaks are the highest rates that were measured.

    Calibrated against it, efficiencies are relative to what the device was seen to do, not to what it could.

    Args:     session: of the measurement file; bandwidth [B/s]; peaks: format -> [FLOP/s]
    """
    missing = [what for what, found in (("memory bandwidth", bandwidth_bytes_per_s), ("matmul", peaks)) if not found]
    if missing:
        raise InputError(
            f"{session['device']} is not in the library, and the file measures no {' and no '.join(missing)}: name the "
            "hardware (--hw), or measure the ops bandwidth and gemm, too"
        )
    kind = {"cpu": "cpu", "mps": "soc-desktop"}.get(session["kind"], "gpu-datacentre")
    return {
        "name": canonical(session["device"])[:80],
        "title": f"{session['device']}, {session['cores']} cores, as measured",
        "vendor": session["device"].split(" ")[0],
        "kind": kind,
        "architecture": session["kind"],
        "confidence": "C",
        "memory": {
            "capacity": quantity(session["memory_bytes"], "B", digits=6),
            "type": "unknown",
            "bandwidth": quantity(bandwidth_bytes_per_s, "B/s", digits=6),
            "unified": session["kind"] in ("cpu", "mps"),
            "source": MEASURED,
        },
        "compute": {
            "dense": {fmt: quantity(rate, "FLOP/s", digits=6) for fmt, rate in peaks.items() if fmt in COMPUTE},
            "cores": int(session["cores"]),
            "llc" if kind == "cpu" else "l2": quantity(session["cache_bytes"], "B", digits=6),
            "source": MEASURED,
        },
        "sources": {MEASURED: f"roofline measure, {session['date']}: highest rates reached, not a datasheet"},
    }


def is_empirical(accelerator: Accelerator) -> bool:
    """Whether the peaks of a spec are rates that were measured, not a datasheet's."""
    return MEASURED in accelerator.memory.source


def accelerator_of(data: Mapping[str, Any]) -> Accelerator:
    """The accelerator that spec data describes."""
    return build(Accelerator, dict(data), where=str(data.get("name", "measured device")))
