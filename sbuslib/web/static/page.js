// The live page of `sbus web`. All text that came over the bus is put in with textContent, never as markup.
"use strict";

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function make(name, text, cls) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (cls) element.className = cls;
  return element;
}

function makeId(name, text, cls) {
  // A line ends after a separator, if there is one: half a number would be another number.
  const element = make(name, undefined, cls);
  text.split(/(?<=[^0-9A-Za-z])/).forEach((part) => element.append(part, make("wbr")));
  return element;
}

function draw(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

const number = (value) =>
  typeof value !== "number" ? value : value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });

// -- state ------------------------------------------------------------------------------------------

let moment = null;
let paused = false;

function tell(text, bad) {
  $("state").textContent = text;
  $("state").classList.toggle("bad", bad);
}

// -- rates ------------------------------------------------------------------------------------------

const points = [[], [], [], []]; // time, published, delivered, lost
const KEPT = 600;
let chart = null;

function addPoint(time, coming, going, lost) {
  [time, coming, going, lost].forEach((value, at) => points[at].push(value));
  if (points[0].length > KEPT) points.forEach((column) => column.shift());
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function makeChart() {
  if (chart) chart.destroy();
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
  const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");
  const pointed = (show) => (_, value) => value === null ? "--" : show(value); // null: the pointer is elsewhere
  // Lines that are equal stay visible: the first is wide, and the last has gaps.
  const line = (label, name, more) => ({ label, stroke: colour(name), width: 2, value: pointed(number), ...more });
  chart = new uPlot({
    width: $("chart").clientWidth, height: 230, cursor: { drag: { x: false, y: false } },
    scales: { y: { range: (_, low, high) => [0, Math.max(10, high * 1.1)] } },
    axes: [{ ...axis, space: 60, values: (_, values) => values.map(clock) }, { ...axis, size: 70, values: (_, values) => values.map(number) }],
    series: [{ label: "time", value: pointed(clock) }, line("published", "--one", { width: 5 }), line("delivered", "--two"),
      line("lost", "--three", { dash: [6, 6] })],
  }, points, $("chart"));
}

addEventListener("resize", () => chart && chart.setSize({ width: $("chart").clientWidth, height: 230 }));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", makeChart);

// -- totals, tables ---------------------------------------------------------------------------------

function showTiles(now) {
  const lost = Object.values(now.hub.lost).reduce((sum, count) => sum + count, 0);
  const tiles = [
    ["waiting", now.hub.waiting], ["lost in all", lost], ["published a second", now.rates.published],
    ["delivered a second", now.rates.delivered], ["clients", now.hub.clients], ["patterns", now.hub.patterns],
  ];
  $("tiles").replaceChildren(...tiles.map(([name, value]) => {
    const tile = make("div", undefined, "tile");
    tile.append(make("b", number(value)), make("span", name));
    return tile;
  }));
}

// The first four fit a telephone: they show who floods, and who loses.
const COLUMNS = {
  users: [["user", "user"], ["published_rate", "published/s"], ["waiting", "waiting"], ["lost", "lost"],
    ["delivered_rate", "delivered/s"], ["connections", "clients"], ["patterns", "patterns"],
    ["waiting_bytes", "bytes waiting"]],
  clients: [["who", "client"], ["published_rate", "published/s"], ["waiting", "waiting"], ["lost", "lost"],
    ["user", "user"], ["program", "program"], ["delivered_rate", "delivered/s"], ["patterns", "patterns"],
    ["modes", "soft, hard, order"]],
};
const BUSIEST = 10; // clients that are shown while no filter asks for others
const order = { users: ["waiting", -1], clients: ["waiting", -1] };

function makeTable(name) {
  const table = $(name);
  const row = make("tr");
  for (const [column, title] of COLUMNS[name]) {
    const cell = make("th");
    const button = make("button", title);
    button.type = "button";
    button.addEventListener("click", () => {
      order[name] = [column, order[name][0] === column ? -order[name][1] : -1];
      showTable(name);
    });
    cell.dataset.column = column;
    cell.append(button);
    row.append(cell);
  }
  table.append(make("thead"), make("tbody"));
  table.tHead.append(row);
}

function showTable(name) {
  if (!moment || !moment.connected) return;
  const [by, direction] = order[name];
  const wanted = name === "clients" ? $("filter").value : "";
  const found = moment[name].filter((row) => !wanted || [row.who, row.user, row.program].some((text) => text.includes(wanted)));
  found.sort((one, other) => (one[by] < other[by] ? -1 : one[by] > other[by] ? 1 : 0) * direction);
  const rows = name === "clients" && !wanted ? found.slice(0, BUSIEST) : found;
  for (const cell of $(name).tHead.rows[0].cells) {
    cell.ariaSort = cell.dataset.column === by ? (direction < 0 ? "descending" : "ascending") : "none";
  }
  $(name).tBodies[0].replaceChildren(...rows.map((row) => {
    const line = make("tr");
    for (const [column] of COLUMNS[name]) {
      line.append((column === "who" ? makeId : make)("td", number(row[column]), (column === "lost" || column === "waiting") && row[column] ? "bad" : ""));
    }
    return line;
  }));
  if (name === "clients") {
    const more = wanted || rows.length === found.length ? "" : "; the filter shows others";
    $("shown").textContent = `${number(rows.length)} of ${number(moment.hub.clients)}${more}`;
  }
}

// -- the tree ---------------------------------------------------------------------------------------

function showTree(now) {
  // Each child stands under the one it is joined to: leaves side by side, the others over the middle of theirs.
  const svg = $("tree");
  const rows = now.tree.map((link) => ({ ...link, children: [] }));
  const top = { name: now.address, level: 0, children: [] };
  const parents = rows.filter((link) => link.level < 0);
  for (const link of rows) if (link.level >= 0) (link.to < 0 ? top : rows[link.to] ?? top).children.push(link);
  let leaves = 0;
  const put = (hub) => {
    hub.children.forEach(put);
    hub.at = hub.children.length ? hub.children.reduce((sum, one) => sum + one.at, 0) / hub.children.length : leaves++;
  };
  put(top);
  parents.forEach((link) => { link.at = top.at; });
  const depth = Math.max(0, ...rows.map((link) => link.level)), first = parents.length ? -1 : 0;
  const place = 204, width = Math.max(svg.parentNode.clientWidth, leaves * place), height = (depth - first) * 95 + 90;
  // A hub stands left of the middle of its place, with its name, of 26 letters at most, to its right.
  const x = (hub) => (width * (hub.at + 0.5)) / leaves - 87, y = (hub) => 40 + (hub.level - first) * 95;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.style.width = `${width}px`;
  svg.style.height = `${height}px`;
  const name = (text) => (text.length > 26 ? "…" + text.slice(-25) : text);
  const parts = rows.map((link) => {
    const upper = link.level < 0 || link.to < 0 ? top : rows[link.to] ?? top;
    const load = link.connected ? `${number(link.up_rate)}/s up, ${number(link.down_rate)}/s down` : link.state;
    const group = draw("g", { class: link.connected ? "good" : "bad", "data-hub": link.name });
    group.append(
      draw("line", { x1: x(upper), y1: y(upper) + (link.level < 0 ? -14 : 12), x2: x(link), y2: y(link),
        "stroke-width": 1.5 + Math.log10(1 + link.up_rate + link.down_rate) }),
      draw("circle", { cx: x(link), cy: y(link), r: 10 }),
      draw("text", { x: x(link) + 15, y: y(link) + 2 }, name(link.name)),
      draw("text", { x: x(link) + 15, y: y(link) + 17, class: "soft" },
        load + (link.waiting ? `, ${number(link.waiting)} waiting` : "")),
      draw("title", {}, [link.name, link.why].filter(Boolean).join(": ")),
    );
    return group;
  });
  parts.push(draw("circle", { cx: x(top), cy: y(top), r: 14 }), draw("text", { x: x(top) + 20, y: y(top) + 4 }, name(top.name)));
  svg.replaceChildren(...parts);
  for (const text of svg.querySelectorAll("text")) {  // wide letters are drawn closer: the reader chooses the font
    if (text.getComputedTextLength() < place - 30) continue;
    text.setAttribute("textLength", place - 30);
    text.setAttribute("lengthAdjust", "spacingAndGlyphs");
  }
}

// -- what comes -------------------------------------------------------------------------------------

function show(now) {
  moment = now;
  $("address").textContent = now.address;
  if (!now.connected) {
    tell(`no hub: ${now.why}; trying again`, true);
    return;
  }
  tell("connected", false);
  if (paused) return;
  showTiles(now);
  showTable("users");
  showTable("clients");
  showTree(now);
}

function listen() {
  const source = new EventSource("events");
  source.addEventListener("history", (event) => {
    points.forEach((column) => column.splice(0));
    JSON.parse(event.data).forEach((point) => addPoint(...point.slice(0, 4)));
    makeChart();
  });
  source.addEventListener("moment", (event) => {
    const now = JSON.parse(event.data);
    show(now);
    if (!now.connected) return;
    if (!points[0].length || now.time > points[0][points[0].length - 1]) {
      addPoint(now.time, now.rates.published, now.rates.delivered, now.rates.lost);
    }
    if (chart && !paused) chart.setData(points);
  });
  source.onerror = () => tell("the program that serves this page is away; trying again", true); // the browser does
}

// -- a tail of messages -----------------------------------------------------------------------------

let tail = null;
const MESSAGES_KEPT = 200;

function follow(event) {
  event.preventDefault();
  if (tail) {
    endTail("stopped");
    return;
  }
  $("messages").replaceChildren();
  $("follow").textContent = "Stop";
  tail = new EventSource("tail?pattern=" + encodeURIComponent($("pattern").value));
  tail.addEventListener("begin", () => { $("tail-state").textContent = "following"; });
  tail.addEventListener("messages", (sent) => showMessages(JSON.parse(sent.data)));
  tail.addEventListener("end", (sent) => endTail(JSON.parse(sent.data).why));
  tail.onerror = () => endTail("the connection ended");
}

function endTail(why) {
  if (tail) tail.close();
  tail = null;
  $("follow").textContent = "Follow";
  $("tail-state").textContent = why;
}

function showMessages(told) {
  if (paused) return;
  const list = $("messages");
  if (told.more) list.prepend(make("li", `${number(told.more)} more`, "more"));
  for (const message of told.shown) {
    const line = make("li");
    line.append(make("span", message.key, "key"), make("span", message.payload, "payload"),
      makeId("span", message.sender, "sender"));
    list.prepend(line);
  }
  while (list.children.length > MESSAGES_KEPT) list.lastChild.remove();
}

// -- keys -------------------------------------------------------------------------------------------

function pause() {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", paused);
  $("pause").firstChild.textContent = paused ? "Go on " : "Pause ";
  if (!paused && moment) show(moment);
}

addEventListener("keydown", (event) => {
  if (event.target.tagName === "INPUT" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    event.preventDefault();
    $("filter").focus();
  } else if (event.key === "p") {
    pause();
  }
});
$("pause").addEventListener("click", pause);
$("filter").addEventListener("input", () => showTable("clients"));
$("tail").addEventListener("submit", follow);
makeTable("users");
makeTable("clients");
listen();
