// Long continuations: the teacher's perplexity along what was written, over a table of every measured spec.
(function (SWA) {
  "use strict";
  const { make, number, inColour, isNarrow } = SWA, { select, specControls, settled, shown, missing } = SWA.influence;
  const last = (values) => values[values.length - 1];
  const percent = ([value, low, high]) => `${value.toFixed(0)} % (${low.toFixed(0)} to ${high.toFixed(0)})`;
  const spread = ([value, low, high]) => `${number(value)} (${number(low)} to ${number(high)})`;

  function table(el, rows, theme) {
    const head = ["", "repeated 4-grams", "teacher's perplexity", "shared tokens (most)", "n"];
    const top = make("tr", {}, ...head.map((text) => make("th", { scope: "col" }, text)));
    const body = rows.map(({ label, method, repetition, ppl, shared, n, spec }) => make("tr", {},
      make("th", { scope: "row" }, inColour(theme, method, label)),
      ...[percent(repetition), spread(ppl), spec === "full" ? "–" : `${shared[0]} (${shared[1]})`, n]
        .map((cell) => make("td", {}, cell))));
    const whole = make("table", { class: "swa-table swa-short" }, make("thead", {}, top), make("tbody", {}, ...body));
    SWA.extra(el).replaceChildren(make("div", { class: "swa-scroll", tabindex: "0" }, whole));
  }

  function lineTrace(theme, { label, method, curve }) {
    const style = SWA.stroke(theme, method);
    return {
      type: "scatter", mode: "lines+markers", name: label, x: curve.x, y: curve.y, ...style,
      marker: { ...style.marker, size: 5 }, customdata: curve.y.map(number),
      hovertemplate: `${label}, token %{x:.0f} written<br>teacher's perplexity %{customdata}<extra></extra>`,
    };
  }

  function draw(el, data, given, theme) {
    const state = settled(data, given), lines = shown(data, state), narrow = isNarrow(el);
    const own = data.rows.filter((row) => row.model === state.model), all = Object.values(data.lines);
    const told = own.filter((row) => lines.some(({ spec }) => spec === row.spec)).flatMap((row, index) => (
      [index ? ", " : "Repeated 4-grams: ", `${row.label} `, inColour(theme, row.method, percent(row.repetition))]));
    SWA.say(el, ...missing(data, state, lines), ...told, ".");
    table(el, own, theme);
    const layout = SWA.layout(el, theme, {
      height: narrow ? 340 : 380, margin: { l: 62, r: narrow ? 56 : 130, t: 12, b: 48 },
      xaxis: { title: { text: "tokens written" }, range: [0, 1.04 * Math.max(...all.map(({ x }) => last(x)))] },
      yaxis: SWA.logAxis(all.flatMap(({ y }) => y), "teacher's perplexity (log scale)"),
    });
    layout.annotations = SWA.endLabels(layout, lines.map((line) => (
      { text: narrow ? line.short : line.label, y: last(line.curve.y), color: theme.methods[line.method] })));
    return SWA.plot(el, lines.map((line) => lineTrace(theme, line)), layout);
  }

  SWA.register("continuations", {
    controls: (data) => [...select("model", "model", data.models, data.models[0], String), ...specControls(data)],
    draw,
  });
})(globalThis.SWA);
