// The method's own pictures, computed in the page: what a query sees, how far that reaches through layers, and
// what other systems mean by the same two numbers.
(function (SWA) {
  "use strict";
  const { count } = SWA, SEEN = ["sink", "recent"];
  const range = (n) => Array.from({ length: n }, (_, k) => k);
  const tally = (words, ...wanted) => words.filter((word) => wanted.includes(word)).length;

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

  // Which inputs reach the last token after 0..layers layers: "recent" by recent keys alone, "sink" only by way of
  // a sink.
  function reach(length, layers, w, s) {
    const tokens = range(length);
    const sees = (i, j, through) => through.includes(look(i, j, w, s));
    const step = (from, through) => tokens.map((j) => tokens.some((i) => from[i] && sees(i, j, through)));
    let all = tokens.map((j) => j === length - 1), latest = all;
    return range(layers + 1).map(() => {
      const row = tokens.map((j) => (latest[j] ? "recent" : all[j] ? "sink" : "outside"));
      [all, latest] = [step(all, SEEN), step(latest, ["recent"])];
      return row;
    });
  }

  // A query far into the text sees `sinks` leading keys, the `sure` nearest, and in some cases the next `maybe` too.
  function conventions(w, s) {
    const behind = "Counts the keys behind the query; its own comes on top. No sinks.";
    const rows = [
      { name: "This paper, HF's former SinkCache", setting: `window=${w}, sinks=${s}`, sinks: s, sure: w - s, maybe: 0,
        note: "w counts every key a query sees, its own included." },
      { name: "StreamingLLM, attention_sinks", setting: `start=${s}, recent=${w - s}`, sinks: s, sure: w - s + 1,
        maybe: 0, note: "Evicts after the forward pass: start + recent are cached,<br>the query's own comes on top." },
      { name: "StreamingLLM chat", setting: `start=${s}, recent=${w - s}`, sinks: s, sure: 1, maybe: w - s - 1,
        upTo: true, note: "Evicts before a call, making room for all its tokens:<br>fewer new, more old ones." },
      { name: "SWAA, several reimplementations", setting: `window=${w}, sinks=${s}`, sinks: s, sure: w, maybe: 0,
        note: "The window stands beside the sinks." },
      { name: "HF sliding_window, fla", setting: `sliding_window=${w}`, sinks: 0, sure: w, maybe: 0,
        note: "Counts the query's own key. No sinks." },
      { name: "FlashAttention", setting: `window_size=(${w}, 0)`, sinks: 0, sure: w + 1, maybe: 0, note: behind },
      { name: "attention-gym sliding window", setting: `window=${w}`, sinks: 0, sure: w + 1, maybe: 0, note: behind },
      { name: "LoLCATs terrace", setting: `block=${w}`, sinks: 0, sure: w + 1, maybe: w - 1,
        note: "The query's own block and the one before, no sinks:<br>the count grows within a block." },
    ];
    return rows.map((row) => {
      const fewest = row.sinks + row.sure, most = fewest + row.maybe, exact = fewest === most;
      const keys = exact ? `${most}` : row.upTo ? `≤ ${most}` : `${fewest}–${most}`;
      return { ...row, keys, same: exact && most === w };
    });
  }

  // ---- Looks: sinks in the method's colour, recents in its tint, told apart by lightness alone.

  const shades = (theme) => (theme.name === "dark"
    ? { sink: theme.methods.sinks, recent: "#2572A8", maybe: "#1C3F5C", outside: "#2A3039", future: theme.paper }
    : { sink: theme.methods.sinks, recent: "#8CC5E8", maybe: "#D6EAF7", outside: "#E3E6EA", future: theme.paper });

  function cells(theme, words, grid, own) {
    const colours = words.map((word) => shades(theme)[word]), n = colours.length;
    return Object.assign({
      type: "heatmap", z: grid.map((row) => row.map((word) => (word === null ? null : words.indexOf(word)))),
      zmin: -0.5, zmax: n - 0.5, colorscale: colours.flatMap((colour, k) => [[k / n, colour], [(k + 1) / n, colour]]),
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
    orientation: "h", x: 0, xanchor: "left", xref: "container", y: 1, yanchor: "top", yref: "container",
    itemclick: false, itemdoubleclick: false, itemwidth: 30, font: { size: 12 },
  }, SWA.isNarrow(el) && { entrywidthmode: "fraction", entrywidth: 0.48 }, own);

  const specControls = (data) => [
    SWA.windowControl(data.windows, data.initial.window), SWA.sinksControl(data.sinks, data.initial.sinks),
  ];

  // ---- The mask.

  function saysMask({ window: w, sinks: s, query: i }) {
    const words = range(i + 1).map((j) => look(i, j, w, s));
    const of = `Row ${i} sees ${tally(words, ...SEEN)} of ${count(i + 1, "key")}`;
    return `${of}: ${count(tally(words, "sink"), "sink")} and the ${tally(words, "recent")} latest.`;
  }

  const highlight = (data, query, theme) => [{
    type: "rect", x0: -0.5, x1: data.length - 0.5, y0: query - 0.5, y1: query + 0.5,
    line: { color: theme.ink, width: 1.5 }, fillcolor: "rgba(0,0,0,0)",
  }];

  function drawMask(el, data, state, theme) {
    const { window: w, sinks: s } = state, tokens = range(data.length), narrow = SWA.isNarrow(el);
    const grid = (cell) => tokens.map((i) => tokens.map((j) => cell(i, j, w, s)));
    const side = narrow ? el.clientWidth - 56 : Math.min(480, el.clientWidth - 220), top = narrow ? 52 : 8;
    const span = [-0.5, data.length - 0.5], axis = { showgrid: false, fixedrange: true, dtick: 8, tick0: 0 };
    SWA.say(el, saysMask(state));
    el.dataset.spec = `${w},${s}`;
    return SWA.plot(el, [
      cells(theme, ["future", "outside", "recent", "sink"], grid(look), { text: grid(why), name: "mask" }),
      key(theme, "sink", "seen: sink"), key(theme, "recent", "seen: latest"),
      key(theme, "outside", "evicted"), key(theme, "future", "comes later"),
    ], SWA.layout(el, theme, {
      height: side + top + 46, margin: { l: 48, r: el.clientWidth - 48 - side, t: top, b: 46 }, showlegend: true,
      legend: legend(el, narrow ? {} : { orientation: "v", xref: "paper", x: 1.03, yref: "paper" }),
      xaxis: { ...axis, range: span, title: { text: "key j (token position)" } },
      yaxis: { ...axis, range: [...span].reverse(), title: { text: "query i (token position)" } },
      shapes: highlight(data, state.query, theme),
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
      name: "query", label: "query i", type: "range", values: range(data.length), initial: data.initial.query,
      shared: false, describe: (state) => `i = ${state.query}`,
    }],
    draw: drawMask,
    update: updateMask,
  });

  // ---- The reach.

  function saysReach(row, { window: w, sinks: s, layers }) {
    const exact = `${layers} · (${w} − ${s} − 1) = ${layers * (w - s - 1)} back`, sinks = tally(row, "sink");
    const all = tally(row, "recent") === row.length ? "all, " : "";
    const also = sinks ? `, and ${count(sinks, "sink")}` : "";
    return `${count(layers, "layer")}: ${all}${exact}${also}. The paper's l · w: ${layers * w}.`;
  }

  function printedReach(theme, last, w, depth) {
    const { dash, symbol } = theme.layers.printed;
    return {
      type: "scatter", mode: "lines+markers", x: depth.map((l) => last - l * w), y: depth, name: "l · w (printed)",
      line: { color: theme.ink, dash, width: 1.5 }, marker: { symbol, size: 7, color: theme.ink },
      hovertemplate: "the paper's l · w: token %{x}<extra></extra>",
    };
  }

  const HOW = {
    recent: "reaches the last token<br>through the window",
    sink: "reaches the last token<br>only through a sink",
    outside: "cannot influence the last token",
  };

  function drawReach(el, data, state, theme) {
    const { window: w, sinks: s, layers } = state, last = data.length - 1, depth = range(data.layers + 1);
    const rows = reach(data.length, layers, w, s), narrow = SWA.isNarrow(el);
    const grid = depth.map((l) => rows[l] || range(data.length).map(() => null));
    const text = grid.map((row, l) => row.map((word, j) => `after ${count(l, "layer")}, input ${j}<br>${HOW[word]}`));
    const axis = { showgrid: false, fixedrange: true, tick0: 0 };
    SWA.say(el, saysReach(rows[layers], state));
    return SWA.plot(el, [
      cells(theme, ["outside", "recent", "sink"], grid, { text, name: "reach", xgap: narrow ? 0 : 1, ygap: 3 }),
      key(theme, "recent", "by the window"), key(theme, "sink", "only by a sink"),
      key(theme, "outside", "not at all"), printedReach(theme, last, w, depth.slice(0, layers + 1)),
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

  // ---- The conventions: leading keys on the left, then the keys behind the query, its own at the right end.

  const STATES = { sink: "seen, a sink", recent: "seen", maybe: "seen by some queries only", outside: "not seen" };

  function conventionsCells(data, rows, theme, pitch) {
    const backs = range(2 * Math.max(...data.windows)).reverse(), leading = range(Math.max(...data.sinks));
    const near = (row, back) => (back < row.sure ? "recent" : back < row.sure + row.maybe ? "maybe" : "outside");
    const grid = rows.map((row) => [
      ...leading.map((j) => (j < row.sinks ? "sink" : "outside")), null, ...backs.map((back) => near(row, back)),
    ]);
    const places = [...leading.map((j) => `key ${j}`), "", ...backs.map((b) => (b ? `${b} back` : "its own key"))];
    const lines = ({ name, setting, keys, note }, word, place) => [
      `<b>${name}</b>`, `${setting}: ${keys} keys a query`, note, `${place}: ${STATES[word]}`,
    ];
    const text = grid.map((words, y) => words.map((word, x) => lines(rows[y], word, places[x]).join("<br>")));
    const own = { text, ygap: pitch - 16, name: "keys" };
    return { grid, backs, leading, trace: cells(theme, ["outside", "maybe", "recent", "sink"], grid, own) };
  }

  function conventionsLabels(rows, narrow) {
    const base = { showarrow: false, xref: "paper", yanchor: "bottom", yshift: 8, font: { size: 13 } };
    return rows.flatMap(({ name, setting, keys, same }, y) => [
      { ...base, x: 0, xanchor: "left", align: "left", y,
        text: `<b>${name}</b>${narrow ? "<br>" : "  "}<span style="font-size:12px">${setting}</span>` },
      { ...base, x: 1, xanchor: "right", y, text: same ? `${keys} keys` : `<b>${keys} keys</b>` },
    ]);
  }

  // Cells that only some queries see carry a dot.
  function conventionsDots(grid, theme, size) {
    const at = grid.flatMap((row, y) => row.map((word, x) => ({ x, y, word }))).filter(({ word }) => word === "maybe");
    return {
      type: "scatter", mode: "markers", x: at.map(({ x }) => x), y: at.map(({ y }) => y), name: "some queries only",
      hoverinfo: "skip", marker: { symbol: "circle", size, color: theme.methods.sinks },
    };
  }

  function drawConventions(el, data, state, theme) {
    const { window: w, sinks: s } = state, rows = conventions(w, s);
    const narrow = SWA.isNarrow(el), pitch = narrow ? 62 : 46;
    const { grid, backs, leading, trace } = conventionsCells(data, rows, theme, pitch), last = grid[0].length - 1;
    const ticks = backs.filter((back) => back % (narrow ? 8 : 4) === 0), same = rows.filter((row) => row.same).length;
    const zone = (x, text) => ({ showarrow: false, x, yref: "paper", y: 0, yanchor: "top", yshift: -22, text });
    SWA.say(el, `${same} of the ${rows.length} show a query exactly ${count(w, "key")}; other counts are bold.`);
    return SWA.plot(el, [
      trace, key(theme, "sink", "a sink"), key(theme, "recent", "one of the latest"), key(theme, "outside", "not seen"),
      conventionsDots(grid, theme, narrow ? 4 : 6),
    ], SWA.layout(el, theme, {
      height: rows.length * pitch + 100, margin: { l: 4, r: 4, t: narrow ? 54 : 36, b: 52 },
      showlegend: true, legend: legend(el),
      xaxis: { range: [-0.5, last + 0.5], showgrid: false, showline: false, fixedrange: true,
        tickvals: [0, ...ticks.map((back) => last - back)], ticktext: ["0", ...ticks.map(String)] },
      yaxis: { range: [rows.length - 0.6, -0.9], visible: false, fixedrange: true },
      annotations: [
        ...conventionsLabels(rows, narrow),
        zone((leading.length - 1) / 2, narrow ? "first keys" : "first keys of the text"),
        zone(last - backs.length / 2, "keys back from the query"),
      ],
    }));
  }

  SWA.register("conventions", { controls: specControls, draw: drawConventions });
  SWA.shades = shades;
})(globalThis.SWA);
