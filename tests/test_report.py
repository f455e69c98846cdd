"""The report page: what it says, that it is inert and whole, and how a browser shows it."""

from __future__ import annotations

import html
import json
import re
import shlex
import subprocess
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner

import roofline as rl
from roofline.cli import cli
from roofline.deployment import deployment
from roofline.errors import InputError, UnknownNameError
from roofline.estimates import estimate
from roofline.report import estimate_page as page
from roofline.report import pdf, plan_page

pytest.importorskip("jinja2")
pytestmark = pytest.mark.slow

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'{{ 7*7 }}{% raw %}</style>"


@pytest.fixture(scope="module")
def dense():
    return estimate("llama-3.1-70b", "h100-sxm", tp=4, isl=2000, osl=500, concurrency=32)


@pytest.fixture(scope="module")
def text(dense):
    options = {"frontier": {"slo_ttft_s": 1.0, "slo_tpot_s": 0.04}}
    return page.html_page(dense, options=options, date="2026-01-02")


@pytest.fixture(scope="module")
def fleet():
    """A plan of two kinds of replica, with a limit that refuses a layout and a spare."""
    return rl.plan(
        "qwen3-32b", ["h100-sxm", "h200-sxm", "l40s"], traffic=rl.traffic(rate_per_s=8, isl=2000, osl=400),
        slo=rl.Slo(ttft_s=1.0, tpot_s=0.03), weights="fp8", spares=1, max_gpus=2, budget_usd_per_h=40,
        disaggregate=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def pools():
    """A plan of a prefill and a decode pool."""
    r = rl.plan(
        "llama-3.1-8b", "h100-sxm", traffic=rl.traffic(rate_per_s=4, isl=30_000, osl=300),
        slo=rl.Slo(ttft_s=6.0, tpot_s=0.012), max_gpus=2, mix=False,
    )  # fmt: skip
    assert r.fleet.disaggregated
    return r


@pytest.fixture(scope="module")
def plan_text(fleet):
    return plan_page.html_page(fleet, date="2026-01-02")


@pytest.fixture(params=["estimate", "plan"])
def either(request):
    """The page of an estimate and that of a plan."""
    return request.getfixturevalue("text" if request.param == "estimate" else "plan_text")


class Reader(HTMLParser):
    """Tags, attributes and the words outside of figures."""

    VOID = ("meta", "br", "img", "use", "path")

    def __init__(self, source: str):
        super().__init__()
        self.tags, self.attributes, self.words, self.open = [], [], [], []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
            self.open.pop()

    def handle_data(self, data):
        if not {"svg", "style"} & set(self.open):
            self.words.append(data)

    @property
    def said(self) -> str:
        return " ".join(" ".join(self.words).split())


def test_sections(text, dense):
    read = Reader(text)
    for heading in ("Answer", "Evidence", "Figures", "Tables", "Assumptions", "What is not modelled", "Sources",
                    "Reproduce it"):  # fmt: skip
        assert heading in read.said
    for part in (*dense.sources, *dense.not_modelled, str(dense.deployment), "2026-01-02", "80 % interval"):
        assert part.replace("\n", " ") in read.said
    assert f"{dense.tpot_s.value * 1e3:.3g} ms" in read.said
    for row in (*dense.decode_table, *dense.prefill_table):
        assert row.op in read.said
    assert read.tags.count("figure") == 9 and read.tags.count("svg") == 18  # each wide and narrow; no experts here
    assert read.open == [], "every tag is closed"


def test_sections_of_a_plan(plan_text, fleet):
    read = Reader(plan_text)
    assert read.open == [], "every tag is closed"
    for heading in (
        "What was asked", "Answer", "Why this fleet", "What would change it", "What was refused", "One replica",
        "Start it", "Assumptions", "What is not modelled", "Sources", "Reproduce it",
    ):  # fmt: skip
        assert heading in read.said
    for part in (
        str(fleet.traffic), str(fleet.slo), str(fleet.runner_up), fleet.binding, "40.00 USD/h", "2026-01-02",
        f"{fleet.usd_per_h:,.2f}", "vllm serve Qwen/Qwen3-32B", "no limit on TPOT p90", "2 may be down",
    ):  # fmt: skip
        assert part in read.said, part
    for (o, n), e in zip(fleet.fleet.members, fleet.estimates()):
        assert f"{n} x [{o.deployment}]" in read.said
        assert all(row.op in read.said for row in (*e.decode_table, *e.prefill_table))
        assert all(part in read.said for part in (*e.sources, *e.not_modelled))
    assert read.tags.count("svg") == 2 * read.tags.count("figure") >= 2 * 7
    slow = [x for x in plan_page.refused(fleet.search, fleet.slo) if "l40s" in x.what]
    assert slow and all(x.what in read.said and x.why in read.said for x in slow)


def test_page_of_a_plan_agrees_with_its_search(fleet):
    """The choice is the cheapest of the table; a wider limit never costs more, more load or spares never less."""
    tables = {t.title: t for t in (*plan_page.choice(fleet), *plan_page.changes(fleet))}
    others = [float(row[2].replace(",", "")) for row in tables["Other devices"].rows]
    assert others[0] == min(others) == pytest.approx(fleet.usd_per_h, abs=0.005)
    costs = {row[0]: float(row[2].replace(",", "")) for row in tables["Load, limits, spares, error"].rows if row[2]}
    loads = [costs[f"{x:g} times the load"] for x in (0.5, 0.8)] + [others[0]] + [costs["2 times the load"]]
    assert loads == sorted(loads) and loads[0] < loads[-1]
    assert costs["no limit on TPOT p90"] <= costs["TPOT p90 <= 45 ms"] <= others[0] <= costs["TPOT p90 <= 22.5 ms"]
    assert costs["2 may be down"] >= others[0]


def test_page_of_pools(pools):
    """Each worker shows the step that it runs, and no numbers of whole requests."""
    read = Reader(plan_page.html_page(pools, figures=["memory"]))
    assert "One prefill worker" in read.said and "One decode worker" in read.said
    prefill, decode = read.said.split("One prefill worker")[1].split("One decode worker")
    assert "Prefill, per device" in prefill and "Decode step" not in prefill
    assert "Decode step, per device" in decode and "Prefill, per device" not in decode.split("Start it")[0]
    assert "Time to first token" not in prefill + decode and "overload" not in read.said
    assert "TTFT p90" in read.said and "TPOT p90" in read.said
    p, d = pools.estimates()
    assert 0.7 * pools.pool_state.prefill_s < p.ttft_s.value <= pools.pool_state.prefill_s  # one pass, not in chunks
    assert d.tpot_s.value == pytest.approx(float(pools.pool_state.tpot_s), rel=0.05)
    assert pools.latencies["tpot_s"] > float(pools.pool_state.tpot_s)  # the 90th percentile


def test_self_contained(either):
    """No script, nothing from elsewhere, and a policy that would forbid both."""
    text, read = either, Reader(either)
    assert not {"script", "iframe", "object", "embed", "link", "base", "form"} & set(read.tags)
    for tag, name, value in read.attributes:
        assert not name.startswith("on"), (tag, name)
        if name in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
            assert value.startswith(("#", "data:image/png;base64,")), (tag, name, value[:80])
    assert "@import" not in text and not re.search(r"url\(\s*['\"]?(?!#)", text)
    policy = next(v for t, n, v in read.attributes if n == "content" and "default-src" in v)
    assert "default-src 'none'" in policy
    ids = [value for _, name, value in read.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_every_reference_is_there(either):
    text, read = either, Reader(either)
    ids = {value for _, name, value in read.attributes if name == "id"}
    used = {value[1:] for _, name, value in read.attributes if name.endswith("href") and value.startswith("#")}
    assert used | set(re.findall(r"url\(#([^)]+)\)", text)) <= ids


def test_hostile_names_are_inert():
    """A name is text wherever it comes from: model, device, price, question, command, source."""
    d = deployment("llama-3.1-8b", "h100-sxm")
    model = d.model.model_copy(update={"name": HOSTILE, "source": HOSTILE})
    device = d.accelerator.model_copy(update={"title": HOSTILE})
    e = estimate(d.with_(model=model, accelerator=device), concurrency=4)
    kinds = ["memory", "roofline", "frontier"]
    made = page.html_page(e, question=HOSTILE, command=HOSTILE, figures=kinds, date=HOSTILE)
    read = Reader(made)
    assert not {"script", "img"} & set(read.tags)
    assert not [a for a in read.attributes if a[1].startswith("on")]
    assert read.said.count("{{ 7*7 }}{% raw %}") >= 3, "shown as it is, not evaluated"
    assert read.open == []


def test_hostile_plan_is_inert(fleet):
    model = fleet.fleet.members[0][0].deployment.model.model_copy(update={"name": HOSTILE, "source": HOSTILE})
    r = rl.plan(
        model, "h200-sxm", traffic=fleet.traffic, slo=fleet.slo, weights="fp8", max_gpus=1, disaggregate=False
    )  # fmt: skip
    made = plan_page.html_page(r, question=HOSTILE, command=HOSTILE, figures=["memory", "cost"], date=HOSTILE)
    read = Reader(made)
    assert not {"script", "img"} & set(read.tags) and read.open == []
    assert not [a for a in read.attributes if a[1].startswith("on")]
    assert read.said.count("{{ 7*7 }}{% raw %}") >= 3


def test_what_does_not_fit_is_said():
    e = estimate("llama-3.1-405b", "l40s", batch=4)
    read = Reader(page.html_page(e, figures=["memory"]))
    assert "It does not fit." in read.said
    assert all(v in read.said for v in e.violations)


def test_figures_that_do_not_apply_are_named(dense):
    read = Reader(page.html_page(dense, figures=["memory", "experts"]))
    assert read.tags.count("figure") == 1
    assert "figure 'experts': llama-3.1-70b has no experts" in read.said
    with pytest.raises(UnknownNameError, match="memory"):
        page.html_page(dense, figures=["memry"])


@pytest.mark.parametrize("load", [{"batch": 4}, {"concurrency": 8}, {"rate_per_s": 2.0}])
def test_command_reproduces(load):
    """The command of a page made in Python asks for the same estimate."""
    e = estimate("qwen3-30b-a3b", "h100-sxm", tp=2, ep=2, weights="fp8", isl=1500, osl=300, cached=500, **load)
    words = shlex.split(page.command_of(e, "estimate"))
    done = CliRunner().invoke(cli, [*words[1:], "--json"])
    assert done.exit_code == 0, done.output
    again = json.loads(done.output)
    for name in ("ttft_s", "tpot_s", "e2e_s", "usd_per_mtok_output"):
        assert again[name]["value"] == pytest.approx(getattr(e, name).value, rel=1e-6)


def test_command_line(tmp_path):
    out = tmp_path / "page.html"
    words = ["report", "llama-3.1-8b", "--concurrency", "8", "--figure", "memory", "-o", str(out)]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    assert Reader(out.read_text(encoding="utf-8")).tags.count("figure") == 1
    done = CliRunner().invoke(cli, [*words[:-1], str(tmp_path / "page.docx")])
    assert isinstance(done.exception, InputError) and ".html or .pdf" in str(done.exception)


def test_command_reproduces_a_plan(fleet):
    words = shlex.split(plan_page.command_of(fleet))
    done = CliRunner().invoke(cli, [*words[1:], "--json"])
    assert done.exit_code == 0, done.output
    again = json.loads(done.output)
    assert again["usd_per_h"] == pytest.approx(fleet.usd_per_h) and again["binding"] == fleet.binding
    assert [m["hardware"] for m in again["fleet"]["members"]] == [
        o.deployment.accelerator.name for o, _ in fleet.fleet.members
    ]


def test_plan_command_line(tmp_path):
    out = tmp_path / "plan.html"
    words = ["plan", "llama-3.1-8b", "--hw", "h100-sxm", "--max-gpus", "1", "--no-disaggregation", "--rate", "5",
             "--isl", "1000", "--osl", "200", "--report"]  # fmt: skip
    done = CliRunner().invoke(cli, [*words, str(out)])
    assert done.exit_code == 0, done.output
    assert f"wrote {out}" in done.output and "runner-up" in done.output, "the plan is printed as well"
    assert "no latency objective" in Reader(out.read_text(encoding="utf-8")).said
    done = CliRunner().invoke(cli, [*words, str(tmp_path / "plan.docx")])
    assert isinstance(done.exception, InputError) and ".html or .pdf" in str(done.exception)
    done = CliRunner().invoke(cli, ["plan", "llama-3.1-8b", "--cards", "rtx-3090", "--report", str(out)])
    assert isinstance(done.exception, InputError) and "--cards" in str(done.exception)


def test_reports_are_of_estimates_and_plans(tmp_path):
    with pytest.raises(InputError, match="not of a int"):
        rl.write_report(3, tmp_path / "x.html")


def test_same_page_each_time(dense):
    assert page.html_page(dense, figures=["memory"]) == page.html_page(dense, figures=["memory"])


def test_no_browser_is_said(dense, tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFLINE_BROWSER", "no-such-browser")
    with pytest.raises(InputError, match=r"'no-such-browser'.*apt install chromium.*print it from a browser"):
        rl.write_report(dense, tmp_path / "x.pdf", figures=["memory"])
    assert not (tmp_path / "x.pdf").exists()


# In a browser.


@pytest.fixture(scope="module")
def chromium():
    found = pdf.browser()
    if found is None:
        pytest.skip("no Chromium or Chrome")
    return found


def dom(chromium: str, folder, source: str) -> str:
    """The page as a browser has it after its scripts have run."""
    path = folder / "probe.html"
    path.write_text(source, encoding="utf-8")
    words = [*pdf.command(chromium, folder / "profile"), "--virtual-time-budget=8000", "--dump-dom", path.as_uri()]
    return subprocess.run(words, capture_output=True, timeout=120, check=True).stdout.decode()


PROBE = """<!doctype html><title>?</title><body>
<iframe width="{width}" height="900" style="border:0" srcdoc="{page}"></iframe>
<script>
document.querySelector("iframe").addEventListener("load", (event) => {{
  const d = event.target.contentDocument, w = d.defaultView, root = d.documentElement;
  const cut = [...d.querySelectorAll("h1, h2, h3, p, li, figcaption, pre, .cards span, .answers td, svg")]
    .filter((e) => e.getClientRects().length)
    .filter((e) => e.getBoundingClientRect().right > w.innerWidth + 1
                   || (e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1))
    .map((e) => e.tagName + ": " + e.textContent.trim().slice(0, 60));
  document.title = JSON.stringify({{
    inner: w.innerWidth, scroll: root.scrollWidth, cut, executed: w.hostile === 1,
    wide: d.querySelectorAll(".wide svg").length && d.querySelector(".wide").getClientRects().length,
    narrow: d.querySelector(".narrow").getClientRects().length,
    height: d.querySelector("figure svg").getBoundingClientRect().height
            + d.querySelector(".narrow svg").getBoundingClientRect().height,
    paper: w.getComputedStyle(d.body).backgroundColor,
  }});
}});
</script>"""


def probed(chromium: str, folder, text: str, width: int) -> dict:
    """What a browser finds of a page in a window of that width."""
    found = dom(chromium, folder, PROBE.format(width=width, page=html.escape(text, quote=True)))
    return json.loads(html.unescape(re.search(r"<title>(.*?)</title>", found, re.DOTALL)[1]))


@pytest.mark.parametrize("width", [360, 480, 768, 1280])
def test_in_a_browser(chromium, tmp_path, either, width):
    """Nothing is wider than the window, no text is cut, and the figures of the right size are shown."""
    seen = probed(chromium, tmp_path, either, width)
    assert seen["inner"] == width and seen["scroll"] <= width
    assert seen["cut"] == []
    assert bool(seen["narrow"]) == (width <= 640) and bool(seen["wide"]) == (width > 640)
    assert seen["height"] > 200
    assert seen["paper"] == "rgb(255, 255, 255)"


def test_hostile_page_in_a_browser(chromium, tmp_path, dense):
    """What looks like code does not run."""
    attack = "<script>window.hostile=1</script><img src=x onerror='window.hostile=1'>"
    made = page.html_page(dense, figures=["memory"], question=attack, command=attack)
    assert probed(chromium, tmp_path, made, 800)["executed"] is False


def test_policy_stops_what_escaping_would_not(chromium, tmp_path, dense):
    """Even a script that stood in the page would not run: the second line of defence."""
    made = page.html_page(dense, figures=["memory"]).replace("</main>", "<script>window.hostile=1</script></main>")
    assert probed(chromium, tmp_path, made, 800)["executed"] is False
    without = re.sub(r"<meta http-equiv[^>]*>", "", made)
    assert probed(chromium, tmp_path, without, 800)["executed"] is True, "the probe would have seen it"


def test_pdf(chromium, tmp_path, dense):
    path = rl.write_report(dense, tmp_path / "page.pdf", figures=["memory", "waterfall"])
    data = path.read_bytes()
    assert data.startswith(b"%PDF") and len(data) > 20_000
