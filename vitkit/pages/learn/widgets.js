/* What the lessons are built of. A widget keeps its numbers in data-* attributes too, in full precision. */

const lessons = {};

/** A slider with its label and its number; `change` runs when it moves. `show` makes a text of its number. */
function slider(name, { min, max, step, value, show = short }, change) {
  const input = element("input", { type: "range", id: name, min, max, step, value });
  const output = element("output", { for: name, "aria-live": "off" }); // the slider itself is read out
  const tell = () => {
    output.textContent = show(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => {
    tell();
    change();
  });
  tell();
  const whole = element("div", { class: "slider" }, element("label", { for: name }, say(name)), input, output);
  return { whole, input, tell, get value() { return Number(input.value); } };
}

/** Moves a slider from code, as a hand would. */
function move(one, value) {
  one.input.value = value;
  one.tell();
}

function checkbox(name, checked, change) {
  const input = element("input", { type: "checkbox", id: name });
  input.checked = checked;
  input.addEventListener("change", change);
  return { whole: element("label", { class: "check", for: name }, input, say(name)), input };
}

/** Buttons of which one is pressed; `names` are those of their texts. */
function choice(label, names, change) {
  const whole = element("div", { class: "row choice", role: "group", "aria-label": say(label) });
  const made = { whole, value: names[0] };
  for (const name of names) {
    const button = element("button", { type: "button", id: name, "aria-pressed": name === names[0] }, say(name));
    button.addEventListener("click", () => {
      made.value = name;
      for (const other of whole.children) other.setAttribute("aria-pressed", other === button);
      change();
    });
    whole.append(button);
  }
  return made;
}

/** A sentence that is read out when it changes, but not at every step of a drag. */
function announcement(id) {
  const whole = element("p", { id, class: "announcement", "aria-live": "polite" });
  let waiting = 0;
  const tell = (text) => {
    clearTimeout(waiting);
    if (!whole.textContent) whole.textContent = text;
    waiting = setTimeout(() => { whole.textContent = text; }, 150);
  };
  return { whole, tell };
}

/** Numbers by name, as a list of terms; `show` gets { name: number }. */
function readout(id, names) {
  const whole = element("dl", { id, class: "readout" });
  const cells = {};
  for (const name of names) {
    cells[name] = element("dd", { class: "number" });
    whole.append(element("div", {}, element("dt", {}, say(`${id}.${name}`)), cells[name]));
  }
  const show = (values) => {
    for (const [name, value] of Object.entries(values)) {
      whole.dataset[name] = value;
      cells[name].textContent = Number.isNaN(value) ? say("undefined") : short(value);
    }
  };
  return { whole, show };
}

/** Horizontal bars; rows of { label, share, note, off, second } where `second` is drawn behind. */
function bars(id) {
  const whole = element("ul", { id, class: "bars" });
  const show = (rows) => {
    whole.replaceChildren(...rows.map(({ label, share, second = 0, off = false, note = percent(share) }) => {
      const track = element("span", { class: "track" });
      for (const [kind, size] of [["ghost", second], ["bar", share]]) {
        const bar = element("span", { class: kind });
        bar.style.width = `${100 * Math.min(size, 1)}%`;
        track.append(bar);
      }
      const row = element("li", off ? { class: "off" } : {},
        element("span", { class: "name" }, label), track, element("span", { class: "note number" }, note));
      row.dataset.share = share;
      return row;
    }));
  };
  return { whole, show };
}

/** Colours of rows of numbers, from 0 to `most`; signed: blue below 0, red above, from -most to most. */
function paint(canvas, rows, { most = 1, signed = false } = {}) {
  canvas.width = rows[0].length;
  canvas.height = rows.length;
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  rows.flat().forEach((value, place) => {
    image.data.set(signed ? diverging(value / most) : viridis(value / most), 4 * place);
    image.data[4 * place + 3] = 255;
  });
  context.putImageData(image, 0, 0);
}

/** A frame around one cell of what was painted, or around a whole row where there is no column. */
function mark(canvas, row, column = null) {
  canvas.parentElement.querySelector(".mark")?.remove();
  const frame = element("span", { class: "mark" });
  const [height, width] = [100 / canvas.height, 100 / canvas.width];
  Object.assign(frame.style, {
    top: `${row * height}%`, left: `${(column ?? 0) * width}%`, height: `${height}%`, width: `${column === null ? 100 : width}%`,
  });
  canvas.parentElement.append(frame);
}

// The ends and the middle of Crameri's "vik", near enough: both arms are told apart with any colour vision.
const ARMS = { below: [[237, 240, 242], [105, 161, 196], [0, 47, 96]], above: [[237, 240, 242], [214, 146, 111], [110, 20, 8]] };

/** The colour of a share from -1 to 1. */
function diverging(share) {
  const [low, middle, high] = share < 0 ? ARMS.below : ARMS.above;
  const size = Math.min(Math.abs(share), 1) * 2;
  const [from, to, part] = size < 1 ? [low, middle, size] : [middle, high, size - 1];
  return from.map((value, channel) => Math.round(value + (to[channel] - value) * part));
}

/** A canvas with a title and a scale below it. Args: aspect: its width over its height; names: of rows and columns. */
function heatMap(id, { ends, signed = false, aspect = 1, names = [] }) {
  const canvas = element("canvas", { id, role: "img", "aria-label": say(`${id}.title`) });
  const scale = element("span", { class: signed ? "scale signed" : "scale", "aria-hidden": "true" });
  const stops = Array.from({ length: 17 }, (_, i) => rgb(signed ? diverging(i / 8 - 1) : viridis(i / 16)));
  scale.style.background = `linear-gradient(90deg, ${stops.join(",")})`;
  const legend = element("span", { class: "legend soft" },
    element("span", {}, String(ends[0])), scale, element("span", {}, String(ends[1])));
  const frame = element("div", { class: "frame" }, canvas);
  frame.style.aspectRatio = aspect;
  const whole = element("figure", { class: "map" },
    element("figcaption", {}, say(`${id}.title`)),
    element("div", names.length ? { class: "named" } : {}, ...beside(names, "down"), frame, ...beside(names, "across")),
    element("span", { class: "soft" }, say(`${id}.axes`)), legend);
  return { whole, canvas };
}

/** Words at the side of a canvas; its table says the same to those who do not see them. */
function beside(names, side) {
  if (names.length === 0) return [];
  return [element("div", { class: `names ${side}`, "aria-hidden": "true" }, ...names.map((name) => element("span", {}, name)))];
}

/** Columns as high as these counts, with what stands below them from left to right. */
function columns(title, counts, ticks) {
  const most = Math.max(...counts);
  const bins = counts.map((count, place) => drawing("rect", {
    class: "bin", x: place * 10 + 1, width: 8, y: 90 - (88 * count) / most, height: (88 * count) / most,
  }));
  const end = counts.length * 10;
  const plot = drawing("svg", { viewBox: `0 0 ${end} 92`, class: "histogram", role: "img", "aria-label": title }, ...bins,
    drawing("line", { class: "axis", x1: 0, x2: end, y1: 90.5, y2: 90.5 }));
  const below = element("div", { class: "ticks" }, ...ticks.map((tick) => element("span", {}, short(tick))));
  return element("div", {}, plot, below);
}

/** A table of numbers that is only made when it is opened. Args: rows: gives arrays; heads: names of the columns. */
function numbers(id, heads, rows) {
  const box = element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": say(`${id}.table`) });
  const whole = element("details", { id: `${id}.numbers` }, element("summary", {}, say("numbers")), box);
  const fill = () => whole.open && box.replaceChildren(tableOf(heads(), rows(), say(`${id}.table`)));
  whole.addEventListener("toggle", fill);
  return { whole, fill };
}

function tableOf(heads, rows, caption) {
  const head = element("tr", {}, ...heads.map((name) => element("th", { scope: "col" }, String(name))));
  const body = rows.map(([name, ...values]) => element("tr", {}, element("th", { scope: "row" }, String(name)),
    ...values.map((value) => {
      const cell = element("td", { class: "number" }, typeof value === "number" ? short(value) : String(value));
      cell.dataset.value = value;
      return cell;
    })));
  return element("table", {}, element("caption", {}, caption), element("thead", {}, head), element("tbody", {}, ...body));
}
