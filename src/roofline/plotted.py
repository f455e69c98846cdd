"""Records that can be drawn: `plot(kind)` and, for each of their figures, `plot_<kind>()`.

What draws them stands far above; it is found as `roofline.plot` when a figure is asked for, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The figures by name.
KINDS = {
    "roofline": "every op of prefill and decode under the peaks of the device",
    "waterfall": "a step from the speed of light to what is predicted",
    "regimes": "what decoding waits for, over batch and context",
    "frontier": "throughput against speed per user for every layout, with an SLO",
    "memory": "the memory of each GPU, adding up to what is visible",
    "speculation": "speed-up of speculative decoding over draft length and acceptance",
    "experts": "distinct experts that a step touches, over its tokens",
    "tiles": "the sawtooth of tiles and waves of a matrix product",
    "tiers": "fetching a cached prefix against computing it again",
    "timeline": "the life of requests in the simulator: queue, prefill chunks, decode",
    "validation": "predicted against measured, with bands",
    "cost": "dollars per million tokens against speed per user",
}


class Plotted:
    """Gives a record its figures: `class Sweep(Plotted, figures=("frontier", "cost"))`; the first is the default."""

    __slots__ = ()

    def __init_subclass__(cls, figures: tuple[str, ...] = (), **more: Any):
        super().__init_subclass__(**more)
        if figures:
            cls.plot = _plot(figures)
        for kind in figures:
            setattr(cls, f"plot_{kind}", _plot_kind(kind))


def _plot(figures: tuple[str, ...]):
    def plot(self, kind: str = figures[0], **options: Any) -> Figure:
        import roofline

        return roofline.plot(self, kind, **options)

    plot.__doc__ = f"A figure of this: {', '.join(figures)}; see `roofline.plot` for out, theme and size."
    return plot


def _plot_kind(kind: str):
    def plot(self, **options: Any) -> Figure:
        import roofline

        return roofline.plot(self, kind, **options)

    plot.__name__ = plot.__qualname__ = f"plot_{kind}"
    plot.__doc__ = f"A figure: {KINDS[kind]}; see `roofline.plot` for out, theme and size."
    return plot
