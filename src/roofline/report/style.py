"""How figures look: themes, sizes, a colour-blind safe palette, and how they are written to files.

Colours are those of Okabe and Ito, one meaning each in every figure; shapes, dashes or labels tell things apart as
well, so that nothing hangs on colour alone. Both themes share the palette: only paper, ink, muted ink and grid differ,
so that one SVG serves both where a page gives these four as variables (`themed_svg`).
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.path import Path as Outline
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import Bbox

from roofline.errors import InputError
from roofline.files import write_atomically

# Okabe, Ito, "Color Universal Design", 2008
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILLION, PURPLE = (
    "#000000", "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7",
)  # fmt: skip
GREY = "#8c959f"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, VERMILLION, SKY, YELLOW, GREY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (5, 1.5, 1, 1.5)), (0, (8, 2, 2, 2)), (0, (3, 1)))

# What time is spent on, the same colour in every figure.
PART_COLOURS = {
    "weights": BLUE,
    "kv": ORANGE,
    "activations": SKY,
    "compute": GREEN,
    "network": PURPLE,
    "overhead": GREY,
    "inefficiency": VERMILLION,
    "scheduler": YELLOW,
}
ON_DARK, ON_LIGHT = "#fefefe", "#111111"  # text inside coloured areas, the same in both themes

FORMATS = ("png", "svg", "pdf")


@dataclass(frozen=True, slots=True)
class Theme:
    """The four colours that depend on the background."""

    name: str
    paper: str
    ink: str
    muted: str
    grid: str


LIGHT = Theme("light", "#ffffff", "#1a1d21", "#59626d", "#dfe3e8")
DARK = Theme("dark", "#14171b", "#e8eaed", "#a5adb7", "#343b44")
THEMES = {t.name: t for t in (LIGHT, DARK)}


@dataclass(frozen=True, slots=True)
class Size:
    """Width and height in inches, text in points, dots per inch of a PNG."""

    name: str
    width: float
    height: float
    text: float
    dpi: int

    @property
    def narrow(self) -> bool:
        """Whether it is for a phone: fewer ticks and labels, legends below."""
        return self.width < 5.5

    def characters(self, points: float) -> int:
        """Letters of a size that fit in a line."""
        return max(int(self.width * 72.0 * 0.96 / (0.56 * points)), 12)


SIZES = {
    s.name: s
    for s in (
        Size("slide", 11.0, 6.2, 13.0, 160),
        Size("page", 8.6, 5.0, 10.0, 160),
        Size("narrow", 4.3, 4.9, 9.5, 160),
    )
}


@dataclass(frozen=True, slots=True)
class Look:
    """A theme, a size, and whether the figure carries its own heading (a page has one of its own)."""

    theme: Theme = LIGHT
    size: Size = SIZES["slide"]
    headed: bool = True

    @property
    def narrow(self) -> bool:
        """See `Size.narrow`."""
        return self.size.narrow

    @property
    def small(self) -> float:
        """Points of labels inside a figure."""
        return 0.82 * self.size.text

    def rc(self) -> dict:
        """Settings of matplotlib while a figure is drawn."""
        t, s = self.theme, self.size
        return {
            "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
            "font.size": s.text,
            "text.parse_math": False,  # names are text, whatever is in them
            "text.usetex": False,
            "text.color": t.ink,
            "axes.facecolor": t.paper,
            "axes.edgecolor": t.muted,
            "axes.labelcolor": t.ink,
            "axes.titlecolor": t.muted,
            "axes.titlesize": self.small,
            "axes.titlelocation": "left",
            "axes.titlepad": 8.0,
            "axes.labelsize": s.text,
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.linewidth": 0.8,
            "axes.unicode_minus": False,
            "axes.formatter.use_mathtext": False,
            "grid.color": t.grid,
            "grid.linewidth": 0.7,
            "xtick.color": t.muted,
            "ytick.color": t.muted,
            "xtick.labelcolor": t.ink,
            "ytick.labelcolor": t.ink,
            "xtick.labelsize": self.small,
            "ytick.labelsize": self.small,
            "legend.frameon": False,
            "legend.fontsize": self.small,
            "legend.handlelength": 1.8,
            "legend.columnspacing": 1.4,
            "lines.linewidth": 0.15 * s.text,
            "lines.markersize": 0.5 * s.text,
            "figure.facecolor": t.paper,
            "figure.dpi": s.dpi,
            "hatch.linewidth": 0.7,
            "hatch.color": t.muted,
            "svg.hashsalt": "roofline",  # ids that are the same each time
            "svg.fonttype": "path",
            "pdf.fonttype": 42,
        }


def look(theme: str | Theme = "light", size: str | Size = "slide", headed: bool = True) -> Look:
    """The look that two names describe."""
    chosen = []
    for what, value, known in (("theme", theme, THEMES), ("size", size, SIZES)):
        if isinstance(value, str) and value not in known:
            raise InputError(f"{what}: '{value}' is not one of {', '.join(known)}")
        chosen.append(known[value] if isinstance(value, str) else value)
    return Look(*chosen, headed)


class Picture(Figure):
    """A matplotlib figure that shows itself in a notebook and can be written, without pyplot's global state."""

    caption: str = ""  # what it shows, in words
    how: Look = Look()

    def save(self, path: str | Path) -> Path:
        """Write it as PNG, SVG or PDF, by the ending of `path`."""
        path = Path(path)
        ending = path.suffix.lower().removeprefix(".")
        if ending not in FORMATS:
            raise InputError(f"'{path}': figures are written as {', '.join('.' + f for f in FORMATS)}")
        return write_atomically(path, self.encoded(ending))

    def encoded(self, ending: str = "png") -> bytes:
        """Its bytes in one of FORMATS, without date or version: the same figure gives the same file."""
        buffer = io.BytesIO()
        metadata = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}.get(
            ending, {"CreationDate": None, "Creator": None, "Producer": None}
        )
        with _settings(self.how):  # ticks are made when they are drawn
            self.savefig(buffer, format=ending, metadata=metadata, dpi=self.dpi, facecolor=self.get_facecolor())
        return buffer.getvalue()

    def __repr__(self) -> str:  # what a notebook keeps beside the picture, for who cannot see it
        return self.caption or super().__repr__()

    def _repr_png_(self) -> bytes:
        return self.encoded("png")

    def _ipython_display_(self) -> None:
        # Goes before what pyplot registers for every figure in a notebook, which would crop the headings away.
        from IPython.display import display

        display({"image/png": self._repr_png_(), "text/plain": repr(self)}, raw=True)


@contextmanager
def _settings(how: Look) -> Iterator[None]:
    """Matplotlib as a look wants it, whatever the user has set; back again at the end."""
    with rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(how.rc())
        yield


@contextmanager
def drawing(how: Look) -> Iterator[Picture]:
    """An empty picture, with matplotlib set to the look while it is drawn."""
    with _settings(how):
        picture = Picture(figsize=(how.size.width, how.size.height), dpi=how.size.dpi, layout="constrained")
        picture.how = how
        FigureCanvasAgg(picture)
        edge = 0.09 if how.narrow else 0.13
        picture.get_layout_engine().set(w_pad=edge, h_pad=edge)
        yield picture


def title(figure: Picture, how: Look, text: str, below: str = "") -> None:
    """A bold line that says what is to be seen, and muted ones that say of what, wrapped and above the axes."""
    height = how.size.height * 72.0
    points = 1.12 * how.size.text
    y = 0.7 * how.size.text
    for words, size, bold, most in ((text if how.headed else "", points, True, 3), (below, how.small, False, 4)):
        if not words:
            continue
        letters = int(how.size.characters(size) * (0.88 if bold else 1.0))
        lines = textwrap.wrap(words, letters, max_lines=most, placeholder=" ...")
        line = figure.text(
            0.016, 1.0 - y / height, "\n".join(lines), va="top", fontsize=size, linespacing=1.25,
            fontweight="bold" if bold else "normal", color=how.theme.ink if bold else how.theme.muted,
        )  # fmt: skip
        line.set_in_layout(False)
        y += len(lines) * size * 1.3 + 0.25 * how.size.text
    figure.get_layout_engine().set(rect=(0.0, 0.0, 1.0, 1.0 - y / height))


def settle(figure: Picture) -> None:
    """Lay the axes out for good: what is added after this finds them where they will be."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def label_points(
    axes: Axes, how: Look, labels: Iterable[tuple[str, tuple[float, float]]], taken: Iterable[Bbox] = (), **style
) -> list[Bbox]:
    """Write each label near its point where neither another label nor `taken` is, and no line to a label crosses one;
    one without such a place is left out.

    Args:     labels: (text, point), the most important first; taken: boxes on the page; the layout has to be settled
    Returns:  boxes of what was written
    """
    renderer = axes.figure.canvas.get_renderer()
    blocked, placed, leaders = list(taken), [], []
    size = style.pop("fontsize", how.small)
    for text, point in labels:
        pixel = axes.transData.transform(point)
        note = axes.annotate(
            text, point, xytext=(0, 0), textcoords="offset points", fontsize=size, linespacing=1.15, zorder=7,
            bbox={"facecolor": how.theme.paper, "edgecolor": "none", "alpha": 0.8, "pad": 1.0},
            arrowprops={"arrowstyle": "-", "color": how.theme.muted, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 4},
            **style,
        )  # fmt: skip
        note.set_in_layout(False)
        for distance, (across, up) in ((d, s) for d in (1.3, 2.4, 3.8, 5.5, 7.5) for s in _SIDES):
            note.set_position((across * distance * size, up * distance * size))
            note.set_ha({1: "left", 0: "center", -1: "right"}[int(np.sign(across))])
            note.set_va({1: "bottom", 0: "center", -1: "top"}[int(np.sign(up))])
            note.update_positions(renderer)
            box = Text.get_window_extent(note, renderer).padded(2.0)  # the text without its line
            inside = axes.bbox.contains(*box.min) and axes.bbox.contains(*box.max)
            if not inside or any(box.overlaps(other) for other in blocked):
                continue
            leader = Outline([pixel, np.clip(pixel, box.min, box.max)])  # to the nearest side of the text
            crossed = any(leader.intersects_bbox(other) for other in placed)
            if not crossed and not any(other.intersects_bbox(box) for other in leaders):
                blocked.append(box)
                placed.append(box)
                leaders.append(leader)
                break
        else:
            note.remove()
    return placed


def boxes_around(axes: Axes, points: Iterable[tuple[float, float]], reach: Iterable[float] | float) -> list[Bbox]:
    """Boxes on the page around points of settled axes, `reach` points to every side."""
    points = np.asarray(list(points), float).reshape(-1, 2)
    pixels = axes.transData.transform(points)
    sides = np.broadcast_to(np.asarray(reach, float) * axes.figure.dpi / 72.0, (len(points),))
    return [Bbox.from_extents(x - r, y - r, x + r, y + r) for (x, y), r in zip(pixels, sides)]


# Directions in which a label may lie from its point, the better ones first.
_SIDES = ((1.0, -1.0), (-1.0, -1.0), (1.0, 0.0), (-1.0, 0.0), (1.0, 1.0), (-1.0, 1.0), (0.0, -1.0), (0.0, 1.0))


def slope_degrees(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> float:
    """Angle on the page of the line between two points of settled axes."""
    (x0, y0), (x1, y1) = axes.transData.transform([start, end])
    return float(np.degrees(np.arctan2(y1 - y0, x1 - x0)))


# Axes.


def prefixed(axis, places: int | None = None) -> None:
    """Ticks with decimal prefixes: 10 G, 1 T, 300 m."""
    axis.set_major_formatter(EngFormatter(sep=" ", places=places))
    axis.set_minor_formatter(NullFormatter())


def short_count(value: float) -> str:
    """A count as people say it: 512, 8k, 131k, 1M.

    >>> short_count(512), short_count(8192), short_count(131072), short_count(2e6)
    ('512', '8.2k', '131k', '2M')
    """
    for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * scale:
            return f"{value / scale:.3g}" + letter if value / scale >= 10 else f"{value / scale:.2g}" + letter
    return f"{value:.3g}"


def counted(axis) -> None:
    """Ticks that are counts: 1, 10, 100, 1k."""
    axis.set_major_formatter(FuncFormatter(lambda v, _: short_count(v)))
    axis.set_minor_formatter(NullFormatter())


def plain(axis) -> None:
    """Ticks as plain numbers, also on logarithmic axes."""
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}" if abs(v) >= 1000 else f"{v:.3g}"))
    axis.set_minor_formatter(NullFormatter())


def logarithmic(axes: Axes, x: tuple[float, float] | None = None, y: tuple[float, float] | None = None) -> None:
    """Logarithmic axes over the ranges given; ticks at decades, or at 1, 2, 5 where an axis spans few of them."""
    for limits, axis, scale, limit in (
        (x, axes.xaxis, axes.set_xscale, axes.set_xlim),
        (y, axes.yaxis, axes.set_yscale, axes.set_ylim),
    ):
        if limits is not None:
            scale("log")
            limit(*limits)
            few = np.log10(limits[1] / limits[0]) < 2.1
            axis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=12))
            axis.set_minor_formatter(NullFormatter())


def legend(figure: Picture, how: Look, handles: Iterable, columns: int | None = None) -> None:
    """A legend below the axes, in as many columns as the width takes."""
    handles = list(handles)
    longest = max((len(h.get_label()) for h in handles), default=1)
    fit = max(int(how.size.width * 72.0 / (how.small * (0.62 * longest + 4.2))), 1)
    figure.legend(handles=handles, loc="outside lower left", ncols=min(columns or fit, fit, len(handles) or 1))


def text_on(colour: str) -> str:
    """The colour of text that stands on an area of `colour`: dark or light, whichever is further from it."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255.0 for i in (1, 3, 5))
    return ON_LIGHT if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.4 else ON_DARK


def halo(how: Look):
    """Path effects that keep text legible over lines."""
    return [withStroke(linewidth=2.6, foreground=how.theme.paper)]


def spread(values: Iterable[float], gap: float) -> np.ndarray:
    """Positions at least `gap` apart and as near to `values` as can be, in the same order.

    Formula:  isotonic regression (pool adjacent violators) of value - rank x gap, plus rank x gap
    Source:   Barlow et al., "Statistical inference under order restrictions", 1972

    >>> spread([1.0, 1.0, 5.0], 1.0).tolist()
    [0.5, 1.5, 5.0]
    """
    values = np.asarray(list(values), float)
    order = np.argsort(values, kind="stable")
    blocks: list[list[float]] = []  # mean, members
    for rank, value in enumerate(values[order]):
        blocks.append([value - rank * gap, 1.0])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, members = blocks.pop()
            total = blocks[-1][1] + members
            blocks[-1] = [(blocks[-1][0] * blocks[-1][1] + mean * members) / total, total]
    fitted = np.concatenate([np.full(int(n), mean) for mean, n in blocks]) if blocks else np.array([])
    out = np.empty_like(values)
    out[order] = fitted + gap * np.arange(values.size)
    return out


_COMMENT = re.compile(r"<!--.*?-->\s*", re.DOTALL)


def themed_svg(picture: Picture, prefix: str, label: str) -> str:
    """A picture (drawn with the light theme) as inline SVG whose paper, ink, muted and grid are CSS variables.

    Args:     prefix: makes ids unique in a page; label: what a screen reader says
    """
    text = picture.encoded("svg").decode()
    text = _COMMENT.sub("", text[text.index("<svg") :])  # comments repeat what the glyphs spell
    for name in ("paper", "ink", "muted", "grid"):
        text = text.replace(getattr(LIGHT, name), f"var(--{name})")
    for old in ('id="', 'href="#', "url(#"):
        text = text.replace(old, old + prefix)
    opening = text.index(">")
    box = text[text.index("viewBox=") :].split('"')[1]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{box}" '
        f'role="img" aria-label="{escape(label, quote=True)}">' + text[opening + 1 :]
    )
