"use strict";
// Search, sort and fold tables, and tell the values of curves. Without this script, the page shows all rows in their order.
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

function telling(figure) {
  const { start, step, lines, lost } = JSON.parse(figure.dataset.series);
  const plot = figure.querySelector(".plot");
  const output = figure.querySelector("output");
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const count = lines[0][1].length;
    const at = Math.min(count - 1, Math.max(0, Math.floor(((event.clientX - box.x) / box.width) * count)));
    const time = new Date(start + at * step).toISOString().slice(0, 19).replace("T", " ");
    const values = lines.map(([name, values]) => (lines.length > 1 ? `${name} ` : "") + values[at]);
    output.textContent = [time, ...values, ...(lost[at] ? [`lost ${lost[at]}`] : [])].join("  ");
  });
  plot.addEventListener("pointerleave", () => { output.textContent = ""; });
}

document.querySelectorAll("table").forEach(enliven);
document.querySelectorAll("figure.curve").forEach(telling);
