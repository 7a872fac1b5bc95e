// A printed table: sorts by any column, and says of each cell where it is from and what speaks against it.
(function (SWA) {
  "use strict";

  // What a cell sorts by: its number, or its text.
  function keyOf(row, column) {
    const cell = row.cells[column];
    if (cell.dataset.sort !== undefined) return +cell.dataset.sort;
    return column ? NaN : cell.textContent.trim().toLowerCase();
  }

  function compare(a, b, way) {
    if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
    const order = a < b ? -1 : a > b ? 1 : 0;
    return way === "descending" ? -order : order;
  }

  // Missing cells stay at the end, equal ones in printed order.
  function sortBy(table, printed, column) {
    const heads = [...table.tHead.rows[0].cells], before = heads[column].getAttribute("aria-sort");
    const cycle = column ? ["none", "descending", "ascending"] : ["none", "ascending", "descending"];
    const chosen = cycle[(cycle.indexOf(before) + 1) % 3];
    heads.forEach((head, index) => head.setAttribute("aria-sort", index === column ? chosen : "none"));
    const rows = [...printed];
    if (chosen !== "none") rows.sort((a, b) => compare(keyOf(a, column), keyOf(b, column), chosen));
    table.classList.toggle("swa-sorted", chosen !== "none");
    table.tBodies[0].append(...rows);
  }

  function makeSortable(table) {
    const printed = [...table.tBodies[0].rows];
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = SWA.make("button", { type: "button" }, head.textContent);
      button.addEventListener("click", () => sortBy(table, printed, column));
      head.setAttribute("aria-sort", "none");
      head.replaceChildren(button);
    });
  }

  // ---- Where a cell is from. One stop for the Tab key; arrows move inside.
  const nameOf = (cell) => {
    const copy = cell.cloneNode(true);
    copy.querySelectorAll("sup").forEach((mark) => mark.remove());
    const under = copy.querySelector("small");
    const on = under ? ` on ${under.textContent}` : "";
    if (under) under.remove();
    return copy.textContent.trim() + on;
  };

  function describe(cell, data, notes) {
    const row = cell.parentElement, column = cell.closest("table").tHead.rows[0].cells[cell.cellIndex];
    const where = cell.cellIndex ? `, ${column.textContent}: ${nameOf(cell)}` : "";
    const marks = [...new Set([...row.cells[0].querySelectorAll("sup"), ...cell.querySelectorAll("sup")]
      .flatMap((mark) => mark.textContent.split(" ")))];
    const against = marks.map((mark) => notes[mark.charCodeAt(0) - 97].textContent).join(" ");
    return `${nameOf(row.cells[0])}${where}. ${data.provenance}.${against ? ` In doubt: ${against}` : ""}`;
  }

  function move(table, cell, key) {
    const row = cell.parentElement, rows = [...table.tBodies[0].rows], y = rows.indexOf(row);
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[key];
    const to = step && rows[y + step[0]] && rows[y + step[0]].cells[cell.cellIndex + step[1]];
    if (to) to.focus();
    return Boolean(step);
  }

  function makeTold(table, says, data, notes) {
    const body = table.tBodies[0], cells = [...body.querySelectorAll("th, td")];
    const tell = (event) => {
      const cell = event.target.closest("th, td");
      if (cell) says.textContent = describe(cell, data, notes);
    };
    cells.forEach((cell, index) => { cell.tabIndex = index ? -1 : 0; });
    body.addEventListener("mouseover", tell);
    body.addEventListener("click", (event) => { const cell = event.target.closest("th, td"); if (cell) cell.focus(); });
    body.addEventListener("focusin", (event) => {
      cells.forEach((cell) => { cell.tabIndex = cell === event.target ? 0 : -1; });
      tell(event);
    });
    body.addEventListener("keydown", (event) => {
      if (move(table, event.target, event.key)) event.preventDefault();
    });
  }

  // The table is in the page already, for readers without scripts: it is taken from there.
  function drawTable(el, data) {
    const figure = el.swaFigure, extra = SWA.extra(el);
    if (extra.querySelector("table")) return;
    ["role", "aria-label"].forEach((name) => el.removeAttribute(name));
    extra.innerHTML = figure.holder.querySelector("noscript").textContent;
    const table = extra.querySelector("table"), notes = [...extra.querySelectorAll(".swa-notes li")];
    const says = SWA.make("p", { class: "swa-told", "aria-live": "polite" },
      "Point at a cell, or reach it with Tab and the arrow keys: here it says where the number is from.");
    extra.querySelector(".swa-scroll").after(says);
    makeSortable(table);
    makeTold(table, says, data, notes);
  }

  SWA.register("printed-table", { draw: drawTable, update: () => {} });
})(globalThis.SWA);
