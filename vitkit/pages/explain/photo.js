/** The photo, its patches, and the attention map over them. */

function nameToken(token) {
  if (token < data.prefix.length) return namePrefix(data.prefix[token]);
  return getText("patch", locatePatch(token));
}

/** Returns { row, column } of a patch token. */
function locatePatch(token) {
  const [, columns] = data.grid;
  const index = token - data.prefix.length;
  return { row: Math.floor(index / columns), column: index % columns };
}

function namePrefix(name) {
  const register = /^reg(\d+)$/.exec(name);
  if (register) return getText("register", { number: register[1] });
  return name in data.texts ? getText(name) : name;
}

function buildPhoto() {
  const { source, sharp, box } = data.picture;
  const picture = getById("picture");
  picture.src = source;
  picture.alt = getText("pictureAlt", { photo: data.photo });
  picture.classList.toggle("sharp", sharp);
  const cropped = box[0] > 0.001 || box[1] > 0.001 || box[2] < 0.999 || box[3] < 0.999;
  const sentences = ["how", cropped ? "howCropped" : "", data.readout].filter(Boolean).map((name) => getText(name));
  getById("how").textContent = sentences.join(getText("space"));
  getById("zoom-label").hidden = !cropped;
  getById("zoom").checked = cropped && window.innerWidth < 600; // a finger is wider than a patch
  getById("zoom").addEventListener("change", placePhoto);
  placePhoto();
}

/** Shows the whole photo with a frame around the crop, or only the crop. */
function placePhoto() {
  const { width, height, box } = data.picture;
  const [left, top, right, bottom] = getById("zoom").checked ? box : [0, 0, 1, 1];
  const [across, down] = [right - left, bottom - top];
  const ratio = (width * across) / (height * down);
  Object.assign(getById("photo").style, { aspectRatio: String(ratio), maxWidth: `min(100%, ${75 * ratio}vh)` });
  const computeStyle = ([x, y, toX, toY]) => ({
    left: `${(100 * (x - left)) / across}%`,
    top: `${(100 * (y - top)) / down}%`,
    width: `${(100 * (toX - x)) / across}%`,
    height: `${(100 * (toY - y)) / down}%`,
  });
  Object.assign(getById("picture").style, computeStyle([0, 0, 1, 1]));
  Object.assign(getById("frame").style, computeStyle(box));
}

function buildGrid(chooseQuery) {
  const [rows, columns] = data.grid;
  const grid = getById("grid");
  grid.style.gridTemplateRows = `repeat(${rows}, 1fr)`;
  grid.setAttribute("aria-rowcount", rows);
  grid.setAttribute("aria-colcount", columns);
  for (let row = 0; row < rows; row += 1) {
    const line = createElement("div", { role: "row", "aria-rowindex": row + 1 });
    line.style.gridTemplateColumns = `repeat(${columns}, 1fr)`;
    for (let column = 0; column < columns; column += 1) {
      const token = data.prefix.length + row * columns + column;
      line.append(createElement("div", { role: "gridcell", "aria-colindex": column + 1, tabindex: -1, "data-token": token }));
    }
    grid.append(line);
  }
  grid.addEventListener("click", (event) => {
    const cell = event.target.closest("[data-token]");
    if (cell) chooseQuery(Number(cell.dataset.token), true);
  });
  grid.addEventListener("keydown", (event) => {
    const token = Number(event.target.dataset.token);
    const to = movePatch(token - data.prefix.length, event);
    if (to === undefined) return;
    event.preventDefault();
    chooseQuery(to + data.prefix.length, true);
  });
}

/** Returns the patch that a key leads to, undefined for other keys. */
function movePatch(index, { key, ctrlKey, metaKey, altKey }) {
  const [rows, columns] = data.grid;
  const row = Math.floor(index / columns);
  const column = index % columns;
  const wholeGrid = ctrlKey || metaKey;
  if (altKey || (wholeGrid && key !== "Home" && key !== "End")) return undefined;
  switch (key) {
    case "ArrowLeft": return row * columns + Math.max(column - 1, 0);
    case "ArrowRight": return row * columns + Math.min(column + 1, columns - 1);
    case "ArrowUp": return Math.max(row - 1, 0) * columns + column;
    case "ArrowDown": return Math.min(row + 1, rows - 1) * columns + column;
    case "Home": return wholeGrid ? 0 : row * columns;
    case "End": return wholeGrid ? rows * columns - 1 : (row + 1) * columns - 1;
    case "PageUp": return column;
    case "PageDown": return (rows - 1) * columns + column;
    case "Enter":
    case " ": return index;
    default: return undefined;
  }
}

function buildPrefix(chooseQuery) {
  data.prefix.forEach((name, token) => {
    const button = createElement("button", { type: "button", "data-query": token }, namePrefix(name));
    button.addEventListener("click", () => chooseQuery(token, false));
    getById("prefix").append(button);
  });
  getById("prefix").hidden = data.prefix.length === 0;
}

/** Marks the query. Tab reaches one cell: the query, or the first patch while the query is a prefix token. */
function markQuery(query, focus) {
  const reachable = Math.max(query, data.prefix.length);
  for (const cell of getById("grid").querySelectorAll("[data-token]")) {
    const token = Number(cell.dataset.token);
    cell.setAttribute("aria-selected", token === query);
    cell.tabIndex = token === reachable ? 0 : -1;
    if (focus && token === query) cell.focus({ preventScroll: false });
  }
  for (const button of getById("prefix").children) {
    button.setAttribute("aria-pressed", Number(button.dataset.query) === query);
  }
}

function paintMap(row, top, strength) {
  for (const cell of getById("grid").querySelectorAll("[data-token]")) {
    const token = Number(cell.dataset.token);
    const share = top > 0 ? Math.min(row[token] / top, 1) : 0;
    const [red, green, blue] = viridis(share);
    // Lower weights are more transparent, so that the photo stays visible.
    cell.style.background = `rgb(${red} ${green} ${blue} / ${strength * (0.45 + 0.55 * share)})`;
    cell.dataset.weight = row[token];
    cell.setAttribute("aria-label", getText("cell", {
      ...locatePatch(token),
      weight: formatPercent(row[token]),
    }));
  }
}

/** Paints a map with one pixel for each patch. */
function paintCanvas(canvas, patches, top) {
  const [rows, columns] = data.grid;
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows);
  patches.forEach((weight, patch) => image.data.set([...viridis(top > 0 ? weight / top : 0), 255], 4 * patch));
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function paintBar(top) {
  const canvas = getById("bar-colours");
  const image = new ImageData(256, 1);
  for (let level = 0; level < 256; level += 1) image.data.set([...viridis(level / 255), 255], 4 * level);
  canvas.getContext("2d").putImageData(image, 0, 0);
  canvas.setAttribute("aria-label", getText("barLabel", { low: "0", high: formatPercent(top) }));
  getById("bar-low").textContent = "0";
  getById("bar-high").textContent = formatPercent(top);
  getById("bar-high").dataset.value = top;
}
