"use strict";
// Search, sort and fold tables, and zoom into pictures. Without this script, the page shows all rows in their order.
const FOLDED = 25;

function make(parent, tag, properties) {
  const element = Object.assign(document.createElement(tag), properties);
  parent.append(element);
  return element;
}

function enliven(table) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  if (rows.length < 2) return;
  const wanted = { text: "", all: rows.length <= FOLDED };
  const tools = document.createElement("div");
  tools.className = "tools";
  const search = make(tools, "input", { type: "search", placeholder: "search", ariaLabel: "search in this table" });
  const found = make(tools, "span", {});
  const fold = make(tools, "button", { type: "button" });
  if (rows.length > 10) table.parentElement.before(tools);

  function show() {
    const matching = [...body.rows].filter((row) => {
      const matches = row.textContent.toLowerCase().includes(wanted.text) ||
        [...row.cells].some((cell) => cell.title.toLowerCase().includes(wanted.text));
      row.hidden = true;
      return matches;
    });
    const shown = wanted.all ? matching : matching.slice(0, FOLDED);
    for (const row of shown) row.hidden = false;
    found.textContent = `${shown.length} of ${matching.length} rows`;
    fold.hidden = matching.length <= FOLDED;
    fold.textContent = wanted.all ? "show fewer" : "show all";
  }

  search.addEventListener("input", () => { wanted.text = search.value.toLowerCase(); show(); });
  fold.addEventListener("click", () => { wanted.all = !wanted.all; show(); });

  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const value = (row) => row.cells[column].dataset.order ?? row.cells[column].textContent;
    const compare = (one, other) => {
      const [a, b] = [value(one), value(other)];
      return head.className.includes("number") && !isNaN(a) && !isNaN(b) ? a - b : a.localeCompare(b, "en", { numeric: true });
    };
    const sort = () => {
      // Numbers: the largest first, as one looks for those.
      const before = head.getAttribute("aria-sort");
      const down = before ? before === "ascending" : head.className.includes("number");
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      body.append(...rows.sort((one, other) => (down ? compare(other, one) : compare(one, other))));
      show();
    };
    head.classList.add("sortable");
    head.tabIndex = 0;
    head.title = "sort";
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
  show();
}

function zoomable(figure) {
  const svg = figure.querySelector("svg");
  if (!svg) return;
  const whole = svg.viewBox.baseVal;
  const full = { x: whole.x, y: whole.y, width: whole.width, height: whole.height };
  let view = { ...full };

  function look(next) {
    view = next;
    view.x = Math.min(Math.max(view.x, full.x), full.x + full.width - view.width);
    view.y = Math.min(Math.max(view.y, full.y), full.y + full.height - view.height);
    svg.setAttribute("viewBox", `${view.x} ${view.y} ${view.width} ${view.height}`);
    figure.classList.toggle("zoomed", view.width < full.width);
  }

  function zoom(factor, x = view.x + view.width / 2, y = view.y + view.height / 2) {
    const width = Math.min(full.width, Math.max(full.width / 20, view.width * factor));
    const scale = width / view.width;
    look({ x: x - (x - view.x) * scale, y: y - (y - view.y) * scale, width, height: view.height * scale });
  }

  const buttons = make(figure, "div", { className: "zoom" });
  for (const [text, title, act] of [
    ["+", "zoom in; or double-click, then drag", () => zoom(0.6)],
    ["\u2212", "zoom out", () => zoom(1 / 0.6)],
    ["\u21ba", "the whole picture", () => look({ ...full })],
  ]) make(buttons, "button", { type: "button", textContent: text, title }).addEventListener("click", act);
  svg.addEventListener("dblclick", (event) => {
    const box = svg.getBoundingClientRect();
    zoom(0.6, view.x + ((event.clientX - box.x) / box.width) * view.width, view.y + ((event.clientY - box.y) / box.height) * view.height);
  });
  svg.addEventListener("pointermove", (event) => {
    if (!event.buttons || view.width === full.width) return;
    const scale = view.width / svg.getBoundingClientRect().width;
    look({ ...view, x: view.x - event.movementX * scale, y: view.y - event.movementY * scale });
    event.preventDefault();
  });
}

document.querySelectorAll("table").forEach(enliven);
document.querySelectorAll("figure").forEach(zoomable);
