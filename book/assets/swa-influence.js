// How far a needle's influence travels, layer by layer (computed here), and how much of it is left (measured).
(function (SWA) {
  "use strict";
  const { make, whole, inColour, isNarrow, count } = SWA;
  const range = (n) => Array.from({ length: n }, (_, k) => k);
  const last = (values) => values[values.length - 1];
  const upright = (x, line, own) => ({ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line, ...own });

  // ---- The needle. After l layers of SWA(w, s) exactly the l · (w − s − 1) tokens after it carry its influence.
  const step = ({ window: w, sinks: s }) => w - s - 1;
  const travelled = (state, layers) => Math.min(state.distance, layers * step(state));
  const layersToSee = (state) => (step(state) > 0 ? Math.ceil(state.distance / step(state)) : Infinity);

  function saysNeedle(el, data, state, theme) {
    const { window: w, sinks: s, layer, distance } = state, first = layersToSee(state), on = travelled(state, layer);
    const where = on === distance ? "it has reached the question" : `it is ${whole(on)} tokens on its way`;
    const seen = first === Infinity ? "No number of layers shows it to the question."
      : `The question first has it after ${count(first, "layer")}.`;
    const told = data.models.flatMap(({ label, layers }) => (
      [` ${label} (${layers}): `, inColour(theme, first <= layers ? "sinks" : "full",
        first <= layers ? "can see it" : "never"), "."]));
    SWA.say(el, `SWA(${w}, ${s}), needle ${whole(distance)} tokens back. After ${count(layer, "layer")} ${where}. ${seen}`,
      ...told);
  }

  function staircase(theme, state) {
    const { distance, layer } = state, shades = SWA.shades(theme), layers = range(layer + 1);
    const x = layers.map((l) => travelled(state, l));
    return {
      type: "bar", orientation: "h", name: "carries the needle", y: layers, base: layers.map(() => -distance), x, width: 1,
      marker: { color: layers.map((l) => (l === layer ? shades.sink : shades.recent)) },
      customdata: x.map((tokens) => [whole(tokens), whole(distance - tokens)]),
      hovertemplate: "after layer %{y}: the needle and %{customdata[0]} tokens after it<br>" +
        "%{customdata[1]} tokens short of the question<extra></extra>",
    };
  }

  const dot = (theme, name, x, y, symbol, text) => ({
    type: "scatter", mode: "markers", name, x: [x], y: [y], cliponaxis: false,
    marker: { symbol, size: 12, color: theme.accent, line: { width: 1.5, color: theme.paper } },
    hovertemplate: `${text}<extra></extra>`,
  });

  function needleLayout(el, data, state, theme) {
    const { distance } = state, narrow = isNarrow(el), back = [1, 0.75, 0.5, 0.25, 0].map((part) => part * distance);
    const ticks = narrow ? [back[0], back[2], back[4]] : back;
    const layout = SWA.layout(el, theme, {
      height: narrow ? 400 : 440, margin: { l: 46, r: narrow ? 92 : 190, t: 30, b: 48 }, bargap: 0,
      xaxis: {
        title: { text: "tokens before the question" }, range: [-1.03 * distance, 0.03 * distance], showgrid: false,
        tickvals: ticks.map((value) => -value), ticktext: ticks.map(whole), tickangle: 0,
      },
      yaxis: { title: { text: "layers passed" }, range: [-1, data.layers + 1], dtick: 8, tick0: 0 },
    });
    const line = { color: theme.ink, width: 1.2 };
    layout.shapes = [upright(0, { color: theme.accent, width: 1.5 }), ...data.models.map(({ layers }) => (
      { type: "line", xref: "paper", x0: 0, x1: 1, y0: layers, y1: layers, line }))];
    const ends = data.models.map(({ label, layers }) => (
      { text: narrow ? `${label.split("-")[0]}: ${layers}` : `${label}: ${layers}`, y: layers, color: theme.ink }));
    const note = (x, text, xanchor) => ({
      x, text, xanchor, y: 1, yref: "paper", yanchor: "bottom", showarrow: false, font: { size: 12, color: theme.accent },
    });
    layout.annotations = [
      ...SWA.endLabels(layout, ends), note(-distance, "needle", "left"), note(0, "question", "right"),
    ];
    return layout;
  }

  function drawNeedle(el, data, state, theme) {
    const first = layersToSee(state), traces = [staircase(theme, state)];
    traces.push(dot(theme, "needle", -state.distance, 0, "diamond", "the needle"));
    if (first <= state.layer) {
      traces.push(dot(theme, "first seen", 0, first, "circle", `the question has it after layer ${first}`));
    }
    saysNeedle(el, data, state, theme);
    return SWA.plot(el, traces, needleLayout(el, data, state, theme));
  }

  SWA.register("needle-reach", {
    controls: ({ windows, sinks, distances, layers, initial }) => [
      SWA.windowControl(windows, initial.window), SWA.sinksControl(sinks, initial.sinks),
      { name: "distance", label: "needle to question", type: "range", values: distances, initial: initial.distance,
        shared: false, describe: (state) => `${whole(state.distance)} tokens` },
      { name: "layer", label: "layers passed", type: "play", values: range(layers + 1), initial: initial.layer,
        shared: false, interval: 250, describe: (state) => `${state.layer} of ${layers}` },
    ],
    draw: drawNeedle,
  });

  // ---- Measured influence against distance.

  const minus = (power) => String(power).replace("-", "−");
  const scientific = (x) => {
    const [digits, power] = x.toExponential(1).split("e");
    return x >= 0.01 && x < 1000 ? String(+x.toPrecision(2)) : `${digits}·10<sup>${minus(+power)}</sup>`;
  };
  const spoken = (x) => scientific(x).replace(/<sup>(.*)<\/sup>/, (_, power) => (
    [...power].map((sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["−0123456789".indexOf(sign)]).join("")));

  function select(name, label, values, initial, text) {
    return values.length > 1 ? [{ name, label, type: "select", values, initial, text, shared: name === "model" }] : [];
  }

  function specControls(data) {
    return [
      ...(data.windows.length > 1 ? [SWA.windowControl(data.windows, data.initial.window)] : []),
      ...(data.sinks.length > 1 ? [SWA.sinksControl(data.sinks, data.initial.sinks)] : []),
    ];
  }

  const settled = (data, state) => ({ model: data.models[0], kind: data.kinds && data.kinds[0].id, ...data.initial, ...state });

  // Full attention, SWA(w, s), and SWA(w, 0) beside it: those that are measured.
  function shown(data, { model, kind, window: w, sinks: s }) {
    const of = (spec) => data.lines[[model, kind, spec].filter(Boolean).join("|")];
    return [
      { spec: "full", method: "full", label: "full attention", short: "full" },
      ...(s ? [{ spec: `${w},0`, method: "no_sinks", label: `SWA(${w}, 0)`, short: "s = 0" }] : []),
      { spec: `${w},${s}`, method: s ? "sinks" : "no_sinks", label: `SWA(${w}, ${s})`, short: `s = ${s}` },
    ].map((line) => ({ ...line, curve: of(line.spec) })).filter(({ curve }) => curve);
  }

  function missing(data, { model, window: w, sinks: s }, lines) {
    if (lines.some(({ spec }) => spec === `${w},${s}`)) return [];
    const text = data.command.replace("[model]", model).replace("[w]", `[${w}]`).replace("[s]", `[${s}]`);
    return [`SWA(${w}, ${s}) is not measured yet: `, make("code", {}, text), ". "];
  }

  // The bin whose middle is nearest on the log axis, where it is near enough to speak for the distance.
  function valueAt({ x, y }, distance) {
    const away = x.map((one) => Math.abs(Math.log2(one / distance))), least = Math.min(...away);
    return least <= 0.25 ? y[away.indexOf(least)] : null;
  }

  function saysInfluence(el, data, state, lines, theme) {
    const w = state.window, told = [2, 3].flatMap((n) => {
      const values = lines.map((line) => ({ ...line, value: valueAt(line.curve, n * w) })).filter(({ value }) => value);
      if (!values.length) return [];
      return [`At ${n}w = ${n * w} tokens: `, ...values.flatMap(({ label, method, value }, index) => (
        [index ? ", " : "", `${label} `, inColour(theme, method, spoken(value))])), ". "];
    });
    const limit = data.limits[`${state.model}|${w},${state.sinks}`];
    const exact = limit ? `Nothing can arrive from further than ${whole(limit)} tokens.` : "";
    SWA.say(el, ...missing(data, state, lines), ...told, exact);
  }

  function decades(span, narrow) {
    const [low, high] = span.map(Math.log10), pad = 0.05 * (high - low) + 0.05;
    const first = Math.ceil(low - pad), all = range(Math.floor(high + pad) - first + 1).map((k) => first + k);
    const every = Math.ceil(all.length / (narrow ? 6 : 8)), kept = all.filter((power) => power % every === 0);
    const text = (power) => (power === 0 ? "1" : power === 1 ? "10" : `10<sup>${minus(power)}</sup>`);
    return {
      type: "log", range: [low - pad, high + pad], tickangle: 0,
      tickvals: kept.map((power) => 10 ** power), ticktext: kept.map(text),
    };
  }

  function marks(data, state, theme, end, narrow) {
    const edge = step(state), limit = data.limits[`${state.model}|${state.window},${state.sinks}`];
    const found = [{ x: edge, text: `${narrow ? "w" : "window"}: ${whole(edge)}`, color: theme.axis, dash: "4px 3px" }];
    if (limit <= end) found.push({ x: limit, text: `${narrow ? "" : "exact "}limit: ${whole(limit)}`, color: theme.accent, dash: "solid" });
    const kept = found.filter(({ x }) => x > 0);
    return {
      shapes: kept.map(({ x, color, dash }) => upright(x, { color, width: 1.5, dash }, { layer: "below" })),
      annotations: kept.map(({ x, text }, index) => ({
        x: Math.log10(x), xanchor: index ? "right" : "center", y: 1, yref: "paper", yanchor: "bottom", showarrow: false,
        text, font: { size: 12, color: theme.muted },
      })),
    };
  }

  // Bars reach from the least to the most of the texts.
  function lineTrace(theme, { label, method, curve }) {
    const style = SWA.stroke(theme, method), { y, low, high } = curve;
    const spread = {
      type: "data", symmetric: false, array: high.map((value, k) => value - y[k]), thickness: 1, width: 0,
      arrayminus: low.map((value, k) => y[k] - value), color: style.line.color,
    };
    return {
      type: "scatter", mode: "lines+markers", name: label, x: curve.x, y, ...style, error_y: spread,
      marker: { ...style.marker, size: 5 },
      customdata: y.map((value, k) => [value, low[k], high[k]].map(scientific)),
      hovertemplate: `${label}, measured<br>%{x} tokens back: %{customdata[0]}<br>` +
        "texts: %{customdata[1]} to %{customdata[2]}<extra></extra>",
    };
  }

  function drawInfluence(el, data, given, theme) {
    const state = settled(data, given), lines = shown(data, state), narrow = isNarrow(el);
    const kind = data.kinds.find((one) => one.id === state.kind), end = 2 ** Math.ceil(Math.log2(data.farthest) + 1);
    const layout = SWA.layout(el, theme, {
      height: narrow ? 400 : 440, margin: { l: 62, r: narrow ? 56 : 130, t: 30, b: 48 },
      xaxis: SWA.powersAxis(el, 1, end, "distance (tokens, log scale)"),
      yaxis: { ...decades(kind.span, narrow), title: { text: kind.axis } },
    });
    const mark = marks(data, state, theme, end, narrow);
    layout.shapes = mark.shapes;
    layout.annotations = [...mark.annotations, ...SWA.endLabels(layout, lines.map((line) => (
      { text: narrow ? line.short : line.label, y: last(line.curve.y), color: theme.methods[line.method] })))];
    saysInfluence(el, data, state, lines, theme);
    return SWA.plot(el, lines.map((line) => lineTrace(theme, line)), layout);
  }

  SWA.register("influence", {
    controls: (data) => [
      ...select("kind", "measured", data.kinds.map((one) => one.id), data.kinds[0].id,
        (id) => data.kinds.find((one) => one.id === id).label),
      ...select("model", "model", data.models, data.models[0], String), ...specControls(data),
    ],
    draw: drawInfluence,
  });
  SWA.influence = { select, specControls, settled, shown, missing };
})(globalThis.SWA);
