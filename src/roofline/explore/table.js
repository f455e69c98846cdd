// Answers from the table that an exported page carries, in the form in which the server gives them.
// How loads between nodes are answered is explained in table.py (`between`).
"use strict";

const tableAnswers = (() => {
  function numbers(text) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    return new Float32Array(bytes.buffer);
  }

  // Node below x and how far x is on the way to the next, in logarithms.
  function place(axis, x) {
    let i = 0;
    while (i < axis.length - 2 && axis[i + 1] <= x) i += 1;
    return [i, Math.log(x / axis[i]) / Math.log(axis[i + 1] / axis[i])];
  }

  function clamp(axis, x) {
    return Math.min(Math.max(x, axis[0]), axis[axis.length - 1]);
  }

  return (table, words) => {
    const axes = table.axes;
    const decoded = new Map();
    const read = (found, key) => {
      const name = table.cases.indexOf(found) + key;
      if (!decoded.has(name)) decoded.set(name, numbers(found[key]));
      return decoded.get(name);
    };

    function caseOf(state, layout) {
      let index = 0;
      for (const key of ["model", "hw", "weights", "kv", "engine"]) {
        const at = table[key === "model" ? "models" : key].indexOf(state[key]);
        if (at < 0) return null;
        index = index * table[key === "model" ? "models" : key].length + at;
      }
      return table.cases[index * table.layout.length + layout];
    }

    // Logarithms of TTFT and TPOT of so many requests, between the nodes next to it.
    function along(values, load, seats, requests) {
      const nodes = [...axes.concurrency, ...axes.crowd.map((x) => x * seats)], loads = axes.isl.length * axes.osl.length;
      let low = 0, high = -1;
      nodes.forEach((node, k) => {
        if (node <= requests && node > nodes[low]) low = k;
        if (node > requests && (high < 0 || node < nodes[high])) high = k;
      });
      const way = high < 0 ? 0 : Math.log(requests / nodes[low]) / Math.log(nodes[high] / nodes[low]);
      const w = Math.min(Math.max(way, 0), 1);
      return [0, 1].map((quantity) => {
        const row = (quantity * loads + load) * nodes.length;
        return (1 - w) * Math.log(values[row + low]) + w * Math.log(values[row + Math.max(high, 0)]);
      });
    }

    function serving(found, isl, osl, concurrency) {
      const values = read(found, "serving"), held = read(found, "seats");
      const [i, u] = place(axes.isl, isl), [j, v] = place(axes.osl, osl);
      const corners = [[0, 0], [0, 1], [1, 0], [1, 1]].map(([di, dj]) => {
        const load = (i + di) * axes.osl.length + j + dj;
        return { load, here: held[load], weight: (di ? u : 1 - u) * (dj ? v : 1 - v) };
      });
      const seats = Math.exp(corners.reduce((sum, { here, weight }) => sum + weight * Math.log(here), 0));
      const full = Math.min(Math.max(1 + Math.log2(concurrency / seats / axes.crowd[0]), 0), 1);
      const logs = [0, 0];
      for (const { load, here, weight } of corners) {
        along(values, load, here, concurrency * (here / seats) ** full).forEach((x, q) => { logs[q] += weight * x; });
      }
      return { ttft: Math.exp(logs[0]), tpot: Math.exp(logs[1]),
        running: Math.max(Math.min(concurrency, seats), 1), seats };
    }

    // One quantity of a step between nodes of the axes, in logarithms; zero stays zero.
    function stepped(values, row, where) {
      let total = 0;
      const size = where.reduce((n, [axis]) => n * axis.length, 1);
      for (let corner = 0; corner < 2 ** where.length; corner += 1) {
        let weight = 1, index = 0;
        where.forEach(([axis, [i, u]], d) => {
          const up = (corner >> d) & 1;
          weight *= up ? u : 1 - u;
          index = index * axis.length + i + up;
        });
        total += weight * Math.log(Math.max(values[row * size + index], 1e-30));
      }
      const value = Math.exp(total);
      return value < 1e-28 ? 0 : value;
    }

    function step(found, kind, where) {
      const values = read(found, kind), terms = {};
      table.step.forEach((name, row) => { terms[name] = stepped(values, row, where); });
      const ops = read(found, `${kind}_points`);
      const points = found[`${kind}_ops`].map((op, n) => {
        const [intensity, flops_per_s, share] = table.op.map((_, q) => stepped(ops, n * table.op.length + q, where));
        return { step: kind, op, intensity, flops_per_s, share };
      });
      return { terms, points };
    }

    function resident(found, length) {
      if (found.longest && length > found.longest) return 0;
      const x = clamp(axes.context, length);
      return stepped(read(found, "resident"), 0, [[axes.context, place(axes.context, x)]]);
    }

    function curve(found, state, price, mine) {
      const isl = state.isl, osl = state.osl, most = Math.max(Math.min(resident(found, isl + osl), 1024), found.dp + 1);
      const load = [];
      for (let k = 0; k < 33; k += 1) load.push(found.dp * (most / found.dp) ** (k / 32));
      const rows = load.map((c) => serving(found, isl, osl, c));
      const per_gpu = rows.map((r, k) => load[k] * osl / (r.ttft + (osl - 1) * r.tpot) / found.gpus);
      return { label: found.plan, mine, load, per_user: rows.map((r) => 1 / r.tpot), per_gpu,
        usd: price === null ? null : per_gpu.map((rate) => price / (rate * 3600) * 1e6), ttft_s: rows.map((r) => r.ttft) };
    }

    function regime(map, running, context) {
      const nearest = (axis, x) => axis.reduce((best, a, i) =>
        Math.abs(Math.log(a / x)) < Math.abs(Math.log(axis[best] / x)) ? i : best, 0);
      return map.names[Number(map.codes[nearest(map.contexts, context)][nearest(map.batches, running)])];
    }

    function exactness(state) {
      const outside = ["isl", "osl", "concurrency"].filter((n) => clamp(axes[n], state[n]) !== state[n]);
      if (outside.length) return { outside };
      return { outside, exact: ["isl", "osl", "concurrency"].every((n) => axes[n].includes(state[n])) };
    }

    return async (state) => {
      const layout = table.layout.indexOf(state.layout);
      const found = caseOf(state, layout);
      if (!found) return { error: "this page does not hold that combination" };
      const { outside, exact } = exactness(state);
      if (outside.length) {
        const n = outside[0], axis = axes[n];
        return { error: `${n}: this page holds ${axis[0]} to ${axis[axis.length - 1]}; 'roofline explore' has no such limit` };
      }
      const all = table.layout.map((_, l) => caseOf(state, l));
      const length = state.isl + state.osl;
      const stacks = all.filter((c) => c.memory).flatMap((c) => c.memory.map((m) => {
        const many = c.error ? 0 : Math.floor(resident(c, length));
        const remark = many >= 1 ? `${words.number(many)} x ${words.number(length)} tokens` : "does not fit";
        return { ...m, asked: c === found, remark };
      }));
      if (found.error) return { error: found.error, title: found.title, memory: stacks };
      const price = state.price === null ? found.usd_per_h : state.price;
      const load = serving(found, state.isl, state.osl, state.concurrency);
      const context = clamp(axes.context, state.isl + state.osl / 2);
      const batch = clamp(axes.batch, load.running);
      const decode = step(found, "decode", [[axes.batch, place(axes.batch, batch)], [axes.context, place(axes.context, context)]]);
      const prefill = step(found, "prefill", [[axes.isl, place(axes.isl, state.isl)]]);
      const ratio = (terms) => [1, terms.low / terms.total, terms.high / terms.total];
      const band = (value, of) => ratio(of.terms).map((r) => value * r);
      const turned = (values, top) => [top / values[0], top / values[2], top / values[1]];
      const e2e = band(load.ttft + (state.osl - 1) * load.tpot, decode);
      const tpot = band(load.tpot, decode);
      const rate = turned(e2e, state.concurrency * state.osl);
      const cost = (rates) => price === null ? null : turned(rates, price * found.gpus / 3600 * 1e6);
      const fits = resident(found, length);
      const problems = [];
      if (fits < 1) {
        problems.push(found.longest && length > found.longest
          ? `does not fit: ${length} tokens are above the model's limit of ${found.longest}`
          : `does not fit: no room for one sequence of ${words.number(length)} tokens`);
      } else if (fits < state.concurrency) {
        problems.push(`KV for ${words.number(state.concurrency)} requests of ${words.number(length)} tokens does not fit at the `
          + `same time: ${words.number(Math.floor(fits))} do; the others wait or are preempted`);
      }
      const others = all.filter((c) => !c.error && resident(c, length) >= 1);
      return {
        title: found.title, fits: fits >= 1, problems, exact, mfu: decode.terms.mfu, mbu: decode.terms.mbu, resident: fits, running: load.running,
        gpus: found.gpus, usd_per_h: price, price_source: state.price === null ? found.price_source : "as given",
        regime: regime(found.regimes, load.running, context), evidence: found.evidence,
        numbers: {
          ttft_s: band(load.ttft, prefill), tpot_s: tpot, e2e_s: e2e, tokens_per_s_user: turned(tpot, 1), tokens_per_s: rate,
          tokens_per_s_gpu: rate.map((r) => r / found.gpus), usd_per_mtok_output: cost(rate),
          usd_per_mtok_blended: cost(rate.map((r) => r * (state.isl + state.osl) / state.osl)),
        },
        parts: { prefill: prefill.terms, decode: decode.terms },
        roofline: { ...found.roofline, points: [...prefill.points, ...decode.points] },
        regimes: { ...found.regimes, here: [load.running, state.isl + state.osl / 2] },
        memory: stacks, curves: others.map((c) => curve(c, state, price, c === found)),
        sources: found.sources, not_modelled: found.not_modelled,
      };
    };
  };
})();
