// Costs and timings: lines whose values are looked up by where the controls stand, and bars beside their limits.
//
//   lines: { controls, fixed, scale, x: { title, ticks, span }, y: { title, unit, values },
//            lines: [{ name, label, short, method, symbol, layer, fields }], values: { key: { x, y, low, high } },
//            marks: { fields, values: { key: { x, label } } }, tells }
//
// A key is a line's name and the values of its fields, joined by "|"; a line without values there isn't drawn.
(function (SWA) {
  "use strict";
  const { number, inColour } = SWA;
  const last = (values) => values[values.length - 1];
  const standing = (data, state, field) => (state[field] === undefined ? data.fixed[field] : state[field]);
  const keyOf = (data, state, name, fields) => [name, ...fields.map((field) => standing(data, state, field))].join("|");
  const plain = (number) => number.toLocaleString("en-US", { maximumSignificantDigits: 3 });

  function controlsOf(data) {
    return data.controls.map((control) => {
      const { name, label, values, initial, texts } = control, text = (value) => texts[values.indexOf(value)];
      if (name === "window") return SWA.windowControl(values, initial);
      if (name === "sinks") return SWA.sinksControl(values, initial);
      const type = control.type, describe = (state) => text(state[name]);
      return { name, label, type, values, initial, text, describe, shared: false };
    });
  }

  // The lines that are drawn at a state, with their values.
  function shownLines(data, state) {
    const factor = data.scale ? standing(data, state, data.scale) : 1;
    const scaled = (values) => values && values.map((value) => (value === null ? null : value * factor));
    return data.lines.flatMap((line) => {
      const found = data.values[keyOf(data, state, line.name, line.fields)];
      if (!found) return [];
      const names = { "{w}": standing(data, state, "window"), "{s}": standing(data, state, "sinks"),
        "{f}": standing(data, state, "features"), "{h}": standing(data, state, "hybrid_window") };
      const label = Object.entries(names).reduce((text, [sign, value]) => text.replace(sign, value), line.label);
      const y = line.unscaled ? found.y : scaled(found.y);
      return [{ ...line, label, x: found.x, y, low: found.low, high: found.high }];
    });
  }

  function bars({ y, low, high }) {
    if (!low) return {};
    const array = high.map((value, index) => value - y[index]);
    const arrayminus = low.map((value, index) => y[index] - value);
    return { error_y: { type: "data", symmetric: false, array, arrayminus, thickness: 1.2, width: 3 } };
  }

  function traceOf(theme, data, line) {
    const measured = line.layer === "measured", style = SWA.stroke(theme, line.method);
    const dash = line.dash || "solid", unit = data.y.unit;
    return {
      type: "scatter", mode: measured ? "lines+markers" : "lines", name: line.label, x: line.x, y: line.y,
      ...style, line: { ...style.line, dash, width: measured ? 2 : 1.6 },
      marker: { ...style.marker, symbol: line.symbol || "circle", size: 7 }, ...(measured ? bars(line) : {}),
      customdata: line.y.map((value) => (value === null ? "" : plain(value))),
      hovertemplate: `${line.label}, ${measured ? "measured" : "computed"}<br>${data.x.title} %{x:,}: ` +
        `%{customdata} ${unit}<extra></extra>`,
    };
  }

  function markOf(theme, data, state) {
    const mark = data.marks && data.marks.values[keyOf(data, state, "mark", data.marks.fields)];
    if (!mark) return { shapes: [], annotations: [] };
    const line = { color: theme.accent, width: 1.5, dash: "dot" };
    return {
      shapes: [{ type: "line", x0: mark.x, x1: mark.x, yref: "paper", y0: 0, y1: 1, line }],
      annotations: [{
        x: Math.log10(mark.x), y: 1, yref: "paper", yanchor: "bottom", showarrow: false, text: mark.label,
        font: { size: 12, color: theme.muted },
      }],
    };
  }

  function xAxis(el, { title, ticks, span }) {
    const every = (SWA.isNarrow(el) ? 2 : 1) * (ticks.length > 13 ? 2 : 1);
    const kept = ticks.filter((_, index) => index % every === 0);
    const [low, high] = span.map(Math.log10), pad = 0.03 * (high - low);
    return {
      type: "log", title: { text: title }, range: [low - pad, high + pad], tickangle: 0,
      tickvals: kept.map(([value]) => value), ticktext: kept.map(([, text]) => text),
    };
  }

  function sayLines(el, data, lines, theme) {
    const told = lines.filter((line) => line.tell !== false).map((line, index) => {
      const value = `${plain(last(line.y))} ${data.y.unit}`;
      return [index ? ", " : "", `${line.label} `, inColour(theme, line.method, value)];
    });
    SWA.say(el, `${data.tells}: `, ...told.flat(), ".");
  }

  function drawLines(el, data, state, theme) {
    const lines = shownLines(data, state), narrow = SWA.isNarrow(el), mark = markOf(theme, data, state);
    const layout = SWA.layout(el, theme, {
      height: narrow ? 400 : 440, margin: { l: 62, r: narrow ? 84 : 170, t: 28, b: 48 },
      xaxis: xAxis(el, data.x), yaxis: SWA.logAxis(data.y.values, data.y.title), shapes: mark.shapes,
    });
    const ends = lines.filter((line) => line.named !== false).map((line) => (
      { text: narrow ? line.short : line.label, y: last(line.y), color: theme.methods[line.method] }));
    layout.annotations = [...SWA.endLabels(layout, ends), ...mark.annotations];
    sayLines(el, data, lines, theme);
    return SWA.plot(el, lines.map((line) => traceOf(theme, data, line)), layout);
  }
  SWA.register("systems-lines", { controls: controlsOf, draw: drawLines });

  // ---- Bars: each measured time, and within it the least that the machine's limits allow.

  function drawBars(el, data, state, theme) {
    const bars = data.values[String(standing(data, state, "context"))], narrow = SWA.isNarrow(el);
    const labels = bars.map((bar) => (narrow ? bar.short : bar.label)), colour = (bar) => theme.methods[bar.method];
    const most = Math.max(...Object.values(data.values).flat().map((bar) => bar.step_ms));
    const share = (bar) => `${plain(bar.step_ms)} ms; the least by bytes and FLOPs is ${plain(bar.floor_ms)} ms`;
    const measured = {
      type: "bar", orientation: "h", name: "measured", y: labels, x: bars.map((bar) => bar.step_ms), width: 0.62,
      marker: { color: bars.map(colour) }, customdata: bars.map(share),
      hovertemplate: "%{y}<br>%{customdata}<extra></extra>",
    };
    const marks = (name, field, symbol, color) => ({
      type: "scatter", mode: "markers", name, y: labels, x: bars.map((bar) => bar[field]), hoverinfo: "skip",
      marker: { symbol, size: 15, color, line: { width: 3, color } },
    });
    const layout = SWA.layout(el, theme, {
      height: 44 * bars.length + 92, margin: { l: narrow ? 108 : 190, r: 24, t: 40, b: 48 }, bargap: 0.3,
      showlegend: true, legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", font: { size: 12 } },
      xaxis: {
        type: "log", title: { text: "ms a token (log scale)" }, tickangle: 0,
        range: [Math.log10(data.least), Math.log10(1.2 * most)],
        tickvals: data.ticks, ticktext: data.ticks.map(String),
      },
      yaxis: { autorange: "reversed", showgrid: false, ticks: "", automargin: false },
    });
    const explained = (bar) => `${number(100 * bar.floor_ms / bar.step_ms)} %`;
    const told = bars.flatMap((bar, index) => (
      [`${index ? ", " : ""}${bar.label} `, inColour(theme, bar.method, explained(bar))]));
    SWA.say(el, "Share of the time that bytes or FLOPs can explain: ", ...told, ".");
    return SWA.plot(el, [
      measured, marks("least, by bytes and FLOPs", "floor_ms", "line-ns", theme.accent),
      marks("least, by operations", "launch_ms", "line-ns-open", theme.ink),
    ], layout);
  }
  SWA.register("systems-bars", { controls: controlsOf, draw: drawBars });
})(globalThis.SWA);
