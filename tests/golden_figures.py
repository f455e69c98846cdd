"""Made-up records, one for each figure, and the small pictures that they give.

The numbers come from nowhere: a change of a model or a constant does not move these pictures, only a change of how
figures are drawn does. After looking at the new ones:  python tests/golden_figures.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from roofline.report import figure_module
from roofline.report.figures import (
    experts,
    frontier,
    memory,
    regimes,
    roofline,
    speculation,
    tiers,
    tiles,
    timeline,
    validation,
    waterfall,
)  # fmt: skip
from roofline.report.style import SIZES, Look, Picture, drawing
from roofline.serving.tiers import Tier
from roofline.simulation import Span

FOLDER = Path(__file__).parent / "golden"
ABOUT = "a model on a device"
SMALL = replace(SIZES["narrow"], dpi=72)  # some 10 kB a picture
GIB = 2.0**30


def records() -> dict:
    """A record for every kind of figure."""
    return {
        "roofline": roofline.Roofline(
            ABOUT, "Device 1",
            (roofline.Roof(("fp8",), 2e15, False), roofline.Roof(("bf16", "fp16"), 1e15, True)),
            (roofline.Slope("HBM", 3e12, True), roofline.Slope("link", 4e11)),
            (roofline.Point("prefill", "ffn.up", 1500.0, 7e14, 0.5), roofline.Point("decode", "attn", 8.0, 2e13, 0.2),
             roofline.Point("decode", "ffn.up", 32.0, 8e13, 0.4)),
            (roofline.Point("decode", "ffn.up", 32.0, 6e13, 0.0),),
        ),
        "waterfall": waterfall.Waterfall(
            ABOUT, "decode", "TPOT",
            {"weights": 0.010, "KV cache": 0.004, "activations": 0.001, "compute": 0.0, "kernels below peak": 0.003,
             "launch and gaps": 0.002, "network": 0.002, "overlap": 0.0, "pipeline wait": 0.0, "scheduler": 0.003},
            0.025, 0.022, 0.029,
        ),
        "regimes": _regimes(),
        "frontier": _frontier(),
        "memory": memory.Memory(ABOUT, (_stack("1 GPU", 70.0, -20.0), _stack("TP2", 35.0, 25.0, True))),
        "speculation": _speculation(),
        "experts": _experts(),
        "tiles": _tiles(),
        "tiers": tiers.TierBreakEven(
            ABOUT, np.geomspace(64, 65536, 40), 1e-3 + 2e-5 * np.geomspace(64, 65536, 40),
            3e5 * np.geomspace(64, 65536, 40), (Tier("host", np.inf, 5e10), Tier("ssd", np.inf, 7e9, 1e-3)), 4096.0,
        ),
        "timeline": _timeline(),
        "validation": _validation(),
        "cost": replace(_frontier(), head="Cost against speed", gain="USD per million output tokens",
                        larger_is_better=False),
    }  # fmt: skip


def _regimes():
    batches, contexts = np.geomspace(1, 4096, 33), np.geomspace(256, 1_048_576, 33)
    work = batches[None, :] * contexts[:, None]
    names = np.where(work > 4e5, "KV-bound", np.where(batches[None, :] > 300, "compute-bound", "weights-bound"))
    return regimes.RegimeMap(
        ABOUT, batches, contexts, names, 0.01 + 3e-8 * work, 5e5 / contexts, (32.0, 2000.0, "weights-bound")
    )  # fmt: skip


def _frontier():
    load = np.geomspace(1, 256, 20)
    curves = tuple(
        frontier.Curve(name, 1.0 / (t + 2e-4 * load / gpus), load / (t + 2e-4 * load / gpus) / gpus, 0.02 * load, load)
        for name, gpus, t in (("1 GPU", 1, 0.03), ("TP2", 2, 0.017), ("TP4", 4, 0.012))
    )
    return frontier.Frontier(ABOUT, "Throughput against speed", "Output tokens/s per GPU", True, curves,
                             1.0, 0.04)  # fmt: skip


def _stack(label, weights, pool, asked=False):
    rows = {"context": 0.5, "weights": weights, "activation": 2.0, "non_torch": 0.5, "kv_pool": pool, "graphs": 1.0}
    rest = 80.0 - sum(max(v, 0.0) for v in rows.values())
    sizes = {name: value * GIB for name, value in (rows | {"rest": rest}).items()}
    return memory.Stack(label, sizes, 80.0 * GIB, "8 x 4,096 tokens" if pool > 0 else "does not fit", asked)


def _speculation():
    k, a = np.arange(0.0, 9.0), np.linspace(0.3, 0.98, 35)
    gain = (1 - a[:, None] ** (k + 1)) / (1 - a[:, None]) / (1 + 0.15 * k)
    batches = np.geomspace(1, 256, 20)
    best = np.array([[1 + s / (1 + b / 60) for b in batches] for s in (0.4, 0.9, 1.5, 2.2)])
    return speculation.Yield(ABOUT, "eagle", 8.0, 2000.0, k, a, gain, k[np.argmax(gain, 1)], batches,
                             (0.5, 0.7, 0.8, 0.9), best)  # fmt: skip


def _experts():
    tokens = np.geomspace(1, 4096, 60)
    hit = 1 - (1 - 8 / 128) ** tokens
    return experts.Coverage(ABOUT, 128, 8, tokens, hit, np.minimum(tokens / 16, 1), 1e9 * hit / tokens, 32.0,
                            float(1 - (1 - 8 / 128) ** 32.0))  # fmt: skip


def _tiles():
    tokens = np.arange(1.0, 1025.0)
    filled = tokens / (128 * np.ceil(tokens / 128))
    roof = np.minimum(tokens * 6e12, 1e15)
    return tiles.Sawtooth(ABOUT, "ffn.up", 28672, 4096, tokens, filled, 0.8 * roof * filled, roof, 1e15, 96.0)


def _timeline():
    def life(sent, queue, prefill, decode):
        ends = np.cumsum([sent, 0.01, queue, prefill / 2, prefill / 2, 0.005, decode])
        kinds = ("front_end", "queue", "prefill", "prefill", "emit", "decode")
        return tuple(Span(kind, a, b) for kind, a, b in zip(kinds, ends, ends[1:]))

    lives = (life(0.0, 0.02, 0.1, 2.0), life(0.1, 0.1, 0.2, 1.5), life(0.3, 0.0, 0.1, 1.0))
    firsts = tuple(next(s.start_s for s in one if s.kind == "decode") for one in lives)
    labels = ("1: 100 in, 50 out", "2: 200 in, 40 out", "3: 90 in, 30 out")
    return timeline.Timeline(ABOUT, labels, lives, firsts)


def _validation():
    rng = np.random.default_rng(0)
    measured = np.exp(rng.uniform(-7, -3, 60))
    predicted = measured * np.exp(rng.normal(0, 0.1, 60))
    return validation.Comparison("a table", "tpot_s", "s", measured, predicted, tuple("ab"[i % 2] for i in range(60)),
                                 predicted * 0.85, predicted * 1.2)  # fmt: skip


def drawn(kind: str, record=None, how: Look | None = None) -> Picture:
    """The picture of a made-up record."""
    with drawing(how or Look(size=SMALL)) as picture:
        figure_module(kind).draw(picture, how or Look(size=SMALL), record or records()[kind])
    return picture


if __name__ == "__main__":
    for name in records():
        (FOLDER / f"{name}.png").write_bytes(drawn(name).encoded("png"))
