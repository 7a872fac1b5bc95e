// What kinds of figure draw with: the controls for w and s, the house style of a plot, axes that stay still while
// a slider moves, names at the ends of lines, and the words around the picture.
(function (SWA, root) {
  "use strict";
  if (SWA.plot) return;
  const CONFIG = { displayModeBar: false, responsive: false, showTips: false };
  const coarse = root.matchMedia("(pointer: coarse)").matches;
  const range = (from, to) => Array.from({ length: to - from + 1 }, (_, index) => from + index);

  SWA.isNarrow = (el) => el.clientWidth < 560;
  SWA.count = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
  SWA.whole = (n) => n.toLocaleString("en-US");

  // Three significant digits, thousands kept readable.
  SWA.number = (x) => {
    if (x === null || x === undefined || Number.isNaN(x)) return "not measured yet";
    if (Math.abs(x) >= 1e5) return x.toExponential(1);
    return Math.abs(x) >= 100 ? SWA.whole(Math.round(x)) : x.toPrecision(3);
  };

  // A measured cell { ppl, half, n } in words: the value, its 95 % interval, the number of tokens.
  SWA.spread = ({ ppl, half, n }) => {
    const interval = half == null ? "" : ` ± ${SWA.number(half)} (95 %)`;
    return SWA.number(ppl) + interval + (n == null ? "" : `, ${SWA.whole(n)} tokens`);
  };

  // ---- Controls.
  function windowMeaning({ window: w, sinks: s }) {
    return s === undefined ? `w = ${w}` : `w = ${w}: ${SWA.count(s, "sink")} + ${w - s} latest`;
  }

  function sinksMeaning({ sinks: s }) {
    if (s === 0) return "s = 0: no sinks, a plain sliding window";
    return s === 1 ? "s = 1: the first token stays visible" : `s = ${s}: the first ${s} tokens stay visible`;
  }

  const slider = (name, label, describe) => (values, initial) => (
    { name, label, type: "range", values, initial, describe }
  );
  SWA.windowControl = slider("window", "window w", windowMeaning);
  SWA.sinksControl = slider("sinks", "sinks s", sinksMeaning);

  // A figure over several models or texts offers them as "sources": [{ id, label, ... }].
  SWA.sourceOf = (data, state) => data.sources.find((one) => one.id === state.source) || data.sources[0];
  SWA.sourceControls = (data, label, name = "source") => {
    const values = data.sources.map((one) => one.id), text = (id) => SWA.sourceOf(data, { source: id }).label;
    return values.length > 1 ? [{ name, label, type: "select", values, text }] : [];
  };

  // ---- Words. The sentence above the picture and the box under it (for a table) belong to the figure, not to
  // its role="img". A sentence is made of strings and of numbers in their method's colour.
  SWA.say = (el, ...parts) => { el.swaFigure.says.replaceChildren(...parts); };
  SWA.extra = (el) => el.swaFigure.extra;
  SWA.inColour = (theme, method, text) => {
    const node = SWA.make("b", {}, text);
    node.style.color = theme.methods[method];
    return node;
  };

  // ---- Style: colour = method, dash and marker = layer of the number ("measured", "printed", "source").
  SWA.stroke = (theme, method, layer, width) => {
    const how = theme.layers[layer || "measured"], color = theme.methods[method];
    return {
      line: { color, dash: how.dash, width: width || 2.5 },
      marker: { color, symbol: how.symbol, size: 8, line: { color, width: 2 } },
    };
  };

  const axis = (theme, own) => ({
    gridcolor: theme.grid, linecolor: theme.axis, tickcolor: theme.axis, zeroline: false, showline: true,
    ticks: "outside", ticklen: 4, tickfont: { color: theme.muted, size: 12 }, fixedrange: coarse, automargin: false,
    ...own, title: { standoff: 8, font: { size: 13, color: theme.muted }, ...(own && own.title) },
  });

  SWA.layout = (el, theme, own) => {
    const { font: family, ink, paper, axis: border } = theme, clear = "rgba(0,0,0,0)";
    const layout = Object.assign({
      width: el.clientWidth, height: SWA.isNarrow(el) ? 340 : 400, font: { family, size: 13, color: ink },
      paper_bgcolor: clear, plot_bgcolor: clear, showlegend: false, uirevision: "same",
      dragmode: coarse ? false : "zoom", hovermode: "closest", margin: { l: 58, r: 16, t: 12, b: 48 },
      hoverlabel: { bgcolor: paper, bordercolor: border, font: { family, color: ink }, align: "left" },
    }, own);
    const axes = Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key));
    axes.forEach((key) => { layout[key] = axis(theme, layout[key]); });
    return layout;
  };

  SWA.plot = (el, traces, layout) => root.Plotly.react(el, traces, layout, CONFIG);
  SWA.relayout = (el, changes) => root.Plotly.relayout(el, changes);

  // ---- Axes from the whole range of the data, so that they stay where they are while a slider moves.
  const logTicks = (title, span, ticks) => ({
    type: "log", title: { text: title }, range: span, tickangle: 0, tickvals: ticks, ticktext: ticks.map(SWA.whole),
  });

  SWA.powersAxis = (el, from, to, title) => {
    const all = range(Math.floor(Math.log2(from)), Math.ceil(Math.log2(to))).map((power) => 2 ** power);
    const ticks = SWA.isNarrow(el) && all.length >= 8 ? all.filter((_, index) => index % 2 === 0) : all;
    const low = Math.log10(from), high = Math.log10(to), pad = 0.03 * (high - low) || 0.1;
    return logTicks(title, [low - pad, high + pad], ticks);
  };

  function logSteps(decades) {
    if (decades > 3.5) return [1];
    if (decades > 1.6) return [1, 3];
    return decades > 0.7 ? [1, 2, 5] : [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8];
  }

  SWA.logAxis = (values, title) => {
    const low = Math.log10(Math.min(...values)), high = Math.log10(Math.max(...values));
    const decades = range(Math.floor(low) - 1, Math.ceil(high) + 1), pad = 0.08 * (high - low) + 0.02;
    const tick = (step, power) => +(step * 10 ** power).toPrecision(3);
    const ticks = decades.flatMap((power) => logSteps(high - low).map((step) => tick(step, power)));
    return logTicks(title, [low - pad, high + pad], ticks);
  };

  SWA.linearAxis = (values, title) => {
    const low = Math.min(...values), high = Math.max(...values), pad = 0.06 * (high - low) || 1;
    return { title: { text: title }, range: [low - pad, high + pad] };
  };

  // ---- Names at the ends of lines [{ text, y, color }], pushed apart where they would overlap.
  SWA.endLabels = (layout, items) => {
    const { yaxis, height: outer, margin } = layout, height = outer - margin.t - margin.b, gap = 17;
    const place = (y) => (yaxis.type === "log" ? Math.log10(y) : y), [low, high] = yaxis.range;
    const pixel = (y) => (1 - (place(y) - low) / (high - low)) * height;
    const rows = items.filter((item) => item.y != null).map((item) => ({ ...item, at: pixel(item.y) }));
    rows.sort((a, b) => a.at - b.at);
    rows.forEach((row, index) => { row.to = index ? Math.max(row.at, rows[index - 1].to + gap) : row.at; });
    rows.reduceRight((lowest, row) => { row.to = Math.min(row.to, lowest); return row.to - gap; }, height - 6);
    return rows.map(({ text, color, y, at, to }) => ({
      xref: "paper", x: 1, xanchor: "left", xshift: 6, y: place(y), yshift: at - to, yanchor: "middle",
      text, font: { color, size: 13 }, showarrow: false, align: "left",
    }));
  };
})(globalThis.SWA, globalThis);
