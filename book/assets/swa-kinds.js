// What makes a token a sink: a line of dots for each thing kept in sight, full attention as the level to reach.
(function (SWA) {
  "use strict";
  const { number, inColour } = SWA;
  const methodOf = (line) => (line.sinks > 0 ? "sinks" : "no_sinks");
  const mean = (line) => line.dots.reduce((sum, dot) => sum + dot.ppl, 0) / line.dots.length;

  function controls(data) {
    const list = SWA.sourceControls(data, "measured on");
    if (data.windows.length > 1) list.push(SWA.windowControl(data.windows, data.initial.window));
    return list;
  }

  // One trace a method, so that its colour says whether any key is kept for good.
  function dotTrace(theme, method, name, lines) {
    const dots = lines.flatMap((line, y) => line.dots.map((dot) => ({ y, line, dot })))
      .filter((one) => methodOf(one.line) === method);
    const { marker, line: { color } } = SWA.stroke(theme, method);
    const where = ({ positions }) => (positions ? `<br>tokens ${positions}` : "");
    return {
      type: "scatter", mode: "markers", name, x: dots.map(({ dot }) => dot.ppl), y: dots.map(({ y }) => y),
      marker: { ...marker, size: 10 }, cliponaxis: false,
      error_x: { array: dots.map(({ dot }) => dot.half ?? 0), thickness: 1, width: 3, color },
      customdata: dots.map((one) => [one.line.label, SWA.spread(one.dot), where(one.dot)]),
      hovertemplate: "%{customdata[0]}%{customdata[2]}<br>perplexity %{customdata[1]}<extra></extra>",
    };
  }

  // Few enough ticks for a narrow plot: none nearer to the one before than a fifth of the axis.
  function thinned(axis) {
    const [low, high] = axis.range, kept = [];
    axis.tickvals.filter((tick) => Math.log10(tick) >= low).forEach((tick) => {
      const before = kept[kept.length - 1];
      if (!kept.length || Math.log10(tick / before) > (high - low) / 5) kept.push(tick);
    });
    return { ...axis, tickvals: kept, ticktext: kept.map(SWA.whole) };
  }

  function fullTrace(theme, full, count) {
    return {
      type: "scatter", mode: "lines", name: "full attention", x: [full.ppl, full.ppl], y: [-0.5, count - 0.5],
      ...SWA.stroke(theme, "full"), hovertemplate: `full attention<br>perplexity ${SWA.spread(full)}<extra></extra>`,
    };
  }

  // The value of each line at its right end: of several dots, the lowest and the highest.
  function valueNames(theme, lines) {
    return lines.map((line, y) => {
      const values = line.dots.map((dot) => dot.ppl), low = Math.min(...values), high = Math.max(...values);
      const text = values.length > 1 ? `${number(low)}–${number(high)}` : number(low);
      const font = { color: theme.methods[methodOf(line)], size: 13 };
      return { xref: "paper", x: 1, xanchor: "left", xshift: 6, y, yanchor: "middle", showarrow: false, text, font };
    });
  }

  function drawKinds(el, data, shown, theme) {
    const state = { window: data.windows[0], ...shown }, source = SWA.sourceOf(data, state), { full } = source;
    const lines = source.kinds[String(state.window)] || [], narrow = SWA.isNarrow(el);
    const dots = data.sources.flatMap((one) => Object.values(one.kinds).flat().flatMap((line) => line.dots));
    const ppl = [...dots, ...data.sources.map((one) => one.full)].map((dot) => dot.ppl);
    const xaxis = SWA.logAxis(ppl, "perplexity (log scale)");
    const layout = SWA.layout(el, theme, {
      height: 100 + 34 * lines.length, margin: { l: narrow ? 152 : 196, r: narrow ? 66 : 84, t: 30, b: 48 },
      xaxis: narrow ? thinned(xaxis) : xaxis,
      yaxis: {
        range: [lines.length - 0.5, -0.5], tickvals: lines.map((_, y) => y), ticktext: lines.map((line) => line.label),
        ticks: "", ticklabelstandoff: 7, fixedrange: true,
      },
    });
    layout.yaxis.tickfont = { color: theme.ink, size: narrow ? 12 : 13 };
    const head = {
      x: Math.log10(full.ppl), xanchor: "left", xshift: -4, y: 1, yref: "paper", yanchor: "bottom", showarrow: false,
      text: `full attention ${number(full.ppl)}`, font: { color: theme.methods.full, size: 13 },
    };
    const kept = {
      xref: "paper", x: 0, xanchor: "right", xshift: -7, yref: "paper", y: 1, yanchor: "bottom", showarrow: false,
      text: narrow ? "kept in sight" : "kept, besides the latest tokens",
      font: { color: theme.muted, size: narrow ? 12 : 13 },
    };
    layout.annotations = [head, kept, ...valueNames(theme, lines)];
    const sorted = [...lines].sort((a, b) => mean(a) - mean(b)), best = sorted[0], worst = sorted[sorted.length - 1];
    const value = (line) => inColour(theme, methodOf(line), number(mean(line)));
    SWA.say(el, `Perplexity with w = ${state.window}: full attention `, inColour(theme, "full", number(full.ppl)),
      ", keeping ", best.label, " ", value(best), ", keeping ", worst.label, " ", value(worst), ".");
    const traces = [["no_sinks", "no key kept"], ["sinks", "keys kept"]].map(([method, name]) => (
      dotTrace(theme, method, name, lines)));
    return SWA.plot(el, [fullTrace(theme, full, lines.length), ...traces], layout);
  }
  SWA.register("sink-kinds", { controls, draw: drawKinds });
})(globalThis.SWA);
