/** The photo, its patches, and the colours over them. */

const columnsOfGrid = () => data.grid[1];

function tokenName(token) {
  if (token < data.prefix.length) return prefixName(data.prefix[token]);
  const place = token - data.prefix.length;
  return say("patch", { row: Math.floor(place / columnsOfGrid()), column: place % columnsOfGrid() });
}

function prefixName(name) {
  const register = /^reg(\d+)$/.exec(name);
  if (register) return say("register", { number: register[1] });
  return name in data.texts ? say(name) : name;
}

function buildPhoto() {
  const { source, width, height, sharp, box } = data.picture;
  const picture = byId("picture");
  picture.src = source;
  picture.alt = say("pictureAlt", { photo: data.photo });
  picture.classList.toggle("sharp", sharp);
  const cropped = box[0] > 0.001 || box[1] > 0.001 || box[2] < 0.999 || box[3] < 0.999;
  byId("how").textContent = [say("how"), cropped ? say("howCropped") : "", data.read ? say(data.read) : ""].join(" ").trim();
  byId("zoom-label").hidden = !cropped;
  byId("zoom").checked = cropped && window.innerWidth < 600; // fingers are wider than patches
  byId("zoom").addEventListener("change", placePhoto);
  placePhoto();
}

/** The whole photo with a frame, or only what is inside of it. */
function placePhoto() {
  const { width, height, box } = data.picture;
  const [left, top, right, bottom] = byId("zoom").checked ? box : [0, 0, 1, 1];
  const [across, down] = [right - left, bottom - top];
  const ratio = (width * across) / (height * down);
  Object.assign(byId("photo").style, { aspectRatio: String(ratio), maxWidth: `min(100%, ${75 * ratio}vh)` });
  const place = ([x, y, toX, toY]) => ({
    left: `${(100 * (x - left)) / across}%`,
    top: `${(100 * (y - top)) / down}%`,
    width: `${(100 * (toX - x)) / across}%`,
    height: `${(100 * (toY - y)) / down}%`,
  });
  Object.assign(byId("picture").style, place([0, 0, 1, 1]));
  Object.assign(byId("frame").style, place(box));
}

function buildGrid(ask) {
  const [rows, columns] = data.grid;
  const grid = byId("grid");
  grid.style.gridTemplateRows = `repeat(${rows}, 1fr)`;
  grid.setAttribute("aria-rowcount", rows);
  grid.setAttribute("aria-colcount", columns);
  for (let row = 0; row < rows; row += 1) {
    const line = element("div", { role: "row", "aria-rowindex": row + 1 });
    line.style.gridTemplateColumns = `repeat(${columns}, 1fr)`;
    for (let column = 0; column < columns; column += 1) {
      const token = data.prefix.length + row * columns + column;
      line.append(element("div", { role: "gridcell", "aria-colindex": column + 1, tabindex: -1, "data-token": token }));
    }
    grid.append(line);
  }
  grid.addEventListener("click", (event) => {
    const cell = event.target.closest("[data-token]");
    if (cell) ask(Number(cell.dataset.token), true);
  });
  grid.addEventListener("keydown", (event) => {
    const token = Number(event.target.dataset.token);
    const to = moved(token - data.prefix.length, event);
    if (to === undefined) return;
    event.preventDefault();
    ask(to + data.prefix.length, true);
  });
}

/** Where a key leads from a patch, undefined for other keys. */
function moved(place, { key, ctrlKey, metaKey, altKey }) {
  const [rows, columns] = data.grid;
  const row = Math.floor(place / columns);
  const column = place % columns;
  const whole = ctrlKey || metaKey;
  if (altKey || (whole && key !== "Home" && key !== "End")) return undefined;
  switch (key) {
    case "ArrowLeft": return row * columns + Math.max(column - 1, 0);
    case "ArrowRight": return row * columns + Math.min(column + 1, columns - 1);
    case "ArrowUp": return Math.max(row - 1, 0) * columns + column;
    case "ArrowDown": return Math.min(row + 1, rows - 1) * columns + column;
    case "Home": return whole ? 0 : row * columns;
    case "End": return whole ? rows * columns - 1 : (row + 1) * columns - 1;
    case "PageUp": return column;
    case "PageDown": return (rows - 1) * columns + column;
    case "Enter":
    case " ": return place;
    default: return undefined;
  }
}

function buildPrefix(ask) {
  data.prefix.forEach((name, token) => {
    const button = element("button", { type: "button", "data-query": token }, prefixName(name));
    button.addEventListener("click", () => ask(token, false));
    byId("prefix").append(button);
  });
  byId("prefix").hidden = data.prefix.length === 0;
}

/** One cell is in the order of Tab: the query, or the first patch while a prefix token is asked. */
function markQuery(query, focus) {
  const reachable = Math.max(query, data.prefix.length);
  for (const cell of byId("grid").querySelectorAll("[data-token]")) {
    const token = Number(cell.dataset.token);
    cell.setAttribute("aria-selected", token === query);
    cell.tabIndex = token === reachable ? 0 : -1;
    if (focus && token === query) cell.focus({ preventScroll: false });
  }
  for (const button of byId("prefix").children) {
    button.setAttribute("aria-pressed", Number(button.dataset.query) === query);
  }
}

function paintMap(row, top, strength) {
  for (const cell of byId("grid").querySelectorAll("[data-token]")) {
    const token = Number(cell.dataset.token);
    const share = top > 0 ? Math.min(row[token] / top, 1) : 0;
    const [red, green, blue] = viridis(share);
    // The photo stays visible where little weight falls.
    cell.style.background = `rgb(${red} ${green} ${blue} / ${strength * (0.45 + 0.55 * share)})`;
    cell.dataset.weight = row[token];
    cell.setAttribute("aria-label", say("cell", {
      row: Math.floor((token - data.prefix.length) / columnsOfGrid()),
      column: (token - data.prefix.length) % columnsOfGrid(),
      weight: percent(row[token]),
    }));
  }
}

/** Each patch a pixel. */
function paintCanvas(canvas, patches, top) {
  const [rows, columns] = data.grid;
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows);
  patches.forEach((weight, place) => image.data.set([...viridis(top > 0 ? weight / top : 0), 255], 4 * place));
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function paintBar(top) {
  const canvas = byId("bar-colours");
  const image = new ImageData(256, 1);
  for (let place = 0; place < 256; place += 1) image.data.set([...viridis(place / 255), 255], 4 * place);
  canvas.getContext("2d").putImageData(image, 0, 0);
  canvas.setAttribute("aria-label", say("barLabel", { low: "0", high: percent(top) }));
  byId("bar-low").textContent = "0";
  byId("bar-high").textContent = percent(top);
  byId("bar-high").dataset.value = top;
}
