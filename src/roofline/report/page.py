"""One self-contained page about an estimate: question, answer, evidence, figures, tables, sources, what is left out.

Nothing is loaded from elsewhere and nothing runs in it: inline CSS, inline SVG, and a policy that forbids the rest.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roofline import __version__
from roofline.display import answer_rows, load_text, number, seconds
from roofline.errors import InputError, RooflineError, UnknownNameError
from roofline.explain import EVIDENCE
from roofline.plotted import KINDS
from roofline.units import format as quantity

if TYPE_CHECKING:
    from markupsafe import Markup

    from roofline.estimates import Estimate, OpRow

# Figures of a page, in order: (kind, its options, heading)
FIGURES: tuple[tuple[str, Mapping[str, Any], str], ...] = (
    ("waterfall", {"step": "decode"}, "Where the time of a token goes"),
    ("waterfall", {"step": "prefill"}, "Where the time to the first token goes"),
    ("roofline", {}, "The ops under the roofline"),
    ("regimes", {}, "What decoding waits for, and where that changes"),
    ("memory", {}, "What fits"),
    ("experts", {}, "How many experts a step reads"),
    ("frontier", {}, "What other layouts and loads would give"),
    ("cost", {}, "What a token costs"),
    ("timeline", {}, "What single requests live through"),
    ("tiers", {}, "Whether a cached prefix is worth fetching"),
)
LOADS = {
    "static batch": "All requests start together: one pass over the prompts, then decode steps at the mean context.",
    "closed loop": "Continuous batching at a steady state: whoever gets an answer asks again at once.",
    "open loop": "Continuous batching at a steady state: requests arrive at random at the given rate.",
}
MISSING_JINJA = "pages need the optional package 'jinja2'; install it with: pip install 'roofline[report]'"


@dataclass(frozen=True, slots=True)
class Shown:
    """A figure in two sizes with its words."""

    kind: str
    heading: str
    caption: str
    wide: Markup
    narrow: Markup


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts; columns from `numeric_from` on are aligned to the right."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric_from: int = 1


def html_page(
    e: Estimate,
    *,
    command: str | None = None,
    question: str | None = None,
    figures: Iterable[str] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    date: str = "",
) -> str:
    """The page as text.

    Args:     command: the line that reproduces it, None: made from the estimate; question: in place of the one made
              from the load; figures: kinds, None: all that apply; options: kind -> options of its `of`; date: printed
              at the top
    Returns:  HTML that needs no network and runs no script
    Errors:   InputError where jinja2 is not installed; UnknownNameError for figures that there are not
    """
    try:
        import jinja2
    except ImportError:
        raise InputError(MISSING_JINJA) from None
    shown, left_out = _figures(e, figures, options or {})
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("page.html.j2").render(
        title=str(e.deployment),
        question=question or question_of(e),
        load=load_text(e),
        fits=e.fits,
        violations=e.violations,
        cards=_cards(e),
        answers=answer_rows(e),
        regime=str(e.regime),
        evidence=e.evidence,
        evidence_text=EVIDENCE[e.evidence],
        figures=shown,
        tables=_tables(e),
        assumptions=assumptions(e),
        sources=e.sources,
        not_modelled=[*e.not_modelled, *left_out],
        command=command or command_of(e),
        version=__version__,
        date=date,
    )


def question_of(e: Estimate) -> str:
    """What the page answers, as a sentence."""
    d = e.deployment
    many = "one" if d.plan.gpus == 1 else f"{d.plan.gpus} x"
    where = f"{many} {d.accelerator.title}"
    return f"Does {d.model.name} in {d.precision.name} fit on {where}, how fast is it, and at what cost?"


def _cards(e: Estimate) -> list[tuple[str, str, str]]:
    """The five numbers that a reader looks for: (name, value, 80 % band)."""

    def band(v, show) -> str:
        return "" if v.low == v.high else f"{show(v.low)} to {show(v.high)}"

    cards = [
        ("Time to first token", seconds(e.ttft_s.value), band(e.ttft_s, seconds)),
        ("Time per output token", seconds(e.tpot_s.value), band(e.tpot_s, seconds)),
        ("Tokens/s per GPU", number(e.tokens_per_s_gpu.value), band(e.tokens_per_s_gpu, number)),
    ]
    if e.usd_per_mtok_output:
        v = e.usd_per_mtok_output
        cards.append(("USD per Mtok of output", number(v.value), band(v, number)))
    cards.append(("Requests at a time", number(e.resident) if e.fits else "0", "whose KV cache fits"))
    return cards


def _figures(e: Estimate, kinds: Iterable[str] | None, options: Mapping[str, Mapping[str, Any]]):
    """Figures that apply to this estimate, and a note for each that was asked for and does not."""
    chosen = None if kinds is None else list(kinds)
    for kind in (*(chosen or ()), *options):
        if kind not in KINDS:
            raise UnknownNameError("figure", kind, list(KINDS))
    known = {kind for kind, _, _ in FIGURES}
    plan = [f for f in FIGURES if chosen is None or f[0] in chosen]
    plan += [(kind, {}, KINDS[kind].capitalize()) for kind in chosen or () if kind not in known]
    shown, notes = [], []
    for i, (kind, given, heading) in enumerate(plan):
        try:
            shown.append(_shown(e, kind, dict(given) | dict(options.get(kind, {})), heading, f"f{i}"))
        except RooflineError as error:  # it does not apply: no experts, no price, a rule that is not simulated
            if chosen is not None or kind not in ("experts", "cost"):
                notes.append(f"figure '{kind}': {error}")
    return shown, notes


def _shown(e: Estimate, kind: str, options: dict[str, Any], heading: str, prefix: str) -> Shown:
    from markupsafe import Markup

    from roofline.report import figure_module
    from roofline.report.style import drawing, look, themed_svg

    module = figure_module(kind)
    record = module.of(e, **options)
    caption = module.caption(record)
    svgs = []
    for size in ("page", "narrow"):
        how = look("light", size, headed=False)
        with drawing(how) as picture:
            module.draw(picture, how, record)
        svgs.append(Markup(themed_svg(picture, f"{prefix}{size[0]}-", f"{heading}. {caption}")))
    return Shown(kind, heading, caption, *svgs)


def _tables(e: Estimate) -> list[Table]:
    tables = [_ops("Decode step, per device", e.decode_table), _ops("Prefill, per device", e.prefill_table)]
    stages = e.memory.stages
    rows = [
        (name.replace("_", " "), *(quantity(float(s.rows()[name]), "GiB") for s in stages))
        for name in stages[0].rows()
    ]
    rows.append(("visible", *(quantity(float(s.visible), "GiB") for s in stages)))
    header = ("", *(["each GPU"] if len(stages) == 1 else [f"stage {s.stage}" for s in stages]))
    return [*tables, Table("Memory", header, tuple(rows))]


def _ops(title: str, rows: list[OpRow]) -> Table:
    header = ("op", "bound", "count", "GFLOP", "GB", "FLOP/B", "time", "80 % band", "share")
    return Table(
        title, header,
        tuple(
            (r.op, r.bound, f"{r.count:.0f}", number(r.flops / 1e9), number(r.bytes / 1e9), number(r.intensity),
             seconds(r.time_s), f"{seconds(r.low_s)} to {seconds(r.high_s)}", f"{r.share:.1%}")
            for r in rows
        ), 2,
    )  # fmt: skip


def assumptions(e: Estimate) -> list[str]:
    """What was taken for granted, as sentences."""
    d = e.deployment
    paid = "" if e.usd_per_h is None else f"{e.usd_per_h:g} USD per device and hour, "
    roles = ", ".join(f"{role} {fmt.name}" for role, fmt in sorted(d.precision.weights.items()))
    found = [
        f"Weights: {d.precision.name}" + (f" ({roles})" if roles else "") + f"; KV cache: {d.precision.kv.name}.",
        f"Layout of a replica: {d.plan.gpus} devices ({d.plan}).",
        f"Engine: {d.engine.name}; kernels {d.engine.step.kernels}, steps {d.engine.step.schedule}.",
        LOADS[e.load],
        f"Price: {paid}{e.price_source}.",
        "Peaks are dense, link bandwidths are per device and direction, bands are 80 % intervals.",
    ]  # fmt: skip
    if d.precision.kv.bits < 16:
        found.append("The narrow KV cache is taken as accurate enough: quality is not judged here.")
    return found


def command_of(e: Estimate, verb: str = "report") -> str:
    """The command line that asks for this estimate again."""
    d, p = e.deployment, e.deployment.plan
    words = ["roofline", verb, d.model.name, "--hw", d.accelerator.name]
    words += [w for k in ("tp", "pp", "ep", "dp", "cp") if (v := getattr(p, k)) > 1 for w in (f"--{k}", str(v))]
    words += ["--weights", d.precision.name, "--kv", d.precision.kv.name, "--engine", d.engine.name]
    words += ["--isl", f"{e.isl:g}", "--osl", f"{e.osl:g}"]
    words += ["--cached", f"{e.cached:g}"] if e.cached else []
    if e.load == "open loop":
        words += ["--rate", f"{float(e.state.requests_per_s):g}"]
    else:
        words += ["--batch" if e.load == "static batch" else "--concurrency", f"{e.batch:g}"]
    words += ["--price", f"{e.usd_per_h:g}"] if e.usd_per_h is not None else []
    return shlex.join(words)
