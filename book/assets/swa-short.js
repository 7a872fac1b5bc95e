// The six short tasks: scores, recovery and agreement by window with perplexity on the same axis; and how long the
// items are beside w. Every number is one of the data block.
(function (SWA) {
  "use strict";
  const { make, whole, number, inColour, isNarrow } = SWA;
  const UPPER = [0.41, 1], LOWER = [0, 0.27];
  const percent = (x) => (x == null ? "?" : `${x.toFixed(1)} %`);
  const end = (x, sign) => (x == null ? `${sign}∞` : x.toFixed(1));
  const within = ([value, low, high]) => (
    value == null ? "unbounded" : `${value.toFixed(1)} % (${end(low, "−")} to ${end(high, "")})`);
  const shotsText = (n) => (n === 0 ? "no examples" : SWA.count(n, "example"));
  const labelOf = (list, id) => (list.find((one) => one.id === id) || { label: id }).label;
  const sourceFor = (data, { model, task, shots }) => data.sources.find(
    (one) => one.model === model && one.task === task && one.shots === shots);
  const settled = (data, state) => ({ ...data.initial, ...state });
  const keyOf = (state) => `${state.window},${state.sinks}`;
  const upright = (x, theme) => ({
    type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, layer: "below",
    line: { color: theme.axis, width: 1.5, dash: "4px 3px" },
  });

  function select(name, label, values, initial, text, shared) {
    return values.length > 1 ? [{ name, label, type: "select", values, initial, text, shared }] : [];
  }

  function controls(data) {
    const { initial, tasks } = data, measures = data.measures || [];
    return [
      ...select("task", "task", tasks.map((one) => one.id), initial.task, (id) => labelOf(tasks, id)),
      ...select("shots", "worked examples", data.shots, initial.shots, shotsText),
      ...select("measure", "measure", measures.map((one) => one.id), initial.measure, (id) => labelOf(measures, id), false),
      ...select("model", "model", data.models, initial.model, String),
      ...(data.windows.length > 1 ? [SWA.windowControl(data.windows, initial.window)] : []),
      ...(data.sinks.length > 1 ? [SWA.sinksControl(data.sinks, initial.sinks)] : []),
    ];
  }

  function commandFor(data, { model, shots, window: w, sinks: s }) {
    const text = data.commands[model].replace("[shots]", `[${shots}]`).replace("[w]", `[${w}]`).replace("[s]", `[${s}]`);
    return make("code", {}, text);
  }

  function table(el, head, rows) {
    const cell = (one, index) => make(index ? "td" : "th", index ? {} : { scope: "row" }, one);
    const top = make("tr", {}, ...head.map((text) => make("th", { scope: "col" }, text)));
    const body = rows.map((row) => make("tr", {}, ...row.map(cell)));
    const whole = make("table", { class: "swa-table swa-short" }, make("thead", {}, top), make("tbody", {}, ...body));
    SWA.extra(el).replaceChildren(make("div", { class: "swa-scroll", tabindex: "0" }, whole));
  }

  // ---- Scores by window.
  const sinksName = (s) => (s === 0 ? "no sinks" : SWA.count(s, "sink"));

  function measuredTrace(theme, method, { source, measure, windows, sinks }) {
    const cells = windows.map((w) => (source && source.cells[`${w},${sinks}`]) || {});
    const values = cells.map((cell) => cell[measure] || [null, null, null]), style = SWA.stroke(theme, method);
    const reach = (high) => values.map(([value, low, top]) => {
      const edge = high ? top : low;
      return value == null || edge == null ? 0 : Math.abs(edge - value);
    });
    return {
      type: "scatter", mode: "lines+markers", name: sinksName(sinks), x: windows, y: values.map(([value]) => value),
      ...style, cliponaxis: false,
      error_y: { array: reach(true), arrayminus: reach(false), symmetric: false, thickness: 1, width: 3, color: style.line.color },
      customdata: cells.map((cell, index) => [windows[index], within(values[index]), cell.n || 0]),
      hovertemplate: `w = %{customdata[0]}, ${sinksName(sinks)}<br>%{customdata[1]}, n = %{customdata[2]}<extra></extra>`,
    };
  }

  // A cross on the axis for each window that is not measured with these sinks.
  function absentTrace(theme, data, state, source, floor) {
    const absent = data.windows.filter((w) => w > state.sinks && !(source && source.cells[`${w},${state.sinks}`]));
    return {
      type: "scatter", mode: "markers", name: "not measured yet", x: absent, y: absent.map(() => floor), cliponaxis: false,
      marker: { symbol: "x-thin", size: 9, color: theme.muted, line: { color: theme.muted, width: 1.5 } },
      hovertemplate: `SWA(%{x}, ${state.sinks}): not measured yet<extra></extra>`,
    };
  }

  function pplTrace(theme, method, { ppl, windows, sinks }) {
    const cells = windows.map((w) => (ppl && ppl.cells[`${w},${sinks}`]) || {});
    return {
      type: "scatter", mode: "lines+markers", name: `perplexity, ${sinksName(sinks)}`, x: windows, yaxis: "y2",
      y: cells.map((cell) => cell.ppl ?? null), ...SWA.stroke(theme, method), cliponaxis: false,
      customdata: cells.map(SWA.spread),
      hovertemplate: `w = %{x}, ${sinksName(sinks)}<br>perplexity %{customdata}<extra></extra>`,
    };
  }

  function level(theme, method, name, windows, y, yaxis, dash) {
    const style = SWA.stroke(theme, method), span = [windows[0], windows[windows.length - 1]];
    return {
      type: "scatter", mode: "lines", name, x: span, y: [y, y], yaxis, line: { ...style.line, dash: dash || "solid" },
      hovertemplate: `${name}: ${number(y)}<extra></extra>`,
    };
  }

  const ring = (theme, method, x, y, yaxis) => ({
    type: "scatter", mode: "markers", name: `w = ${x}`, x: [x], y: [y ?? null], yaxis, hoverinfo: "skip", cliponaxis: false,
    marker: { symbol: "circle", size: 15, color: "rgba(0,0,0,0)", line: { color: theme.methods[method], width: 2.5 } },
  });

  // Where guessing and full attention stand on each measure, in percent.
  function marks(source, measure) {
    const hollow = { guess: null, full: null };
    if (!source) return hollow;
    if (measure === "score") return { guess: source.chance, full: source.score };
    if (measure === "agreement") return { guess: null, full: 100 };
    if (!source.signal) return hollow;
    return { guess: measure === "recovery" ? 100 * source.chance / source.score : 0, full: 100 };
  }

  // Names at the right ends of the lines of one panel.
  function names(layout, axis, items) {
    const { margin, height } = layout, { domain } = layout[axis], outside = margin.t + margin.b;
    const panel = { yaxis: layout[axis], margin, height: (height - outside) * (domain[1] - domain[0]) + outside };
    return SWA.endLabels(panel, items).map((one) => ({ ...one, yref: axis === "yaxis" ? "y" : "y2" }));
  }

  const lastOf = (trace) => [...trace.y].reverse().find((y) => y != null);

  function frame(el, data, state, theme) {
    const narrow = isNarrow(el), [low, high] = data.spans[state.measure], pad = 0.04 * (high - low);
    const all = Object.values(data.perplexities).flatMap((one) => [one.full, ...Object.values(one.cells)]);
    const ppl = all.map((cell) => cell.ppl).filter((x) => x != null);
    const title = narrow ? state.measure.replace(/_/g, " ") : labelOf(data.measures, state.measure);
    return SWA.layout(el, theme, {
      height: narrow ? 460 : 560, margin: { l: 58, r: narrow ? 76 : 150, t: 14, b: 48 },
      xaxis: {
        ...SWA.powersAxis(el, data.windows[0], data.windows[data.windows.length - 1], "window w (tokens, log scale)"), anchor: "y2",
      },
      yaxis: { title: { text: `${title}, %` }, range: [low - pad, high + pad], domain: UPPER },
      yaxis2: { ...SWA.logAxis(ppl, `perplexity${narrow ? "" : " (log)"}`), domain: LOWER },
    });
  }

  function noSignal(el, theme, source) {
    const text = `no signal: full attention scores ${percent(source.score)}<br>(${end(source.low)} to ${end(source.high)}), `
      + `no better than chance, ${percent(source.chance)}`;
    return {
      xref: "paper", x: 0.5, yref: "paper", y: (UPPER[0] + UPPER[1]) / 2, showarrow: false, text,
      font: { size: isNarrow(el) ? 13 : 15, color: theme.muted }, bgcolor: theme.paper,
    };
  }

  function sayScores(el, data, state, theme, source) {
    const { window: w, sinks: s, measure, model } = state, cell = source && source.cells[keyOf(state)];
    const spec = `SWA(${w}, ${s})`, noun = measure === "score" ? "" : `${measure.replace(/_/g, " ")} `;
    if (!source) return SWA.say(el, `${model}, ${labelOf(data.tasks, state.task)}, ${shotsText(state.shots)}: not measured yet: `, commandFor(data, state));
    const full = ["; full attention scores ", inColour(theme, "full", percent(source.score)), `, chance ${percent(source.chance)}.`];
    if (!cell) return SWA.say(el, `${spec}: not measured yet: `, commandFor(data, state), ...full);
    if (cell[measure][0] == null) return SWA.say(el, `${spec}: no ${noun || "score"}, for there is no signal`, ...full);
    const value = inColour(theme, s ? "sinks" : "no_sinks", within(cell[measure]));
    return SWA.say(el, `${spec}, ${noun}`, value, `, 95 % interval, n = ${whole(cell.n)}`, ...full);
  }

  function tableScores(el, state, theme, source) {
    const known = source || {}, cells = known.cells || {}, none = "not measured yet";
    const own = (s) => cells[`${state.window},${s}`], rows = [];
    const row = (name, value, n) => rows.push([name, value, n == null ? "" : whole(n)]);
    row(inColour(theme, "full", "full attention"), source ? within([known.score, known.low, known.high]) : none, known.n);
    [...new Set([state.sinks, 0])].forEach((s) => {
      const name = inColour(theme, s ? "sinks" : "no_sinks", `SWA(${state.window}, ${s})`);
      row(name, own(s) ? within(own(s).score) : none, own(s) && own(s).n);
    });
    row("chance", percent(known.chance));
    if (known.majority != null) row("always the commonest right option", percent(known.majority), known.n);
    if (known.letter_bias != null) row("blind, with full attention's letter bias", percent(known.letter_bias), known.n);
    if ((known.tasks || []).length > 1) row("averaged over", known.tasks.join(", "));
    table(el, ["score, 95 % interval", "", "items"], rows);
  }

  function drawScores(el, data, shown, theme) {
    const state = settled(data, shown), source = sourceFor(data, state), ppl = data.perplexities[state.model];
    const { windows } = data, { window: w, sinks: s, measure } = state, { guess, full } = marks(source, measure);
    const layout = frame(el, data, state, theme), silent = source && measure.startsWith("recovery") && !source.signal;
    const lines = [["no_sinks", 0], ...(s ? [["sinks", s]] : [])], traces = [], upper = [], lower = [];
    const short = isNarrow(el), say = (list, text, y, method) => list.push({ text, y, color: theme.methods[method] });
    if (full != null) {
      traces.push(level(theme, "full", "full attention", windows, full));
      say(upper, short ? "full" : "full attention", full, "full");
    }
    if (guess != null) {
      traces.push(level(theme, "chance", measure === "score" ? "chance" : "guessing", windows, guess, "y", "dot"));
      say(upper, measure === "score" ? "chance" : "guessing", guess, "chance");
    }
    if (ppl) {
      traces.push(level(theme, "full", "perplexity, full attention", windows, ppl.full.ppl, "y2"));
      say(lower, short ? "full" : "full attention", ppl.full.ppl, "full");
    }
    lines.forEach(([method, sinks]) => {
      const wider = windows.filter((one) => one > sinks), text = short ? `s = ${sinks}` : `SWA, ${sinksName(sinks)}`;
      const one = measuredTrace(theme, method, { source, measure, windows: wider, sinks });
      const two = pplTrace(theme, method, { ppl, windows: wider, sinks }), here = wider.indexOf(w);
      traces.push(one, two, ring(theme, method, w, one.y[here]), ring(theme, method, w, two.y[here], "y2"));
      say(upper, text, lastOf(one), method);
      say(lower, text, lastOf(two), method);
    });
    traces.push(absentTrace(theme, data, state, source, data.spans[measure][0]));
    layout.annotations = [...names(layout, "yaxis", upper), ...names(layout, "yaxis2", lower)];
    layout.shapes = [upright(w, theme)];
    if (source && measure === "score") layout.shapes.push(band(theme, source));
    if (silent) layout.annotations.push(noSignal(el, theme, source));
    sayScores(el, data, state, theme, source);
    tableScores(el, state, theme, source);
    return SWA.plot(el, traces, layout);
  }

  const band = (theme, { low, high }) => ({
    type: "rect", xref: "paper", x0: 0, x1: 1, yref: "y", y0: low, y1: high, layer: "below", line: { width: 0 },
    fillcolor: theme.methods.full, opacity: 0.12,
  });
  SWA.register("short-scores", { controls, draw: drawScores });

  // ---- Does the window bind? On an axis of powers of two, so that a bin is as wide as it looks.
  const power = (tokens) => Math.log2(Math.max(tokens, 0.7));

  function bars(theme, source, w) {
    const { bins } = source, method = (low) => (low >= w ? "sinks" : "full");
    return {
      type: "bar", name: "items", x: bins.map(([low, high]) => (power(low) + power(high)) / 2),
      width: bins.map(([low, high]) => power(high) - power(low)), y: bins.map((one) => one[2]),
      marker: { color: bins.map(([low]) => theme.methods[method(low)]), line: { color: theme.paper, width: 1 } },
      customdata: bins.map(([low, high, items]) => [low + 1, high, items]),
      hovertemplate: "%{customdata[2]} items of %{customdata[0]} to %{customdata[1]} tokens<extra></extra>",
    };
  }

  function tableParts(el, data, state, theme, source) {
    const { window: w, sinks: s } = state, parts = source.parts[keyOf(state)] || {}, { n, bound } = source.bound[w];
    const row = (side, name, items) => {
      const part = parts[side];
      if (!part) return [name, whole(items), "", items ? "not measured yet" : "no items", ""];
      const apart = side === "fits" ? "0 by definition" : within([part.difference, part.low, part.high]).replace(" %", "");
      return [name, whole(part.n), percent(part.teacher), percent(part.student), apart];
    };
    const head = ["", "items", "full attention", `SWA(${w}, ${s})`, "difference, points (95 %)"];
    const longer = inColour(theme, "sinks", "longer than w");
    table(el, head, [row("longer", longer, bound), row("fits", inColour(theme, "full", "fit into w"), n - bound)]);
  }

  function drawLengths(el, data, shown, theme) {
    const state = settled(data, shown), source = sourceFor(data, state), { window: w } = state;
    const name = labelOf(data.tasks, state.task);
    if (!source) {
      SWA.say(el, `${state.model}, ${name}, ${shotsText(state.shots)}: not measured yet: `, commandFor(data, state));
      SWA.extra(el).replaceChildren();
    } else {
      const { n, bound, share } = source.bound[w], told = inColour(theme, "sinks", `${whole(bound)} of ${whole(n)}`);
      SWA.say(el, `${name}, ${shotsText(state.shots)}: `, told, ` items (${(100 * share).toFixed(0)} %) are longer than w = ${w}.`
        + (bound < n ? " On the others SWA is full attention." : ""));
      tableParts(el, data, state, theme, source);
    }
    const ticks = Array.from({ length: Math.ceil(power(data.top)) - 2 }, (_, index) => index + 3);
    const kept = isNarrow(el) ? ticks.filter((_, index) => index % 2 === 1) : ticks;
    const first = Math.min(power(data.windows[0]), 4);
    const layout = SWA.layout(el, theme, {
      margin: { l: 52, r: 16, t: 26, b: 48 }, bargap: 0,
      xaxis: {
        title: { text: isNarrow(el) ? "tokens of the longest row (log)" : "tokens that attend, in the item's longest row (log scale)" },
        tickvals: kept,
        ticktext: kept.map((one) => whole(2 ** one)), range: [first - 1, power(data.top) + 0.1], tickangle: 0,
      },
      yaxis: { title: { text: "items" }, rangemode: "tozero" },
    });
    layout.shapes = [{ ...upright(power(w), theme), line: { color: theme.ink, width: 2, dash: "4px 3px" } }];
    layout.annotations = [{
      x: power(w), xanchor: "left", xshift: -4, y: 1, yref: "paper", yanchor: "bottom", showarrow: false,
      text: `w = ${w}`, font: { size: 13, color: theme.ink },
    }];
    return SWA.plot(el, source ? [bars(theme, source, w)] : [], layout);
  }
  SWA.register("short-lengths", { controls, draw: drawLengths });
  SWA.short = { within, percent, table, upright };
})(globalThis.SWA);
