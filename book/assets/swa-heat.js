// Heat maps over measured rows: perplexity over (w, s), and where attention goes by layer and head.
(function (SWA) {
  "use strict";
  const { number, whole, inColour } = SWA;

  const bare = (title) => ({ title: { text: title }, showgrid: false, showline: false, ticks: "", fixedrange: true });
  const listed = (values, title) => ({
    ...bare(title), tickvals: values.map((_, index) => index), ticktext: values.map(whole),
    range: [-0.5, values.length - 0.5],
  });
  const colourbar = (theme, title, ticks) => ({
    ...ticks, thickness: 12, outlinewidth: 0, x: 1.01, xpad: 4, tickfont: { color: theme.muted, size: 11 },
    title: { text: title, side: "right", font: { color: theme.muted, size: 12 } },
  });

  // ---- Perplexity over (w, s). A cell is the unit square around its place in the lists of w and s.
  function hatch({ x, y }, color) {
    const lines = [-0.6, -0.2, 0.2, 0.6].map((c) => {
      const from = Math.max(-0.5, -0.5 - c), to = Math.min(0.5, 0.5 - c);
      return `M${x + from},${y + from + c}L${x + to},${y + to + c}`;
    });
    return { type: "path", path: lines.join(""), line: { color, width: 1 } };
  }

  function outline(data, state, color) {
    const x = data.windows.indexOf(state.window), y = data.sinks.indexOf(state.sinks);
    return { type: "rect", x0: x - 0.5, x1: x + 0.5, y0: y - 0.5, y1: y + 0.5, line: { color, width: 3 } };
  }

  function cellsOf(data, source) {
    const cell = (w, s) => (s < w ? source.cells[`${w},${s}`] || {} : null);
    const place = (w, s, x, y) => ({ w, s, x, y, ppl: null, ...cell(w, s), exists: s < w });
    return data.sinks.flatMap((s, y) => data.windows.map((w, x) => place(w, s, x, y)));
  }

  function hover(one) {
    if (!one.exists) return `s must be below w: SWA(${one.w}, ${one.s}) does not exist`;
    if (one.ppl !== null) return `SWA(${one.w}, ${one.s})<br>perplexity ${SWA.spread(one)}`;
    return `SWA(${one.w}, ${one.s})<br>not measured yet${one.command ? `<br>to measure it: ${one.command}` : ""}`;
  }

  function logBar(theme, low, high) {
    const all = [0, 1, 2, 3, 4, 5, 6].flatMap((power) => [1, 2, 5].map((step) => step * 10 ** power));
    const ticks = all.filter((tick) => tick >= low * 0.99 && tick <= high * 1.01);
    return colourbar(theme, "perplexity", { tickvals: ticks.map(Math.log10), ticktext: ticks.map(whole) });
  }

  const points = (cells, own) => ({ type: "scatter", x: cells.map(({ x }) => x), y: cells.map(({ y }) => y), ...own });

  function heatTraces(theme, data, cells, narrow) {
    const all = data.sources.flatMap((one) => [one.full, ...Object.values(one.cells)]).map((cell) => cell.ppl);
    const known = all.filter((ppl) => ppl != null), low = Math.min(...known), high = Math.max(...known);
    const grid = (pick) => data.sinks.map((_, y) => cells.filter((one) => one.y === y).map(pick));
    const bright = ({ ppl }) => Math.log(ppl / low) > 0.55 * Math.log(high / low);
    const map = {
      type: "heatmap", z: grid(({ ppl }) => (ppl === null ? null : Math.log10(ppl))), hovertext: grid(hover),
      hoverinfo: "text",
      zmin: Math.log10(low), zmax: Math.log10(high), colorscale: theme.sequential, xgap: 2, ygap: 2, hoverongaps: false,
      showscale: !narrow, colorbar: logBar(theme, low, high),
    };
    const full = cells.filter(({ ppl }) => ppl !== null), gaps = cells.filter(({ ppl }) => ppl === null);
    const textfont = { size: narrow ? 10 : 13, color: full.map((one) => (bright(one) ? "#10151B" : "#FFFFFF")) };
    return [
      map,
      points(full, { mode: "text", text: full.map(({ ppl }) => number(ppl)), textfont, hoverinfo: "skip" }),
      points(gaps, { mode: "markers", marker: { size: 30, opacity: 0 }, hovertext: gaps.map(hover), hoverinfo: "text" }),
    ];
  }

  // A click on a cell is the same as setting both sliders.
  function pickCell(el, data) {
    if (el.swaPicks) return;
    el.swaPicks = true;
    el.on("plotly_click", (event) => {
      const { x, y } = event.points[0], w = data.windows[x], s = data.sinks[y];
      if (s >= w) return;
      el.swaFigure.set("window", w);
      el.swaFigure.set("sinks", s);
    });
  }

  function sayHere(el, source, { window: w, sinks: s }, theme) {
    const value = (method, x) => inColour(theme, method, number(x)), here = source.cells[`${w},${s}`] || {};
    SWA.say(el, `Perplexity of SWA(${w}, ${s}): `, value(s === 0 ? "no_sinks" : "sinks", here.ppl), "; full attention: ",
      value("full", source.full.ppl), ".");
  }

  function marks(data, cells, state, theme) {
    const missing = cells.filter((one) => one.exists && one.ppl === null);
    return [...missing.map((one) => hatch(one, theme.axis)), outline(data, state, theme.accent)];
  }

  function drawHeat(el, data, state, theme) {
    const source = SWA.sourceOf(data, state), narrow = SWA.isNarrow(el), cells = cellsOf(data, source);
    sayHere(el, source, state, theme);
    el.swaSource = source;
    const layout = SWA.layout(el, theme, {
      height: narrow ? 300 : 360, margin: { l: 58, r: narrow ? 8 : 90, t: 8, b: 48 }, dragmode: false,
      xaxis: listed(data.windows, "window w (tokens)"), yaxis: listed(data.sinks, "sinks s (tokens)"),
      shapes: marks(data, cells, state, theme),
    });
    return SWA.plot(el, heatTraces(theme, data, cells, narrow), layout).then(() => pickCell(el, data));
  }

  // A slider only moves the outline; the cells stay.
  function updateHeat(el, data, state, theme) {
    const source = SWA.sourceOf(data, state);
    if (source !== el.swaSource) return drawHeat(el, data, state, theme);
    sayHere(el, source, state, theme);
    return SWA.relayout(el, { shapes: marks(data, cellsOf(data, source), state, theme) });
  }

  const heatControls = (data) => [
    ...SWA.sourceControls(data, "measured on"), SWA.windowControl(data.windows, data.initial.window),
    SWA.sinksControl(data.sinks, data.initial.sinks),
  ];
  SWA.register("heatmap", { controls: heatControls, draw: drawHeat, update: updateHeat });

  // ---- Attention mass on the first tokens, layer by head.
  const first = (n) => (n === 1 ? "the first token" : `the first ${n} tokens`);
  const massControls = (data) => [
    ...SWA.sourceControls(data, "model", "model"),
    {
      name: "counted", label: "first tokens counted", type: "range", values: data.counted,
      initial: data.initial.counted, describe: ({ counted }) => first(counted),
    },
  ];

  function drawMass(el, data, state, theme) {
    const source = SWA.sourceOf(data, { source: state.model }), narrow = SWA.isNarrow(el), { layers, heads } = source;
    const z = source.mass[state.counted], flat = z.flat(), above = flat.filter((share) => share > 0.5).length;
    const even = `${number(100 * source.uniform[state.counted])}\u00a0%`;
    SWA.say(el, `${above} of ${flat.length} heads put more than half of their attention on ${first(state.counted)}; `,
      `spread evenly, it would be ${even}.`);
    const map = {
      type: "heatmap", z, x: heads, y: layers, colorscale: theme.sequential, zmin: 0, zmax: 1, xgap: 1, ygap: 1,
      hovertemplate: `layer %{y}, head %{x}<br>%{z:.1%} of its attention on ${first(state.counted)}<extra></extra>`,
      colorbar: colourbar(theme, "share of attention", { tickvals: [0, 0.25, 0.5, 0.75, 1], tickformat: ".0%" }),
      showscale: !narrow,
    };
    const layout = SWA.layout(el, theme, {
      height: 130 + Math.min(340, 14 * layers.length), margin: { l: 52, r: narrow ? 8 : 96, t: 8, b: 48 },
      xaxis: { ...bare("head"), dtick: heads.length > 16 ? 4 : 1 },
      yaxis: { ...bare("layer"), tick0: 0, dtick: narrow ? 4 : 2 }, dragmode: false,
    });
    return SWA.plot(el, [map], layout);
  }
  SWA.register("attention-mass", { controls: massControls, draw: drawMass });
})(globalThis.SWA);
