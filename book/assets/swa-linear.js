// Linear attention from inside: a state as tokens write it, and the masks that a state completes.
(function (SWA) {
  "use strict";
  const { inColour, number } = SWA;
  const range = (n) => Array.from({ length: n }, (_, k) => k);

  // ---- The state. One heat map holds everything, in cells of one size:
  //   column 0 the key of token t, 1 the key asked for, 3.. the state, then z; row 0 the value, 2.. the state, then
  //   what is read and the value wanted.

  const latest = (data, letter, t) => data.tokens.lastIndexOf(letter, t);

  function stateCells(data, { rule, asked, token: t }) {
    const size = data.k[0].length, found = data.rules[rule], letter = data.letters.indexOf(asked);
    const place = latest(data, asked, t), key = data.k[data.tokens.indexOf(asked)];
    const z = range(size + 5).map(() => range(size + 5).map(() => null)), text = z.map((row) => row.map(() => ""));
    const most = Math.max(...found.z.flat().filter((value) => value !== null), 1e-9);
    const put = (y, x, value, words, unit = 1) => {
      z[y][x] = value / unit;
      text[y][x] = `${words}: ${value.toFixed(2)}`;
    };
    range(size).forEach((i) => {
      put(2 + i, 0, data.k[t][i], `key of token ${t + 1} (${data.tokens[t]}), feature ${i}`);
      put(2 + i, 1, key[i], `key asked for (${asked}), feature ${i}`);
      range(size).forEach((j) => put(2 + i, 3 + j, found.S[t][i][j], `S, feature ${i}, channel ${j}`));
      if (found.z[t]) put(2 + i, 4 + size, found.z[t][i], `z, feature ${i}`, most);
      put(0, 3 + i, data.v[t][i], `value of token ${t + 1}, channel ${i}`);
      put(3 + size, 3 + i, found.read[t][letter][i], `read for ${asked}, channel ${i}`);
      if (place >= 0) put(4 + size, 3 + i, data.v[place][i], `last written under ${asked}, channel ${i}`);
    });
    return { z, text, size, place };
  }

  function stateLabels(theme, { size, z }) {
    const label = (x, y, text, own) => (
      { x, y, text, showarrow: false, font: { size: 13, color: theme.muted }, ...own });
    const left = { xanchor: "right" };
    const names = [
      label(2.4, 0, "writes", left), label(2.4, 3 + size, "reads", left), label(2.4, 4 + size, "wanted", left),
      label(0, 1, "k"), label(1, 1, "q"), label(2.5 + size / 2, 1, "state S"),
    ];
    return z[2][4 + size] === null ? names : [...names, label(4 + size, 1, "z")];
  }

  // By token, how well the value asked for is read: a faint line for the whole text, a strong one up to t.
  function stateLines(theme, data, { rule, asked, token: t }) {
    const letter = data.letters.indexOf(asked), x = range(data.tokens.length).map((n) => n + 1);
    return Object.entries(data.rules).flatMap(([name, found]) => {
      const { line, marker } = SWA.stroke(theme, found.method), y = found.cosine.map((row) => row[letter]);
      const own = { type: "scatter", x, xaxis: "x2", yaxis: "y2", name: found.label };
      const template = `${found.label}<br>token %{x}: cosine %{y:.2f}<extra></extra>`;
      return [
        { ...own, y, mode: "lines", line: { ...line, width: 1 }, opacity: 0.45, hoverinfo: "skip" },
        {
          ...own, y: y.map((value, n) => (n <= t ? value : null)), mode: "lines+markers", hovertemplate: template,
          line: { ...line, width: name === rule ? 3.5 : 1.5 }, marker: { ...marker, symbol: found.symbol, size: 7 },
        },
      ];
    });
  }

  // The heat map at the left, or on top; the lines at the right, or below, with room for their names.
  function statePlaces(el) {
    const narrow = SWA.isNarrow(el), names = 100, width = el.clientWidth - 8;
    const side = Math.min(narrow ? width : 0.46 * width, 400), height = side + (narrow ? 244 : 0);
    const lines = { from: narrow ? 46 : side + 66, to: width - names, height: narrow ? 200 : 0.94 * height };
    return {
      height, heat: { x: [0, side / width], y: [1 - side / height, 1] },
      lines: {
        x: [lines.from / width, lines.to / width], pixels: lines.height,
        y: narrow ? [0, lines.height / height] : [1 - lines.height / height, 1],
      },
    };
  }

  function stateLayout(el, theme, data, cells, { asked, token: t }) {
    const { size } = cells, n = data.tokens.length, places = statePlaces(el), letter = data.letters.indexOf(asked);
    const bare = { showgrid: false, showline: false, visible: false, fixedrange: true }, span = [-0.5, size + 4.5];
    const lows = Object.values(data.rules).flatMap((rule) => rule.cosine.flat()).filter((value) => value !== null);
    const low = Math.min(0, ...lows) - 0.05, high = 1.08;
    const layout = SWA.layout(el, theme, {
      height: places.height + 48, margin: { l: 4, r: 4, t: 8, b: 40 }, dragmode: false,
      xaxis: { ...bare, range: span, domain: places.heat.x },
      yaxis: { ...bare, range: [...span].reverse(), domain: places.heat.y },
      xaxis2: {
        range: [0.5, n + 0.5], domain: places.lines.x, anchor: "y2", showgrid: false, fixedrange: true,
        tickvals: range(n).map((k) => k + 1), ticktext: data.tokens, title: { text: "token, by its key" },
      },
      yaxis2: {
        range: [low, high], domain: places.lines.y, anchor: "x2", dtick: 0.5, fixedrange: true,
        title: { text: "cosine, read and wanted" },
      },
    });
    const ends = Object.values(data.rules).map((rule) => (
      { text: `${rule.sign} ${rule.short}`, y: rule.cosine[n - 1][letter], color: theme.methods[rule.method] }));
    const panel = { yaxis: layout.yaxis2, margin: { t: 0, b: 0 }, height: places.lines.pixels };
    const names = SWA.endLabels(panel, ends).map((one) => ({ ...one, yref: "y2", x: places.lines.x[1] }));
    layout.annotations = [...stateLabels(theme, cells), ...names];
    const tall = { yref: "y2", y0: low, y1: high, xref: "x2", layer: "below" };
    const written = range(n).filter((k) => data.tokens[k] === asked);
    layout.shapes = [
      ...written.map((k) => (
        { type: "rect", ...tall, x0: k + 0.6, x1: k + 1.4, fillcolor: theme.grid, line: { width: 0 } })),
      { type: "line", ...tall, x0: t + 1, x1: t + 1, line: { color: theme.axis, width: 1, dash: "dot" } },
      { type: "rect", x0: 2.5, x1: 2.5 + size, y0: 1.5, y1: 1.5 + size, line: { color: theme.axis, width: 1.5 } },
    ];
    return layout;
  }

  function sayState(el, data, { asked, token: t }, theme) {
    const letter = data.letters.indexOf(asked), written = `Token ${t + 1} writes under ${data.tokens[t]}. `;
    if (latest(data, asked, t) < 0) return SWA.say(el, written, `Nothing is written under ${asked} yet.`);
    const told = Object.values(data.rules).flatMap((rule, n) => (
      [n ? ", " : "", `${rule.short} `, inColour(theme, rule.method, number(rule.cosine[t][letter]))]));
    return SWA.say(el, written, `Asked for ${asked}, cosine with the value wanted: `, ...told, ".");
  }

  function drawState(el, data, state, theme) {
    const cells = stateCells(data, state);
    sayState(el, data, state, theme);
    const heat = {
      type: "heatmap", z: cells.z, text: cells.text, hovertemplate: "%{text}<extra></extra>", hoverongaps: false,
      colorscale: theme.diverging, zmin: -1, zmax: 1, showscale: false, xgap: 2, ygap: 2, name: "state",
    };
    return SWA.plot(el, [heat, ...stateLines(theme, data, state)], stateLayout(el, theme, data, cells, state));
  }

  SWA.register("linear-state", {
    controls: ({ rules, letters, tokens, initial }) => [
      { name: "rule", label: "rule", type: "select", values: Object.keys(rules), initial: initial.rule, shared: false,
        text: (name) => rules[name].label },
      { name: "asked", label: "ask for", type: "select", values: letters, initial: initial.asked, shared: false,
        text: (letter) => `key ${letter}` },
      { name: "token", label: "token t", type: "play", values: range(tokens.length), initial: initial.token,
        shared: false, interval: 900, describe: ({ token: t }) => `t = ${t + 1}: writes under ${tokens[t]}` },
    ],
    draw: drawState,
  });

  // ---- The masks.

  const near = (i, j, w) => i - j < w;
  // Blocks of w align to the end of a text of `length`: own block and the one before.
  const terrace = (i, j, w, length) => {
    const block = (x) => Math.floor((x + (w - (length % w)) % w) / w);
    return block(i) - block(j) <= 1;
  };
  const KINDS = [
    { name: "Full attention", of: () => "exact" },
    { name: "SWA(w, s)", of: (i, j, { w, s }) => (j < s ? "sink" : near(i, j, w - s) ? "exact" : "unseen") },
    { name: "Pure linear", of: () => "linear" },
    { name: "LoLCATs, sliding", of: (i, j, { w }) => (near(i, j, w) ? "exact" : "linear") },
    { name: "LoLCATs, terraced", of: (i, j, { w, length }) => (terrace(i, j, w, length) ? "exact" : "linear") },
    { name: "Liger", of: (i, j, { w }) => (near(i, j, w) ? "both" : "linear") },
  ];
  const WORDS = ["later", "unseen", "linear", "both", "exact", "sink"];
  const TOLD = {
    later: "comes later", unseen: "not seen", linear: "only through the state", both: "exactly, and through the state",
    exact: "exactly", sink: "exactly, a sink",
  };

  function maskColours(theme) {
    const { sink, recent, outside } = SWA.shades(theme), dark = theme.name === "dark";
    const linear = dark ? "#1F6B55" : "#9FD9C6", both = dark ? "#A65F8A" : "#D9A0C0";
    return { later: theme.paper, unseen: outside, linear, both, exact: recent, sink };
  }

  function maskPanel(theme, kind, spec, n) {
    const words = range(spec.length).map((i) => range(spec.length).map((j) => (j > i ? "later" : kind.of(i, j, spec))));
    const colours = maskColours(theme), count = WORDS.length;
    return {
      type: "heatmap", name: kind.name, z: words.map((row) => row.map((word) => WORDS.indexOf(word))),
      text: words.map((row) => row.map((word) => TOLD[word])), zmin: -0.5, zmax: count - 0.5, showscale: false,
      colorscale: WORDS.flatMap((word, k) => [[k / count, colours[word]], [(k + 1) / count, colours[word]]]),
      xgap: 0.5, ygap: 0.5, hovertemplate: `${kind.name}<br>query %{y}, key %{x}: %{text}<extra></extra>`,
      xaxis: n ? `x${n + 1}` : "x", yaxis: n ? `y${n + 1}` : "y",
    };
  }

  function maskKey(theme, word, name) {
    const line = { color: word === "later" ? theme.axis : "rgba(0,0,0,0)", width: 1 };
    return {
      type: "scatter", mode: "markers", x: [null], y: [null], name, hoverinfo: "skip", showlegend: true,
      marker: { symbol: "square", size: 12, color: maskColours(theme)[word], line },
    };
  }

  function maskLayout(el, theme, length) {
    const narrow = SWA.isNarrow(el), columns = narrow ? 2 : 3, rows = KINDS.length / columns, gap = narrow ? 12 : 26;
    const top = narrow ? 78 : 34, title = 24, wide = el.clientWidth - 8;
    const side = Math.min((wide - (columns - 1) * gap) / columns, 230);
    const height = rows * (side + title) + (rows - 1) * 8, axes = {}, annotations = [];
    const axis = { range: [-0.5, length - 0.5], visible: false, fixedrange: true };
    KINDS.forEach((kind, n) => {
      const column = n % columns, row = Math.floor(n / columns), left = column * (side + gap);
      const under = height - row * (side + title + 8) - title, id = n ? n + 1 : "";
      axes[`xaxis${id}`] = { ...axis, domain: [left / wide, (left + side) / wide], anchor: `y${id}` };
      const domain = [(under - side) / height, under / height];
      axes[`yaxis${id}`] = { ...axis, range: [length - 0.5, -0.5], domain, anchor: `x${id}` };
      annotations.push({
        text: `<b>${kind.name}</b>`, x: left / wide, xref: "paper", xanchor: "left", y: under / height, yref: "paper",
        yanchor: "bottom", showarrow: false, font: { size: 13, color: theme.ink },
      });
    });
    const legend = {
      orientation: "h", x: 0, xanchor: "left", xref: "container", y: 1, yanchor: "top", yref: "container",
      itemclick: false, itemdoubleclick: false, itemwidth: 30, font: { size: 12 },
      ...(narrow ? { entrywidthmode: "fraction", entrywidth: 0.48 } : {}),
    };
    return SWA.layout(el, theme, {
      height: height + top + 6, margin: { l: 4, r: 4, t: top, b: 6 }, showlegend: true, legend, annotations,
      dragmode: false, ...axes,
    });
  }

  function sayMasks(el, { length, ...spec }) {
    const i = length - 1, words = (kind) => range(length).map((j) => kind.of(i, j, { ...spec, length }));
    const exact = (kind) => words(kind).filter((word) => word !== "linear" && word !== "unseen").length;
    const [, swa, , sliding, terraced] = KINDS;
    SWA.say(el, `The last of ${length} queries sees ${SWA.count(exact(swa), "key")} exactly under SWA, and nothing `,
      `of the other ${length - exact(swa)}; under LoLCATs ${exact(sliding)} exactly (terraced ${exact(terraced)}), `,
      "the others through the state.");
  }

  function drawMasks(el, data, state, theme) {
    const spec = { w: state.window, s: state.sinks, length: data.length };
    sayMasks(el, spec);
    const keys = Object.entries({
      exact: "exactly", sink: "exactly, a sink", linear: "through a state", both: "both ways", unseen: "not seen",
      later: "comes later",
    }).map(([word, name]) => maskKey(theme, word, name));
    const panels = KINDS.map((kind, n) => maskPanel(theme, kind, spec, n));
    return SWA.plot(el, [...panels, ...keys], maskLayout(el, theme, data.length));
  }

  SWA.register("effective-masks", {
    controls: (data) => [
      SWA.windowControl(data.windows, data.initial.window), SWA.sinksControl(data.sinks, data.initial.sinks),
    ],
    draw: drawMasks,
  });
})(globalThis.SWA);
