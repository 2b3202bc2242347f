/** What stands beside the photo: sentence, masses, all heads, numbers. */

const COLOURS = ["#d55e00", "#e69f00", "#cc79a7", "#f0e442", "#8c6bb1", "#999999"]; // Okabe and Ito's, and two more
const PATCHES = "#2a788e";

function showSentence(row, query) {
  const order = patchesOf(row).map((weight, place) => [weight, place + data.prefix.length]);
  order.sort((a, b) => b[0] - a[0] || a[1] - b[1]);
  const rest = data.prefix.map((name, token) => say("sentenceRest", { share: percent(row[token]), name: prefixName(name) }));
  const values = { query: upper(tokenName(query)), rest: rest.join("") };
  for (const [place, word] of [[0, "first"], [1, "second"]]) {
    if (place >= order.length) continue;
    values[word] = percent(order[place][0]);
    values[`${word}Name`] = tokenName(order[place][1]);
  }
  const told = say(order.length > 1 ? "sentence" : "sentenceOne", values);
  // What is set is read out, also where it is the same: not while only the colours change.
  if (byId("sentence").textContent !== told) byId("sentence").textContent = told;
}

function upper(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function showMasses(row) {
  const prefix = data.prefix.map((name, token) => [prefixName(name), row[token], COLOURS[token % COLOURS.length], name]);
  const rest = 1 - prefix.reduce((sum, item) => sum + item[1], 0);
  const items = [...prefix, [say("patches"), Math.max(rest, 0), PATCHES, "patches"]];
  byId("mass").replaceChildren();
  byId("mass-list").replaceChildren();
  for (const [name, share, colour, key] of items) {
    const part = element("div");
    Object.assign(part.style, { width: `${100 * share}%`, background: colour });
    byId("mass").append(part);
    const dot = element("span", { class: "dot", "aria-hidden": "true" });
    dot.style.background = colour;
    const text = element("span", { class: "number" }, say("massItem", { name, share: percent(share) }));
    byId("mass-list").append(element("li", { "data-mass": key, "data-value": share }, dot, text));
  }
  byId("uniform").textContent = say("uniform", { tokens: data.tokens, each: percent(1 / data.tokens) });
}

/** All heads of the layer side by side, each on the scale that `topOf` gives. */
function showHeads(rows, head, topOf, choose) {
  const holder = byId("heads");
  if (holder.children.length !== rows.length) {
    holder.replaceChildren(...rows.map((_, place) => headTile(place, choose)));
  }
  rows.forEach((row, place) => {
    const tile = holder.children[place];
    const patches = patchesOf(row);
    const largest = Math.max(...patches);
    paintCanvas(tile.querySelector("canvas"), patches, topOf(patches));
    tile.querySelector("span").textContent = percent(largest);
    tile.setAttribute("aria-label", say("headTile", { head: headName(place), weight: percent(largest) }));
    tile.dataset.largest = largest;
    tile.setAttribute("aria-pressed", place === head);
  });
}

function headTile(place, choose) {
  const canvas = element("canvas", { "aria-hidden": "true" });
  const tile = element("button", { type: "button", "data-head": place }, canvas,
    element("b", {}, headName(place)), element("span", { class: "number" }));
  tile.addEventListener("click", () => choose(place));
  return tile;
}

function headName(head) {
  return head < 0 ? say("headMean") : say("headName", { head });
}

/** The row as a table: prefix tokens, then the grid. */
function showNumbers(row, caption) {
  const [rows, columns] = data.grid;
  const cell = (token) => element("td", { class: "number", "data-number": row[token] }, row[token].toFixed(4));
  const table = element("table", {}, element("caption", {}, caption));
  data.prefix.forEach((name, token) => {
    table.append(element("tr", {}, element("th", { scope: "row" }, prefixName(name)), cell(token)));
  });
  const heads = Array.from({ length: columns }, (_, column) => element("th", { scope: "col", class: "number" }, String(column)));
  table.append(element("tr", {}, element("th", { scope: "col" }, say("rowColumn")), ...heads));
  for (let place = 0; place < rows; place += 1) {
    const first = data.prefix.length + place * columns;
    const cells = Array.from({ length: columns }, (_, column) => cell(first + column));
    table.append(element("tr", {}, element("th", { scope: "row" }, String(place)), ...cells));
  }
  byId("numbers-table").replaceChildren(table);
}
