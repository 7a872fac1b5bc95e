// What else changes a score: one line a setting of the evaluation, full attention above SWA.
(function (SWA) {
  "use strict";
  const { make, whole, number, inColour, isNarrow } = SWA, { within, percent, table, upright } = SWA.short;

  function variantsTable(el, data, theme) {
    const rows = data.rows.map(({ label, spec, method, n, score, difference, low, high, changed, moved, variant }, index) => {
      const first = index === 0 || data.rows[index - 1].label !== label;
      const head = [first ? label : "", inColour(theme, method, spec)];
      if (!n) return [...head, "", "not measured yet", "", ""];
      if (variant === "reference") return [...head, percent(score), "–", "–", "–"];
      const change = within([difference, low, high]).replace(" %", "");
      return [...head, percent(score), change, percent(changed), number(moved)];
    });
    table(el, ["setting", "", "score", "change, points (95 %)", "other choices", "largest move, nats"], rows);
  }

  function drawVariants(el, data, shown, theme) {
    const labels = [...new Set(data.rows.filter((one) => one.variant !== "reference").map((one) => one.label))];
    const measured = data.rows.filter((one) => one.n && one.variant !== "reference"), narrow = isNarrow(el);
    const missing = data.rows.filter((one) => !one.n).length;
    if (missing) SWA.say(el, `Not measured yet: ${missing} of ${data.rows.length} lines. `, make("code", {}, data.command));
    else SWA.say(el, `${whole(measured.length ? measured[0].n : 0)} items, the same for every setting.`);
    variantsTable(el, data, theme);
    const traces = [...new Set(data.rows.map((one) => one.spec))].map((spec, index) => {
      const own = measured.filter((one) => one.spec === spec), [{ method }] = data.rows.filter((one) => one.spec === spec);
      const style = SWA.stroke(theme, method);
      return {
        type: "scatter", mode: "markers", name: spec, x: own.map((one) => one.difference), marker: style.marker,
        y: own.map((one) => labels.length - labels.indexOf(one.label) + (index ? -0.14 : 0.14)),
        error_x: {
          array: own.map((one) => one.high - one.difference), arrayminus: own.map((one) => one.difference - one.low),
          symmetric: false, thickness: 1.5, width: 3, color: style.line.color,
        },
        customdata: own.map((one) => [one.label, within([one.difference, one.low, one.high]).replace(" %", "")]),
        hovertemplate: `%{customdata[0]}, ${spec}<br>%{customdata[1]} points<extra></extra>`,
      };
    });
    const ends = measured.flatMap((one) => [one.low, one.high, 0]), reach = Math.max(2, ...ends.map(Math.abs));
    const layout = SWA.layout(el, theme, {
      height: 110 + 46 * labels.length, margin: { l: narrow ? 118 : 190, r: 16, t: 26, b: 48 },
      xaxis: { title: { text: "change of the score (points)" }, range: [-1.05 * reach, 1.05 * reach] },
      yaxis: {
        range: [0.4, labels.length + 0.6], tickvals: labels.map((_, index) => labels.length - index), ticktext: labels,
        ticks: "",
      },
    });
    layout.shapes = [{ ...upright(0, theme), line: { color: theme.ink, width: 1 } }];
    layout.annotations = traces.map((trace, index) => ({
      xref: "paper", x: index ? 1 : 0, xanchor: index ? "right" : "left", yref: "paper", y: 1, yanchor: "bottom",
      text: `● ${trace.name}`, showarrow: false, font: { size: 13, color: trace.marker.color },
    }));
    return SWA.plot(el, traces, layout);
  }
  SWA.register("short-variants", { draw: drawVariants });
})(globalThis.SWA);