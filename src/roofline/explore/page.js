// Controls, address and numbers. State is a text per control, as in the address; texts reach the page as text nodes only.
"use strict";

(() => {
  const setup = JSON.parse(document.getElementById("setup").textContent);
  const { words } = figures;
  const table = setup.table;
  const element = (name, text, parent) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  };
  const byId = (id) => document.getElementById(id);

  // -- controls

  const NAMED = { weights: "checkpoint's", kv: "engine's default" };
  const menus = table
    ? { model: table.models, hw: table.hw, layout: table.layout, weights: table.weights, kv: table.kv, engine: table.engine }
    : setup.menus;
  const TITLES = { model: "Model", hw: "Hardware", layout: "Layout", weights: "Weights", kv: "KV cache", engine: "Engine",
    tp: "TP", pp: "PP", dp: "DP", ep: "EP", isl: "Prompt tokens (isl)", osl: "Output tokens (osl)",
    concurrency: "Requests in flight", price: "USD per GPU-hour" };
  const HINTS = { tp: "tensor-parallel ranks", pp: "pipeline stages", dp: "attention data-parallel groups", ep: "expert-parallel ranks" };
  const limits = (name) => (table ? [table.axes[name][0], table.axes[name].at(-1)] : [1, name === "concurrency" ? 1e5 : 1e7]);
  const SLIDER = { isl: [16, 262144], osl: [1, 16384], concurrency: [1, 4096] };
  const start = { ...setup.start };
  if (table) {
    const ranks = ["tp", "pp", "dp", "ep"].filter((n) => Number(start[n]) > 1).map((n) => n.toUpperCase() + start[n]);
    start.layout = ranks.join(" ") || table.layout.find((l) => l === "1 device");
    for (const n of ["tp", "pp", "dp", "ep"]) delete start[n];
  }
  const state = { ...start };
  let running = null, timer = 0; // the answer that is waited for, and the pause before the next is asked for
  const fields = {};

  function select(name, parent) {
    const label = element("label", undefined, parent);
    element("span", TITLES[name], label);
    if (HINTS[name]) label.title = HINTS[name];
    const made = element("select", undefined, label);
    made.name = name;
    for (const value of menus[name]) element("option", value || NAMED[name], made).value = value;
    made.addEventListener("change", () => change(name, made.value));
    fields[name] = { show: (value) => { made.value = value; } };
  }

  function amount(name, parent) {
    const label = element("label", undefined, parent);
    label.className = "whole";
    const [low, high] = limits(name), [first, last] = table ? [low, high] : SLIDER[name];
    element("span", TITLES[name], label);
    const number = element("input", undefined, label), slider = element("input", undefined, label);
    Object.assign(number, { type: "number", name, min: low, max: high, step: "any", inputMode: "numeric", required: true });
    const nodes = table && table.axes[name]; // the slider of a table stops at what was computed
    const steps = nodes ? nodes.length - 1 : 1000;
    Object.assign(slider, { type: "range", min: 0, max: steps, step: 1 });
    slider.setAttribute("aria-label", `${TITLES[name]}, slider`);
    const at = (k) => (nodes ? nodes[k] : Number((first * (last / first) ** (k / steps)).toPrecision(2)));
    const place = (value) => (nodes ? nodes.filter((node) => node <= value).length - 1
      : steps * Math.log(value / first) / Math.log(last / first));
    slider.addEventListener("input", () => { number.value = at(slider.value); change(name, number.value); });
    number.addEventListener("input", () => { if (number.checkValidity()) change(name, number.value); else complain(name, low, high); });
    fields[name] = { show: (value) => {
      if (document.activeElement !== number || number.value === "") number.value = value;
      if (document.activeElement !== slider) slider.value = place(Number(value)); // rounding must not hold it back
    } };
  }

  function complain(name, low, high) {
    clearTimeout(timer); // an answer still on its way would take the message away
    if (running) running.abort();
    running = null;
    document.body.classList.remove("waiting");
    failed([`${TITLES[name]}: a number from ${low} to ${high.toLocaleString("en-US")}`]);
  }

  function build() {
    const form = byId("controls");
    form.addEventListener("submit", (event) => event.preventDefault());
    for (const name of ["model", "hw"]) select(name, form);
    if (table) select("layout", form);
    else {
      const ranks = element("div", undefined, form);
      ranks.className = "ranks";
      for (const name of ["tp", "pp", "dp", "ep"]) select(name, ranks);
    }
    for (const name of ["weights", "kv", "engine"]) select(name, form);
    const label = element("label", undefined, form);
    element("span", TITLES.price, label);
    const price = element("input", undefined, label);
    Object.assign(price, { type: "number", name: "price", min: 0, max: 10000, step: "any", placeholder: "list price" });
    price.addEventListener("input", () => { if (price.checkValidity()) change("price", price.value); else complain("price", 0, 1e4); });
    fields.price = { show: (value) => { if (document.activeElement !== price) price.value = value; } };
    for (const name of ["isl", "osl", "concurrency"]) amount(name, form);
  }

  // -- the address

  function fromAddress() {
    const told = [];
    const asked = new URLSearchParams(location.hash.slice(1));
    Object.assign(state, start);
    for (const [name, value] of asked) {
      if (!(name in fields)) told.push(`the address names an unknown control '${name.slice(0, 40)}'`);
      else if (menus[name] && !menus[name].includes(value)) told.push(`the address asks for an unknown ${TITLES[name].toLowerCase()} '${value.slice(0, 80)}'; this is another`);
      else if (!menus[name] && !acceptable(name, value)) told.push(`the address has ${name} '${value.slice(0, 40)}', which is out of range`);
      else state[name] = value;
    }
    for (const [name, field] of Object.entries(fields)) field.show(state[name]);
    return told;
  }

  function acceptable(name, text) {
    if (name === "price" && text === "") return true;
    const [low, high] = name === "price" ? [0, 1e4] : limits(name), value = text.trim() === "" ? NaN : Number(text);
    return value >= low && value <= high;
  }

  const address = () => `#${new URLSearchParams(state)}`;

  // -- answers

  async function fromServer(asked, signal) {
    const response = await fetch(`/answer?${new URLSearchParams(asked)}`, { signal });
    if (!response.ok) return { error: `the server says: ${(await response.text()).slice(0, 200)}` };
    return response.json();
  }

  const interpolate = table && tableAnswers(table, words);
  const numeric = () => ({ ...state, isl: Number(state.isl), osl: Number(state.osl), concurrency: Number(state.concurrency),
    price: state.price === "" ? null : Number(state.price) });

  function change(name, value) {
    state[name] = value;
    for (const [other, field] of Object.entries(fields)) if (other === name) field.show(value);
    history.replaceState(null, "", address());
    clearTimeout(timer);
    timer = setTimeout(update, table ? 0 : 60);
  }

  let shown = null;

  async function update(told = []) {
    const notes = Array.isArray(told) ? told : [];
    if (running) running.abort();
    const mine = new AbortController();
    running = mine;
    document.body.classList.add("waiting");
    let found;
    try {
      found = table ? await interpolate(numeric()) : await fromServer(state, mine.signal);
    } catch (error) {
      if (mine.signal.aborted) return;
      found = { error: "the server does not answer any more; start 'roofline explore' again" };
    }
    if (running !== mine) return;
    document.body.classList.remove("waiting");
    show(found, notes);
    document.body.dataset.shown = address();
  }

  function list(id, texts) {
    byId(id).replaceChildren(...texts.map((text) => element("li", text)));
  }

  function failed(texts) {
    list("problems", texts);
    document.body.classList.add("failed");
  }

  function show(a, notes) {
    if (a.error) {
      failed([...notes, a.error]);
      if (a.title) byId("title").textContent = a.title;
      for (const kind of figures.kinds) byId(`figure-${kind}`).classList.toggle("told", kind === "memory" && Boolean(a.memory));
      if (a.memory) figures.draw("memory", a, setup);
      return;
    }
    shown = a;
    document.body.classList.remove("failed");
    document.body.classList.toggle("unfit", !a.fits);
    byId("title").textContent = a.title;
    list("problems", [...notes, ...a.problems]);
    byId("exact").textContent = exactness(a);
    numbers(a);
    list("sources", a.sources);
    list("missing", a.not_modelled);
    for (const kind of figures.kinds) figures.draw(kind, a, setup);
  }

  const percent = (x) => `${Number((100 * x).toPrecision(2))} %`;

  function exactness(a) {
    if (!a.fits) return "The numbers say what it would do if the memory were larger.";
    if (!table) return "";
    const off = table.off;
    return a.exact
      ? "Exact: this load was computed. The sliders stop at such loads; points on the curves lie between them."
      : "Interpolated between loads that were computed (the sliders stop at those). "
        + `In ${table.checks.toLocaleString("en-US")} checks, TPOT was off by ${percent(off.tpot_s[0])} in the median and less than `
        + `${percent(off.tpot_s[1])} in 19 of 20; TTFT by ${percent(off.ttft_s[0])} and ${percent(off.ttft_s[1])}.`;
  }

  function numbers(a) {
    const n = a.numbers, box = byId("numbers");
    const band = (values, say) => (values[1] === values[2] ? "" : `${say(values[1])} to ${say(values[2])}`);
    const row = (title, value, small, wide) => {
      const cell = element("div");
      element("dt", title, cell);
      const dd = element("dd", value, cell);
      if (wide) dd.className = "wide";
      if (small) element("small", small, dd);
      return cell;
    };
    const timed = (title, key, say) => row(title, say(n[key][0]), band(n[key], say));
    const money = (title, key) => (n[key] ? timed(title, key, words.usd) : row(title, "no price", "enter one"));
    const gpus = `${a.gpus} GPU${a.gpus > 1 ? "s" : ""}`;
    box.replaceChildren(
      timed("Time to first token", "ttft_s", words.seconds), timed("Time per output token", "tpot_s", words.seconds),
      timed("Tokens/s per user", "tokens_per_s_user", words.number), timed("Tokens/s per GPU", "tokens_per_s_gpu", words.number),
      timed(`Tokens/s of ${gpus}`, "tokens_per_s", words.number), timed("Whole request", "e2e_s", words.seconds),
      money("USD per Mtok out", "usd_per_mtok_output"), money("USD per Mtok in + out", "usd_per_mtok_blended"),
      row("Decoding together", words.number(a.running), `KV of ${words.number(Math.floor(a.resident))} requests fits`),
      row("MBU and MFU of a decode step", `${percent(a.mbu)}, ${percent(a.mfu)}`, "of bandwidth, of FLOP/s"),
      row("Bound", a.regime.split(" (")[0], a.regime.includes("(") ? a.regime.slice(a.regime.indexOf("(") + 1).replace(")", "") : "", true),
      row("Evidence", a.evidence, "bands: 80 % of cases", true),
    );
  }

  // -- start

  build();
  if (setup.command) byId("command").textContent = `Made by roofline ${setup.version}: ${setup.command}`;
  update(fromAddress());
  window.addEventListener("hashchange", () => update(fromAddress()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    if (shown) for (const kind of figures.kinds) figures.draw(kind, shown, setup);
  });
})();
