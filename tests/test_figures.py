"""Figures: the numbers they draw, that nothing in them is cut, and how they look."""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import replace
from itertools import pairwise

import golden_figures as golden
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from matplotlib.text import Text
from PIL import Image

import roofline as rl
from roofline.cli import cli
from roofline.deployment import deployment
from roofline.errors import InputError, UnknownNameError
from roofline.estimates import estimate
from roofline.plotted import KINDS
from roofline.regimes import decode_regime
from roofline.report import figure_module, plot
from roofline.report.figures import (
    cost,
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
from roofline.report.style import LIGHT, SERIES, SIZES, THEMES, Look, spread, themed_svg
from roofline.serving.tiers import Tier
from roofline.simulation import closed_loop, simulate, vllm
from roofline.simulation.costs import from_terms
from roofline.simulation.engine import Pool

FROM_ESTIMATES = [k for k in KINDS if k != "validation"]


@pytest.fixture(scope="module")
def dense():
    return estimate("llama-3.1-70b", "h100-sxm", tp=4, isl=2000, osl=500, concurrency=32)


@pytest.fixture(scope="module")
def mixture():
    return estimate("qwen3-30b-a3b", "h100-sxm", tp=2, ep=2, isl=1000, osl=300, concurrency=16)


@pytest.fixture(scope="module")
def large():
    return estimate("deepseek-r1", "h200-sxm", tp=8, ep=8, isl=4000, osl=1000, concurrency=64)


@pytest.fixture(scope="module")
def staged():
    return estimate("llama-3.1-70b", "h100-sxm", tp=2, pp=2, isl=1000, osl=200, batch=8)


# What they draw.


def test_memory_adds_up_to_what_is_visible(dense, staged):
    """The values of the stack are the memory table: they add up to the visible memory where a KV pool is left."""
    for e in (dense, staged):
        for stack in memory.of(e).stacks:
            if stack.rows_bytes["kv_pool"] > 0:
                assert sum(stack.rows_bytes.values()) == pytest.approx(stack.visible_bytes, rel=1e-12)
                assert stack.missing_bytes == 0
    assert [s.label for s in memory.of(staged).stacks] == ["stage 0", "stage 1"]
    one = memory.of(dense).stacks[0]  # 70 B weights in bf16 are 141 GB: more than a GPU of 80 GB has
    assert one.label == "1 GPU" and one.missing_bytes > 0 and one.remark == "does not fit"


@pytest.mark.parametrize("case", ["dense", "mixture", "staged"])
@pytest.mark.parametrize("step", waterfall.STEPS)
def test_waterfall_adds_up(case, step, request):
    e = request.getfixturevalue(case)
    w = waterfall.of(e, step)
    answer = e.tpot_s if step == "decode" else e.ttft_s
    assert sum(w.terms_s.values()) == pytest.approx(answer.value, rel=1e-9)
    assert w.total_s == answer.value and (w.low_s, w.high_s) == (answer.low, answer.high)
    assert all(w.terms_s[n] >= 0 for n in ("weights", "KV cache", "compute", "kernels below peak", "launch and gaps"))
    assert 0 < w.light_s < w.total_s


def test_waterfall_of_the_datasheet_is_the_speed_of_light():
    """Under the ideal engine one request on one device loses nothing: the whole step is bytes and FLOPs at peak."""
    w = waterfall.of(estimate("llama-3.1-8b", "h100-sxm", engine="ideal", batch=1))
    assert w.light_s == pytest.approx(w.total_s, rel=1e-9)
    weights = 2 * 7.5e9 / 3.35e12  # Llama-3.1-8B: 8.03 B less 0.53 B of embedding, 2 bytes, over 3.35 TB/s
    assert w.terms_s["weights"] == pytest.approx(weights, rel=0.01)


def test_no_point_above_the_roofline(dense, mixture):
    for e in (dense, mixture):
        r = roofline.of(e)
        peak = max(f.flops_per_s for f in r.roofs)
        bandwidth = e.deployment.accelerator.bandwidth_bytes_per_s
        assert {p.step for p in r.points} == {"prefill", "decode"}
        for p in r.points:
            assert p.flops_per_s <= 1.03 * min(peak, p.intensity * bandwidth), p
    dense_peaks = {f.formats[0]: f.flops_per_s for f in roofline.of(dense).roofs}
    assert dense_peaks["bf16"] == 989.4e12 and dense_peaks["fp8"] == 1978.9e12  # NVIDIA H100 datasheet, dense
    assert next(s for s in roofline.of(dense).slopes if s.main).bytes_per_s == 3.35e12


def test_measured_points(tmp_path):
    table = tmp_path / "measured.csv"
    table.write_text("step,op,flops,bytes,time_s\ndecode,ffn.up,8e9,2.5e8,1e-4\n")
    (point,) = roofline.read_points(table)
    assert point.intensity == 32.0 and point.flops_per_s == pytest.approx(8e13)
    table.write_text("step,op,flops,bytes,time_s\ndecode,ffn.up,8e9,2.5e8,1e-4\nverify,x,1,1,1\n")
    with pytest.raises(InputError, match="line 3: step is prefill or decode"):
        roofline.read_points(table)
    table.write_text("step,op,flops\ndecode,x,1\n")
    with pytest.raises(InputError, match="lacks the columns bytes, time_s"):
        roofline.read_points(table)


def test_regime_map_is_the_regime(dense):
    r = regimes.of(dense)
    for i, j in ((3, 40), (50, 20), (90, 90)):
        batch, context = float(r.batches[j]), float(r.contexts[i])
        assert r.names[i, j] == decode_regime(dense.deployment, batch, context).name
        assert r.step_s[i, j] == pytest.approx(float(dense.deployment.decode_step(batch, context).total_s))
    assert np.all(np.diff(r.resident) <= 0), "longer sequences, fewer of them"


def test_frontier_is_the_estimate(dense):
    f = frontier.of(dense, slo_tpot_s=0.03)
    curve = next(c for c in f.curves if c.label == "TP4")
    i = int(np.argmin(np.abs(curve.load - 32)))
    e = estimate(dense.deployment, isl=2000, osl=500, concurrency=float(curve.load[i]))
    assert curve.per_user[i] == pytest.approx(e.tokens_per_s_user.value, rel=1e-9)
    assert curve.gain[i] == pytest.approx(float(e.state.tokens_per_s) / 4, rel=1e-9)
    best, at = f.best
    assert 1.0 / best.per_user[at] <= 0.03
    assert best.gain[at] == max(c.gain[f.kept(c)].max() for c in f.curves if f.kept(c).any())
    assert frontier.of(dense, slo_tpot_s=1e-6).best is None


def test_pareto_against_every_pair():
    rng = np.random.default_rng(1)
    curves = [frontier.Curve(str(i), rng.random(20), rng.random(20), np.ones(20), np.ones(20)) for i in range(3)]
    for larger in (True, False):
        kept, _ = frontier.pareto(curves, larger)
        x, y = np.stack([c.per_user for c in curves]), np.stack([c.gain for c in curves]) * (1 if larger else -1)
        for i in range(3):
            for j in range(20):
                beaten = np.any((x >= x[i, j]) & (y >= y[i, j]) & ((x > x[i, j]) | (y > y[i, j])))
                assert ((i, j) in kept) == (not beaten)


def test_cost_is_the_estimates(dense):
    f = cost.of(dense)
    curve = next(c for c in f.curves if c.label == "TP4")
    e = estimate(dense.deployment, isl=2000, osl=500, concurrency=float(curve.load[-1]))
    rate = float(e.state.tokens_per_s)
    assert curve.gain[-1] == pytest.approx(e.usd_per_h * 4 / (rate * 3600) * 1e6, rel=1e-9)
    two = cost.of(dense, others=["h200-sxm"])
    assert [c.label.split(",")[0] for c in two.curves] == ["h100-sxm", "h200-sxm"]
    lowest = min(c.gain.min() for c in f.curves)
    assert two.curves[0].gain.min() == pytest.approx(lowest), "a device's curve is the frontier of its layouts"


def test_sweep_and_plan_can_be_drawn():
    s = rl.sweep("llama-3.1-8b", ["h100-sxm", "l40s"], concurrency=[1, 8, 64], isl=1000, osl=200)
    f = frontier.of(s)
    assert [c.label for c in f.curves] == ["h100-sxm", "l40s"]
    assert f.curves[0].gain.tolist() == pytest.approx(sorted(s.tokens_per_s_gpu[0].tolist(), reverse=True))
    assert isinstance(s.plot_cost(size="narrow").caption, str)
    assert not hasattr(s, "plot_memory")
    slim = rl.sweep("llama-3.1-8b", concurrency=[1, 8], metrics=["tpot_s"])
    with pytest.raises(InputError, match=r"sweep\(\.\.\., metrics"):
        slim.plot()


def test_experts_follow_the_occupancy(mixture):
    c = experts.of(mixture)
    assert (c.experts, c.top_k) == (128, 8)  # Qwen3-30B-A3B model card
    assert c.uniform == pytest.approx(1 - (1 - 8 / 128) ** c.tokens)
    assert np.all(c.uniform <= c.apart + 1e-12)
    assert c.share_here == pytest.approx(1 - (1 - 8 / 128) ** c.here)


def test_experts_need_experts(dense):
    with pytest.raises(InputError, match="has no experts"):
        experts.of(dense)


def test_sawtooth_by_hand():
    """[m, 4096] x [4096, 6144] on 132 SMs. With tiles of 64 x 128, 128 rows give 2 x 48 = 96 blocks in one wave: busy
    96/132 = 73 %; 64 x 64: 2 x 96 = 192 in two waves, 73 %; 128 x 128: 48 in one, 36 %. 16 x 64: 8 x 96 = 768 in six
    waves, 97 %: the best. One row more than 16 halves what that tile does."""
    s = tiles.of(estimate("llama-3.1-8b", "h100-sxm", batch=4), op="attn.qkv")
    assert (s.n, s.k) == (6144, 4096)
    at = dict(zip(s.tokens.tolist(), s.filled.tolist()))
    assert at[128.0] == pytest.approx(768 / (6 * 132))
    assert at[16.0] == pytest.approx(96 / 132) and at[17.0] < 0.8 * at[16.0]
    assert s.filled.max() <= 1.0 and np.all(s.flops_per_s <= s.roof_flops_per_s * (1 + 1e-9))
    with pytest.raises(UnknownNameError, match=r"attn\.qkv"):
        tiles.of(estimate("llama-3.1-8b", batch=1), op="attn.qvk")


def test_break_even_of_tiers():
    """Recomputing n tokens takes n ms, fetching 100 ms + n/2 ms: equal at 200."""
    tokens = np.arange(10.0, 1000.0, 10.0)
    t = tiers.TierBreakEven("", tokens, 1e-3 * tokens, tokens, (), 0.0)
    assert t.break_even_tokens(Tier("a", np.inf, 2000.0, 0.1)) == 210.0  # the next point of the grid
    assert t.break_even_tokens(Tier("b", np.inf, 2000.0)) == 10.0
    assert t.break_even_tokens(Tier("c", np.inf, 900.0)) is None
    assert t.break_even_bytes_per_s == pytest.approx(np.full(tokens.size, 1000.0))


def test_tiers_bytes_are_the_cache(dense):
    """Llama-3.1-70B: 2 x 80 layers x 8 KV heads x 128 x 2 bytes = 327,680 a token, a quarter on each of four GPUs."""
    t = tiers.of(dense)
    assert t.bytes_per_gpu == pytest.approx(t.tokens * 327_680 / 4)


def test_timeline_is_the_simulation():
    costs = from_terms(np.full(8, 0.01), 0.0, 1e-4, 0.0)
    result = simulate(closed_loop(4, 200, 20, requests=12, low=1.0), Pool(costs, vllm(max_seqs=8)), timeline=True)
    t = timeline.of(result, requests=3, first=5)
    assert len(t.spans) == 3 and t.labels[0].startswith("5: 200 in, 20 out")
    zero = result.sent_s[5]
    for life, first, i in zip(t.spans, t.first_s, (5, 6, 7)):
        assert all(a.end_s == pytest.approx(b.start_s) for a, b in pairwise(life)), "no gap, no overlap"
        assert life[0].start_s == pytest.approx(result.sent_s[i] - zero)
        assert life[-1].end_s == pytest.approx(result.finish_s[i] - zero)
        assert first == pytest.approx(result.first_s[i] - zero)
    with pytest.raises(InputError, match="0 to 11"):
        timeline.of(result, first=99)


def test_speculation_at_the_ends(dense):
    y = speculation.of(dense)
    assert y.drafter == "eagle"
    assert y.speedup[:, 0] == pytest.approx(np.ones(y.acceptance.size)), "no draft, nothing gained"
    assert np.all(np.diff(y.speedup[:, 1:], axis=0) > 0), "more accepted, faster"
    assert np.all(y.best_speedup >= 1.0 - 1e-9), "where no draft pays none is made"


def test_validation_by_hand():
    """Errors of +10 %, -20 %, +50 %: the median of the absolute ones is 20 %, their 90th percentile 44 %."""
    table = pd.DataFrame({"measured": [1.0, 1.0, 2.0, -1.0], "predicted": [1.1, 0.8, 3.0, 1.0]})
    c = validation.of(table)
    assert c.measured.size == 3, "rows without both are left out"
    assert c.summary == pytest.approx({"median": 0.2, "p90": 0.44, "bias": 0.1})
    ours = pd.DataFrame({"row_id": [1, 2], "tpot_s": [0.1, 0.2], "tpot_lo_s": [0.09, 0.25], "tpot_hi_s": [0.12, 0.3]})
    truth = pd.DataFrame({"row_id": [2, 1], "tpot_s": [0.2, 0.11], "system": ["a", "b"]})
    joined = validation.of(ours, truth, by="system")
    assert joined.coverage == 0.5 and joined.unit == "s" and set(joined.group) == {"a", "b"}
    with pytest.raises(InputError, match="row_id"):
        validation.of(ours, truth.drop(columns="row_id"))
    with pytest.raises(InputError, match="both have tpot_s"):
        validation.of(ours, truth, quantity="ttft_s")


# How they are drawn.


def texts_of(picture) -> list[tuple[str, object]]:
    """Visible texts of a picture with the boxes that they take."""
    picture.draw_without_rendering()
    renderer = picture.canvas.get_renderer()
    beyond = labels_beyond(picture)
    found = []
    for text in picture.findobj(Text):
        if text.get_visible() and text.get_text().strip() and id(text) not in beyond:
            if hasattr(text, "update_positions"):
                text.update_positions(renderer)
            found.append((text.get_text(), Text.get_window_extent(text, renderer)))
    return found


def labels_beyond(picture) -> set[int]:
    """Labels of ticks beyond the ends of an axis exist but are not drawn."""
    out = set()
    for axes in picture.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks() + axis.get_minor_ticks():
                if not low * (1 - 1e-9) <= tick.get_loc() <= high * (1 + 1e-9):
                    out |= {id(tick.label1), id(tick.label2)}
    return out


def lies_in(box, page) -> bool:
    return box.x0 >= page.x0 - 1 and box.x1 <= page.x1 + 1 and box.y0 >= page.y0 - 1 and box.y1 <= page.y1 + 1


@pytest.mark.slow
@pytest.mark.parametrize("size", list(SIZES))
@pytest.mark.parametrize("kind", list(KINDS))
def test_nothing_is_cut(kind, size, dense, mixture, large):
    """Every text of every figure lies inside it, at every size, and drawing warns of nothing."""
    how = Look(THEMES["dark"], replace(SIZES[size], dpi=50))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pictures = [golden.drawn(kind, how=how)]
        if kind != "validation":
            subjects = [mixture if kind == "experts" else dense, *([large] if size == "narrow" else [])]
            pictures += [golden.drawn(kind, figure_module(kind).of(e), how) for e in subjects]
        for picture in pictures:
            for text, box in texts_of(picture):
                assert lies_in(box, picture.bbox), f"{kind} at {size}: '{text}' at {box} leaves {picture.bbox}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["roofline", "frontier", "waterfall", "memory", "cost"])
@pytest.mark.parametrize("size", list(SIZES))
def test_labels_do_not_overlap(kind, size, dense):
    """Names and numbers inside a figure do not cover one another."""
    picture = golden.drawn(kind, figure_module(kind).of(dense), Look(LIGHT, SIZES[size]))
    boxes = [(t, b.padded(-1.5)) for t, b in texts_of(picture)]
    upright = [(t, b) for t, b in boxes if "GB/s" not in t and "TB/s" not in t]  # boxes of slanted names are too large
    for i, (text, box) in enumerate(upright):
        for other, taken in upright[i + 1 :]:
            assert not box.overlaps(taken), f"{kind} at {size}: '{text}' covers '{other}'"


def difference(kind: str, record=None) -> float:
    """Root mean square of the difference to the picture on file, 0 to 255."""
    new = Image.open(io.BytesIO(golden.drawn(kind, record).encoded("png"))).convert("RGB")
    old = Image.open(golden.FOLDER / f"{kind}.png").convert("RGB")
    assert new.size == old.size
    return float(np.sqrt(np.mean((np.asarray(new, float) - np.asarray(old, float)) ** 2)))


TOLERANCE = 9.0  # letters that another rasteriser moves by a fraction of a pixel differ by less


@pytest.mark.parametrize("kind", list(KINDS))
def test_golden(kind):
    assert difference(kind) < TOLERANCE


def test_golden_can_fail():
    """A bar that is wrong is seen."""
    right = golden.records()["waterfall"]
    terms = right.terms_s | {"weights": 0.014, "scheduler": -0.001}
    assert difference("waterfall", replace(right, terms_s=terms)) > TOLERANCE
    stacks = golden.records()["memory"].stacks
    assert difference("memory", replace(golden.records()["memory"], stacks=stacks[::-1])) > TOLERANCE


@pytest.mark.parametrize("theme", list(THEMES))
def test_theme_is_used(theme):
    how = Look(THEMES[theme], replace(SIZES["page"], dpi=40))
    pixels = np.asarray(Image.open(io.BytesIO(golden.drawn("tiers", how=how).encoded("png"))).convert("RGB"))
    assert tuple(pixels[0, 0]) == tuple(int(THEMES[theme].paper[i : i + 2], 16) for i in (1, 3, 5))


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2, definition)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


@pytest.mark.parametrize("theme", list(THEMES.values()), ids=lambda t: t.name)
def test_text_has_contrast(theme):
    """4.5 to 1 for text (WCAG 2.2, 1.4.3)."""
    for colour in (theme.ink, theme.muted):
        high, low = sorted((luminance(colour), luminance(theme.paper)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5


def test_colours_differ_without_red_or_green():
    """The first series stay apart for dichromats: distances in linear RGB as Vienot et al. 1999 project it."""
    protan = np.array([[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]])
    deutan = np.array([[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]])
    rgb = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in SERIES[:5]]) ** 2.2
    for seen in (rgb @ protan.T, rgb @ deutan.T):
        apart = np.linalg.norm(seen[:, None] - seen[None], axis=-1) + np.eye(5)
        assert apart.min() > 0.1


# Files and front ends.


@pytest.mark.parametrize("ending, start", [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_files(ending, start, tmp_path, dense):
    path = tmp_path / f"figure.{ending}"
    picture = plot(dense, "memory", out=path, size="narrow")
    assert path.read_bytes().startswith(start)
    assert path.read_bytes() == picture.encoded(ending), "the same figure gives the same file"


def test_wrong_words(dense, tmp_path):
    with pytest.raises(UnknownNameError, match="waterfall"):
        plot(dense, "waterfal")
    with pytest.raises(InputError, match="light, dark"):
        plot(dense, theme="solarized")
    with pytest.raises(InputError, match=r"\.png, \.svg, \.pdf"):
        plot(dense, "memory", out=tmp_path / "x.gif")
    with pytest.raises(InputError, match="is not a folder"):
        plot(dense, "memory", out=tmp_path / "absent" / "x.png")
    for kind in FROM_ESTIMATES:
        with pytest.raises(InputError, match="Estimate"):
            plot(3, kind)


def test_users_settings_do_not_shine_through(dense):
    import matplotlib

    before = plot(dense, "memory", size="narrow").encoded("png")
    with matplotlib.rc_context({"font.size": 30, "axes.grid": False, "figure.facecolor": "red"}):
        assert plot(dense, "memory", size="narrow").encoded("png") == before
        assert matplotlib.rcParams["font.size"] == 30


@pytest.mark.parametrize("name", ["$\\frac{", "a_b^c $x$", "<script>alert(1)</script>", "x" * 300, "模型"])
def test_hostile_names(name):
    """A name is text, whatever is in it."""
    d = deployment("llama-3.1-8b", "h100-sxm")
    e = estimate(d.with_(model=d.model.model_copy(update={"name": name})), concurrency=4)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # letters that DejaVu lacks are boxes
        svg = themed_svg(plot(e, "memory", size="narrow"), "p-", name)
    assert "<script" not in svg and "--x" not in re.sub(r"var\(--\w+\)", "", svg)


def test_themed_svg():
    """Its ids are its own, and only the four variables and the palette are in it."""
    svg = themed_svg(golden.drawn("waterfall"), "w-", 'a "quoted" label')
    assert set(re.findall(r"var\(--(\w+)\)", svg)) == {"paper", "ink", "muted", "grid"}
    assert all(i.startswith("w-") for i in re.findall(r'\bid="([^"]*)"', svg))
    used = set(re.findall(r'href="#([^"]*)"', svg)) | set(re.findall(r"url\(#([^)]*)\)", svg))
    assert used <= set(re.findall(r'\bid="([^"]*)"', svg))
    assert "&quot;quoted&quot;" in svg and LIGHT.ink not in svg


def test_spread():
    """1, 1, 1.1 and 3 one apart: less their ranks 1, 0, -0.9, 0, pooled at their mean 0.025."""
    assert spread([3.0, 1.0, 1.0, 1.1], 1.0).tolist() == pytest.approx([3.025, 0.025, 1.025, 2.025])
    assert spread([], 1.0).tolist() == []


def test_methods(dense, tmp_path):
    assert dense.plot_waterfall(step="prefill", size="narrow").caption.startswith("TTFT")
    assert dense.plot("memory", size="narrow").caption == rl.plot(dense, "memory", size="narrow").caption
    picture = dense.plot_memory(size="narrow")
    assert picture._repr_png_().startswith(b"\x89PNG") and repr(picture) == picture.caption


def test_command_line(tmp_path):
    out = tmp_path / "w.svg"
    done = CliRunner().invoke(cli, ["plot", "waterfall", "llama-3.1-8b", "--concurrency", "8", "-o", str(out)])
    assert done.exit_code == 0 and done.output.startswith("TPOT"), done.output
    assert out.read_bytes().startswith(b"<?xml")
    for words, message in (
        (["waterfall", "--op", "x"], "op is for tiles"),
        (["tiers", "--tier", "ssd"], "ssd=7 GB/s"),
        (["tiers", "--tier", "ssd=7"], "no unit"),
        (["frontier", "--slo-ttft", "-1"], "positive time"),
        (["timeline", "--drafter", "eagle"], "drafter is for speculation"),
    ):
        done = CliRunner().invoke(cli, ["plot", *words, "-o", str(out)])
        assert done.exit_code != 0 and message in str(done.exception), (words, done.exception)


def test_command_line_validation(tmp_path):
    ours, truth, out = (tmp_path / n for n in ("ours.csv", "truth.csv", "v.png"))
    ours.write_text("row_id,tpot_s\n1,0.1\n2,0.2\n")
    truth.write_text("row_id,tpot_s,system\n1,0.1,a\n2,0.25,b\n")
    words = ["plot", "validation", str(ours), "--truth", str(truth), "--by", "system", "-o", str(out)]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0 and "2 rows of tpot_s: median error 10.0%" in done.output, done.output


def test_devices_without_links_stand_alone():
    """No layout of several devices is drawn where nothing connects them."""
    assert [c.label for c in frontier.of(estimate("llama-3.1-8b", "m4-max", batch=1)).curves] == ["1 GPU"]
