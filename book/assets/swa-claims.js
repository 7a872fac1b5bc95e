// The claim calculator: what is left of "SWA beats linear attention" under the reader's own assumptions. It computes
// as swalib/reported/claims.py does, which a test holds it to.
(function (SWA) {
  "use strict";
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const mean = (values) => sum(values) / values.length;

  // ---- The arithmetic.

  function recovery(student, teacher, chance, options) {
    if (options.mean_of_ratios) {
      return 100 * mean(student.map((score, n) => (score - chance[n]) / (teacher[n] - chance[n])));
    }
    return 100 * ((mean(student) - mean(chance)) / (mean(teacher) - mean(chance)));
  }

  // A pair's recovery and the cells it comes from; null where it does not count.
  function usedPair(data, pair, index, options) {
    const dropped = options.without_qwq && pair.base_model === data.qwq;
    if (dropped || !options.base_models.includes(pair.base_model)) return null;
    const count = options.six_tasks ? data.tasks.length : 1;
    const student = (options.source_cells ? pair.source_student : pair.student).slice(0, count);
    const teacher = (options.source_teachers ? pair.source_teacher : pair.teacher).slice(0, count);
    if (student.includes(null) || teacher.includes(null)) return null;
    const chance = data.chance.slice(0, count).map((value) => (options.above_chance ? value : 0));
    const value = recovery(student, teacher, chance, options);
    return { index, base_model: pair.base_model, student, teacher, recovery: value };
  }

  function spread(values) {
    const middle = mean(values), squares = sum(values.map((value) => (value - middle) ** 2));
    return { mean: middle, sd: values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : null };
  }

  function claimRow(method, used, swa, options) {
    const beside = options.same_teachers ? used.map((one) => swa.get(one.base_model)) : [...swa.values()];
    const own = spread(used.map((one) => one.recovery)), against = mean(beside.map((one) => one.recovery));
    return { method, ...own, swa: against, lead: against - own.mean, used, swaUsed: beside };
  }

  function recompute(data, options) {
    const used = new Map(), best = new Map();
    data.pairs.forEach((pair, index) => {
      const method = options.source_cells ? pair.source_method : pair.method;
      const one = method && usedPair(data, pair, index, options);
      if (one) used.set(method, [...(used.get(method) || []), one]);
    });
    const swa = new Map((used.get(data.swa) || []).map((one) => [one.base_model, one]));
    used.delete(data.swa);
    [...used.values()].flat().forEach((one) => {
      best.set(one.base_model, Math.max(one.recovery, best.get(one.base_model) ?? -Infinity));
    });
    const rows = [...used].map(([method, ones]) => claimRow(method, ones, swa, options));
    rows.sort((a, b) => a.lead - b.lead);
    return {
      rows, leftOut: Object.keys(data.methods).filter((method) => !used.has(method)),
      beaten: rows.filter((row) => row.lead > 0).length, contested: best.size,
      won: [...best].filter(([name, value]) => swa.get(name).recovery > value).length,
    };
  }

  function sentence(claim, options) {
    if (!claim.rows.length) return "No linear method is left to compare with: choose more teachers.";
    const best = claim.rows[0], what = options.six_tasks ? "six tasks" : "MMLU";
    const amount = options.above_chance ? `${what} above chance` : what;
    const whose = options.same_teachers ? "On the same" : "With each averaged over its own";
    const more = `more of ${amount} than ${claim.beaten} of ${claim.rows.length} linear methods`;
    const way = best.lead > 0 ? "behind" : "ahead";
    const told = `${best.method}, the best against it, is ${Math.abs(best.lead).toFixed(1)} points ${way}`;
    return `${whose} teachers, SWA(64, 4) recovers ${more}. ${told} (${best.mean.toFixed(1)} % against `
      + `${best.swa.toFixed(1)} %). SWA is best on ${claim.won} of ${claim.contested} teachers.`;
  }

  // ---- The choices: presets and teachers beside the toggles.

  const optionsOf = (el) => ({ ...el.swaFigure.state, base_models: el.swaTeachers });
  const sameOptions = (data, a, b) => data.toggles.every(({ name }) => a[name] === b[name])
    && data.base_models.every((name) => a.base_models.includes(name) === b.base_models.includes(name));

  function buildChoices(el, data) {
    const figure = el.swaFigure;
    const choose = ({ base_models: teachers, ...toggles }) => {
      el.swaTeachers = [...teachers];
      Object.assign(figure.state, toggles);
      figure.draw();
    };
    const presets = Object.entries(data.presets).map(([name, options]) => {
      const button = SWA.make("button", { type: "button" }, name);
      button.addEventListener("click", () => choose(options));
      return [button, options];
    });
    const teachers = data.base_models.map((name) => {
      const box = SWA.make("input", { type: "checkbox", value: name });
      box.addEventListener("change", () => choose({ base_models: teachers.filter((one) => one.checked)
        .map((one) => one.value) }));
      return box;
    });
    const labels = teachers.map((box) => SWA.make("label", {}, box, ` ${box.value}`));
    const group = SWA.make("div", { class: "swa-presets", role: "group", "aria-label": "presets" },
      ...presets.map(([button]) => button));
    const set = SWA.make("details", { class: "swa-teachers" }, SWA.make("summary", {}), ...labels);
    figure.bar.prepend(group);
    figure.bar.append(set);
    return () => {
      const options = optionsOf(el);
      presets.forEach(([button, preset]) => {
        button.setAttribute("aria-pressed", String(sameOptions(data, preset, options)));
      });
      teachers.forEach((box) => { box.checked = options.base_models.includes(box.value); });
      set.firstChild.textContent = `teachers: ${options.base_models.length} of ${teachers.length} counted`;
    };
  }

  // ---- The table, and under each method the cells that it rests on.

  const signed = (points) => {
    const text = Math.abs(points).toFixed(1);
    return text === "0.0" ? text : `${points > 0 ? "+" : "−"}${text}`;
  };
  const td = (...parts) => SWA.make("td", {}, ...parts);
  const headRow = (names) => SWA.make("tr", {}, ...names.map((name) => SWA.make("th", { scope: "col" }, name)));

  // Numbers of the source are set apart from printed ones, and say so.
  function scoreCells(cells, printed) {
    return cells.map((value, n) => {
      const node = td(value.toFixed(1));
      if (value !== printed[n]) {
        node.className = "swa-source";
        node.append(SWA.make("small", {}, printed[n] === null ? "source" : `source; printed ${printed[n].toFixed(1)}`));
      }
      return node;
    });
  }

  function cellRows(data, one) {
    const pair = data.pairs[one.index], row = (name, cells, printed, last) => SWA.make("tr", {},
      SWA.make("th", { scope: "row" }, name), ...scoreCells(cells, printed), td(last));
    const who = pair.row === data.swa ? "SWA(64, 4)" : pair.row;
    return [
      row(`${who} on ${pair.base_model}`, one.student, pair.student, `${one.recovery.toFixed(1)} %`),
      row("its teacher", one.teacher, pair.teacher, ""),
    ];
  }

  function detail(data, row, options) {
    const tasks = data.tasks.slice(0, options.six_tasks ? data.tasks.length : 1);
    const body = SWA.make("tbody", {}, ...[...row.used, ...row.swaUsed].flatMap((one) => cellRows(data, one)));
    const table = SWA.make("table", { class: "swa-table" },
      SWA.make("thead", {}, headRow(["", ...tasks, "recovery"])), body);
    const indices = [...row.used, ...row.swaUsed].map((one) => one.index);
    const doubts = [...new Set(indices)].flatMap((index) => data.pairs[index].doubts.map((why) => (
      `${data.pairs[index].row} on ${data.pairs[index].base_model}: ${why}`)));
    const notes = SWA.make("ul", { class: "swa-notes" }, ...doubts.map((why) => SWA.make("li", {}, why)));
    const from = SWA.make("p", {}, `${data.provenance}, unless marked "source".`);
    return [SWA.make("div", { class: "swa-scroll" }, table), from, ...(doubts.length ? [notes] : [])];
  }

  function methodRows(el, data, row, options, theme) {
    const open = el.swaOpen.has(row.method), id = `${el.swaFigure.holder.id}-${row.method.replace(/\W+/g, "-")}`;
    const button = SWA.make("button", { type: "button", "aria-expanded": String(open), "aria-controls": id }, row.method);
    const inside = SWA.make("td", { colspan: 5 });
    const more = SWA.make("tr", { class: "swa-detail", id }, inside);
    const show = (wanted) => {
      more.hidden = !wanted;
      button.setAttribute("aria-expanded", String(wanted));
      el.swaOpen[wanted ? "add" : "delete"](row.method);
      if (wanted && !inside.firstChild) inside.append(...detail(data, row, options));
    };
    button.addEventListener("click", () => show(more.hidden));
    show(open);
    const own = row.mean.toFixed(1).replace("-", "−") + (row.sd === null ? "" : ` ± ${row.sd.toFixed(1)}`);
    const lead = SWA.make(row.lead > 0 ? "b" : "span", {}, signed(row.lead));
    return [SWA.make("tr", {}, SWA.make("th", { scope: "row" }, button), td(String(row.used.length)), td(own),
      td(SWA.inColour(theme, "sinks", row.swa.toFixed(1))), td(lead)), more];
  }

  function showTable(el, data, claim, options, theme) {
    const heads = ["method", "pairs", "recovery, %", "SWA, %", "SWA's lead"];
    const focus = document.activeElement && document.activeElement.getAttribute("aria-controls");
    const body = claim.rows.flatMap((row) => methodRows(el, data, row, options, theme));
    const table = SWA.make("table", { class: "swa-table swa-claims" }, SWA.make("thead", {}, headRow(heads)),
      SWA.make("tbody", {}, ...body));
    const out = claim.leftOut.length ? `No pair is left of ${claim.leftOut.join(", ")}.` : "";
    SWA.extra(el).replaceChildren(SWA.make("div", { class: "swa-scroll" }, table), SWA.make("p", {}, out));
    const again = focus && SWA.extra(el).querySelector(`[aria-controls="${focus}"]`);
    if (again) again.focus();
  }

  // ---- The picture: each method's recovery and SWA's beside it, on an axis that never moves.

  function dots(theme, name, rows, value, colours) {
    return {
      type: "scatter", mode: "markers", name, x: rows.map(value), y: rows.map((_, y) => y), cliponaxis: false,
      marker: { ...SWA.stroke(theme, "sinks", "printed").marker, color: colours, size: 10, line: { width: 2, color: colours } },
      customdata: rows.map((row) => row.method), hovertemplate: `${name} (%{customdata}): %{x:.1f} %<extra></extra>`,
    };
  }

  function drawPicture(el, data, claim, theme) {
    const { rows } = claim, count = Object.keys(data.methods).length, narrow = SWA.isNarrow(el);
    const colours = rows.map((row) => theme.methods[data.methods[row.method]]);
    const links = {
      type: "scatter", mode: "lines", name: "lead", hoverinfo: "skip", line: { color: theme.axis, width: 1 },
      x: rows.flatMap((row) => [row.mean, row.swa, null]), y: rows.flatMap((_, y) => [y, y, null]),
    };
    const layout = SWA.layout(el, theme, {
      height: 66 + 25 * count, margin: { l: narrow ? 124 : 150, r: 14, t: 8, b: 46 },
      xaxis: { title: { text: "recovery, % (blue: SWA)" }, range: [-8, 106] },
      yaxis: {
        range: [count - 0.5, -0.5], tickvals: rows.map((_, y) => y), ticktext: rows.map((row) => row.method),
        ticks: "", fixedrange: true,
      },
    });
    layout.yaxis.tickfont = { color: theme.ink, size: narrow ? 12 : 13 };
    const traces = [links, dots(theme, "method", rows, (row) => row.mean, colours),
      dots(theme, "SWA", rows, (row) => row.swa, theme.methods.sinks)];
    return SWA.plot(el, traces, layout);
  }

  function draw(el, data, state, theme) {
    if (!el.swaOpen) {
      el.swaOpen = new Set();
      el.swaTeachers = data.initial.base_models;
      el.swaRefresh = buildChoices(el, data);
    }
    el.swaRefresh();
    const options = optionsOf(el), claim = recompute(data, options);
    SWA.say(el, sentence(claim, options));
    showTable(el, data, claim, options, theme);
    return drawPicture(el, data, claim, theme);
  }

  const controls = (data) => data.toggles.map(({ name, label, off, on }) => ({
    name, label, type: "select", values: [false, true], initial: data.initial[name], shared: false,
    text: (value) => (value ? on : off),
  }));

  SWA.claims = { recompute, sentence };
  SWA.register("claim-calculator", { controls, draw });
})(globalThis.SWA);
