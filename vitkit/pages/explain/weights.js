/** The panels beside the photo: a sentence, weight by kind of token, all heads, numbers. */

const COLOURS = ["#d55e00", "#e69f00", "#cc79a7", "#f0e442", "#8c6bb1", "#999999"]; // Okabe and Ito's palette, and two more
const PATCHES = "#2a788e";

function showSentence(row, query) {
  const ranking = getPatches(row).map((weight, patch) => [weight, patch + data.prefix.length]);
  ranking.sort((a, b) => b[0] - a[0] || a[1] - b[1]);
  const rest = data.prefix.map((name, token) => getText("sentenceRest", { share: formatPercent(row[token]), name: namePrefix(name) }));
  const values = { query: capitalize(nameToken(query)), rest: rest.join("") };
  for (const [rank, name] of ["first", "second"].entries()) {
    if (rank >= ranking.length) continue;
    values[name] = formatPercent(ranking[rank][0]);
    values[`${name}Name`] = nameToken(ranking[rank][1]);
  }
  const sentence = getText(ranking.length > 1 ? "sentence" : "sentenceOne", values);
  // A screen reader reads every text that is set, even an equal one; nothing is read while only the colours change.
  if (getById("sentence").textContent !== sentence) getById("sentence").textContent = sentence;
}

function capitalize(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function showMasses(row) {
  const prefix = data.prefix.map((name, token) => [namePrefix(name), row[token], COLOURS[token % COLOURS.length], name]);
  const rest = 1 - prefix.reduce((sum, item) => sum + item[1], 0);
  const items = [...prefix, [getText("patches"), Math.max(rest, 0), PATCHES, "patches"]];
  getById("mass").replaceChildren();
  getById("mass-list").replaceChildren();
  for (const [name, share, colour, key] of items) {
    const part = createElement("div");
    Object.assign(part.style, { width: `${100 * share}%`, background: colour });
    getById("mass").append(part);
    const dot = createElement("span", { class: "dot", "aria-hidden": "true" });
    dot.style.background = colour;
    const text = createElement("span", { class: "number" }, getText("massItem", { name, share: formatPercent(share) }));
    getById("mass-list").append(createElement("li", { "data-mass": key, "data-value": share }, dot, text));
  }
  getById("uniform").textContent = getText("uniform", { tokens: data.tokens, each: formatPercent(1 / data.tokens) });
}

/** Shows the maps of all heads of the layer; `getTop` returns the weight at the top of a map's colour scale. */
function showHeads(rows, head, getTop, choose) {
  const panel = getById("heads");
  if (panel.children.length !== rows.length) {
    panel.replaceChildren(...rows.map((_, index) => createTile(index, choose)));
  }
  rows.forEach((row, index) => {
    const tile = panel.children[index];
    const patches = getPatches(row);
    const largest = Math.max(...patches);
    paintCanvas(tile.querySelector("canvas"), patches, getTop(patches));
    tile.querySelector("span").textContent = formatPercent(largest);
    tile.setAttribute("aria-label", getText("headTile", { head: nameHead(index), weight: formatPercent(largest) }));
    tile.dataset.largest = largest;
    tile.setAttribute("aria-pressed", index === head);
  });
}

function createTile(head, choose) {
  const canvas = createElement("canvas", { "aria-hidden": "true" });
  const tile = createElement("button", { type: "button", "data-head": head }, canvas,
    createElement("b", {}, nameHead(head)), createElement("span", { class: "number" }));
  tile.addEventListener("click", () => choose(head));
  return tile;
}

function nameHead(head) {
  return head < 0 ? getText("headMean") : getText("headName", { head });
}

/** Shows the weights as a table: prefix tokens, then the grid. */
function showNumbers(row, caption) {
  const [rows, columns] = data.grid;
  const createCell = (token) => createElement("td", { class: "number", "data-number": row[token] }, row[token].toFixed(4));
  const table = createElement("table", {}, createElement("caption", {}, caption));
  data.prefix.forEach((name, token) => {
    table.append(createElement("tr", {}, createElement("th", { scope: "row" }, namePrefix(name)), createCell(token)));
  });
  const heads = Array.from({ length: columns }, (_, column) => createElement("th", { scope: "col", class: "number" }, String(column)));
  table.append(createElement("tr", {}, createElement("th", { scope: "col" }, getText("rowColumn")), ...heads));
  for (let index = 0; index < rows; index += 1) {
    const first = data.prefix.length + index * columns;
    const cells = Array.from({ length: columns }, (_, column) => createCell(first + column));
    table.append(createElement("tr", {}, createElement("th", { scope: "row" }, String(index)), ...cells));
  }
  getById("numbers-table").replaceChildren(table);
}
