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
from roofline.report import page, pdf

pytest.importorskip("jinja2")

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'{{ 7*7 }}{% raw %}</style>"


@pytest.fixture(scope="module")
def dense():
    return estimate("llama-3.1-70b", "h100-sxm", tp=4, isl=2000, osl=500, concurrency=32)


@pytest.fixture(scope="module")
def text(dense):
    options = {"frontier": {"slo_ttft_s": 1.0, "slo_tpot_s": 0.04}}
    return page.html_page(dense, options=options, date="2026-01-02")


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


def test_self_contained(text):
    """No script, nothing from elsewhere, and a policy that would forbid both."""
    read = Reader(text)
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


def test_every_reference_is_there(text):
    read = Reader(text)
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


def test_same_page_each_time(dense):
    assert page.html_page(dense, figures=["memory"]) == page.html_page(dense, figures=["memory"])


def test_no_browser_is_said(dense, tmp_path, monkeypatch):
    monkeypatch.setenv("ROOFLINE_BROWSER", "no-such-browser")
    with pytest.raises(InputError, match="print it from a browser"):
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
def test_in_a_browser(chromium, tmp_path, text, width):
    """Nothing is wider than the window, no text is cut, and the figures of the right size are shown."""
    seen = probed(chromium, tmp_path, text, width)
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
