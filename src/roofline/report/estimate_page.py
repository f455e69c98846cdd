"""The page about an estimate: question, answer, evidence, figures, tables, assumptions, sources, what is left out."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from roofline.display import answer_rows, load_text, number, seconds
from roofline.explain import EVIDENCE
from roofline.plotted import KINDS
from roofline.report.page import Shown, Table, Wanted, check_kinds, figures_of, memory_table, op_table, template

if TYPE_CHECKING:
    from roofline.estimates import Estimate

# Figures of the page, in order
FIGURES: tuple[Wanted, ...] = (
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
    page = template("estimate.html.j2")
    shown, left_out = figures_or_notes(e, figures, options or {})
    return page.render(
        title=str(e.deployment),
        question=question or question_of(e),
        lead=[str(e.deployment), load_text(e)],
        fits=e.fits,
        violations=e.violations,
        cards=cards(e),
        answers=answer_rows(e),
        regime=str(e.regime),
        evidence=e.evidence,
        evidence_text=EVIDENCE[e.evidence],
        figures=shown,
        tables=tables(e),
        assumptions=assumptions(e),
        sources=e.sources,
        not_modelled=[*e.not_modelled, *left_out],
        command=command or command_of(e),
        date=date,
    )


def question_of(e: Estimate) -> str:
    """What the page answers, as a sentence."""
    d = e.deployment
    many = "one" if d.plan.gpus == 1 else f"{d.plan.gpus} x"
    where = f"{many} {d.accelerator.title}"
    return f"Does {d.model.name} in {d.precision.name} fit on {where}, how fast is it, and at what cost?"


def cards(e: Estimate) -> list[tuple[str, str, str]]:
    """The five numbers that a reader looks for: (name, value, 80 % band)."""

    def band(v, show) -> str:
        return "" if v.low == v.high else f"{show(v.low)} to {show(v.high)}"

    found = [
        ("Time to first token", seconds(e.ttft_s.value), band(e.ttft_s, seconds)),
        ("Time per output token", seconds(e.tpot_s.value), band(e.tpot_s, seconds)),
        ("Tokens/s per GPU", number(e.tokens_per_s_gpu.value), band(e.tokens_per_s_gpu, number)),
    ]
    if e.usd_per_mtok_output:
        v = e.usd_per_mtok_output
        found.append(("USD per Mtok of output", number(v.value), band(v, number)))
    found.append(("Requests at a time", number(e.resident) if e.fits else "0", "whose KV cache fits"))
    return found


def figures_or_notes(
    e: Estimate, kinds: Iterable[str] | None, options: Mapping[str, Mapping[str, Any]]
) -> tuple[list[Shown], list[str]]:
    """Figures that apply to this estimate, and a note for each that was asked for and does not.

    Args:     kinds: None: all that apply; options: kind -> options of its `of`
    """
    chosen = None if kinds is None else list(kinds)
    check_kinds([*(chosen or ()), *options])
    known = {kind for kind, _, _ in FIGURES}
    wanted = [f for f in FIGURES if chosen is None or f[0] in chosen]
    wanted += [(kind, {}, KINDS[kind].capitalize()) for kind in chosen or () if kind not in known]
    wanted = [(kind, {**given, **options.get(kind, {})}, heading) for kind, given, heading in wanted]
    shown, left_out = figures_of(e, wanted, "f")
    told = {k: why for k, why in left_out.items() if chosen is not None or k not in ("experts", "cost")}
    return shown, [f"figure '{kind}': {why}" for kind, why in told.items()]


def tables(e: Estimate) -> list[Table]:
    """The ops of both steps, and the memory."""
    return [
        op_table("Decode step, per device", e.decode_table),
        op_table("Prefill, per device", e.prefill_table),
        memory_table(e),
    ]


def assumptions(e: Estimate) -> list[str]:
    """What was taken for granted, as sentences."""
    paid = "" if e.usd_per_h is None else f"{e.usd_per_h:g} USD per device and hour, "
    return [
        *setting(e),
        LOADS[e.load],
        f"Price: {paid}{e.price_source}.",
        "Peaks are dense, link bandwidths are per device and direction, bands are 80 % intervals.",
    ]


def setting(e: Estimate) -> list[str]:
    """How the model is laid out and run, as sentences."""
    d = e.deployment
    roles = ", ".join(f"{role} {fmt.name}" for role, fmt in sorted(d.precision.weights.items()))
    found = [
        f"Weights: {d.precision.name}" + (f" ({roles})" if roles else "") + f"; KV cache: {d.precision.kv.name}.",
        f"Layout of a replica: {d.plan.gpus} x {d.accelerator.name} ({d.plan}).",
        f"Engine: {d.engine.name}; kernels {d.engine.step.kernels}, steps {d.engine.step.schedule}.",
    ]
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
