"""Which constants a kernel model uses on an accelerator: its own, a relative's, or those of no device in particular."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
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
    accelerator: Accelerator, op: str, fmt: str, engine: str, default: Any, kernel: str | None = None
) -> Calibrated:
    """The constants of kernel model `op` for operands of `fmt` under `engine`.

    A part's own entry for the format comes first (the engine's, else the engine-agnostic one), then the nearest
    relative's, then a format alike, then `default`.

    Args:     default: an instance of the model's constants class, used where nothing was measured; kernel: only entries
              of this kernel label, or None for any
    Returns:  Calibrated
    Errors:   SpecError where an entry has constants that the model does not know
    """
    for name, source, evidence in _places(accelerator, fmt):
        entry = _entry(source, op, name, engine, kernel)
        if entry is not None:
            return _calibrated(entry, default, source, op, evidence)
    return Calibrated(default, {}, "transferred", "", fmt, None)


def candidates(accelerator: Accelerator, op: str, fmt: str, engine: str, default: Any) -> list[Calibrated]:
    """Constants of every kernel that `engine` can choose from: for models that take the fastest, point by point.

    An engine without entries of its own has those of all engines.
    """
    for name, source, evidence in _places(accelerator, fmt):
        found = [e for e in source.achieved.get(op, ()) if e.format == name]
        single = [e for e in found if e.engine == engine] or [e for e in found if e.engine != "any"] or found
        if single:
            return [_calibrated(e, default, source, op, evidence) for e in single]
    return [Calibrated(default, {}, "transferred", "", fmt, None)]


def _places(accelerator: Accelerator, fmt: str) -> Iterator[tuple[str, Accelerator, str]]:
    """Where to look for entries, best first: (format, accelerator, evidence)."""
    sources = [(accelerator, "measured")] + [(hardware(name), "transferred") for name in relatives(accelerator)]
    for name in alike(fmt):
        for source, evidence in sources:
            yield name, source, evidence


def _calibrated(entry: Achieved, default: Any, source: Accelerator, op: str, evidence: str) -> Calibrated:
    where = f"{source.name}: achieved.{op}"
    constants = _record(type(default), tuple(entry.constants.items()), where)
    return Calibrated(constants, dict(entry.bands), evidence, source.name, entry.format, entry)


def _entry(source: Accelerator, op: str, fmt: str, engine: str, kernel: str | None) -> Achieved | None:
    found = [e for e in source.achieved.get(op, ()) if e.format == fmt and (kernel is None or e.kernel == kernel)]
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
