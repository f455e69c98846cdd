// The figures of an answer, drawn with plotly.js. Names from specs are text: plotly's own markup is escaped.
"use strict";

const figures = (() => {
  const GIB = 2 ** 30;
  const PREFIXES = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];

  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  const digits = (value) => {
    if (value === 0) return "0";
    if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en-US");
    return String(Number(value.toPrecision(3)));
  };

  const words = {
    number: digits,
    quantity(value, unit) {
      const [factor, prefix] = PREFIXES.find(([f]) => Math.abs(value) >= f * 0.9995) || [1, ""];
      return `${digits(value / factor)} ${prefix}${unit}`;
    },
    seconds: (value) => (value >= 1000 ? `${digits(value)} s` : words.quantity(value, "s")),
    usd: (value) => `$${value >= 100 ? digits(value) : value >= 0.1 ? value.toFixed(2) : Number(value.toPrecision(2))}`,
  };

  function colours() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    return { paper: read("--paper"), ink: read("--ink"), muted: read("--muted"), grid: read("--grid"), bad: read("--bad") };
  }

  // Black or white, whichever is read more easily on a colour.
  function textOn(hex) {
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.3 ? "#111111" : "#fefefe";
  }

  function ticks(low, high) {
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
    const steps = last - first > 3 ? [1] : last - first > 1 ? [1, 3] : [1, 2, 5];
    const found = [];
    for (let k = first; k <= last; k += 1) for (const s of steps) found.push(s * 10 ** k);
    return found.filter((v) => v >= low * 0.999 && v <= high * 1.001);
  }

  function logAxis(title, range, how, label) {
    const values = ticks(...range);
    return { title: { text: title, standoff: 8 }, type: "log", range: range.map(Math.log10), gridcolor: how.grid, zeroline: false,
      linecolor: how.muted, tickvals: values, ticktext: values.map(label), automargin: true, fixedrange: true };
  }

  const count = (v) => words.quantity(v, "").trim().replace(" ", "");

  function layout(how, more) {
    return { paper_bgcolor: how.paper, plot_bgcolor: how.paper, font: { color: how.ink, size: 12 }, hovermode: "closest",
      margin: { l: 8, r: 22, t: 8, b: 8 }, showlegend: false,
      hoverlabel: { bgcolor: how.paper, bordercolor: how.muted, font: { color: how.ink } }, dragmode: false, ...more };
  }

  const spanOf = (values, below, above) => [Math.min(...values) / below, Math.max(...values) * above];

  function roofline(a, how) {
    const r = a.roofline, main = r.slopes.find((s) => s.main), traces = [];
    const peak = Math.max(...r.roofs.map((f) => f.flops_per_s));
    const x = spanOf([...r.points.map((p) => p.intensity), 1, peak / main.bytes_per_s], 1.6, 4);
    const y = [Math.min(...r.points.map((p) => p.flops_per_s), peak / 1e3) / 2, peak * 3];
    const line = (xs, ys, name, strong, dashed) => traces.push({ x: xs, y: ys, mode: "lines",
      line: { color: strong ? how.ink : how.muted, width: strong ? 2.4 : 1, dash: dashed ? "dash" : "solid" },
      hovertemplate: `${plain(name)}<extra></extra>` });
    for (const f of r.roofs) {
      line([f.flops_per_s / main.bytes_per_s, x[1]], [f.flops_per_s, f.flops_per_s],
        `${f.names.join(", ")}: ${words.quantity(f.flops_per_s, "FLOP/s")}`, f.used, false);
    }
    for (const s of r.slopes) {
      const from = Math.max(x[0], y[0] / s.bytes_per_s);
      line([from, peak / s.bytes_per_s], [from * s.bytes_per_s, peak],
        `${s.name}: ${words.quantity(s.bytes_per_s, "B/s")}`, s.main, !s.main);
    }
    const slope = (s) => `${s.name}, ${words.quantity(s.bytes_per_s, "B/s")}`;
    const others = r.slopes.filter((s) => !s.main);
    const legend = [["circle", "#0072b2", "prefill op"], ["triangle", "#e69f00", "decode op"], ["line", how.ink, slope(main)]];
    if (others.length) legend.push(["dash", how.muted, others.map(slope).join("; ")]);
    for (const [step, colour, symbol] of [["prefill", "#0072b2", "circle"], ["decode", "#e69f00", "triangle-up"]]) {
      const points = r.points.filter((p) => p.step === step);
      traces.push({ x: points.map((p) => p.intensity), y: points.map((p) => p.flops_per_s), mode: "markers",
        text: points.map((p) => `${step} ${plain(p.op)}<br>${(100 * p.share).toFixed(1)} % of the step<br>`
          + `${digits(p.intensity)} FLOP/B, ${words.quantity(p.flops_per_s, "FLOP/s")}`),
        hovertemplate: "%{text}<extra></extra>",
        marker: { color: colour, symbol, opacity: 0.85, line: { color: how.paper, width: 1 },
          size: points.map((p) => Math.max(Math.sqrt(p.share) * 38, 6)) } });
    }
    const used = r.roofs.filter((f) => f.used).slice(0, 2);
    const annotations = used.map((f) => ({ x: Math.log10(x[1]), y: Math.log10(f.flops_per_s), xanchor: "right", yanchor: "bottom",
      showarrow: false, bgcolor: how.paper, borderpad: 1, font: { size: 11 }, text: `${plain(f.names[0])}: ${words.quantity(f.flops_per_s, "FLOP/s")}` }));
    const big = (step) => r.points.filter((p) => p.step === step).reduce((b, p) => (!b || p.share > b.share ? p : b), null);
    const told = ["prefill", "decode"].map((s) => [s, big(s)]).filter(([, p]) => p)
      .map(([s, p]) => `${s}: ${p.op}, ${Math.round(100 * p.share)} % of the step at ${digits(p.intensity)} FLOP/B`);
    return { traces, legend, caption: `${r.device}. Largest op of ${told.join("; of ")}. Area is time.`,
      layout: layout(how, { annotations, xaxis: logAxis("Arithmetic intensity [FLOP/B]", x, how, count),
        yaxis: logAxis("FLOP/s per device", y, how, count) }) };
  }

  function parts(a, how, setup) {
    const names = Object.keys(setup.parts).filter((n) => n in a.parts.decode);
    const steps = [["prefill", "Prefill"], ["decode", "Decode step"]];
    const whole = Object.fromEntries(steps.map(([s]) => [s, names.reduce((sum, n) => sum + a.parts[s][n], 0)]));
    const traces = names.map((name) => ({ type: "bar", orientation: "h", name: name === "kv" ? "KV cache" : name, y: steps.map(([s, label]) => `${label}<br>${words.seconds(whole[s])}`),
      x: steps.map(([s]) => 100 * a.parts[s][name] / whole[s]), marker: { color: setup.parts[name] },
      text: steps.map(([s]) => (a.parts[s][name] / whole[s] > 0.1 ? `${Math.round(100 * a.parts[s][name] / whole[s])} %` : "")),
      textposition: "inside", insidetextanchor: "middle", textangle: 0, textfont: { color: textOn(setup.parts[name]), size: 12 },
      hovertemplate: `${name === "kv" ? "KV cache" : name}: %{x:.1f} %<extra></extra>` })).filter((t) => t.x.some((v) => v > 0.05));
    const legend = traces.map((t) => ["square", t.marker.color, t.name]);
    return { traces, legend, caption: `One prompt alone, and a decode step of ${digits(a.running)} sequences: ${a.regime.split(";")[0]}.`,
      layout: layout(how, { barmode: "stack", bargap: 0.45,
        xaxis: { range: [0, 100], dtick: 20, ticksuffix: " %", title: { text: "Share of the step", standoff: 8 }, gridcolor: how.grid, fixedrange: true, zeroline: false, automargin: true },
        yaxis: { automargin: true, autorange: "reversed", fixedrange: true } }) };
  }

  function against(a, how, setup, pick, title, caption) {
    const curves = a.curves.filter((c) => c[pick]);
    if (!curves.length) return { empty: a.curves.length ? "no price on record: enter one" : "no layout fits" };
    const mineFirst = curves.map((c, i) => ({ ...c, i }));
    const traces = mineFirst.map((c) => ({ x: c.per_user, y: c[pick], mode: "lines",
      line: { color: setup.series[c.i % setup.series.length], width: c.mine ? 4 : 1.8, dash: DASHES[c.i % DASHES.length] },
      text: c.load.map((n, k) => `${plain(c.label)}, ${digits(n)} in flight<br>TTFT ${words.seconds(c.ttft_s[k])}<br>`
        + `${digits(c.per_user[k])} tokens/s per user<br>${pick === "usd" ? `${words.usd(c[pick][k])}/Mtok` : `${digits(c[pick][k])} tokens/s per GPU`}`),
      hovertemplate: "%{text}<extra></extra>" }));
    const here = pick === "usd" ? a.numbers.usd_per_mtok_output : a.numbers.tokens_per_s_gpu;
    const all = curves.flatMap((c) => c[pick]).concat(here && a.fits ? [here[0]] : []);
    const users = curves.flatMap((c) => c.per_user).concat(a.fits ? [a.numbers.tokens_per_s_user[0]] : []);
    const legend = curves.map((c, i) => [DASHES[i % DASHES.length] === "solid" ? "line" : DASHES[i % DASHES.length],
      setup.series[i % setup.series.length], c.mine ? `${c.label} (chosen)` : c.label]);
    if (here && a.fits) {
      legend.push(["star", how.ink, "this load"]);
      traces.push({ x: [a.numbers.tokens_per_s_user[0]], y: [here[0]], mode: "markers", cliponaxis: false,
        marker: { symbol: "star", size: 15, color: "#ffffff", line: { color: "#111111", width: 1.6 } },
        hovertemplate: "this load<extra></extra>" });
    }
    return { traces, legend, caption, layout: layout(how, { xaxis: logAxis("Output tokens/s per user", spanOf(users, 1.15, 1.15), how, count),
      yaxis: logAxis(title, spanOf(all, 1.3, 1.3), how, pick === "usd" ? words.usd : count) }) };
  }

  const frontier = (a, how, setup) => against(a, how, setup, "per_gpu", "Output tokens/s per GPU",
    "Each curve is a layout from one request in flight to as many as its memory holds.");
  const cost = (a, how, setup) => against(a, how, setup, "usd", "USD per million output tokens",
    a.usd_per_h === null ? "" : `At ${words.usd(a.usd_per_h)} per GPU-hour (${a.price_source}), prompts included.`);

  function regimes(a, how, setup) {
    const r = a.regimes, codes = r.codes.map((row) => [...row].map(Number)), n = r.names.length;
    const scale = r.names.flatMap((name, i) => [[i / n, setup.regimes[name]], [(i + 1) / n, setup.regimes[name]]]);
    const x = [r.batches[0], r.batches[r.batches.length - 1]], y = [r.contexts[0], r.contexts[r.contexts.length - 1]];
    const traces = [{ type: "heatmap", x: r.batches, y: r.contexts, z: codes, zmin: -0.5, zmax: n - 0.5, colorscale: scale, showscale: false,
      opacity: 0.85, text: codes.map((row) => row.map((c) => r.names[c])),
      hovertemplate: "%{text}<br>batch %{x:.0f}, context %{y:.0f}<extra></extra>" }];
    const present = r.names.filter((_, i) => codes.some((row) => row.includes(i)));
    const legend = present.map((name) => ["square", setup.regimes[name], name]);
    legend.push(["line", how.ink, "KV is full to the right"], ["star", how.ink, "this load"]);
    traces.push({ x: r.resident.map((v) => Math.min(Math.max(v, x[0] / 2), x[1] * 2)), y: r.contexts, mode: "lines",
      line: { color: how.ink, width: 2.5 }, hovertemplate: "to the right the KV does not fit<extra></extra>" });
    traces.push({ x: [r.here[0]], y: [Math.min(Math.max(r.here[1], y[0]), y[1])], mode: "markers", cliponaxis: false,
      marker: { symbol: "star", size: 15, color: "#ffffff", line: { color: "#111111", width: 1.6 } },
      hovertemplate: "this load<extra></extra>" });
    return { traces, legend, caption: `A batch of ${digits(r.here[0])} at ${digits(r.here[1])} cached tokens each: ${a.regime}.`,
      layout: layout(how, { xaxis: logAxis("Batch [sequences in a step]", x, how, count),
        yaxis: logAxis("Context [tokens per sequence]", y, how, count) }) };
  }

  function memory(a, how, setup) {
    const stacks = a.memory, visible = Math.max(...stacks.map((s) => s.visible)) / GIB;
    // a zero-width space each keeps two layouts with the same text apart
    const labels = stacks.map((s, i) => `${s.asked ? `<b>${plain(s.label)}</b>` : plain(s.label)}<br>${plain(s.remark)}${"\u200b".repeat(i)}`);
    const rows = Object.entries(setup.memory).filter(([row]) => row === "weights" || row === "kv_pool"
      || stacks.some((s) => s.rows[row] > 0.002 * s.visible));
    const traces = rows.map(([row, { name, colour }]) => ({ type: "bar", orientation: "h", y: labels,
      x: stacks.map((s) => Math.max(s.rows[row], 0) / GIB), marker: colour ? { color: colour }
        : { color: how.paper, line: { color: how.muted, width: 1 }, pattern: { shape: ".", fgcolor: how.muted } },
      hovertemplate: `${name}: %{x:.2f} GiB<extra></extra>` }));
    traces.push({ x: stacks.map((s) => s.visible / GIB), y: labels, mode: "markers",
      marker: { symbol: "line-ns-open", size: 30, color: how.ink, line: { color: how.ink, width: 2.5 } },
      hovertemplate: "visible: %{x:.1f} GiB<extra></extra>" });
    const legend = rows.map(([, { name, colour }]) => [colour ? "square" : "hollow", colour || how.muted, name]);
    legend.push(["bar", how.ink, "visible memory"]);
    const mine = stacks.find((s) => s.asked) || stacks[0];
    const used = Math.max(...stacks.map((s) => Object.values(s.rows).reduce((sum, v) => sum + Math.max(v, 0), 0))) / GIB;
    const share = Math.round(100 * mine.rows.weights / mine.visible);
    const left = mine.remark === "does not fit" ? "nothing is left for KV." : `KV of ${mine.remark} fits.`;
    const cut = used > 2 * visible ? " Bars end at twice the memory." : "";
    return { traces, legend, caption: `Weights take ${share} % of the ${digits(mine.visible / GIB)} GiB that are visible; ${left}${cut}`,
      layout: layout(how, { barmode: "stack", bargap: 0.4,
        xaxis: { title: { text: "GiB of a GPU", standoff: 8 }, gridcolor: how.grid, fixedrange: true, zeroline: false, automargin: true,
          range: [0, Math.min(used, 2 * visible) * 1.03] },
        yaxis: { automargin: true, autorange: "reversed", fixedrange: true } }) };
  }

  const kinds = { roofline, parts, frontier, cost, regimes, memory };

  const SVG = "http://www.w3.org/2000/svg";
  const STAR = "M10 0 L11.8 4.2 L16 4.4 L12.7 7.2 L13.9 11.6 L10 9 L6.1 11.6 L7.3 7.2 L4 4.4 L8.2 4.2 Z";
  const SHAPES = { circle: "M10 1 A5 5 0 1 0 10 11 A5 5 0 1 0 10 1 Z", triangle: "M10 1 L15.5 11 L4.5 11 Z",
    square: "M5 1 H15 V11 H5 Z", hollow: "M5 1 H15 V11 H5 Z", star: STAR, bar: "M10 0 V12" };

  function legendEntry(shape, colour, text) {
    const item = document.createElement("li"), svg = document.createElementNS(SVG, "svg"), path = document.createElementNS(SVG, "path");
    const open = !(shape in SHAPES) || shape === "bar" || shape === "hollow" || shape === "star";
    path.setAttribute("d", SHAPES[shape] || "M0 6 H20");
    path.setAttribute("fill", open ? "none" : colour);
    path.setAttribute("stroke", open ? colour : "none");
    path.setAttribute("stroke-width", shape in SHAPES && shape !== "bar" ? 1.3 : 2.4);
    const dashes = { dash: "6 3", dot: "2 2.5", dashdot: "6 2 1.5 2", longdash: "9 3", hollow: "1.5 1.5" };
    if (dashes[shape]) path.setAttribute("stroke-dasharray", dashes[shape]);
    svg.setAttribute("aria-hidden", "true");
    svg.append(path);
    item.append(svg, document.createTextNode(text));
    return item;
  }

  function draw(kind, a, setup) {
    const figure = document.getElementById(`figure-${kind}`), place = figure.querySelector(".plot");
    const need = { roofline: a.roofline, parts: a.parts, frontier: a.curves, cost: a.curves, regimes: a.regimes, memory: a.memory }[kind];
    const drawn = need ? kinds[kind](a, colours(), setup) : { empty: "" };
    figure.querySelector("figcaption p").textContent = drawn.empty ?? drawn.caption;
    figure.querySelector(".legend").replaceChildren(...(drawn.legend || []).map((entry) => legendEntry(...entry)));
    if ("empty" in drawn) return Plotly.purge(place);
    return Plotly.react(place, drawn.traces, drawn.layout, { responsive: true, displayModeBar: false });
  }

  return { draw, kinds: Object.keys(kinds), words };
})();
