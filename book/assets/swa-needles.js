// Needles: lines and dots whose values, words and tables are looked up by where the controls stand, and what is
// found by depth and length. Every number and every sentence comes from the data block.
//
//   a part: { fields, values: { key: … } }; its key is its name and the standing of its fields, joined by "|"
//   lines: { controls, lines: [{ name, label, short, method, layer, symbol, dots, fields }], values: { key: { x, y,
//            low, high, hover, method } }, x, y (a part of axes), says, note, table, rule (parts), bars, bands }
(function (SWA) {
  "use strict";
  const { inColour, isNarrow, make } = SWA;
  const keyOf = (state, name, fields) => [name, ...fields.map((field) => state[field])].join("|");
  const standing = (part, state, name) => part && part.values[keyOf(state, name, part.fields)];
  const settled = (data, state) => ({ ...data.fixed, ...state });

  function controlsOf(data) {
    return data.controls.map(({ name, label, values, initial, texts, shared }) => {
      if (name === "window") return { ...SWA.windowControl(values, initial), shared };
      if (name === "sinks") return { ...SWA.sinksControl(values, initial), shared };
      return { name, label, type: "select", values, initial, text: (value) => texts[values.indexOf(value)], shared };
    });
  }

  // ---- Words: a sentence is made of strings, numbers in a method's colour, and commands.
  function sayHere(el, data, state, theme) {
    const word = (one) => {
      if (typeof one === "string") return one;
      return one.code ? make("code", {}, one.code) : inColour(theme, one.method, one.text);
    };
    SWA.say(el, ...(standing(data.says, state, "says") || []).map(word));
    const table = standing(data.table, state, "table");
    if (table) SWA.short.table(el, table.head, table.rows);
    else SWA.extra(el).replaceChildren();
  }

  // ---- Lines and dots.
  function reach(found, values, name) {
    if (!found.low) return {};
    const apart = (end, sign) => end.map((value, index) => (value == null ? 0 : sign * (value - values[index])));
    const bar = { type: "data", symmetric: false, thickness: 1.2, width: 3 };
    return { [`error_${name}`]: { ...bar, array: apart(found.high, 1), arrayminus: apart(found.low, -1) } };
  }

  const MODES = { computed: "lines", absent: "markers" };

  function traceOf(theme, data, { line, found }) {
    const { layer } = line, method = found.method || line.method, computed = layer === "computed";
    const style = SWA.stroke(theme, method, computed || layer === "absent" ? "measured" : layer);
    const lone = computed && found.x.length === 1, own = layer === "absent" ? "x-thin" : lone && "line-ew-open";
    const symbol = line.symbol || own || style.marker.symbol;
    const color = layer === "absent" ? theme.muted : theme.methods[method];
    return {
      type: "scatter", mode: line.dots || lone ? "markers" : MODES[layer] || "lines+markers", name: line.label, x: found.x, y: found.y,
      ...style, cliponaxis: false, connectgaps: false,
      line: { ...style.line, width: computed ? 1.6 : 2, ...(line.dash ? { dash: line.dash } : {}) },
      marker: { ...style.marker, symbol, size: 8, color, line: { color, width: 1.8 } },
      ...(data.bars === "x" ? reach(found, found.x, "x") : reach(found, found.y, "y")),
      customdata: found.hover, hovertemplate: "%{customdata}<extra></extra>",
    };
  }

  function axisOf(el, { title, short, span, log, ticks }) {
    const narrow = isNarrow(el), kept = (ticks || []).filter((tick) => !(narrow && tick[2]));
    return {
      ...(log ? { type: "log" } : {}), title: { text: narrow && short ? short : title }, tickangle: 0,
      range: log ? span.map(Math.log10) : span,
      ...(ticks ? { tickvals: kept.map(([value]) => value), ticktext: kept.map(([, text]) => text) } : {}),
    };
  }

  function bandOf(theme, { from, to }) {
    const fill = { fillcolor: theme.methods.sinks, opacity: 0.13, line: { width: 0 }, layer: "below" };
    return { type: "rect", x0: from, x1: to, yref: "paper", y0: 0, y1: 1, ...fill };
  }

  function bandName(theme, { from, to, text }) {
    const x = (Math.log10(from) + Math.log10(to)) / 2;
    return { x, y: 1, yref: "paper", yanchor: "bottom", text, showarrow: false, font: { size: 12, color: theme.muted } };
  }

  function ruleOf(theme, y) {
    const line = { color: theme.accent, width: 1.5, dash: "dot" };
    return { type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line };
  }

  const noteOf = (el, theme, text) => ({
    xref: "paper", x: 0.5, yref: "paper", y: 0.5, showarrow: false, text, bgcolor: theme.paper, borderpad: 4,
    font: { size: isNarrow(el) ? 12 : 14, color: theme.muted },
  });

  // A line is named at its end: at the right of the plot, or beside its last point if it stops before.
  function endsOf(layout, theme, drawn, narrow, rule) {
    const { range, type } = layout.xaxis, atRight = [], inside = new Map();
    drawn.filter(({ line }) => !line.dots && !line.unnamed && line.layer !== "absent").forEach(({ line, found }) => {
      const index = found.y.findLastIndex((value) => value != null), y = found.y[index];
      const text = narrow ? line.short : line.label, color = theme.methods[found.method || line.method];
      const x = type === "log" ? Math.log10(found.x[index]) : found.x[index];
      if (index < 0) return;
      if (x > range[1] - 0.15 * (range[1] - range[0])) atRight.push({ text, y, color });
      else inside.set(x, [...(inside.get(x) || []), { text, y, color }]);
    });
    if (rule) atRight.push({ text: rule.text, y: rule.y, color: theme.accent });
    const beside = [...inside].flatMap(([x, items]) => (
      SWA.endLabels(layout, items).map((label) => ({ ...label, xref: "x", x, xshift: 9 }))));
    return [...SWA.endLabels(layout, atRight), ...beside];
  }

  function drawLines(el, data, shown, theme) {
    const state = settled(data, shown), narrow = isNarrow(el), rule = standing(data.rule, state, "rule");
    const drawn = data.lines.map((line) => ({ line, found: data.values[keyOf(state, line.name, line.fields)] }))
      .filter(({ found }) => found);
    const dots = data.lines.every((line) => line.dots), bands = data.bands || [], note = standing(data.note, state, "note");
    const y = axisOf(el, standing(data.y, state, "y"));
    const layout = SWA.layout(el, theme, {
      height: data.height || (narrow ? 380 : 420), xaxis: axisOf(el, data.x), yaxis: y, showlegend: dots,
      margin: { l: data.left || 62, r: dots ? 18 : (narrow ? 92 : 190), t: dots ? 52 : 16, b: 48 },
      legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", yref: "paper", font: { size: 12 }, itemclick: false },
    });
    if (dots) layout.legend.y = 1 + 22 / (layout.height - 100);
    layout.shapes = [...bands.map((band) => bandOf(theme, band)), ...(rule ? [ruleOf(theme, rule.y)] : [])];
    layout.annotations = [
      ...(dots ? [] : endsOf(layout, theme, drawn, narrow, rule)), ...bands.map((band) => bandName(theme, band)),
      ...(note ? [noteOf(el, theme, note)] : []),
    ];
    sayHere(el, data, state, theme);
    return SWA.plot(el, drawn.map((one) => traceOf(theme, data, one)), layout);
  }
  SWA.register("needle-lines", { controls: controlsOf, draw: drawLines });

  // ---- Depth by length: two maps, full attention and SWA; what a window alone sees is outlined.
  //
  //   { controls, lengths, bins, cells: { "full|…" and "swa|…": { z, text, hover } }, edges, panels, scales }

  function hatched(x, low, high, refs, color) {
    const lines = [0.2, 0.4, 0.6, 0.8].map((part) => {
      const y = low + part * (high - low), step = 0.2 * (high - low);
      return `M${x - 0.5},${y + step}L${x + 0.5},${y - step}`;
    });
    return { type: "path", path: lines.join(""), ...refs, line: { color, width: 1 } };
  }

  const refsOf = (index) => ({ xref: index ? "x2" : "x", yref: "y" });
  const middles = (bins) => Array.from({ length: bins }, (_, index) => (index + 0.5) / bins);

  // A cell's number steps aside where the outline would run through it.
  function asideOf(edge, depth) {
    const clear = 0.055;
    return edge == null || Math.abs(edge - depth) >= clear ? depth : depth + (edge > depth ? -clear : clear);
  }

  function mapTraces(theme, data, cells, index, { scale, narrow, edges }) {
    const y = middles(data.bins), x = data.lengths.map((_, place) => place), xaxis = index ? "x2" : "x";
    const map = {
      type: "heatmap", x, y, z: cells.z, hovertext: cells.hover, hoverinfo: "text", hoverongaps: false, xaxis, xgap: 2, ygap: 2,
      zmin: scale.low, zmax: scale.high, colorscale: theme.sequential, showscale: index === 1 && !narrow, name: data.panels[index],
      colorbar: {
        thickness: 12, outlinewidth: 0, x: 1.01, xpad: 4, tickfont: { color: theme.muted, size: 11 },
        title: { text: scale.title, side: "right", font: { color: theme.muted, size: 12 } }, ...scale.ticks,
      },
    };
    const known = y.flatMap((depth, row) => x.map((place) => ({ place, depth, z: cells.z[row][place], text: cells.text[row][place] })))
      .filter(({ z }) => z !== null);
    const bright = ({ z }) => z > scale.low + 0.55 * (scale.high - scale.low);
    const text = {
      type: "scatter", mode: "text", xaxis, x: known.map((one) => one.place), hoverinfo: "skip",
      y: known.map((one) => asideOf(edges && edges[one.place], one.depth)),
      text: known.map((one) => one.text), textfont: { size: narrow ? 10 : 12, color: known.map((one) => (bright(one) ? "#10151B" : "#FFFFFF")) },
      name: `${data.panels[index]}, in words`,
    };
    return [map, text];
  }

  function mapShapes(theme, data, cells, index, edges) {
    const refs = refsOf(index), step = 1 / data.bins, line = { color: theme.accent, width: 2.5 };
    const gaps = middles(data.bins).flatMap((depth, row) => data.lengths.map((_, x) => ({ depth, x, z: cells.z[row][x] })))
      .filter(({ z }) => z === null).map(({ depth, x }) => hatched(x, depth - step / 2, depth + step / 2, refs, theme.axis));
    const seen = (edges || []).flatMap((edge, x) => (edge === null ? [] : [
      { type: "rect", ...refs, x0: x - 0.47, x1: x + 0.47, y0: edge, y1: 1, line }]));
    return [...gaps, ...seen];
  }

  function drawDepths(el, data, shown, theme) {
    const state = settled(data, shown), narrow = isNarrow(el), { lengths, bins } = data;
    const scale = data.scales[state.measure], empty = Array.from({ length: bins }, () => lengths.map(() => null));
    const none = { z: empty, text: empty, hover: empty };
    const maps = ["full", "swa"].map((name) => data.cells[keyOf(state, name, data.fields[name])] || none);
    const edges = data.edges.values[keyOf(state, "edges", data.edges.fields)];
    const places = lengths.map((_, x) => x), names = lengths.map((one) => (one % 1024 ? String(one) : `${one / 1024}K`));
    const across = (domain, title) => ({
      title: { text: title }, domain, tickvals: places, ticktext: names, range: [-0.5, lengths.length - 0.5], showgrid: false,
      showline: false, ticks: "", fixedrange: true,
    });
    const layout = SWA.layout(el, theme, {
      height: narrow ? 340 : 380, margin: { l: 52, r: narrow ? 8 : 84, t: 30, b: 48 }, dragmode: false,
      xaxis: across([0, 0.48], "length (tokens)"), xaxis2: across([0.52, 1], "length (tokens)"),
      yaxis: {
        title: { text: narrow ? "depth" : "depth of the needle (1: just before the question)" }, range: [1.02, -0.02],
        tickvals: [0, 0.2, 0.4, 0.6, 0.8, 1], showgrid: false, showline: false, ticks: "", fixedrange: true,
      },
    });
    layout.shapes = maps.flatMap((cells, index) => mapShapes(theme, data, cells, index, index ? edges : null));
    layout.annotations = [narrow ? "full" : "full attention", `SWA(${state.window}, ${state.sinks})`].map((text, index) => ({
      xref: "paper", x: index ? 0.76 : 0.24, yref: "paper", y: 1, yanchor: "bottom", text, showarrow: false,
      font: { size: 13, color: theme.methods[index ? (state.sinks ? "sinks" : "no_sinks") : "full"] },
    }));
    sayHere(el, data, state, theme);
    return SWA.plot(el, maps.flatMap((cells, index) => (
      mapTraces(theme, data, cells, index, { scale, narrow, edges: index ? edges : null }))), layout);
  }
  SWA.register("needle-depths", { controls: controlsOf, draw: drawDepths });
})(globalThis.SWA);
