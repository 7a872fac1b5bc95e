// What every interactive figure shares: it finds the holders, builds their controls, keeps w and s in step
// across the page, follows the page's theme and asks the figure's kind to draw. A classic script, so that pages
// open from file://; JupyterLab gets the same text inside an ES module (swalib/figures/show.py).
//
//   SWA.register(kind, { controls(data), draw(el, data, state, theme), update(el, data, state, theme) })
//
// controls(data) -> [{ name, label, values, initial, describe(state, data), type, text(value, data), interval,
// shared }] with type "range", "select" or "play". draw may return a promise; update is optional and defaults to
// draw. A control is shared by name with the other figures of the page unless it says shared: false. What kinds
// draw with is in swa-plot.js.
(function (root) {
  "use strict";
  if (root.SWA) return;
  const kinds = {}, figures = new Set();
  const reducedMotion = root.matchMedia("(prefers-reduced-motion: reduce)");
  const darkScheme = root.matchMedia("(prefers-color-scheme: dark)");

  function make(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  // ---- State shared by name: what one figure sets, the others follow where they have that value.
  const state = {
    values: {},
    listeners: new Set(),
    get: (name) => state.values[name],
    set(name, value, source) {
      if (state.values[name] === value) return;
      state.values[name] = value;
      state.listeners.forEach((listener) => listener(name, value, source));
    },
    subscribe(listener) {
      state.listeners.add(listener);
      return () => state.listeners.delete(listener);
    },
  };

  // ---- Theme: the book's data-theme, JupyterLab's attribute, else the system's preference.
  function themeName() {
    const page = document.documentElement.dataset.theme, lab = document.body.dataset.jpThemeLight;
    if (page === "dark" || page === "light") return page;
    if (lab !== undefined) return lab === "false" ? "dark" : "light";
    return darkScheme.matches ? "dark" : "light";
  }

  function themeFor(figure) {
    const name = themeName();
    const font = root.getComputedStyle(figure.holder).fontFamily || "sans-serif";
    return Object.assign({ name, font, layers: figure.payload.theme.layers }, figure.payload.theme[name]);
  }

  // ---- One figure.
  class Figure {
    constructor(holder, payload) {
      this.holder = holder;
      this.payload = payload;
      this.data = payload.data;
      this.state = {};
      this.kind = kinds[holder.dataset.kind];
      this.controls = this.kind.controls ? this.kind.controls(this.data) : [];
      this.controls.forEach((control) => { this.state[control.name] = this.startOf(control); });
      this.clamp();
      this.build();
    }

    startOf(control) {
      const shared = control.shared === false ? undefined : state.get(control.name);
      if (control.values.includes(shared)) return shared;
      return control.values.includes(control.initial) ? control.initial : control.values[0];
    }

    build() {
      const part = (name, tag) => make(tag || "div", { class: "swa-" + name });
      this.bar = part("controls");
      this.says = part("says", "p");
      this.el = make("div", { class: "swa-picture", role: "img", "aria-label": this.payload.alt });
      this.extra = part("extra");
      this.bar.append(...this.controls.map((control) => buildControl(this, control)));
      const fallback = this.holder.querySelector(".swa-fallback");
      if (fallback) fallback.remove();
      const parts = [...(this.controls.length ? [this.bar] : []), this.says, this.el, this.extra];
      this.holder.querySelector("figcaption").before(...parts);
      this.el.swaFigure = this;
      this.holder.__swa = { data: this.data, state: this.state, plot: this.el, figure: this };
    }

    // A user's move: this figure at once, the others on the page right after it.
    set(name, value) {
      this.state[name] = value;
      this.clamp();
      this.draw();
      this.publish();
    }

    publish() {
      this.controls.filter((control) => control.shared !== false)
        .forEach((control) => state.set(control.name, this.state[control.name], this));
    }

    // The first figure of a page to have a control sets it for all; a later one that can't follow moves no other.
    introduce() {
      this.controls.filter((control) => control.shared !== false && state.get(control.name) === undefined)
        .forEach((control) => state.set(control.name, this.state[control.name], this));
    }

    follow(name, value) {
      const control = this.controls.find((one) => one.name === name && one.shared !== false);
      if (!control || !control.values.includes(value) || this.state[name] === value) return;
      this.state[name] = value;
      this.clamp();
      this.drawSoon();
    }

    // s < w always. What had to give way is said in the control's own words, never changed in silence.
    clamp() {
      const { window: w, sinks: s } = this.state;
      this.warning = null;
      if (w === undefined || s === undefined || s < w) return;
      const values = this.controls.find((one) => one.name === "sinks").values.filter((value) => value < w);
      if (!values.length) return;
      this.state.sinks = Math.max(...values);
      this.warning = `s must be below w = ${w}: s is now ${this.state.sinks}`;
    }

    // Figures that only follow wait until the one under the reader's hand is drawn.
    drawSoon() {
      if (this.pending) return;
      this.pending = true;
      const later = root.requestIdleCallback || ((task) => root.setTimeout(task, 0));
      later(() => { this.pending = false; this.draw(); }, { timeout: 300 });
    }

    draw(afresh) {
      if (!this.el.clientWidth) return;
      const theme = themeFor(this), { kind, el, data } = this;
      this.holder.dataset.theme = theme.name;
      this.controls.forEach((control) => control.refresh());
      const method = afresh || !this.drawn || !kind.update ? kind.draw : kind.update;
      const seen = JSON.stringify(this.state);
      this.drawn = true;
      this.width = el.clientWidth;
      const done = () => Object.assign(this.holder.dataset, { state: seen, ready: "1" });
      new Promise((resolve) => resolve(method.call(kind, el, data, this.state, theme))).then(done)
        .catch((error) => complain(this.holder, `This figure could not be drawn: ${error.message}`, error));
    }
  }

  // ---- Controls: native inputs with a label, the current value and what it means.
  function buildControl(figure, control) {
    const id = `${figure.holder.id}-${control.name}`, values = control.values;
    const text = (value) => control.text ? control.text(value, figure.data) : String(value);
    const label = make("label", { for: id }, control.label);
    if (control.type === "select") {
      const options = values.map((value, index) => make("option", { value: index }, text(value)));
      const select = make("select", { id }, ...options);
      select.addEventListener("change", () => figure.set(control.name, values[+select.value]));
      control.refresh = () => { select.value = values.indexOf(figure.state[control.name]); };
      return make("div", { class: "swa-control swa-select" }, label, select);
    }
    const output = make("output", { for: id });
    const input = make("input", { type: "range", id, min: 0, max: values.length - 1, step: 1 });
    input.addEventListener("input", () => { figure.set(control.name, values[+input.value]); });
    control.refresh = () => {
      const value = figure.state[control.name], warns = control.name === "sinks" && figure.warning;
      const plain = control.describe ? control.describe(figure.state, figure.data) : text(value);
      input.value = values.indexOf(value);
      input.setAttribute("aria-valuetext", warns || plain);
      output.textContent = warns || plain;
      output.classList.toggle("swa-warns", Boolean(warns));
    };
    const box = make("div", { class: "swa-control" }, make("div", { class: "swa-label" }, label, output));
    const buttons = control.type === "play" ? playButtons(figure, control) : [];
    box.append(buttons.length ? make("div", { class: "swa-play" }, input, ...buttons) : input);
    return box;
  }

  // Play where motion is welcome; with reduced motion the same states are reached by two step buttons.
  function playButtons(figure, control) {
    const { name, values } = control, last = values.length - 1, at = () => values.indexOf(figure.state[name]);
    const button = (sign, what) => make("button", { type: "button", "aria-label": what, title: what }, sign);
    const step = (by) => figure.set(name, values[Math.min(last, Math.max(0, at() + by))]);
    if (reducedMotion.matches) {
      const back = button("◀", "one step back"), on = button("▶", "one step on");
      back.addEventListener("click", () => step(-1));
      on.addEventListener("click", () => step(1));
      return [back, on];
    }
    const play = button("▶", "play");
    let timer = null;
    const show = (sign, what) => { play.textContent = sign; play.setAttribute("aria-label", what); };
    const stop = () => { root.clearInterval(timer); timer = null; show("▶", "play"); };
    const tick = () => (at() === last || !figure.el.isConnected ? stop() : step(1));
    play.addEventListener("click", () => {
      if (timer) return stop();
      if (at() === last) figure.set(name, values[0]);
      show("❚❚", "pause");
      timer = root.setInterval(tick, control.interval || 400);
    });
    return [play];
  }

  function complain(holder, sentence, error) {
    holder.querySelector("figcaption").before(make("p", { class: "swa-error", role: "alert" }, sentence));
    root.console.error(sentence, error || "");
  }

  // ---- Mounting.
  function mount(holder) {
    if (holder.__swa) return holder.__swa.figure;
    if (!kinds[holder.dataset.kind]) {
      complain(holder, `The script that draws "${holder.dataset.kind}" figures did not load.`);
      return null;
    }
    const block = holder.querySelector('script[type="application/json"]').textContent;
    const figure = new Figure(holder, JSON.parse(block));
    figures.add(figure);
    figure.draw();
    figure.introduce();
    const resized = () => { if (figure.el.clientWidth !== figure.width) figure.draw(true); };
    figure.observer = new root.ResizeObserver(resized);
    figure.observer.observe(holder);
    return figure;
  }

  function unmount(holder) {
    const figure = holder.__swa && holder.__swa.figure;
    if (!figure) return;
    figures.delete(figure);
    figure.observer.disconnect();
    root.Plotly.purge(figure.el);
  }

  const mountAll = () => document.querySelectorAll(".swa-figure").forEach((holder) => mount(holder));
  const redrawAll = () => figures.forEach((figure) => figure.draw(true));
  const others = (source) => [...figures].filter((figure) => figure !== source);
  state.subscribe((name, value, source) => others(source).forEach((figure) => figure.follow(name, value)));

  function watchTheme() {
    const watch = new root.MutationObserver(redrawAll);
    const how = { attributes: true, attributeFilter: ["data-theme", "data-jp-theme-light"] };
    [document.documentElement, document.body].forEach((node) => watch.observe(node, how));
  }
  darkScheme.addEventListener("change", redrawAll);
  const start = () => { watchTheme(); if (!root.swaByHand) mountAll(); };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else root.setTimeout(start, 0);

  const register = (kind, how) => { kinds[kind] = how; };
  root.SWA = { register, state, mount, unmount, mountAll, make, figures };
})(globalThis);
