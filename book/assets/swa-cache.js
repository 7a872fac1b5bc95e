// The KV cache, computed in the page: which token lies in which slot while decoding, and how many bytes it takes.
(function (SWA) {
  "use strict";
  const { make, count, whole, shades } = SWA;
  const range = (n) => Array.from({ length: n }, (_, k) => k);

  // ---- Slots.

  // Where token p lies: sinks keep their slot, the recents share a ring behind them.
  const slotOf = (p, w, s) => (p < s ? p : s + (p - s) % (w - s));

  // In-cache position (positions="cache") of the live token p while token t is the query.
  const cachePosition = (p, t, w, s) => (p < s ? p : p - Math.max(0, t - (w - 1)));

  // The cache once token t is written: the token in each slot (null: empty), where t went, and what it replaced.
  function slots(t, w, s) {
    const held = range(w).map(() => null);
    for (let p = 0; p < t; p++) held[slotOf(p, w, s)] = p;
    const written = slotOf(t, w, s), evicted = held[written];
    held[written] = t;
    return { held, written, evicted };
  }

  const CSS = `
    .swa-words { display: flex; flex-wrap: wrap; gap: 3px 1px; margin: 2px 0 16px; font-size: 15px; line-height: 1.5; }
    .swa-words span { padding: 0 4px; border-radius: 3px; border: 1.5px solid transparent; color: var(--soft); }
    .swa-words .sink { background: var(--sink); color: var(--on-sink); }
    .swa-words .recent { background: var(--recent); color: var(--ink); }
    .swa-words .query { border-color: var(--ink); font-weight: 600; }
    .swa-words .evicted { text-decoration: line-through; }
    .swa-slots { display: grid; grid-template-columns: repeat(var(--columns), minmax(0, 1fr)); gap: 6px; }
    .swa-slot { box-sizing: border-box; min-width: 0; height: 98px; padding: 3px 7px; border-radius: 4px;
      border: 1.5px solid var(--line); border-top: 6px solid var(--kind, var(--line));
      font-size: 12px; line-height: 1.5; color: var(--soft); }
    .swa-slot.sink { --kind: var(--sink); }
    .swa-slot.recent { --kind: var(--recent); }
    .swa-slot.query { border-color: var(--ink); border-top-color: var(--kind); box-shadow: 0 0 0 1px var(--ink); }
    .swa-slot.spare { border: 1.5px dashed var(--line); opacity: .5; }
    .swa-slot :is(b, div) { white-space: nowrap; }
    .swa-slot b { display: block; overflow: hidden; text-overflow: ellipsis; font-size: 15px; color: var(--ink); }
    .swa-slot div { display: flex; justify-content: space-between; font-variant-numeric: tabular-nums; }
    .swa-slot .differs { color: var(--ink); font-weight: 600; }`;

  function pair(left, right, mark) {
    return make("div", { class: mark || "" }, make("span", {}, left), make("span", {}, right));
  }

  // A card: slot and kind, the word, then where its key stands and how far behind the query, in the text and in the
  // cache.
  function card(words, { w, s, t, held, written }, slot) {
    if (slot >= w) return make("div", { class: "swa-slot spare" }, slot === w ? "not allocated" : "");
    const p = held[slot], kind = slot < s ? "sink" : "recent", head = pair(`slot ${slot}`, slot < s ? "sink" : "ring");
    if (p === null) return make("div", { class: "swa-slot", "data-slot": slot }, head, make("b", {}, "–"), "empty");
    const inCache = cachePosition(p, t, w, s), behind = t - p, behindInCache = cachePosition(t, t, w, s) - inCache;
    const back = (n) => (n ? `−${n}` : "0"), differs = behind !== behindInCache ? "differs" : "";
    return make(
      "div", {
        class: `swa-slot ${kind}${slot === written ? " query" : ""}`,
        "data-slot": slot, "data-token": p, "data-cache": inCache,
      },
      head, make("b", { title: words[p] }, words[p]), pair(`text ${p}`, back(behind)),
      pair(`cache ${inCache}`, back(behindInCache), differs),
    );
  }

  function word(text, p, { s, t, held, evicted }) {
    const past = p === evicted ? "evicted" : p < t ? "past" : "later";
    const kind = held.includes(p) ? (p < s ? "sink" : "recent") : past;
    return make("span", { class: kind + (p === t ? " query" : ""), "data-token": p, "data-kind": kind }, text);
  }

  function saysSlots(words, { t, held, written, evicted }) {
    const seen = `it sees ${count(held.filter((p) => p !== null).length, "key")}`;
    if (evicted === null) return `Token ${t} “${words[t]}” fills slot ${written}; ${seen}.`;
    return `Token ${t} “${words[t]}” overwrites token ${evicted} “${words[evicted]}” in slot ${written}; ${seen}.`;
  }

  function drawSlots(el, data, { slot_window: w, slot_sinks: s, token: t }, theme) {
    const cache = { w, s, t, ...slots(t, w, s) }, { sink, recent } = shades(theme);
    SWA.say(el, saysSlots(data.words, cache));
    el.replaceChildren(
      make("style", {}, CSS),
      make("div", { class: "swa-words" }, ...data.words.map((text, p) => word(text, p, cache))),
      make("div", { class: "swa-slots" },
        ...range(Math.max(...data.windows)).map((slot) => card(data.words, cache, slot))),
    );
    const looks = {
      sink, recent, "on-sink": theme.paper, ink: theme.ink, soft: theme.muted, line: theme.axis,
      columns: SWA.isNarrow(el) ? 3 : 6,
    };
    Object.entries(looks).forEach(([name, value]) => el.style.setProperty(`--${name}`, value));
  }

  function slotSinksMeaning({ slot_sinks: s }) {
    if (s === 0) return "s = 0: all slots are a ring";
    return `s = ${s}: ${s === 1 ? "slot 0" : `slots 0–${s - 1}`} kept for good`;
  }

  SWA.register("cache-slots", {
    controls: (data) => [
      { name: "slot_window", label: "window w", type: "range", values: data.windows, initial: data.initial.window,
        describe: ({ slot_window: w, slot_sinks: s }) => `w = ${w} slots: ${count(s, "sink")} + a ring of ${w - s}` },
      { name: "slot_sinks", label: "sinks s", type: "range", values: data.sinks, initial: data.initial.sinks,
        describe: slotSinksMeaning },
      { name: "token", label: "token t", type: "play", values: range(data.words.length), initial: data.initial.token,
        shared: false, interval: 700, describe: ({ token: t }) => `t = ${t}: “${data.words[t]}”` },
    ],
    draw: drawSlots,
  });

  // ---- Bytes.

  // layers × 2 × n_kv_heads × min(L, w) × d × bytes; window null is full attention. A layer trained with its own
  // local window keeps it, as in swalib.hf: SWA goes to the global layers.
  function kvBytes(model, length, window, bytes, batch) {
    const kept = (own) => Math.min(length, own ?? window ?? Infinity);
    const keys = model.layers.reduce((sum, group) => sum + group.count * kept(group.window), 0);
    return keys * 2 * model.kv_heads * model.head_dim * bytes * batch;
  }

  const UNITS = [[1e15, "PB"], [1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];

  const digits = (x) => (x >= 100 ? whole(Math.round(x)) : `${+x.toPrecision(3)}`);

  // Three significant digits, decimal units.
  function size(bytes) {
    const [unit, name] = UNITS.find(([one]) => bytes >= one * 0.9995) || UNITS[UNITS.length - 1];
    return `${digits(bytes / unit)}\u00a0${name}`;
  }

  const tokens = (n) => (n < 1024 ? `${n}` : n < 2 ** 20 ? `${n / 1024}K` : `${n / 2 ** 20}M`);

  // A line over every length, its point at the reader's own L, and its name at the right end.
  function curve(data, theme, method, name, length, of) {
    const { line, marker } = SWA.stroke(theme, method), end = data.lengths.at(-1);
    return {
      line: {
        type: "scatter", mode: "lines", x: data.lengths, y: data.lengths.map(of), name, line,
        text: data.lengths.map((at) => `${name}<br>${whole(at)} tokens: ${size(of(at))}`),
        hovertemplate: "%{text}<extra></extra>",
      },
      point: {
        type: "scatter", mode: "markers", x: [length], y: [of(length)], name: `${name}, here`, marker,
        hoverinfo: "skip",
      },
      label: {
        text: name, x: Math.log10(end), y: Math.log10(of(end)), xanchor: "right", yshift: 13, showarrow: false,
        font: { color: theme.methods[method], size: 13 },
      },
    };
  }

  // Wide enough for every model, dtype and batch, so that nothing but the lines moves.
  function bytesAxes(el, data) {
    const decades = range(10).map((k) => 10 ** (k + 5)), every = SWA.isNarrow(el) ? 3 : 1;
    const marks = data.lengths.filter((_, k) => k % every === 0), ends = [data.lengths[0], data.lengths.at(-1)];
    return {
      xaxis: {
        type: "log", range: ends.map(Math.log10), fixedrange: true, title: { text: "context length L (tokens)" },
        tickvals: marks, ticktext: marks.map(tokens),
      },
      yaxis: {
        type: "log", range: [5, 14], fixedrange: true, title: { text: "KV cache, computed" },
        tickvals: decades, ticktext: decades.map(size),
      },
    };
  }

  function drawBytes(el, data, state, theme) {
    const { window: w, batch, length } = state, model = data.models[state.model], bytes = data.dtypes[state.dtype];
    const full = (at) => kvBytes(model, at, null, bytes, batch), swa = (at) => kvBytes(model, at, w, bytes, batch);
    const names = [model.layers.length > 1 ? "as trained, a hybrid" : "full attention", `SWA, w = ${whole(w)}`];
    const less = full(length) === swa(length) ? "the same" : `${digits(full(length) / swa(length))} times less`;
    const told = (method, take) => SWA.inColour(theme, method, size(take(length)));
    const sizes = [told("full", full), " against ", told("sinks", swa)];
    SWA.say(el, `At ${whole(length)} tokens: `, ...sizes, `, ${less} (computed).`);
    const curves = [
      curve(data, theme, "full", names[0], length, full), curve(data, theme, "sinks", names[1], length, swa),
    ];
    const traces = ["line", "point"].flatMap((part) => curves.map((one) => one[part]));
    const marker = { color: theme.axis, width: 1, dash: "dot" };
    return SWA.plot(el, traces, SWA.layout(el, theme, {
      ...bytesAxes(el, data), margin: { l: 80, r: 14, t: 12, b: 48 }, annotations: curves.map((one) => one.label),
      shapes: [{ type: "line", x0: length, x1: length, yref: "paper", y0: 0, y1: 1, line: marker }],
    }));
  }

  const choice = (name, values, initial) => ({ name, label: name, type: "select", values, initial, shared: false });

  SWA.register("kv-calculator", {
    controls: ({ models, dtypes, batches, windows, lengths, initial }) => [
      choice("model", Object.keys(models), initial.model), choice("dtype", Object.keys(dtypes), initial.dtype),
      choice("batch", batches, initial.batch), SWA.windowControl(windows, initial.window),
      { name: "length", label: "context L", type: "range", values: lengths, initial: initial.length, shared: false,
        describe: (state) => `L = ${whole(state.length)} tokens` },
    ],
    draw: drawBytes,
  });
})(globalThis.SWA);
