// BABILong: scores against context with the band that guessing fills, printed or measured; and how far back the
// facts stand that an answer needs, beside the window. Every number is one of the data block.
(function (SWA) {
  "use strict";
  const { whole, inColour, isNarrow } = SWA, { percent, table, upright } = SWA.short;
  const labelOf = (list, id) => (list.find((one) => one.id === id) || { label: id }).label;
  const select = (name, label, list, initial, shared) => (list.length > 1 ? [{
    name, label, type: "select", values: list.map((one) => one.id), initial, shared, text: (id) => labelOf(list, id),
  }] : []);
  const settled = (data, state) => ({ ...data.initial, ...state });
  const lastOf = (values) => values.reduce((found, value) => (value == null ? found : value), null);
  const swaName = ({ window: w, sinks: s }) => `SWA(${w}, ${s})`;
  const told = (cell) => (cell ? `${percent(cell[0])} (${cell[1].toFixed(0)} to ${cell[2].toFixed(0)})` : "not measured yet");

  function controls(data) {
    const { initial, windows = [], sinks = [] } = data;
    return [
      ...select("task", "task", data.tasks, initial.task),
      ...select("measure", "scorer", data.measures || [], initial.measure, false),
      ...select("which", "facts", data.which || [], initial.which, false),
      ...select("model", "model", data.models.map((id) => ({ id, label: id })), initial.model),
      ...(windows.length > 1 ? [SWA.windowControl(windows, initial.window)] : []),
      ...(sinks.length > 1 ? [SWA.sinksControl(sinks, initial.sinks)] : []),
    ];
  }

  // ---- Scores. The systems that are drawn at a state: [{ method, label, short, cells: { measure: [cell] } }].
  function systems(data, state) {
    const under = (key) => data.values[[state.model, state.task, key].join("|")] || {};
    return data.systems.map(({ key, method, label, short }) => {
      if (key !== "swa") return { method, label, short, cells: under(key) };
      const colour = state.sinks ? "sinks" : "no_sinks", cells = under(`${state.window},${state.sinks}`);
      return { method: colour, label: swaName(state), short: "SWA", cells };
    });
  }

  // What the chosen scorer draws of each system: both scorers are two lines.
  function linesOf(data, state) {
    const names = state.measure === "both" ? ["official", "substring"] : [state.measure];
    return systems(data, state).flatMap((one) => names.map((measure, index) => ({
      ...one, measure, cells: one.cells[measure] || data.contexts.map(() => null), symbol: index ? "diamond" : null,
      text: names.length > 1 ? `${one.label}, ${measure}` : one.label,
      brief: names.length > 1 ? `${one.short}, ${measure.slice(0, 3)}.` : one.short,
    })));
  }

  function traceOf(theme, data, line, index, count) {
    const style = SWA.stroke(theme, line.method, data.layer, 2), value = (place) => line.cells.map((one) => one && one[place]);
    const shift = 0.035 * (index - (count - 1) / 2), y = value(0), off = (place) => y.map((v, n) => (
      v == null ? 0 : Math.abs(line.cells[n][place] - v)));
    const n = (one) => (one && one[3] ? `, n = ${whole(one[3])}` : "");
    return {
      type: "scatter", mode: "lines+markers", name: line.text, x: y.map((_, at) => at + shift), y, ...style, cliponaxis: false,
      marker: { ...style.marker, ...(line.symbol ? { symbol: line.symbol } : {}) },
      error_y: { array: off(2), arrayminus: off(1), symmetric: false, thickness: 1, width: 3, color: style.line.color },
      customdata: line.cells.map((one, at) => [data.contexts[at], told(one) + n(one)]),
      hovertemplate: `${line.text}, ${data.layer}<br>context %{customdata[0]}: %{customdata[1]}${data.proviso}<extra></extra>`,
    };
  }

  const GUESSES = { chance: "any label", informed: "a label of the right kind", majority: "the commonest answer" };

  function guessTraces(theme, data, guess) {
    return Object.entries(GUESSES).map(([name, label]) => ({
      type: "scatter", mode: "lines", name: label, x: [-0.3, data.contexts.length - 0.7], y: [guess[name], guess[name]],
      line: { color: theme.methods.chance, width: 1, dash: "dot" },
      hovertemplate: `always or at random: ${label}: ${percent(guess[name])}<extra></extra>`,
    }));
  }

  function band(theme, guess) {
    const values = Object.values(guess);
    return {
      type: "rect", xref: "paper", x0: 0, x1: 1, yref: "y", y0: Math.min(...values), y1: Math.max(...values),
      layer: "below", line: { width: 0 }, fillcolor: theme.methods.chance, opacity: 0.22,
    };
  }

  // Where full attention doesn't clear every guess, nothing can be lost.
  const silentAt = (data, state, at) => (data.signal[`${state.model}|${state.task}`] || [])[at] === false;

  function noSignal(el, theme, data, state) {
    const text = isNarrow(el) ? "no<br>signal" : "no signal";
    return data.contexts.flatMap((_, at) => (silentAt(data, state, at) ? [{
      x: at, y: 1, yref: "paper", yanchor: "top", showarrow: false, text, bgcolor: theme.paper,
      font: { size: 12, color: theme.muted },
    }] : []));
  }

  // The contexts at which SWA(w, s) is not measured, and what measures it.
  function absentFrom(data, state) {
    if (data.layer !== "measured") return [];
    const own = systems(data, state)[1].cells.official || [];
    return data.contexts.filter((_, at) => !own[at]);
  }

  const commandFor = (data, { model, window: w, sinks: s }) => (
    SWA.make("code", {}, data.commands[model].replace("[w]", `[${w}]`).replace("[s]", `[${s}]`)));

  function sayScores(el, data, state, theme, lines, guess) {
    const measured = lines.map((line) => line.cells.reduce((found, one, at) => (one ? at : found), -1));
    const at = Math.max(...measured), values = Object.values(guess), absent = absentFrom(data, state);
    if (absent.length === data.contexts.length) {
      return SWA.say(el, `${swaName(state)}, ${labelOf(data.tasks, state.task)}: not measured yet: `, commandFor(data, state));
    }
    if (at < 0) return SWA.say(el, `${labelOf(data.tasks, state.task)}: not measured yet.`);
    const parts = lines.flatMap((line, index) => (
      [`${index ? ", " : ""}${line.text} `, inColour(theme, line.method, told(line.cells[at]))]));
    const guessed = state.measure === "invalid" ? "" : `; guessing ${Math.min(...values).toFixed(1)} to ${percent(Math.max(...values))}`;
    const silent = silentAt(data, state, at) ? ". No signal: full attention does not clear what guessing scores" : "";
    const lacks = absent.length ? [` Not measured yet at ${absent.join(", ")}: `, commandFor(data, state)] : [];
    return SWA.say(el, `${labelOf(data.tasks, state.task)}, context ${data.contexts[at]}: `, ...parts, `${guessed}${silent}.`, ...lacks);
  }

  function tableScores(el, data, state, theme, guess) {
    const kinds = { official: "official", substring: "substring", gap: "substring alone", invalid: "invalid" }, rows = [];
    systems(data, state).forEach(({ method, label, cells }) => {
      Object.entries(kinds).filter(([measure]) => data.layer === "measured" || measure === "official").forEach(([measure, name]) => {
        const own = cells[measure] || data.contexts.map(() => null);
        const text = data.layer === "measured" ? `${label}, ${name}` : label;
        rows.push([inColour(theme, method, text), ...own.map(told)]);
      });
      if (data.layer === "measured") {
        const own = cells.official || data.contexts.map(() => null);
        rows.push([`${label}, items`, ...own.map((one) => (one ? whole(one[3]) : ""))]);
      }
    });
    Object.entries(GUESSES).forEach(([name, label]) => rows.push([`guess: ${label}`, ...data.contexts.map(() => percent(guess[name]))]));
    if (data.layer === "measured") {
      const known = data.signal[`${state.model}|${state.task}`] || [];
      rows.push(["signal", ...data.contexts.map((_, at) => (known[at] == null ? "not measured yet" : known[at] ? "yes" : "no signal"))]);
    }
    table(el, ["context", ...data.contexts], rows);
  }

  function drawScores(el, data, shown, theme) {
    const state = settled(data, shown), narrow = isNarrow(el), guess = data.guesses[state.task], lines = linesOf(data, state);
    const guessed = state.measure !== "invalid" && state.measure !== "gap", two = state.measure === "both";
    const layout = SWA.layout(el, theme, {
      height: narrow ? 360 : 420, margin: { l: 52, r: narrow ? (two ? 78 : 66) : (two ? 210 : 130), t: 20, b: 48 },
      xaxis: {
        title: { text: "context (tokens)" }, tickvals: data.contexts.map((_, at) => at), ticktext: data.contexts,
        range: [-0.3, data.contexts.length - 0.7], tickangle: 0,
      },
      yaxis: { title: { text: narrow ? "%" : `${data.measures ? labelOf(data.measures, state.measure) : "score"}, %` }, range: [-2, 104] },
    });
    const ends = lines.map((line) => (
      { text: narrow ? line.brief : line.text, y: lastOf(line.cells.map((one) => one && one[0])), color: theme.methods[line.method] }));
    if (guessed) {
      layout.shapes = [band(theme, guess)];
      ends.push({ text: "guessing", y: (guess.chance + guess.majority) / 2, color: theme.muted });
    }
    layout.annotations = [...SWA.endLabels(layout, ends), ...(state.measure === "invalid" ? [] : noSignal(el, theme, data, state))];
    sayScores(el, data, state, theme, lines, guess);
    tableScores(el, data, state, theme, guess);
    const traces = lines.map((line, index) => traceOf(theme, data, line, index, lines.length));
    return SWA.plot(el, [...(guessed ? guessTraces(theme, data, guess) : []), ...traces], layout);
  }
  SWA.register("babilong-scores", { controls, draw: drawScores });

  // ---- Facts: the share of items whose needed facts begin within the last so many tokens.
  const SHADES = [0.35, 0.6, 0.85, 1];
  const shareWithin = (distances, tokens) => (100 * distances.filter((one) => one <= tokens).length) / distances.length;

  function stairs(theme, data, distances, at) {
    const top = data.span[1], x = [data.span[0], ...distances.filter((one) => one > data.span[0]), top];
    const y = x.map((tokens) => shareWithin(distances, tokens));
    return {
      type: "scatter", mode: "lines", name: `context ${data.contexts[at]}`, x, y, opacity: SHADES[at % SHADES.length],
      line: { color: theme.ink, width: 1.6, shape: "hv" },
      hovertemplate: `context ${data.contexts[at]}: %{y:.0f} % within %{x:,} tokens<extra></extra>`,
    };
  }

  const drawnFacts = (data, state) => data.contexts.map((_, at) => (
    data.facts[[state.model, state.task, data.lengths[at]].join("|")] || {})[state.which]);

  function tableFacts(el, data, state, theme, found) {
    const key = `${state.window},${state.sinks}`, recents = state.window - state.sinks;
    const scores = (who) => (data.values[[state.model, state.task, who].join("|")] || {}).official || [];
    const rows = data.contexts.map((context, at) => {
      if (!found[at]) return [context, "not measured yet", "", "", "", ""];
      const share = shareWithin(found[at], recents), guess = Math.max(...Object.values(data.guesses[state.task]));
      return [context, whole(found[at].length), percent(share), percent(share + (1 - share / 100) * guess),
        told(scores(key)[at]), told(scores("full")[at])];
    });
    const name = inColour(theme, state.sinks ? "sinks" : "no_sinks", `${swaName(state)}, official`);
    table(el, ["context", "items", "facts in the window", "and guessing the rest", name, "full attention, official"], rows);
  }

  function sayFacts(el, data, state, theme, found) {
    const recents = state.window - state.sinks, method = state.sinks ? "sinks" : "no_sinks";
    const parts = found.flatMap((one, at) => (one
      ? [inColour(theme, method, `${shareWithin(one, recents).toFixed(0)} %`), ` at context ${data.contexts[at]}, `] : []));
    if (!parts.length) return SWA.say(el, `${labelOf(data.tasks, state.task)}: not measured yet.`);
    const what = state.which === "first" ? "all needed facts" : "the last needed fact";
    return SWA.say(el, `${labelOf(data.tasks, state.task)}: ${what} within the ${recents} latest tokens of ${swaName(state)} in `,
      ...parts, "of the items.");
  }

  function drawFacts(el, data, shown, theme) {
    const state = settled(data, shown), found = drawnFacts(data, state), recents = state.window - state.sinks;
    const layout = SWA.layout(el, theme, {
      height: isNarrow(el) ? 340 : 380, margin: { l: 52, r: isNarrow(el) ? 58 : 110, t: 26, b: 48 },
      xaxis: SWA.powersAxis(el, ...data.span, "tokens back from the answer (log scale)"),
      yaxis: { title: { text: isNarrow(el) ? "% of items" : "items with the facts within, %" }, range: [-2, 104] },
    });
    const method = state.sinks ? "sinks" : "no_sinks", color = theme.methods[method];
    layout.shapes = [{ ...upright(recents, theme), line: { color, width: 2, dash: "4px 3px" } }];
    layout.annotations = [{
      x: Math.log10(recents), y: 1, yref: "paper", yanchor: "bottom", showarrow: false, text: `w − s = ${recents}`, font: { size: 12, color },
    }];
    const rings = found.flatMap((one, at) => (one ? [{
      type: "scatter", mode: "markers", name: `within, ${data.contexts[at]}`, x: [recents], y: [shareWithin(one, recents)],
      hoverinfo: "skip", marker: { symbol: "circle", size: 9, color: "rgba(0,0,0,0)", line: { color, width: 2.5 } },
    }] : []));
    const tops = found.flatMap((one, at) => (one ? [{
      x: Math.log10(lastOf(one)), y: 93, xanchor: "left", xshift: 3, showarrow: false, text: data.contexts[at],
      font: { size: 12, color: theme.muted },
    }] : []));
    layout.annotations.push(...tops);
    sayFacts(el, data, state, theme, found);
    tableFacts(el, data, state, theme, found);
    return SWA.plot(el, [...found.flatMap((one, at) => (one ? [stairs(theme, data, one, at)] : [])), ...rings], layout);
  }
  SWA.register("babilong-facts", { controls, draw: drawFacts });
})(globalThis.SWA);
