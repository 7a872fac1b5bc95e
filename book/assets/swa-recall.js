// What a state of given bytes holds: recall against the number of pairs; and the weight feature maps give by angle.
(function (SWA) {
  "use strict";
  const { inColour, whole } = SWA;
  const UPPER = [0.42, 1], LOWER = [0, 0.24], last = (values) => values[values.length - 1];
  const percent = (x) => `${(100 * x).toFixed(x > 0 && x < 0.0995 ? 1 : 0)}\u00a0%`;
  const kilobytes = (bytes) => `${+(bytes / 1000).toPrecision(3)}\u00a0kB`;

  // ---- Recall.

  const GROUPS = { maps: "feature maps, plain sum", updates: "rules of update, φ(k) = k" };
  const KEYS = { random: "random keys", alike: "keys alike, mean cosine 0.5" };
  const FACTORS = {
    1: "1 state per KV head",
    4: "4 states per KV head",
    8: "4 states, fp32 on 16-bit KV",
  };

  function controls(data) {
    const select = (name, label, values, initial, words) => (
      { name, label, type: "select", values, initial, shared: false, text: (value) => words[value] || `× ${value}` });
    const bytes = ({ head_dim: d }) => kilobytes(data.curves[`${data.mechanisms[0].name}|${d}|${data.keys[0]}`].bytes);
    return [
      select("shown", "compare", Object.keys(GROUPS), "updates", GROUPS),
      select("keys", "keys", data.keys, data.keys[0], KEYS),
      select("factor", "equal bytes", data.factor, data.initial.factor, FACTORS),
      { name: "head_dim", label: "head size d", type: "range", values: data.head_dim, initial: data.initial.head_dim,
        shared: false, describe: (state) => `d = ${state.head_dim}: a state of ${bytes(state)}` },
      { name: "pairs", label: "pairs n", type: "play", values: data.pairs, initial: data.initial.pairs, shared: false,
        interval: 900, describe: ({ pairs }) => `n = ${whole(pairs)}` },
    ];
  }

  // The lines of a view: full attention, SWA at equal bytes, and a mechanism each.
  function linesOf(data, { shown, keys, factor, head_dim: d }) {
    const curve = (name) => data.curves[`${name}|${d}|${keys}`], swa = curve(`swa${factor}`);
    const softmax = [
      { curve: curve("full"), method: "full", symbol: "circle", label: "full attention", text: "full attention" },
      { curve: swa, method: "sinks", symbol: "circle", label: swa.label, text: swa.label },
    ];
    const found = data.mechanisms.filter((one) => one.groups.includes(shown)).map((one) => (
      { ...one, curve: curve(one.name), label: `${one.label} (${one.setting})`, text: `${one.sign} ${one.short}` }));
    return [...softmax, ...found];
  }

  function upperTrace(theme, data, line) {
    const { curve: { recall, half, n }, method, symbol, label } = line, style = SWA.stroke(theme, method);
    const thick = method === "sinks" || method === "full" ? 3 : 2;
    return {
      type: "scatter", mode: "lines+markers", name: label, x: data.pairs, y: recall, cliponaxis: false,
      line: { ...style.line, width: thick }, marker: { ...style.marker, symbol, size: 8 },
      error_y: { array: half, thickness: 1, width: 3, color: style.line.color },
      customdata: recall.map((value, k) => [percent(value), percent(half[k]), whole(n[k])]),
      hovertemplate: `${label}<br>%{x} pairs: %{customdata[0]} ± %{customdata[1]} (95 %)`
        + "<br>%{customdata[2]} asked for in all<extra></extra>",
    };
  }

  function lowerTrace(theme, pairs, line) {
    const y = line.curve.by_place[pairs], style = SWA.stroke(theme, line.method), edges = y.length;
    return {
      type: "scatter", mode: "lines+markers", name: `${line.label}, by place`, x: y.map((_, k) => (k + 0.5) / edges), y,
      xaxis: "x2", yaxis: "y2", line: { ...style.line, width: line.method === "sinks" ? 3 : 1.8 }, cliponaxis: false,
      marker: { ...style.marker, symbol: line.symbol, size: 5 },
      hovertemplate: `${line.label}<br>%{x:.0%} of the text before it: %{y:.0%}<extra></extra>`,
    };
  }

  function chance(theme, data) {
    const color = theme.methods.chance;
    return {
      type: "scatter", mode: "lines", name: "chance", x: data.pairs, y: data.pairs.map((n) => 1 / n),
      line: { color, dash: "dot", width: 1.5 }, hovertemplate: "chance: 1 in %{x}<extra></extra>",
    };
  }

  function recallAxes(el, data) {
    const share = { tickformat: ".0%", range: [-0.03, 1.05], fixedrange: true };
    const place = SWA.isNarrow(el) ? "place in the text" : "place of the pair in the text";
    const xaxis = SWA.powersAxis(el, data.pairs[0], last(data.pairs), "pairs written, n (log scale)");
    return {
      xaxis: { ...xaxis, anchor: "y", fixedrange: true },
      yaxis: { ...share, title: { text: "pairs recalled" }, tickvals: [0, 0.25, 0.5, 0.75, 1], domain: UPPER },
      xaxis2: {
        range: [0, 1], tickvals: [0, 0.25, 0.5, 0.75, 1], anchor: "y2", fixedrange: true, showgrid: false,
        ticktext: ["first", "", place, "", "last"], ticklabeloverflow: "allow",
      },
      yaxis2: { ...share, title: { text: "recalled" }, tickvals: [0, 0.5, 1], domain: LOWER },
    };
  }

  function recallNames(theme, data, layout, [full, ...others]) {
    const inner = layout.height - layout.margin.t - layout.margin.b;
    const panel = { ...layout, margin: { t: 0, b: 0 }, height: inner * (UPPER[1] - UPPER[0]) };
    const named = ({ text, curve, method }) => ({ text, y: last(curve.recall), color: theme.methods[method] });
    const chance = { text: "chance, 1/n", y: 1 / last(data.pairs), color: theme.methods.chance };
    const groups = [[named(full)], [...others.map(named), chance]];
    return groups.flatMap((group) => SWA.endLabels(panel, group)).map((one) => ({ ...one, yref: "y" }));
  }

  function recallLayout(el, theme, data, lines, pairs) {
    const narrow = SWA.isNarrow(el), margin = { l: 58, r: narrow ? 104 : 130, t: 26, b: 46 };
    const layout = SWA.layout(el, theme, {
      height: narrow ? 560 : 620, margin, dragmode: false, ...recallAxes(el, data),
    });
    const note = { showarrow: false, font: { size: 13, color: theme.muted }, yanchor: "bottom", yref: "paper" };
    layout.annotations = [
      ...recallNames(theme, data, layout, lines),
      { ...note, x: Math.log10(pairs), y: 1, text: `n = ${whole(pairs)}` },
      { ...note, xref: "paper", x: 0, xanchor: "left", y: LOWER[1] + 0.015, text: `Which of the ${whole(pairs)} pairs` },
    ];
    layout.shapes = [{
      type: "line", x0: pairs, x1: pairs, yref: "paper", y0: UPPER[0], y1: 1, layer: "below",
      line: { color: theme.axis, width: 1.5, dash: "dot" },
    }];
    return layout;
  }

  function drawRecall(el, data, state, theme) {
    const lines = linesOf(data, state), at = data.pairs.indexOf(state.pairs), [, swa, ...linear] = lines;
    const value = (line) => inColour(theme, line.method, percent(line.curve.recall[at]));
    const sorted = [...linear].sort((a, b) => b.curve.recall[at] - a.curve.recall[at]), best = sorted[0];
    const worst = last(sorted);
    SWA.say(el, `Of ${whole(state.pairs)} pairs ${swa.label} recalls `, value(swa), ", a state at best ", value(best),
      ` (${best.short}), at worst `, value(worst), ` (${worst.short}).`);
    const traces = [
      ...lines.map((line) => upperTrace(theme, data, line)), chance(theme, data),
      ...lines.slice(1).map((line) => lowerTrace(theme, state.pairs, line)),
    ];
    return SWA.plot(el, traces, recallLayout(el, theme, data, lines, state.pairs));
  }
  SWA.register("recall", { controls, draw: drawRecall });

  // ---- Feature maps: small charts of one kind, softmax attention's exponential behind each.

  const exponent = (logit, cosine) => Math.exp(logit * (cosine - 1));

  function mapTraces(theme, data, panel, logit, n) {
    const { low, middle, high } = panel.by_logit[logit], color = theme.methods[panel.method], x = data.cosine;
    const axes = { xaxis: n ? `x${n + 1}` : "x", yaxis: n ? `y${n + 1}` : "y", type: "scatter", x };
    const fill = `${color}40`, bare = { mode: "lines", hoverinfo: "skip", line: { width: 0, color } };
    const told = "key at cosine %{x:.2f}: weight %{y:.3f}<extra></extra>";
    return [
      { ...axes, ...bare, y: low, name: `${panel.label}, 10 %` },
      { ...axes, ...bare, y: high, name: `${panel.label}, 90 %`, fill: "tonexty", fillcolor: fill },
      { ...axes, y: x.map((c) => exponent(logit, c)), mode: "lines", name: "exp",
        line: { color: theme.methods.full, width: 2 }, hovertemplate: `softmax's exp<br>${told}` },
      { ...axes, y: middle, mode: "lines", name: panel.label, line: { color, width: 2.5 },
        hovertemplate: `${panel.label}<br>${told}` },
    ];
  }

  // Where the n-th small chart stands, in pixels of the whole drawing.
  function mapPlace(el, n, count) {
    const narrow = SWA.isNarrow(el), columns = narrow ? 2 : 4, rows = Math.ceil(count / columns), gap = narrow ? 12 : 16;
    const each = narrow ? 152 : 190, wide = el.clientWidth - 52, drawn = rows * each - 10, title = 40;
    const column = n % columns, row = Math.floor(n / columns), width = (wide - (columns - 1) * gap) / columns;
    const left = column * (width + gap), top = drawn - row * each - title, bottom = top - (each - title - 10);
    return {
      x: [left / wide, (left + width) / wide], y: [bottom / drawn, top / drawn], drawn,
      isLeft: column === 0, isLow: row === rows - 1,
    };
  }

  function mapName(theme, narrow, panel, place, square) {
    const told = `<span style="color:${theme.methods[panel.method]}">at a right angle ${square.toFixed(2)}</span>`;
    return {
      xref: "paper", x: place.x[0], xanchor: "left", yref: "paper", y: place.y[1], yanchor: "bottom", align: "left",
      showarrow: false, font: { size: narrow ? 12 : 13, color: theme.ink }, text: `<b>${panel.label}</b><br>${told}`,
    };
  }

  function mapLayout(el, theme, data, squares) {
    const count = data.panels.length, axes = {}, narrow = SWA.isNarrow(el);
    const names = data.panels.map((panel, n) => {
      const place = mapPlace(el, n, count), id = n ? n + 1 : "";
      axes[`xaxis${id}`] = {
        domain: place.x, range: [-1, 1], tickvals: [-1, 0, 1], anchor: `y${id}`, fixedrange: true,
        showticklabels: place.isLow,
      };
      axes[`yaxis${id}`] = {
        domain: place.y, range: [-0.25, 1.08], tickvals: [0, 0.5, 1], anchor: `x${id}`, fixedrange: true,
        showticklabels: place.isLeft,
      };
      return mapName(theme, narrow, panel, place, squares[n]);
    });
    const base = { xref: "paper", yref: "paper", showarrow: false, font: { size: 13, color: theme.muted } };
    const titles = [
      { ...base, x: 0.5, y: 0, yanchor: "top", yshift: -22, text: "cosine of query and key" },
      { ...base, x: 0, xshift: -44, xanchor: "left", y: 0.5, textangle: -90, text: "weight, 1 = the query's own key" },
    ];
    return SWA.layout(el, theme, {
      height: mapPlace(el, 0, count).drawn + 50, margin: { l: 44, r: 8, t: 8, b: 42 }, dragmode: false,
      annotations: [...names, ...titles], ...axes,
    });
  }

  function drawMaps(el, data, { logit }, theme) {
    const zero = data.cosine.indexOf(0), exact = exponent(logit, 0);
    const squares = data.panels.map((panel) => Math.max(0, panel.by_logit[logit].middle[zero]));
    const all = data.panels.map((panel, n) => ({ ...panel, square: squares[n] }));
    const positive = all.filter((one) => one.square > 0.005).sort((a, b) => a.square - b.square);
    const told = (panel) => inColour(theme, panel.method, panel.square.toFixed(2));
    const small = exact >= 0.01 ? exact.toFixed(2) : +exact.toPrecision(1);
    SWA.say(el, "A key at a right angle to the query weighs, against the query's own: under exp ",
      inColour(theme, "full", exact < 1e-6 ? "nothing" : `${small}`), ", under the non-negative maps from ",
      told(positive[0]), ` (${positive[0].label}) to `, told(last(positive)), ` (${last(positive).label}).`);
    const traces = data.panels.flatMap((panel, n) => mapTraces(theme, data, panel, logit, n));
    return SWA.plot(el, traces, mapLayout(el, theme, data, squares));
  }

  SWA.register("feature-maps", {
    controls: (data) => [{
      name: "logit", label: "norm of q and k", type: "play", values: data.logits, initial: data.initial.logit,
      shared: false, interval: 1200, describe: (state) => `a match has a logit of ${state.logit}`,
    }],
    draw: drawMaps,
  });
})(globalThis.SWA);
