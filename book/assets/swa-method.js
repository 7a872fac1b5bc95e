// The method's own pictures, computed in the page: what a query sees, how far that reaches through layers, and what
// other systems mean by the same two numbers.
(function (SWA) {
  "use strict";
  const { count } = SWA, SEEN = ["sink", "recent"];
  const range = (n) => Array.from({ length: n }, (_, k) => k);

  // ---- Logic.

  // visible(i, j) = j <= i and (j < s or i - j < w - s), and which of its clauses decides.
  function look(i, j, w, s) {
    if (j > i) return "future";
    if (j < s) return "sink";
    return i - j < w - s ? "recent" : "outside";
  }

  function why(i, j, w, s) {
    const back = i - j, latest = w - s;
    const keeps = latest === 1 ? "window keeps the query's own only" : `window keeps ${latest} latest`;
    return {
      future: `query ${i} does not see key ${j}:<br>it comes later`,
      sink: `query ${i} sees key ${j}: a sink`,
      recent: `query ${i} sees key ${j}: ${back ? `${back} back, one of the ${latest} latest` : "its own"}`,
      outside: `query ${i} does not see key ${j}:<br>evicted, ${back} back, ${keeps}`,
    }[look(i, j, w, s)];
  }

  // Which inputs reach the last token after 0..layers layers: "recent" by recent keys alone, "sink" only by way of a sink.
  function reach(length, layers, w, s) {
    const tokens = range(length);
    const step = (from, through) => tokens.map((j) => tokens.some((i) => from[i] && through.includes(look(i, j, w, s))));
    let all = tokens.map((j) => j === length - 1), latest = all;
    return range(layers + 1).map(() => {
      const row = tokens.map((j) => (latest[j] ? "recent" : all[j] ? "sink" : "outside"));
      [all, latest] = [step(all, SEEN), step(latest, ["recent"])];
      return row;
    });
  }

  // A query far into the text sees `sinks` leading keys, the `sure` nearest, and for some queries the next `maybe` too.
  function conventions(w, s) {
    const rows = [
      ["This paper, HF's former SinkCache", `window=${w}, sinks=${s}`, s, w - s, 0,
        "w counts every key a query sees, its own included."],
      ["StreamingLLM, attention_sinks", `start=${s}, recent=${w - s}`, s, w - s + 1, 0,
        "Evicts after the forward pass: start + recent are cached,<br>the query's own key comes on top."],
      ["StreamingLLM chat", `start=${s}, recent=${w - s}`, s, 1, w - s - 1,
        "Evicts before the call, making room for all of its tokens:<br>how many older ones remain depends on the call."],
      ["SWAA, several reimplementations", `window=${w}, sinks=${s}`, s, w, 0, "The window stands beside the sinks."],
      ["HF sliding_window, fla", `sliding_window=${w}`, 0, w, 0, "No sinks; the query's own key is counted."],
      ["FlashAttention", `window_size=(${w}, 0)`, 0, w + 1, 0, "Keys behind the query; its own comes on top. No sinks."],
      ["attention-gym sliding window", `window=${w}`, 0, w + 1, 0, "Keys behind the query; its own comes on top. No sinks."],
      ["LoLCATs terrace", `block=${w}`, 0, w + 1, w - 1,
        "The query's own block and the one before, no sinks:<br>the count grows within a block."],
    ];
    return rows.map(([name, setting, sinks, sure, maybe, note]) => {
      const fewest = sinks + sure, most = fewest + maybe;
      const keys = fewest === most ? `${most}` : name === "StreamingLLM chat" ? `≤ ${most}` : `${fewest}–${most}`;
      return { name, setting, sinks, sure, maybe, note, keys, fewest, most };
    });
  }

  // ---- Looks: sinks in the method's colour, recents in its tint: apart by lightness, whatever the eye's colours.

  const shades = (theme) => (theme.name === "dark"
    ? { sink: theme.methods.sinks, recent: "#2572A8", maybe: "#1C3F5C", outside: "#2A3039", future: theme.paper }
    : { sink: theme.methods.sinks, recent: "#8CC5E8", maybe: "#D6EAF7", outside: "#E3E6EA", future: theme.paper });

  const steps = (colours) => colours.flatMap((colour, k) => [[k / colours.length, colour], [(k + 1) / colours.length, colour]]);

  function cells(theme, words, grid, own) {
    const colours = shades(theme);
    return Object.assign({
      type: "heatmap", z: grid.map((row) => row.map((word) => (word === null ? null : words.indexOf(word)))),
      zmin: -0.5, zmax: words.length - 0.5, colorscale: steps(words.map((word) => colours[word])),
      showscale: false, xgap: 1, ygap: 1, hovertemplate: "%{text}<extra></extra>", hoverongaps: false,
    }, own);
  }

  function key(theme, word, name) {
    const line = { color: word === "future" ? theme.axis : "rgba(0,0,0,0)", width: 1 };
    return {
      type: "scatter", mode: "markers", x: [null], y: [null], name, hoverinfo: "skip",
      marker: { symbol: "square", size: 12, color: shades(theme)[word], line },
    };
  }

  // Above the picture: in one line, or in two columns where that is too narrow.
  const legend = (el, own) => Object.assign({
    orientation: "h", x: 0, xanchor: "left", xref: "container", y: 1, yref: "container", yanchor: "top", itemclick: false,
    itemdoubleclick: false, itemwidth: 30, font: { size: 12 },
  }, SWA.isNarrow(el) && { entrywidthmode: "fraction", entrywidth: 0.48 }, own);

  const specControls = (data) => [
    SWA.windowControl(data.windows, data.initial.window), SWA.sinksControl(data.sinks, data.initial.sinks),
  ];

  // ---- The mask.

  function saysMask({ window: w, sinks: s, query: i }) {
    const words = range(i + 1).map((j) => look(i, j, w, s));
    const seen = words.filter((word) => SEEN.includes(word)).length, sinks = words.filter((word) => word === "sink").length;
    return `Row ${i} sees ${seen} of ${count(i + 1, "key")}: ${count(sinks, "sink")} and the ${seen - sinks} latest.`;
  }

  const highlight = (data, query, theme) => [{
    type: "rect", x0: -0.5, x1: data.length - 0.5, y0: query - 0.5, y1: query + 0.5,
    line: { color: theme.ink, width: 1.5 }, fillcolor: "rgba(0,0,0,0)",
  }];

  function drawMask(el, data, state, theme) {
    const { window: w, sinks: s, query } = state, tokens = range(data.length), narrow = SWA.isNarrow(el);
    const grid = (cell) => tokens.map((i) => tokens.map((j) => cell(i, j, w, s)));
    const words = ["future", "outside", "recent", "sink"];
    const side = narrow ? el.clientWidth - 56 : Math.min(480, el.clientWidth - 260), top = narrow ? 52 : 8;
    const axis = { range: [-0.5, data.length - 0.5], showgrid: false, fixedrange: true, dtick: 8, tick0: 0 };
    SWA.say(el, saysMask(state));
    el.dataset.spec = `${w},${s}`;
    return SWA.plot(el, [
      cells(theme, words, grid(look), { text: grid(why), name: "mask" }),
      key(theme, "sink", "seen: sink"), key(theme, "recent", "seen: latest"),
      key(theme, "outside", "evicted"), key(theme, "future", "comes later"),
    ], SWA.layout(el, theme, {
      height: side + top + 46, margin: { l: 48, r: el.clientWidth - 48 - side, t: top, b: 46 }, showlegend: true,
      legend: legend(el, narrow ? {} : { orientation: "v", xref: "paper", x: 1.03, yref: "paper" }),
      xaxis: { ...axis, title: { text: "key j (token position)" } },
      yaxis: { ...axis, range: [data.length - 0.5, -0.5], title: { text: "query i (token position)" } },
      shapes: highlight(data, query, theme),
    }));
  }

  // Another row of the same mask moves the frame alone: the cells are most of the work.
  function updateMask(el, data, state, theme) {
    if (el.dataset.spec !== `${state.window},${state.sinks}`) return drawMask(el, data, state, theme);
    SWA.say(el, saysMask(state));
    return globalThis.Plotly.relayout(el, { shapes: highlight(data, state.query, theme) });
  }

  SWA.register("mask-explorer", {
    controls: (data) => [...specControls(data), {
      name: "query", label: "query i", type: "range", values: range(data.length), initial: data.initial.query, shared: false,
      describe: (state) => `i = ${state.query}`,
    }],
    draw: drawMask,
    update: updateMask,
  });

  // ---- The reach.

  function saysReach(data, { window: w, sinks: s, layers }) {
    const row = reach(data.length, layers, w, s)[layers], tally = (word) => row.filter((one) => one === word).length;
    const exact = `${layers} · (${w} − ${s} − 1) = ${layers * (w - s - 1)}`;
    const back = `${tally("recent") === data.length ? "all, " : ""}${exact} back`;
    const sinks = tally("sink") ? `, and ${count(tally("sink"), "sink")}` : "";
    return `${count(layers, "layer")}: ${back}${sinks}. The paper's l · w: ${layers * w}.`;
  }

  function drawReach(el, data, state, theme) {
    const { window: w, sinks: s, layers } = state, last = data.length - 1, depth = range(data.layers + 1);
    const rows = reach(data.length, layers, w, s), narrow = SWA.isNarrow(el);
    const grid = depth.map((l) => rows[l] || range(data.length).map(() => null));
    const how = { recent: "reaches the last token<br>through the window", sink: "reaches the last token<br>only through a sink",
      outside: "cannot influence the last token" };
    const text = grid.map((row, l) => row.map((word, j) => `after ${count(l, "layer")}, input ${j}<br>${how[word]}`));
    const axis = { showgrid: false, fixedrange: true, tick0: 0 }, printed = theme.layers.printed, shown = depth.slice(0, layers + 1);
    SWA.say(el, saysReach(data, state));
    return SWA.plot(el, [
      cells(theme, ["outside", "recent", "sink"], grid, { text, name: "reach", xgap: narrow ? 0 : 1, ygap: 3 }),
      key(theme, "recent", "by the window"), key(theme, "sink", "only by a sink"), key(theme, "outside", "not at all"),
      { type: "scatter", mode: "lines+markers", x: shown.map((l) => last - l * w), y: shown, name: "l · w (printed)",
        line: { color: theme.ink, dash: printed.dash, width: 1.5 }, hovertemplate: "the paper's l · w: token %{x}<extra></extra>",
        marker: { symbol: printed.symbol, size: 7, color: theme.ink } },
    ], SWA.layout(el, theme, {
      height: 96 + 30 * depth.length, margin: { l: 48, r: 12, t: narrow ? 50 : 32, b: 46 },
      showlegend: true, legend: legend(el),
      xaxis: { ...axis, range: [-0.5, last + 0.5], dtick: 16, title: { text: "input token (position)" } },
      yaxis: { ...axis, range: [-0.5, data.layers + 0.5], dtick: 1, title: { text: "layers passed" } },
    }));
  }

  SWA.register("reach", {
    controls: (data) => [...specControls(data), {
      name: "layers", label: "layers l", type: "play", values: range(data.layers + 1).slice(1),
      initial: data.initial.layers, shared: false, interval: 700, describe: (state) => `l = ${state.layers}`,
    }],
    draw: drawReach,
  });

  // ---- The conventions: leading keys on the left, then the keys behind the query up to its own at the right end.

  function conventionsText(row, word, place) {
    const how = { sink: "seen, a sink", recent: "seen", maybe: "seen by some queries only", outside: "not seen" }[word];
    return `<b>${row.name}</b><br>${row.setting}: ${row.keys} keys a query<br>${row.note}<br>${place}: ${how}`;
  }

  function conventionsGrid(data, rows) {
    const far = 2 * Math.max(...data.windows) - 1, leading = Math.max(...data.sinks);
    const word = (row, back) => (back < row.sure ? "recent" : back < row.sure + row.maybe ? "maybe" : "outside");
    const backs = range(far + 1).reverse();
    return {
      far, leading, first: leading + 1,
      grid: rows.map((row) => [
        ...range(leading).map((j) => (j < row.sinks ? "sink" : "outside")), null, ...backs.map((back) => word(row, back)),
      ]),
      places: [...range(leading).map((j) => `key ${j}`), "", ...backs.map((back) => (back ? `${back} back` : "its own key"))],
    };
  }

  function conventionsLabels(rows, w, narrow) {
    const base = { showarrow: false, yanchor: "bottom", yshift: 8, font: { size: 13 } };
    return rows.flatMap((row, y) => [
      { ...base, xref: "paper", x: 0, xanchor: "left", align: "left", y,
        text: `<b>${row.name}</b>${narrow ? "<br>" : "  "}<span style="font-size:12px">${row.setting}</span>` },
      { ...base, xref: "paper", x: 1, xanchor: "right", y,
        text: row.fewest === w && row.most === w ? `${row.keys} keys` : `<b>${row.keys} keys</b>` },
    ]);
  }

  function drawConventions(el, data, state, theme) {
    const { window: w, sinks: s } = state, rows = conventions(w, s), narrow = SWA.isNarrow(el);
    const { grid, far, leading, first, places } = conventionsGrid(data, rows), pitch = narrow ? 62 : 46;
    const ticks = range(far + 1).filter((back) => back % (narrow ? 8 : 4) === 0), last = first + far;
    const maybe = grid.flatMap((row, y) => row.map((word, x) => [x, y, word])).filter((cell) => cell[2] === "maybe");
    const same = rows.filter((row) => row.fewest === w && row.most === w).length;
    const zone = { showarrow: false, xref: "x", yref: "paper", y: 0, yanchor: "top", yshift: -22, font: { color: theme.ink } };
    SWA.say(el, `${same} of the ${rows.length} show a query exactly ${count(w, "key")}; other counts are bold.`);
    return SWA.plot(el, [
      cells(theme, ["outside", "maybe", "recent", "sink"], grid, {
        text: grid.map((row, y) => row.map((word, x) => conventionsText(rows[y], word, places[x]))), ygap: pitch - 16, name: "keys",
      }),
      key(theme, "sink", "a sink"), key(theme, "recent", "one of the latest"), key(theme, "outside", "not seen"),
      { type: "scatter", mode: "markers", x: maybe.map(([x]) => x), y: maybe.map(([, y]) => y), name: "some queries only",
        hoverinfo: "skip", marker: { symbol: "circle", size: narrow ? 4 : 6, color: theme.methods.sinks } },
    ], SWA.layout(el, theme, {
      height: rows.length * pitch + 100, margin: { l: 4, r: 4, t: narrow ? 54 : 36, b: 52 }, showlegend: true, legend: legend(el),
      xaxis: { range: [-0.5, last + 0.5], showgrid: false, showline: false, fixedrange: true,
        tickvals: [0, ...ticks.map((back) => last - back)], ticktext: ["0", ...ticks.map(String)] },
      yaxis: { range: [rows.length - 0.6, -0.9], visible: false, fixedrange: true },
      annotations: [
        ...conventionsLabels(rows, w, narrow),
        { ...zone, x: (leading - 1) / 2, text: narrow ? "first keys" : "first keys of the text" },
        { ...zone, x: first + far / 2, text: "keys back from the query" },
      ],
    }));
  }

  SWA.register("conventions", { controls: specControls, draw: drawConventions });
  SWA.logic = Object.assign(SWA.logic || {}, { look, why, reach, conventions, shades });
})(globalThis.SWA);
