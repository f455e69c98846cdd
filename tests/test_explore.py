"""`roofline explore`: questions, answers, the table of an exported page, the server, and both pages in a browser."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from urllib.parse import urlencode

import numpy as np
import pytest
from click.testing import CliRunner

from roofline.cli import cli
from roofline.errors import InputError, RooflineError, UnknownNameError
from roofline.estimates import estimate
from roofline.explain import plain
from roofline.explore import export, menu, question_of
from roofline.explore.answer import REGIME_NAMES, answer
from roofline.explore.page import embedded, plotly_js
from roofline.explore.question import Question, layout
from roofline.explore.server import Server
from roofline.explore.table import CONCURRENCY, CONTEXT, ISL, OSL, Choices, between, served, table, with_start
from roofline.parallel import Plan
from roofline.regimes import decode_regime
from roofline.serving.steady import steady_state
from roofline.specs.library import spec_root

START = Question("llama-3.1-8b", "h100-sxm")
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>&\"'"


@pytest.fixture(scope="module")
def menus():
    return menu()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A folder of specs whose names, titles and sources are markup."""
    root = tmp_path_factory.mktemp("specs")
    hardware, model = root / "hardware_specs" / "x", root / "model_specs" / "x"
    hardware.mkdir(parents=True)
    model.mkdir(parents=True)
    text = (spec_root("hardware") / "nvidia" / "l40s.yaml").read_text(encoding="utf-8")
    text = re.sub(r"^title:.*$", f"title: {json.dumps(HOSTILE)}", text, flags=re.MULTILINE)
    text = re.sub(r"^aliases:.*$", "aliases: [evil-card]", text, flags=re.MULTILINE)
    text = re.sub(r"^(sources:\n\s+\w+:).*$", lambda m: f"{m[1]} {json.dumps(HOSTILE)}", text, flags=re.MULTILINE)
    assert text.count("<script>") == 2
    (hardware / "<img src=x onerror=alert(3)>.yaml").write_text(text, encoding="utf-8")
    found = next(spec_root("model").rglob("llama-3.2-1b.yaml")).read_text(encoding="utf-8")
    found = re.sub(r"^name:.*$", f"name: {json.dumps(HOSTILE)}", found, flags=re.MULTILINE)
    found = re.sub(r"^aliases:(.*\n(?:[ -].*\n)*)", "aliases: [evil-model]\n", found, flags=re.MULTILINE)
    (model / "evil.yaml").write_text(found, encoding="utf-8")
    return root


# -- questions


def test_a_question_survives_the_address(menus):
    q = Question("llama-3.1-70b", "b200-sxm", 4, 2, 1, 1, "fp8", "fp8", "sglang", 3000.5, 77.0, 12.0, 3.25)
    assert question_of(q.state(), menus, START) == q
    assert question_of({}, menus, START) == START
    assert question_of({"isl": "2e3"}, menus, START) == replace(START, isl=2000.0)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("model", "llama-3.1-9b"), ("model", "/etc/passwd"), ("model", "meta-llama/Llama-3.1-8B-Instruct"),
        ("model", "../x.yaml"), ("hw", "h100"), ("engine", "nosuch"), ("weights", "fp7"), ("kv", "x"),
        ("isl", "nan"), ("isl", "inf"), ("isl", "-1"), ("isl", "0"), ("isl", "1e99"), ("isl", ""), ("isl", "ten"),
        ("osl", "0.5"), ("concurrency", "1e9"), ("tp", "1.5"), ("tp", "0"), ("tp", "100000"), ("price", "-1"),
        ("price", "nan"), ("price", "free"), ("colour", "red"), ("model", "x" * 10_000), ("isl", "1\n2"),
    ],
)  # fmt: skip
def test_only_what_the_menus_hold_is_asked(menus, field, text):
    """No path and no Hub id gets through: nothing that a page asks can open a file or the network."""
    with pytest.raises((InputError, UnknownNameError)):
        question_of({field: text}, menus, START)


def test_layouts_have_names():
    assert layout("TP8 EP8") == layout("tp8ep8") == Plan(tp=8, ep=8)
    for text in ("", "8", "tp", "tp0", "tp4xx", "cp2", "tp-1"):
        with pytest.raises(InputError):
            layout(text)


# -- answers


def test_numbers_are_those_of_an_estimate(menus):
    q = replace(START, model="llama-3.1-70b", tp=4, isl=2000.0, osl=300.0, concurrency=24.0, price=2.0)
    a = answer(q, menus)
    e = estimate("llama-3.1-70b", "h100-sxm", tp=4, isl=2000, osl=300, concurrency=24, usd_per_h=2.0)
    for name in ("ttft_s", "tpot_s", "usd_per_mtok_output", "tokens_per_s_gpu"):
        value = getattr(e, name)
        assert a["numbers"][name] == pytest.approx([value.value, value.low, value.high], rel=1e-12), name
    assert a["fits"] is True
    assert sum(a["parts"]["decode"].values()) == pytest.approx(float(e.decode.total_s))
    mine = next(c for c in a["curves"] if c["mine"])
    # the curve of the chosen layout passes through the chosen load
    assert np.interp(24.0, mine["load"], mine["per_gpu"]) == pytest.approx(e.tokens_per_s_gpu.value, rel=0.03)
    assert np.interp(24.0, mine["load"], mine["usd"]) == pytest.approx(e.usd_per_mtok_output.value, rel=0.1)
    for stack in a["memory"]:
        if stack["remark"] != "does not fit":
            assert sum(stack["rows"].values()) == pytest.approx(stack["visible"])


def test_the_map_says_what_regimes_say(menus):
    q = replace(START, model="llama-3.1-70b", tp=4)
    r = answer(q, menus)["regimes"]
    where = menus.deployment(q)
    for i, j in ((0, 0), (5, 40), (30, 10), (48, 48), (20, 20)):
        name = r["names"][int(r["codes"][i][j])]
        assert name == decode_regime(where, r["batches"][j], r["contexts"][i]).name
    assert r["names"] == list(REGIME_NAMES)


def test_what_cannot_be_says_why(menus):
    assert "does not divide" in answer(replace(START, tp=64, ep=64, dp=1), menus)["error"]
    small = answer(replace(START, model="llama-3.1-405b"), menus)
    assert small["fits"] is False
    assert small["problems"][0].startswith("does not fit")
    assert all(not c["mine"] for c in small["curves"])


def test_every_answer_is_json(menus):
    for change in ({"price": None, "hw": "gb300"}, {"model": "deepseek-r1", "hw": "h200-sxm", "tp": 8, "ep": 8}):
        text = json.dumps(plain(answer(replace(START, **change), menus)), allow_nan=False)
        assert '"error"' not in text[:12]


# -- the table of an exported page

PAIRS = [("llama-3.1-8b", Plan()), ("llama-3.1-70b", Plan(tp=8)), ("mixtral-8x7b", Plan(tp=4, ep=4))]


@pytest.mark.parametrize(("model", "plan"), PAIRS, ids=lambda p: str(p))
def test_nodes_are_exact_and_between_them_it_is_close(menus, model, plan):
    where = menus.deployment(replace(START, model=model, tp=plan.tp, ep=plan.ep))
    at = served(where)
    i, j, k = (axis.ravel() for axis in np.indices((ISL.size, OSL.size, CONCURRENCY.size)))
    nodes = ISL[i], OSL[j], CONCURRENCY[k]
    true = steady_state(where, isl=nodes[0], osl=nodes[1], concurrency=nodes[2])
    found = between(at, *nodes)
    for name, column in zip(("ttft_s", "tpot_s"), found):
        np.testing.assert_allclose(column, getattr(true, name), rtol=1e-9, err_msg=name)
    rng = np.random.default_rng(5)
    loads = [np.exp(rng.uniform(np.log(a[0]), np.log(a[-1]), 400)) for a in (ISL, OSL, CONCURRENCY)]
    true = steady_state(where, isl=loads[0], osl=loads[1], concurrency=loads[2])
    found = between(at, *loads)
    off = [np.abs(f / np.asarray(getattr(true, n), float) - 1.0) for n, f in zip(("ttft_s", "tpot_s"), found)]
    assert np.median(off[0]) < 0.03  # the page tells the reader these numbers, measured at export
    assert np.median(off[1]) < 0.02
    assert np.percentile(off[1], 95) < 0.1


def test_a_table_keeps_what_fails(menus):
    choices = Choices(("llama-3.1-405b", "llama-3.1-8b"), ("h100-sxm",), (Plan(), Plan(tp=8)), ("", "fp8"))
    found = table(choices, menus)
    errors = [c.get("error", "") for c in found["cases"]]
    assert len(errors) == len(choices) == 8
    # 405B: 16 bits fit on neither, 8 bits on eight; 8B fits everywhere
    assert [bool(e) for e in errors] == [True, True, True, False, False, False, False, False]
    assert errors[0].startswith("does not fit")
    assert found["cases"][0]["memory"], "what does not fit can still be seen"
    assert found["checks"] > 100
    assert 0 < found["off"]["tpot_s"][0] < 0.02


def test_the_start_is_among_the_choices():
    choices = Choices(("a",), ("h",), (Plan(tp=8), Plan(tp=2)))
    grown = with_start(choices, Question("b", "h", tp=4))
    assert grown.models == ("b", "a")
    assert grown.layouts == (Plan(tp=2), Plan(tp=4), Plan(tp=8))
    with pytest.raises(InputError, match="too many"):
        Choices(tuple("abcdefghij"), tuple("abcdefghij"), (Plan(),) * 7)


# -- what the page is made of


def test_no_name_ends_the_script_element():
    text = embedded({"name": HOSTILE + "</script><!--"})
    assert "<" not in text
    assert json.loads(text)["name"] == HOSTILE + "</script><!--"


def test_missing_plotly_says_how_to_get_it(monkeypatch, tmp_path):
    plotly_js.cache_clear()
    monkeypatch.setitem(sys.modules, "plotly", None)
    out = tmp_path / "p.html"
    found = CliRunner().invoke(cli, ["explore", "--export", str(out)], standalone_mode=False)
    assert isinstance(found.exception, RooflineError)
    assert "roofline[explore]" in str(found.exception)
    assert not out.exists()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("nosuch",), "unknown model"), (("--hw", "nosuch"), "unknown hardware"), (("--isl", "nan"), "isl"),
        (("--concurrency", "-4"), "concurrency"), (("--tp", "0"), "tp"), (("--tp", "3"), "does not divide"),
        (("--price", "-1"), "price"), (("--cp", "2"), "cp"), (("--weights", "fp7"), "fp7"),
        (("--export", "x.html", "--layouts", "two"), "layout"), (("--port", "70000"), "port"),
        (("--export", "x.html", "--devices", "nosuch"), "nosuch"),
        (("--export", "/no/such/folder/x.html", "--layouts", "tp1"), "not a folder"),
    ],
)  # fmt: skip
def test_the_command_refuses_with_one_message(args, says):
    pytest.importorskip("plotly")
    found = CliRunner().invoke(cli, ["explore", *args], standalone_mode=False)
    assert isinstance(found.exception, RooflineError), found.exception
    assert says in str(found.exception)


# -- the server


@contextlib.contextmanager
def serving(start: Question, menus):
    with Server(start, menus, port=0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(timeout=10)


@pytest.fixture(scope="module")
def server(menus):
    pytest.importorskip("plotly")
    with serving(START, menus) as running:
        yield running


def get(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def test_it_listens_on_this_machine_only(server):
    assert server.server_address[0] == "127.0.0.1"


def test_it_answers_its_page(server):
    query = urlencode({"isl": 4000, "tp": 2})
    status, headers, body = get(server, f"/answer?{query}", **{"Sec-Fetch-Site": "same-origin"})
    assert status == 200
    assert headers["Content-Type"].startswith("application/json")
    expected = estimate("llama-3.1-8b", "h100-sxm", tp=2, isl=4000, osl=256, concurrency=16)
    assert json.loads(body)["numbers"]["tpot_s"][0] == pytest.approx(expected.tpot_s.value)
    for path in ("/", "/page.js", "/figures.js", "/table.js", "/plotly.js"):
        status, headers, body = get(server, path)
        assert status == 200, path
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe-eval" not in headers["Content-Security-Policy"]
        assert "Access-Control-Allow-Origin" not in headers
        assert len(body) == int(headers["Content-Length"])


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1", "127.0.0.1.evil.example"])
def test_other_hosts_are_refused(server, host):
    """DNS rebinding: the browser believes that a foreign name is this machine, and says so in the Host header."""
    status, _, body = get(server, "/answer?isl=100", Host=host)
    assert status == 403
    assert b"numbers" not in body


def test_other_sites_are_refused(server):
    assert get(server, "/answer?isl=100", **{"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert get(server, "/", **{"Sec-Fetch-Site": "cross-site"})[0] == 403


@pytest.mark.parametrize("path", ["/nosuch", "/../page.py", "/%2e%2e/server.py", "//etc/passwd", "/page.py"])
def test_other_paths_are_not_there(server, path):
    assert get(server, path)[0] == 404


def test_wrong_questions_get_a_message(server):
    status, _, body = get(server, "/answer?" + urlencode({"model": HOSTILE}))
    assert status == 200
    assert "unknown model" in json.loads(body)["error"]
    assert get(server, "/answer?" + "a=1&" * 100)[0] == 400
    assert get(server, "/answer?isl=" + "1" * 5000)[0] == 414
    assert get(server, "/", method="POST")[0] == 501
    assert get(server, "/", method="HEAD")[2] == b""


def test_a_taken_port_says_so(server, menus):
    with pytest.raises(InputError, match="--port"):
        Server(START, menus, port=server.port)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_the_command_serves_until_ctrl_c():
    pytest.importorskip("plotly")
    command = [sys.executable, "-m", "roofline", "explore", "llama-3.2-1b", "--hw", "l40s", "--port", "0", "--no-open"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test run in the background ignores it
    )  # fmt: skip
    try:
        port = int(re.match(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/answer?isl=500")
        assert json.loads(connection.getresponse().read())["title"].startswith("llama-3.2-1b")
        connection.close()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0
    assert errors == ""


# -- both pages in a browser

WAIT_S = 30


class Page:
    """The page in the browser, and what a user does with it."""

    def __init__(self, window, url: str, width: int = 1300, dark: bool = False):
        self.window, self.url = window, url
        window.get("about:blank")
        window.get_log("performance"), window.get_log("browser")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        window.get(url)
        self.settle()

    def js(self, code: str, *values):
        return self.window.execute_script(code, *values)

    def settle(self):
        """Wait until what is shown is what the address asks for."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.window, WAIT_S, 0.05).until(
            lambda _: self.js("return Boolean(document.body.dataset.shown) && !document.body.matches('.waiting')")
        )

    def find(self, css: str):
        return self.window.find_element("css selector", css)

    def text(self, css: str) -> str:
        return self.find(css).text

    def choose(self, name: str, value: str):
        from selenium.webdriver.support.ui import Select, WebDriverWait

        Select(self.find(f"select[name={name}]")).select_by_value(value)
        self._shown(WebDriverWait, name, value)

    def type(self, name: str, value: str):
        from selenium.webdriver.common.keys import Keys
        from selenium.webdriver.support.ui import WebDriverWait

        field = self.find(f"input[name={name}]")
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(value)
        self._shown(WebDriverWait, name, value)

    def _shown(self, wait, name: str, value: str):
        code = "return new URLSearchParams((document.body.dataset.shown || '').slice(1)).get(arguments[0])"
        wait(self.window, WAIT_S, 0.05).until(lambda _: self.js(code, name) == value)

    def numbers(self) -> dict[str, str]:
        """Headline numbers by their titles."""
        return self.js("""return Object.fromEntries([...document.querySelectorAll("#numbers div")].map(
            (d) => [d.querySelector("dt").textContent, d.querySelector("dd").firstChild.textContent]))""")

    def drawn(self, kind: str):
        """What plotly has drawn in a figure."""
        return self.js("""const p = document.querySelector(`#figure-${arguments[0]} .plot`);
            return p.data ? p.data.map((t) => ({x: t.x, y: t.y, z: t.z, type: t.type, text: t.text})) : null""", kind)

    def requests(self) -> list[str]:
        """Addresses asked for since the page was opened."""
        messages = [json.loads(entry["message"])["message"] for entry in self.window.get_log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """What the browser's console holds."""
        return [entry["message"] for entry in self.window.get_log("browser")]


FIGURES = ("roofline", "parts", "frontier", "cost", "regimes", "memory")


def test_live_page_follows_clicks(browser, server):
    page = Page(browser, server.url)
    before = {kind: page.drawn(kind) for kind in FIGURES}
    assert all(before.values())
    numbers = page.numbers()
    assert "llama-3.1-8b" in page.text("#title")

    page.choose("model", "llama-3.1-70b")
    page.choose("tp", "4")
    assert page.text("#title") == "llama-3.1-70b bf16 on 4 x h100-sxm (TP4), vllm"
    after = {kind: page.drawn(kind) for kind in FIGURES}
    assert all(before[kind] != after[kind] for kind in FIGURES)
    assert page.numbers() != numbers

    page.type("concurrency", "64")
    page.type("isl", "4000")
    page.type("price", "2.5")
    e = estimate("llama-3.1-70b", "h100-sxm", tp=4, isl=4000, osl=256, concurrency=64, usd_per_h=2.5)
    assert page.numbers()["USD per Mtok out"] == f"${e.usd_per_mtok_output.value:.2f}"
    assert page.numbers()["Tokens/s per user"] == f"{e.tokens_per_s_user.value:.3g}"

    asked = page.requests()
    assert asked and all(a.startswith((server.url, "data:", "blob:", "about:")) for a in asked)
    assert page.complaints() == []


def test_the_address_holds_the_state(browser, server):
    page = Page(browser, server.url)
    page.choose("hw", "h200-sxm")
    page.type("osl", "700")
    address, numbers = browser.current_url, page.numbers()
    assert "hw=h200-sxm" in address and "osl=700" in address
    other = Page(browser, address)
    assert other.numbers() == numbers
    assert other.find("input[name=osl]").get_attribute("value") == "700"
    assert other.js("return document.querySelector('select[name=hw]').value") == "h200-sxm"


def test_a_slider_moves_the_numbers(browser, server, exported):
    """By keyboard, also in steps that rounding hides; in an exported page it stops at exact loads."""
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    for url, presses in ((server.url, 40), (exported.as_uri(), 2)):
        page = Page(browser, url)
        before, start = page.numbers(), float(page.find("input[name=concurrency]").get_attribute("value"))
        slider = page.find("input[type=range][aria-label^='Requests in flight']")
        for _ in range(presses):
            slider.send_keys(Keys.ARROW_RIGHT)
        WebDriverWait(browser, WAIT_S, 0.05).until(lambda _, page=page, before=before: page.numbers() != before)
        page.settle()
        after = float(page.find("input[name=concurrency]").get_attribute("value"))
        assert after > start
    assert after == 4 * start
    assert "Exact" in page.text("#exact")


def test_wrong_numbers_are_told_and_do_not_break_it(browser, server):
    page = Page(browser, server.url)
    field = page.find("input[name=isl]")
    from selenium.webdriver.common.keys import Keys

    for text in ("-5", "0", "1e99", ""):
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(text or Keys.DELETE)
        assert "Prompt tokens" in page.text("#problems"), text
    page.type("isl", "2000")
    assert page.text("#problems") == ""
    page.choose("tp", "64")
    assert "tp: 64" in page.text("#problems")
    page.choose("tp", "2")
    assert page.text("#problems") == ""
    assert page.complaints() == []


def test_an_address_with_markup_is_text(browser, server):
    address = server.url + "#" + urlencode({"model": HOSTILE, HOSTILE[:30]: "1", "isl": "<b>", "hw": "h200-sxm"})
    page = Page(browser, address)
    assert "<script>alert(1)" in page.text("#problems")
    assert "h200-sxm" in page.text("#title")
    assert page.js("return document.querySelectorAll('main script, main img, #problems b').length") == 0


@pytest.fixture(scope="module")
def exported(tmp_path_factory, menus):
    pytest.importorskip("plotly")
    out = tmp_path_factory.mktemp("page") / "page.html"
    choices = Choices(("llama-3.1-8b", "llama-3.1-70b"), ("h100-sxm", "h200-sxm"), (Plan(tp=2), Plan(tp=4), Plan(tp=8)))
    start = replace(START, model="llama-3.1-70b", tp=4, concurrency=32.0)
    return export(out, start, choices, menus, "roofline explore <x>")


def test_the_exported_page_needs_nothing_else(browser, exported):
    page = Page(browser, exported.as_uri())
    assert "Exact" in page.text("#exact")
    for change in (("model", "llama-3.1-8b"), ("hw", "h200-sxm"), ("layout", "TP2")):
        before = page.drawn("roofline"), page.drawn("memory")
        page.choose(*change)
        assert (page.drawn("roofline"), page.drawn("memory")) != before
    assert page.text("#title") == "llama-3.1-8b bf16 on 2 x h200-sxm (TP2), vllm"
    asked = [a for a in page.requests() if not a.startswith(("data:", "blob:", "about:"))]
    assert {a.partition("#")[0] for a in asked} == {exported.as_uri()}
    assert page.complaints() == []


def parsed(text: str) -> float:
    """A number as the page writes it: '29.4 ms', '1,080', '$3.03'."""
    match = re.fullmatch(r"\$?([\d.,]+) ?([munkMGTPµ]?)s?", text)
    factor = {"m": 1e-3, "µ": 1e-6, "n": 1e-9, "k": 1e3, "": 1.0}[match[2]]
    return float(match[1].replace(",", "")) * factor


def test_the_exported_page_is_exact_at_nodes(browser, exported):
    page = Page(browser, exported.as_uri() + "#" + urlencode({"isl": 2048, "osl": 128, "concurrency": 64}))
    e = estimate("llama-3.1-70b", "h100-sxm", tp=4, isl=2048, osl=128, concurrency=64)
    assert "Exact" in page.text("#exact")
    shown = {k: parsed(v) for k, v in page.numbers().items() if re.match(r"\$?[\d.,]+( \w?s)?$", v)}
    for title, value in (
        ("Time to first token", e.ttft_s), ("Time per output token", e.tpot_s), ("Whole request", e.e2e_s),
        ("Tokens/s per user", e.tokens_per_s_user), ("Tokens/s per GPU", e.tokens_per_s_gpu),
        ("USD per Mtok out", e.usd_per_mtok_output), ("USD per Mtok in + out", e.usd_per_mtok_blended),
    ):  # fmt: skip
        digits = 0.02 if "USD" in title else 0.006  # cents, or three digits, are shown
        assert shown[title] == pytest.approx(value.value, rel=digits), title
    assert page.numbers()["Bound"] == e.regime.name


def test_the_exported_page_interpolates_as_it_says(browser, exported, menus):
    """Off the nodes, its own script gives what `between` gives."""
    load = {"isl": 3000, "osl": 300, "concurrency": 700}
    page = Page(browser, exported.as_uri() + "#" + urlencode(load))
    assert "Interpolated" in page.text("#exact")
    assert "wait" in page.text("#problems")  # 700 do not fit at once: the wait for a seat is part of TTFT
    where = menus.deployment(replace(START, model="llama-3.1-70b", tp=4))
    ttft, tpot = between(served(where), *(np.array([float(v)]) for v in load.values()))
    assert parsed(page.numbers()["Time to first token"]) == pytest.approx(float(ttft[0]), rel=0.006)
    assert parsed(page.numbers()["Time per output token"]) == pytest.approx(float(tpot[0]), rel=0.006)
    outside = Page(browser, exported.as_uri() + "#" + urlencode({"model": "llama-3.1-8b", "isl": 131072, "osl": 4096}))
    assert "above the model's limit" in outside.text("#problems")


BOXES = """return [...document.querySelectorAll(
    "#controls label, #numbers > div, figure, #title, #problems li, figcaption p, .legend li")].map((e) => {
    const b = e.getBoundingClientRect();
    return [e.tagName, b.left, b.right, e.scrollWidth - e.clientWidth]; })"""
CUT = """return [...document.querySelectorAll(".plot")].flatMap((plot) => {
    const box = plot.getBoundingClientRect();
    const outside = (b) => b.left < box.left - 1 || b.right > box.right + 1 || b.bottom > box.bottom + 1
      || b.top < box.top - 1;
    return [...plot.querySelectorAll("text")].filter((t) => t.textContent.trim())
      .map((t) => [t, t.getBoundingClientRect()]).filter(([, b]) => b.width && outside(b))
      .map(([t]) => `${plot.parentElement.id}: ${t.textContent}`); })"""
TOUCHING = """return [...document.querySelectorAll(".plot")].flatMap((plot) => ["xtick", "ytick"].flatMap((kind) => {
    const ticks = [...plot.querySelectorAll(`.${kind} text`)].map((t) => [t.textContent, t.getBoundingClientRect()]);
    return ticks.flatMap(([name, a], i) => ticks.slice(i + 1).filter(([, b]) =>
      a.left < b.right && b.left < a.right && a.top < b.bottom - 1 && b.top < a.bottom - 1)
      .map(([other]) => `${plot.parentElement.id}: ${name} on ${other}`)); }))"""


@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (768, True), (1300, False)])
def test_nothing_is_cut_or_overlaps(browser, server, exported, width, dark):
    for url in (server.url + "#model=llama-3.1-70b&tp=4&concurrency=300", exported.as_uri()):
        page = Page(browser, url, width, dark)
        assert page.js("return document.documentElement.scrollWidth") <= width, "no sideways scrolling"
        for tag, left, right, hidden in page.js(BOXES):
            assert left >= 0 and right <= width + 0.5 and hidden <= 1, (tag, left, right, hidden)
        assert page.js(CUT) == [], "texts of figures stay inside them"
        assert page.js(TOUCHING) == [], "labels of ticks do not touch one another"
        paper = page.js("return getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(20, 23, 27)") is dark
        drawn = page.js("return document.querySelector('.plot .main-svg').style.background")
        assert drawn == paper, "figures follow the theme"


def test_hostile_specs_are_text_in_the_browser(browser, hostile):
    menus = menu(specs=str(hostile))
    card = next(n for n in menus.hardware if n.startswith("img-src"))
    start = Question("evil", card, concurrency=4.0)
    with serving(start, menus) as running:
        file = export(hostile / "page.html", start, Choices(("evil",), (card,), (Plan(),)), menus)
        for url in (running.url, file.as_uri()):
            page = Page(browser, url)
            assert "<script>alert(1)</script><img" in page.text("#title"), "shown as it is written"
            assert "<script>alert(1)" in page.text("#figure-roofline figcaption p")
            page.find("#about summary").click()
            assert "<script>alert(1)" in page.text("#sources")
            assert page.js("return document.querySelectorAll('main script, main img, form script').length") == 0
            assert page.complaints() == []  # an alert, a refused script or a failed image would be here
            assert all(a.startswith((running.url, "file:", "data:", "blob:", "about:")) for a in page.requests())


def test_axes_reach_what_is_asked():
    """The table's decode axes cover every context and batch of its loads."""
    assert CONTEXT[-1] >= ISL[-1] + OSL[-1] / 2
    assert CONTEXT[0] <= ISL[0] + OSL[0] / 2
