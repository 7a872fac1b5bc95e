// A text far beyond the trained length: perplexity above, the cache's memory below, one axis of positions.
(function (SWA) {
  "use strict";
  const { number, whole, inColour } = SWA;
  const UPPER = [0.4, 1], LOWER = [0, 0.26], MB = 1e6;
  // One method, one colour; text and cache positions differ by their marks.
  const KINDS = [
    { kind: "none", method: "no_sinks", name: "no sinks", short: "s = 0", symbol: "circle", size: 6 },
    { kind: "text", method: "sinks", name: "text positions", short: "text pos.", symbol: "circle", size: 6 },
    { kind: "cache", method: "sinks", name: "cache positions", short: "cache pos.", symbol: "diamond", size: 8 },
  ];
  const last = (values) => values[values.length - 1];
  const curvesOf = (source) => [source.full, ...Object.values(source.curves).flatMap(Object.values)];
  const megabytes = (curve) => curve.bytes.map((bytes) => bytes / MB);

  function controls(data) {
    const list = SWA.sourceControls(data, "measured on");
    if (data.windows.length > 1) list.push(SWA.windowControl(data.windows, data.initial.window));
    return list;
  }

  const middles = ({ start, end }) => start.map((first, index) => (first + end[index]) / 2);
  const bins = ({ start, end }) => start.map((first, index) => `${whole(first)} to ${whole(end[index])}`);

  function pplTrace(theme, method, name, curve, mode, marker) {
    const style = SWA.stroke(theme, method), { ppl, half, n } = curve, bin = bins(curve);
    const spread = (value, index) => SWA.spread({ ppl: value, half: half[index], n: n[index] });
    return {
      type: "scatter", mode, name, x: middles(curve), y: ppl, ...style, marker: { ...style.marker, ...marker },
      customdata: ppl.map((value, index) => [bin[index], spread(value, index)]),
      hovertemplate: `${name}, tokens %{customdata[0]}<br>perplexity %{customdata[1]}<extra></extra>`,
    };
  }

  function memoryTrace(theme, method, name, curve) {
    const y = megabytes(curve);
    return {
      type: "scatter", mode: "lines", name: `cache of ${name}`, x: curve.end, y, yaxis: "y2",
      ...SWA.stroke(theme, method), customdata: y.map(number),
      hovertemplate: `${name}<br>cache after %{x:,} tokens: %{customdata} MB<extra></extra>`,
    };
  }

  // Names where the lines of one panel end: at the right edge, or at `x` where they stop earlier.
  function names(layout, axis, items, x) {
    const { margin, height } = layout, { domain } = layout[axis], outside = margin.t + margin.b;
    const panel = { yaxis: layout[axis], margin, height: (height - outside) * (domain[1] - domain[0]) + outside };
    const place = { yref: axis === "yaxis" ? "y" : "y2", ...(x === undefined ? {} : { x, xref: "x", xshift: 8 }) };
    return SWA.endLabels(panel, items).map((one) => ({ ...one, ...place }));
  }

  function trainedMark(theme, trained, end) {
    if (trained >= end) return { shapes: [], notes: [] };
    const line = { color: theme.axis, width: 1.5, dash: "4px 3px" }, font = { size: 12, color: theme.muted };
    const note = {
      x: trained, xanchor: trained < end / 2 ? "left" : "right", xshift: -4, y: 1, yref: "paper", yanchor: "bottom",
      showarrow: false, text: `trained length: ${whole(trained)}`, font,
    };
    const shape = { type: "line", x0: trained, x1: trained, yref: "paper", y0: 0, y1: 1, layer: "below", line };
    return { shapes: [shape], notes: [note] };
  }

  function layoutOf(el, data, theme) {
    const all = data.sources.flatMap(curvesOf), narrow = SWA.isNarrow(el);
    const end = Math.max(...all.map((one) => last(one.end)));
    const xaxis = { title: { text: "position in the text (tokens)" }, range: [-0.02 * end, 1.02 * end], anchor: "y2" };
    return SWA.layout(el, theme, {
      height: narrow ? 460 : 540, margin: { l: 62, r: narrow ? 76 : 150, t: 30, b: 48 },
      xaxis: { ...xaxis, tickformat: ",d", nticks: narrow ? 4 : 8 },
      yaxis: { ...SWA.logAxis(all.flatMap((one) => one.ppl), "perplexity (log scale)"), domain: UPPER },
      yaxis2: { ...SWA.logAxis(all.flatMap(megabytes), "cache (MB, log)"), domain: LOWER },
    });
  }

  function words(el, theme, layout, { full, kinds, found, mark }) {
    const narrow = SWA.isNarrow(el), { full: dark, sinks: blue } = theme.methods;
    const ours = last(megabytes(kinds[found[0].kind])), theirs = last(megabytes(full));
    const name = narrow ? "full" : "full attention";
    const ends = found.map(({ kind, method, name: long, short }) => (
      { text: narrow ? short : long, y: last(kinds[kind].ppl), color: theme.methods[method] }));
    return [
      ...mark.notes,
      ...names(layout, "yaxis", [{ text: name, y: last(full.ppl), color: dark }], last(middles(full)))
        .map((one) => ({ ...one, xanchor: "right", xshift: -8, bgcolor: theme.paper })),
      ...names(layout, "yaxis", ends),
      ...names(layout, "yaxis2", [{ text: `${name}, ${number(theirs)} MB`, y: theirs, color: dark }], last(full.end)),
      ...names(layout, "yaxis2", [{ text: `${narrow ? "" : "SWA, "}${number(ours)} MB`, y: ours, color: blue }]),
    ];
  }

  function drawStream(el, data, shown, theme) {
    const state = { window: data.windows[0], ...shown }, { full, curves, trained } = SWA.sourceOf(data, state);
    const w = state.window, kinds = curves[String(w)], found = KINDS.filter((one) => kinds[one.kind]);
    const any = kinds[found[0].kind];
    const traces = [pplTrace(theme, "full", "full attention", full, "lines", {})];
    found.forEach(({ kind, method, name, symbol, size }) => {
      traces.push(pplTrace(theme, method, name, kinds[kind], "lines+markers", { symbol, size }));
    });
    traces.push(memoryTrace(theme, "full", "full attention", full));
    traces.push(memoryTrace(theme, "sinks", `SWA(${w}, ${data.sinks[0]})`, any));
    const layout = layoutOf(el, data, theme), mark = trainedMark(theme, trained, last(any.end));
    layout.shapes = mark.shapes;
    layout.annotations = words(el, theme, layout, { full, kinds, found, mark });
    const said = found.flatMap(({ kind, method, name }) => (
      [`, ${name} `, inColour(theme, method, number(last(kinds[kind].ppl)))]));
    const memory = inColour(theme, "sinks", `${number(last(megabytes(any)))} MB`);
    SWA.say(el, `Perplexity of tokens ${last(bins(any))}`, ...said, "; cache ", memory, ".");
    return SWA.plot(el, traces, layout);
  }
  SWA.register("stream", { controls, draw: drawStream });
})(globalThis.SWA);
