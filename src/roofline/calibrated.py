"""Which constants a kernel model uses on an accelerator: its own, a relative's, or those of no device in particular."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from roofline.errors import SpecError
from roofline.specs.hardware import Accelerator, Achieved
from roofline.specs.library import hardware

# Whose constants a part without its own takes, most alike first: same instruction set, then the architecture before.
# Constants are fractions of datasheet peaks and times of fixed work, so they carry over.
RELATIVES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    # architecture, start of isa, donors
    ("Hopper", "", ("h100-sxm",)),
    ("Blackwell", "sm_10", ("b200-sxm", "gb200")),
    ("Blackwell", "", ("rtx-pro-6000-server",)),
    ("Ada", "", ("l40s",)),
    ("Ampere", "sm_80", ("a100-sxm",)),
    ("Ampere", "", ("l40s", "a100-sxm")),
    ("Turing", "", ("l40s", "a100-sxm")),
    ("Volta", "", ("a100-sxm",)),
)

# A storage or cache format that was not measured is priced as the most alike that was.
ALIKE: dict[str, tuple[str, ...]] = {
    "fp16": ("bf16",),
    "fp32": ("bf16",),
    "fp8_channel": ("fp8",),
    "mxfp8": ("fp8_block", "fp8"),
    "fp8_block": ("fp8",),
    "int8": ("w8a8_int8", "fp8"),
    "w8a8_int8": ("fp8",),
    "w8a16": ("w4a16", "bf16"),
    "w4a16": ("w8a16", "bf16"),
    "w4a16_mxfp4": ("w4a16", "bf16"),
    "w4a8_mxfp4_mxfp8": ("nvfp4", "fp8_block", "fp8"),
    "nvfp4": ("fp8_block", "fp8"),
    "fp8": ("bf16",),
    "bf16_fp8kv": ("fp8", "bf16"),
}


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Constants of one kernel model, the band around its predictions, and what stands behind them."""

    constants: Any
    bands: dict[str, tuple[float, float]]  # regime -> [p10, p90] of measured / predicted
    evidence: str  # measured | transferred | datasheet
    donor: str  # the accelerator whose measurements they come from; "" for defaults
    format: str  # the format they were measured in
    entry: Achieved | None


def alike(fmt: str) -> list[str]:
    """`fmt` and the formats that stand in for it, nearest first.

    >>> alike("w4a16")
    ['w4a16', 'w8a16', 'bf16']
    """
    chain = [fmt]
    for name in chain:
        chain += [other for other in ALIKE.get(name, ()) if other not in chain]
    return chain


def relatives(accelerator: Accelerator) -> tuple[str, ...]:
    """Names of accelerators whose constants this one may take, nearest first; itself is not among them."""
    for architecture, isa, donors in RELATIVES:
        if accelerator.architecture == architecture and (accelerator.isa or "").startswith(isa):
            return tuple(d for d in donors if d != accelerator.name)
    return ()


def calibrated(
    accelerator: Accelerator,
    op: str,
    fmt: str,
    engine: str,
    default: Any,
    kernel: str | None = None,
    measured_on: tuple[str, ...] = (),
) -> Calibrated:
    """The constants of kernel model `op` for operands of `fmt` under `engine`.

    A part's own entry for the format comes first (the engine's, else the engine-agnostic one), then the nearest
    relative's, then a format alike, then `default`.

    Args:     default: an instance of the model's constants class, used where nothing was measured; kernel: only entries
              of this kernel label, or None for any; measured_on: the only devices whose entries are of the kernels in
              question, the first the nearest
    Returns:  Calibrated
    Errors:   SpecError where an entry has constants that the model does not know
    """
    return choose(accelerator, op, fmt, default, lambda found: _entry(found, engine, kernel), measured_on)


def choose(
    accelerator: Accelerator,
    op: str,
    fmt: str,
    default: Any,
    pick: Callable[[list[Achieved]], Achieved | None],
    measured_on: tuple[str, ...] = (),
) -> Calibrated:
    """Constants of the entry that `pick` takes from the entries of one format: own, a relative's, a format alike's."""
    for name, source in _places(accelerator, fmt, measured_on):
        entry = pick([e for e in source.achieved.get(op, ()) if e.format == name])
        if entry is not None:
            return _calibrated(entry, default, source, op, accelerator)
    return Calibrated(default, {}, "transferred", "", fmt, None)


def candidates(accelerator: Accelerator, op: str, fmt: str, engine: str, default: Any) -> list[Calibrated]:
    """Constants of every kernel that `engine` can choose from: for models that take the fastest, point by point.

    An engine without entries of its own has those of all engines.
    """
    for name, source in _places(accelerator, fmt):
        found = [e for e in source.achieved.get(op, ()) if e.format == name]
        single = [e for e in found if e.engine == engine] or [e for e in found if e.engine != "any"] or found
        if single:
            return [_calibrated(e, default, source, op, accelerator) for e in single]
    return [Calibrated(default, {}, "transferred", "", fmt, None)]


def _places(
    accelerator: Accelerator, fmt: str, measured_on: tuple[str, ...] = ()
) -> Iterator[tuple[str, Accelerator]]:
    """Where to look for entries, best first: (format, accelerator)."""
    sources = [accelerator, *(hardware(name) for name in relatives(accelerator))]
    if measured_on:
        sources = [s for s in sources if s.name in measured_on] or [hardware(name) for name in measured_on]
    for name in alike(fmt):
        for source in sources:
            yield name, source


def _calibrated(entry: Achieved, default: Any, source: Accelerator, op: str, target: Accelerator) -> Calibrated:
    constants = _record(type(default), tuple(entry.constants.items()), f"{source.name}: achieved.{op}")
    if source is target:
        return Calibrated(constants, dict(entry.bands), "measured", source.name, entry.format, entry)
    reached = _carried_share(entry.format, source, target)
    if reached < 1.0 and hasattr(constants, "compute_fraction"):
        constants = replace(constants, compute_fraction=constants.compute_fraction * reached)
    data = data_share(target) / data_share(source)
    if data != 1.0 and hasattr(constants, "memory_fraction"):
        constants = replace(constants, memory_fraction=min(constants.memory_fraction * data, 1.0))
    return Calibrated(constants, _widened(entry.bands, op), "transferred", source.name, entry.format, entry)


# What the peak of a table format is a peak of, for comparing parts.
_MULTIPLIED = {"fp8": "fp8", "fp8_block": "fp8", "w8a8_int8": "int8", "nvfp4": "nvfp4", "w4a8_mxfp4_mxfp8": "fp8"}


def _carried_share(fmt: str, source: Accelerator, target: Accelerator) -> float:
    """Share of a relative's compute fraction that is expected of the target.

    A part whose datasheet promises more of a format, relative to its own bf16, than the measured part's does is not
    expected to reach more: (format / bf16 of the source) / (format / bf16 of the target), at most 1.

    Assumes:  feeding the matrix unit, which the parts share, limits narrow formats
    Source:   nvfp4 GEMM on B300 (14 against 9 PFLOP/s dense) does not outrun B200: kernel tables, development notes
    """
    operand = _MULTIPLIED.get(fmt)
    if operand is None or not target.is_native(operand):
        return 1.0
    ratio = [part.peak_flops_per_s(operand) / part.peak_flops_per_s("bf16") for part in (source, target)]
    return min(ratio[0] / ratio[1], 1.0)


CODES = 1.0 / 16.0


def data_share(accelerator: Accelerator) -> float:
    """Share of the datasheet bandwidth that is left for data where error-correcting codes are read along with it.

    Formula:  15/16 with inline ECC, else 1
    Returns:  [-]
    Assumes:  codes cross the bus as often as the data they belong to, as they take their share of the capacity; it is
              the least they can cost (a render benchmark saw 15 % on an A40)
    Source:   capacity that the driver reports with ECC on: 15360 of 16384 MiB (T4), 46068 of 49152 (L40S, A40);
              exafunction.com/blog/ecc-gpu. On by default for data-centre cards, off for GeForce and workstation cards
              (support.chaos.com, ECC state for NVIDIA GPUs); HBM and GDDR7 keep codes apart
    """
    return 1.0 - CODES if accelerator.memory.inline_ecc else 1.0


# Log half-widths of a relative's bands over its own, within one architecture: what makes 80 % of B200 rows fall into
# bands carried over from GB200, and of GB200 rows into those from B200.
WIDENING = {"mla_decode": 2.0, "mla_prefill": 2.0, "mla_absorb": 2.0, "collective": 1.4}
USUAL_WIDENING = 1.05


def _widened(bands: dict[str, tuple[float, float]], op: str) -> dict[str, tuple[float, float]]:
    """Bands for constants that come from another part."""
    wider = WIDENING.get(op, USUAL_WIDENING)
    return {k: (low**wider, high**wider) for k, (low, high) in bands.items()}


def _entry(found: list[Achieved], engine: str, kernel: str | None) -> Achieved | None:
    found = [e for e in found if kernel is None or e.kernel == kernel]
    for wanted in (engine, "any"):
        named = [e for e in found if e.engine == wanted]
        if named:  # the entry of the engine as a whole before one of its kernels
            return next((e for e in named if e.kernel == "any"), named[0])
    return None


@lru_cache(maxsize=4096)
def _record(kind: type, constants: tuple[tuple[str, float], ...], where: str) -> Any:
    known = {f.name for f in fields(kind)}
    unknown = sorted(set(dict(constants)) - known)
    if unknown:
        raise SpecError(f"{where}: no constant is called '{unknown[0]}'; known: {', '.join(sorted(known))}")
    return kind(**dict(constants))
