"""Levers on one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roofline.units import format as quantity

if TYPE_CHECKING:
    from roofline.techniques import Lever, Levers

ROWS = 16
TITLES = {"tpot": "TPOT", "ttft": "TTFT", "throughput": "tok/s/GPU", "peak": "peak tok/s/GPU", "usd": "USD/Mtok"}


def to_text(found: Levers, by: str = "tpot", rows: int = ROWS) -> str:
    """The base, techniques by their gain, what they cut, conflicts and elasticities."""
    base, scene = found.base, found.scene
    out = [
        f"{found.deployment}",
        f"{scene.isl:,.0f} in, {scene.osl:,.0f} out, {scene.concurrency:g} in flight: "
        f"TTFT {quantity(base.ttft_s, 's', digits=3)}, TPOT {quantity(base.tpot_s, 's', digits=3)}, "
        f"{base.tokens_per_s_gpu:,.0f} tokens/s/GPU (at most {base.peak_tokens_per_s_gpu:,.0f} "
        f"at {base.peak_concurrency:,.0f} in flight)"
        + (f", {base.usd_per_mtok:.3g} USD/Mtok output" if base.usd_per_mtok == base.usd_per_mtok else ""),
        "",
        f"Each technique alone, best by {TITLES[by]}; times better than now (below 1: worse)",
        f"{'technique':44s} " + " ".join(f"{TITLES[g]:>14s}" for g in TITLES) + "  cuts",
    ]
    ranked = found.ranked(by)
    out += [_row(lever) for lever in ranked[:rows]]
    if len(ranked) > rows:
        out.append(f"... and {len(ranked) - rows} more")
    notes = {lever.name: lever.assumes for lever in ranked[:rows] if lever.assumes}
    if notes:
        out += ["", "assumes"] + [f"  {name}: {text}" for name, text in notes.items()]
    if conflicts := found.conflicts(by):
        out += ["", "do not add up"] + [f"  {a} + {b}: {why}" for a, b, why in conflicts]
    out += ["", f"{'+10 % of':20s} {'TPOT':>8s} {'TTFT':>8s} {'tok/s':>8s} {'peak':>8s}"]
    out += [
        f"{e.resource:20s} {e.tpot:>+8.1%} {e.ttft:>+8.1%} {e.throughput:>+8.1%} {e.peak:>+8.1%}"
        for e in found.elasticities
    ]
    if found.impossible:
        out += ["", "not possible here"] + [f"  {x.name}: {x.why_not}" for x in found.impossible[:8]]
    return "\n".join(out)


def _row(lever: Lever) -> str:
    gains = " ".join(f"{lever.gains[g]:>13.2f}x" if lever.gains[g] == lever.gains[g] else f"{'?':>14s}" for g in TITLES)
    return f"{lever.name[:44]:44s} {gains}  {', '.join(lever.cuts)}"
