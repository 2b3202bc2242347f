/* The widgets of the lessons. Each also keeps its numbers in data-* attributes, in full precision. */

const lessons = {};

/** Creates a slider with a label and its value, which `format` makes a text; `onChange` runs when it moves. */
function createSlider(name, { min, max, step, value, format = formatNumber }, onChange) {
  const input = createElement("input", { type: "range", id: name, min, max, step, value });
  const output = createElement("output", { for: name, "aria-live": "off" }); // a screen reader reads the slider itself
  const showValue = () => {
    output.textContent = format(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => {
    showValue();
    onChange();
  });
  showValue();
  const node = createElement("div", { class: "slider" }, createElement("label", { for: name }, getText(name)), input, output);
  return { node, input, showValue, get value() { return Number(input.value); } };
}

/** Sets a slider from code, without running its `onChange`. */
function setSlider(slider, value) {
  slider.input.value = value;
  slider.showValue();
}

function createCheckbox(name, checked, onChange) {
  const input = createElement("input", { type: "checkbox", id: name });
  input.checked = checked;
  input.addEventListener("change", onChange);
  return { node: createElement("label", { class: "check", for: name }, input, getText(name)), input };
}

/** Creates buttons of which one is pressed; `names` are the names of their texts. */
function createChoice(label, names, onChange) {
  const node = createElement("div", { class: "row choice", role: "group", "aria-label": getText(label) });
  const choice = { node, value: names[0] };
  for (const name of names) {
    const button = createElement("button", { type: "button", id: name, "aria-pressed": name === names[0] }, getText(name));
    button.addEventListener("click", () => {
      choice.value = name;
      for (const other of node.children) other.setAttribute("aria-pressed", other === button);
      onChange();
    });
    node.append(button);
  }
  return choice;
}

/** Creates a sentence that a screen reader reads when it changes, but not at every step of a drag. */
function createAnnouncement(id) {
  const node = createElement("p", { id, class: "announcement", "aria-live": "polite" });
  let timer = 0;
  const show = (text) => {
    clearTimeout(timer);
    if (!node.textContent) node.textContent = text;
    timer = setTimeout(() => { node.textContent = text; }, 150);
  };
  return { node, show };
}

/** Creates a list of numbers by name; `show` takes { name: number }. */
function createReadout(id, names) {
  const node = createElement("dl", { id, class: "readout" });
  const cells = {};
  for (const name of names) {
    cells[name] = createElement("dd", { class: "number" });
    node.append(createElement("div", {}, createElement("dt", {}, getText(`${id}.${name}`)), cells[name]));
  }
  const show = (values) => {
    for (const [name, value] of Object.entries(values)) {
      node.dataset[name] = value;
      cells[name].textContent = Number.isNaN(value) ? getText("undefined") : formatNumber(value);
    }
  };
  return { node, show };
}

/** Creates horizontal bars; `show` takes rows of { label, share, note, off, second }, with `second` behind `share`. */
function createBars(id) {
  const node = createElement("ul", { id, class: "bars" });
  const show = (rows) => {
    node.replaceChildren(...rows.map(({ label, share, second = 0, off = false, note = formatPercent(share) }) => {
      const track = createElement("span", { class: "track" });
      for (const [kind, size] of [["ghost", second], ["bar", share]]) {
        const bar = createElement("span", { class: kind });
        bar.style.width = `${100 * Math.min(size, 1)}%`;
        track.append(bar);
      }
      const row = createElement("li", off ? { class: "off" } : {},
        createElement("span", { class: "name" }, label), track, createElement("span", { class: "note number" }, note));
      row.dataset.share = share;
      return row;
    }));
  };
  return { node, show };
}

/** Paints rows of numbers from 0 to `max`, or signed from -max (blue) to max (red). */
function paint(canvas, rows, { max = 1, signed = false } = {}) {
  canvas.width = rows[0].length;
  canvas.height = rows.length;
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  rows.flat().forEach((value, i) => {
    image.data.set([...(signed ? diverging(value / max) : viridis(value / max)), 255], 4 * i);
  });
  context.putImageData(image, 0, 0);
}

/** Draws a frame around one cell of a painted canvas, or around a row if no column is given. */
function markCell(canvas, row, column = null) {
  canvas.parentElement.querySelector(".mark")?.remove();
  const frame = createElement("span", { class: "mark" });
  const [height, width] = [100 / canvas.height, 100 / canvas.width];
  Object.assign(frame.style, {
    top: `${row * height}%`, left: `${(column ?? 0) * width}%`, height: `${height}%`, width: `${column === null ? 100 : width}%`,
  });
  canvas.parentElement.append(frame);
}

// Close to Crameri's "vik" at its ends and middle: both arms are distinct with any colour vision.
const ARMS = { below: [[237, 240, 242], [105, 161, 196], [0, 47, 96]], above: [[237, 240, 242], [214, 146, 111], [110, 20, 8]] };

/** Returns the colour of a share from -1 to 1. */
function diverging(share) {
  const [low, middle, high] = share < 0 ? ARMS.below : ARMS.above;
  const size = Math.min(Math.abs(share), 1) * 2;
  const [from, to, part] = size < 1 ? [low, middle, size] : [middle, high, size - 1];
  return from.map((value, channel) => Math.round(value + (to[channel] - value) * part));
}

/** Creates a canvas with a title and a colour scale. Args: aspect: width / height; names: of rows and columns. */
function createHeatMap(id, { ends, signed = false, aspect = 1, names = [] }) {
  const canvas = createElement("canvas", { id, role: "img", "aria-label": getText(`${id}.title`) });
  const scale = createElement("span", { class: signed ? "scale signed" : "scale", "aria-hidden": "true" });
  const stops = Array.from({ length: 17 }, (_, i) => formatRgb(signed ? diverging(i / 8 - 1) : viridis(i / 16)));
  scale.style.background = `linear-gradient(90deg, ${stops.join(",")})`;
  const legend = createElement("span", { class: "legend soft" },
    createElement("span", {}, String(ends[0])), scale, createElement("span", {}, String(ends[1])));
  const frame = createElement("div", { class: "frame" }, canvas);
  frame.style.aspectRatio = aspect;
  const node = createElement("figure", { class: "map" },
    createElement("figcaption", {}, getText(`${id}.title`)),
    createElement("div", names.length ? { class: "named" } : {}, ...createAxisNames(names, "down"), frame, ...createAxisNames(names, "across")),
    createElement("span", { class: "soft" }, getText(`${id}.axes`)), legend);
  return { node, canvas };
}

/** Creates words at the side of a canvas, hidden from screen readers, which read the table instead. */
function createAxisNames(names, side) {
  if (names.length === 0) return [];
  return [createElement("div", { class: `names ${side}`, "aria-hidden": "true" }, ...names.map((name) => createElement("span", {}, name)))];
}

/** Creates a histogram with ticks below it from left to right. */
function createBarChart(title, counts, ticks) {
  const max = Math.max(...counts);
  const bins = counts.map((count, i) => createSvg("rect", {
    class: "bin", x: i * 10 + 1, width: 8, y: 90 - (88 * count) / max, height: (88 * count) / max,
  }));
  const end = counts.length * 10;
  const plot = createSvg("svg", { viewBox: `0 0 ${end} 92`, class: "histogram", role: "img", "aria-label": title }, ...bins,
    createSvg("line", { class: "axis", x1: 0, x2: end, y1: 90.5, y2: 90.5 }));
  const labels = createElement("div", { class: "ticks" }, ...ticks.map((tick) => createElement("span", {}, formatNumber(tick))));
  return createElement("div", {}, plot, labels);
}

/** Creates a table that is filled when it is opened. Args: getHeads, getRows: return the column names and the rows. */
function createNumberTable(id, getHeads, getRows) {
  const box = createElement("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": getText(`${id}.table`) });
  const node = createElement("details", { id: `${id}.numbers` }, createElement("summary", {}, getText("numbers")), box);
  const fill = () => node.open && box.replaceChildren(createTable(getHeads(), getRows(), getText(`${id}.table`)));
  node.addEventListener("toggle", fill);
  return { node, fill };
}

function createTable(heads, rows, caption) {
  const head = createElement("tr", {}, ...heads.map((name) => createElement("th", { scope: "col" }, String(name))));
  const body = rows.map(([name, ...values]) => createElement("tr", {}, createElement("th", { scope: "row" }, String(name)),
    ...values.map((value) => {
      const cell = createElement("td", { class: "number" }, typeof value === "number" ? formatNumber(value) : String(value));
      cell.dataset.value = value;
      return cell;
    })));
  return createElement("table", {}, createElement("caption", {}, caption), createElement("thead", {}, head), createElement("tbody", {}, ...body));
}
