// Curves over measured rows: the collapse, perplexity by window, text against cache positions, prefill.
// Every number drawn is a number of the data block; nothing is computed here but where it goes on the page.
(function (SWA) {
  "use strict";
  const { number, whole, inColour } = SWA;
  const keyOf = (state) => `${state.window},${state.sinks}`;
  const measured = (values) => values.filter((value) => value != null);

  function controls(data) {
    const list = SWA.sourceControls(data, "measured on");
    if (data.windows.length > 1) list.push(SWA.windowControl(data.windows, data.initial.window));
    if (data.sinks.length > 1) list.push(SWA.sinksControl(data.sinks, data.initial.sinks));
    return list;
  }

  // A figure whose rows vary in neither w nor s still has one of each.
  const settle = (data, state) => ({ window: data.windows[0], sinks: data.sinks[0], ...state });

  const upright = (theme, x) => ({
    type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, layer: "below",
    line: { color: theme.axis, width: 1.5, dash: "4px 3px" },
  });
  const rightMargin = (el) => (SWA.isNarrow(el) ? 74 : 150);
  const named = (el, long, short) => (SWA.isNarrow(el) ? short : long);

  function lineNames(el, theme, state, full, none, some) {
    const colours = theme.methods, s = state.sinks;
    return [
      { text: named(el, "full attention", "full"), y: full, color: colours.full },
      { text: named(el, "SWA without sinks", "s = 0"), y: none, color: colours.no_sinks },
      { text: named(el, `SWA with ${SWA.count(s, "sink")}`, `s = ${s}`), y: some, color: colours.sinks },
    ];
  }

  // "full 18.5, no sinks 299, 4 sinks 23.9." with each number in its method's colour.
  function compared(theme, state, full, none, some) {
    const value = (method, x) => inColour(theme, method, number(x)), { sinks: s } = state;
    const parts = ["full\u00a0", value("full", full), ", no\u00a0sinks\u00a0", value("no_sinks", none)];
    if (s > 0) parts.push(`, ${s}\u00a0sink${s === 1 ? "" : "s"}\u00a0`, value("sinks", some));
    return [...parts, "."];
  }

  // ---- Per-token loss along a text.
  function lossTrace(theme, method, name, x, y) {
    return {
      type: "scatter", mode: "lines", name, x, y, ...SWA.stroke(theme, method),
      customdata: y.map((loss) => (loss === null ? null : number(Math.exp(loss)))),
      hovertemplate: "%{y:.3f} nats, perplexity %{customdata}",
    };
  }

  function lossLayout(el, theme, xaxis, yaxis, labels) {
    const unifiedhovertitle = { text: "around token %{x:,.0f}" };
    const layout = SWA.layout(el, theme, {
      hovermode: "x unified", margin: { l: 52, r: rightMargin(el), t: 26, b: 48 },
      xaxis: { hoverformat: ",.0f", unifiedhovertitle, ...xaxis }, yaxis,
    });
    return Object.assign(layout, { annotations: SWA.endLabels(layout, labels) });
  }

  function slideMark(theme, window, leftHalf) {
    return {
      x: Math.log10(window), xanchor: leftHalf ? "left" : "right", y: 1, yref: "paper", yanchor: "bottom",
      showarrow: false, text: `the window starts to slide at w = ${window}`, font: { size: 12, color: theme.muted },
    };
  }

  function drawCollapse(el, data, shown, theme) {
    const state = settle(data, shown), source = SWA.sourceOf(data, state), { position: x, full, curves } = source;
    const { window: w, sinks: s } = state, none = curves[`${w},0`], some = s > 0 ? curves[keyOf(state)] : null;
    const traces = [lossTrace(theme, "full", "full attention", x, full)];
    if (none) traces.push(lossTrace(theme, "no_sinks", `SWA(${w}, 0)`, x, none));
    if (some) traces.push(lossTrace(theme, "sinks", `SWA(${w}, ${s})`, x, some));
    const ends = [full, none, some].map((curve) => curve && curve[x.length - 1]);
    const low = Math.min(x[0], data.windows[0]), high = x[x.length - 1];
    SWA.say(el, `Around token ${whole(Math.round(high))}, in nats per token: `, ...compared(theme, state, ...ends));
    const all = [full, ...Object.values(curves)].flat();
    const xaxis = SWA.powersAxis(el, low, high, "position in the text (tokens, log scale)");
    const yaxis = SWA.linearAxis(measured(all), "loss (nats per token)");
    const layout = lossLayout(el, theme, xaxis, yaxis, lineNames(el, theme, state, ...ends));
    layout.shapes = [upright(theme, w)];
    layout.annotations.push(slideMark(theme, w, w * w < low * high));
    return SWA.plot(el, traces, layout);
  }
  SWA.register("collapse", { controls, draw: drawCollapse });

  // ---- Perplexity against w.
  function pplTrace(theme, method, name, cells, windows, sinks) {
    const found = windows.map((w) => cells[`${w},${sinks}`] || {}), style = SWA.stroke(theme, method);
    return {
      type: "scatter", mode: "lines+markers", name, x: windows, y: found.map((cell) => cell.ppl ?? null),
      cliponaxis: false, ...style,
      error_y: { array: found.map((cell) => cell.half ?? 0), thickness: 1, width: 3, color: style.line.color },
      customdata: found.map((cell, index) => [whole(windows[index]), SWA.spread(cell)]),
      hovertemplate: `${name}, w = %{customdata[0]}<br>perplexity %{customdata[1]}<extra></extra>`,
    };
  }

  function ring(theme, method, x, y) {
    const line = { color: theme.methods[method], width: 2.5 };
    const marker = { symbol: "circle", size: 15, color: "rgba(0,0,0,0)", line };
    const place = { name: `w = ${x}`, x: [x], y: [y ?? null], hoverinfo: "skip", cliponaxis: false };
    return { type: "scatter", mode: "markers", ...place, marker };
  }

  function fullLine(theme, full, windows) {
    return {
      type: "scatter", mode: "lines", name: "full attention", x: windows, y: windows.map(() => full.ppl),
      ...SWA.stroke(theme, "full"), hovertemplate: `full attention<br>perplexity ${SWA.spread(full)}<extra></extra>`,
    };
  }

  function pplLayout(el, theme, { windows, cells, labels, window }) {
    const ppl = measured(cells.map((cell) => cell.ppl)), last = windows[windows.length - 1];
    const layout = SWA.layout(el, theme, {
      margin: { l: 58, r: rightMargin(el), t: 12, b: 48 }, yaxis: SWA.logAxis(ppl, "perplexity (log scale)"),
      xaxis: SWA.powersAxis(el, windows[0], last, "window w (tokens attended to, log scale)"),
    });
    return Object.assign(layout, { annotations: SWA.endLabels(layout, labels), shapes: [upright(theme, window)] });
  }

  function drawByWindow(el, data, shown, theme) {
    const state = settle(data, shown), { full, cells } = SWA.sourceOf(data, state), { windows } = data;
    const { window: w, sinks: s } = state, ppl = (width, sinks) => (cells[`${width},${sinks}`] || {}).ppl;
    const traces = [fullLine(theme, full, windows), pplTrace(theme, "no_sinks", "no sinks", cells, windows, 0)];
    traces.push(ring(theme, "no_sinks", w, ppl(w, 0)));
    if (s > 0) {
      const wider = windows.filter((width) => width > s);
      traces.push(pplTrace(theme, "sinks", SWA.count(s, "sink"), cells, wider, s), ring(theme, "sinks", w, ppl(w, s)));
    }
    SWA.say(el, `Perplexity with w = ${w}: `, ...compared(theme, state, full.ppl, ppl(w, 0), ppl(w, s)));
    const last = windows[windows.length - 1], some = s > 0 ? ppl(last, s) : null;
    const labels = lineNames(el, theme, state, full.ppl, ppl(last, 0), some);
    const all = data.sources.flatMap((one) => [one.full, ...Object.values(one.cells)]);
    return SWA.plot(el, traces, pplLayout(el, theme, { windows, cells: all, labels, window: w }));
  }
  SWA.register("perplexity-by-window", { controls, draw: drawByWindow });

  // ---- Text against cache positions: one method, two shapes of marker, side by side at each w.
  const POSITIONS = [["text", "circle", "●", 8, -6], ["cache", "diamond", "◆", 10, 6]];

  function drawPositions(el, data, shown, theme) {
    const state = settle(data, shown), { full, kinds } = SWA.sourceOf(data, state), { window: w, sinks: s } = state;
    const windows = data.windows.filter((width) => width > s), parts = [];
    const octaves = Math.log2(data.windows[data.windows.length - 1] / data.windows[0]);
    const octave = (el.clientWidth - 58 - rightMargin(el)) / octaves;
    const traces = POSITIONS.map(([kind, symbol, , size, pixels]) => {
      const trace = pplTrace(theme, "sinks", `${kind} positions`, kinds[kind] || {}, windows, s);
      const here = ((kinds[kind] || {})[keyOf(state)] || {}).ppl;
      parts.push(`${kind} positions `, inColour(theme, "sinks", number(here)), ", ");
      const beside = { x: windows.map((width) => width * 2 ** (pixels / octave)), mode: "markers" };
      return { ...trace, ...beside, marker: { ...trace.marker, symbol, size } };
    });
    parts.push("full attention ", inColour(theme, "full", number(full.ppl)), ".");
    SWA.say(el, `Perplexity of SWA(${w}, ${s}): `, ...parts);
    const cells = data.sources.flatMap((one) => [one.full, ...Object.values(one.kinds).flatMap(Object.values)]);
    const labels = [{ text: named(el, "full attention", "full"), y: full.ppl, color: theme.methods.full }];
    const layout = pplLayout(el, theme, { windows: data.windows, cells, labels, window: w });
    const key = POSITIONS.map(([kind, , sign]) => `${sign} ${kind} positions`).join("    ");
    const above = { xref: "paper", x: 0, yref: "paper", y: 1, xanchor: "left", yanchor: "bottom", showarrow: false };
    layout.annotations.push({ ...above, text: key, font: { size: 13, color: theme.methods.sinks } });
    layout.margin.t = 30;
    return SWA.plot(el, [fullLine(theme, full, data.windows), ...traces], layout);
  }
  SWA.register("positions", { controls, draw: drawPositions });

  // ---- Prefill: the loss after the prompt under three ways of reading it, and their perplexities as a table.
  const VARIANTS = {
    full: { method: "full", label: "full attention", end: "full attention", short: "full" },
    masked: { method: "sinks", label: "masked prefill", end: "masked prefill", short: "masked" },
    dense: { method: "dense_prefill", label: "dense prefill, then evict", end: "dense, then evict", short: "dense" },
  };

  function prefillTable(el, theme, curves) {
    const head = ["prefill", "perplexity", "tokens"].map((text) => SWA.make("th", { scope: "col" }, text));
    const body = curves.map(({ variant, ppl, half, n }) => {
      const { label, method } = VARIANTS[variant], interval = half == null ? "" : ` ± ${number(half)}`;
      const cells = [number(ppl) + interval, n == null ? "" : whole(n)].map((text) => SWA.make("td", {}, text));
      return SWA.make("tr", {}, SWA.make("th", { scope: "row" }, inColour(theme, method, label)), ...cells);
    });
    const table = SWA.make("table", { class: "swa-table" }, SWA.make("thead", {}, SWA.make("tr", {}, ...head)));
    table.append(SWA.make("tbody", {}, ...body));
    SWA.extra(el).replaceChildren(SWA.make("div", { class: "swa-scroll" }, table));
  }

  function drawPrefill(el, data, shown, theme) {
    const state = settle(data, shown), source = SWA.sourceOf(data, state);
    const curves = source.curves.filter((one) => one.key === null || one.key === keyOf(state));
    const traces = curves.map(({ variant, position, loss }) => {
      const { method, label } = VARIANTS[variant];
      return lossTrace(theme, method, label, position, loss);
    });
    const labels = curves.map(({ variant, loss }) => {
      const { end, short, method } = VARIANTS[variant];
      return { text: named(el, end, short), y: loss[loss.length - 1], color: theme.methods[method] };
    });
    prefillTable(el, theme, curves);
    const xaxis = SWA.linearAxis(source.curves.flatMap((one) => one.position), "tokens after the prompt");
    const yaxis = SWA.linearAxis(measured(source.curves.flatMap((one) => one.loss)), "loss (nats per token)");
    return SWA.plot(el, traces, lossLayout(el, theme, xaxis, yaxis, labels));
  }
  SWA.register("prefill", { controls, draw: drawPrefill });
})(globalThis.SWA);
