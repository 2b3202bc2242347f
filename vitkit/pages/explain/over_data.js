/** Statistics over many pictures. */

const HEIGHT = 300;
const LEFT = 44;
const BOTTOM = 40;

function buildOverData() {
  const { statistics } = data;
  byId("no-data").hidden = statistics !== null;
  byId("with-data").hidden = statistics === null;
  byId("no-data-hint").textContent = say("noData");
  if (statistics === null) return () => {};
  const flags = statistics.flags.length ? statistics.flags : [say("noFlags", { count: statistics.count })];
  byId("flags").replaceChildren(...flags.map((flag) => element("li", {}, flag)));
  for (const name of Object.keys(statistics.measures)) {
    byId("measure").append(element("option", { value: name }, measureText(name, "")));
  }
  statistics.places.forEach((place, layer) => byId("similarity-layer").append(element("option", { value: layer }, String(place))));
  const show = () => showMeasure(byId("measure").value);
  byId("measure").addEventListener("change", show);
  byId("similarity-layer").addEventListener("change", () => showSimilarity(Number(byId("similarity-layer").value)));
  window.addEventListener("resize", show);
  showSimilarity(0);
  return show;
}

/** A measure that has no text is called by its name. */
function measureText(name, end) {
  const key = `measure_${name}${end}`;
  return key in data.texts ? say(key) : name;
}

function showMeasure(name) {
  const { statistics } = data;
  const layers = statistics.measures[name];
  byId("measure-note").textContent = say("measureNote", {
    what: measureText(name, "_what"), count: statistics.count, source: statistics.source, even: short(statistics.even[name]),
  });
  byId("measure-table").replaceChildren(measureTable(layers));
  const width = byId("chart").clientWidth;
  if (width > 0) byId("chart").replaceChildren(chart(name, layers, width));
}

function chart(name, layers, width) {
  const even = data.statistics.even[name];
  const largest = Math.max(...layers.flatMap((one) => [...one.mean, ...one.high]), even) || 1; // of zeros alone
  const step = tickStep(largest / 4);
  const ticks = Math.ceil(largest / step);
  const highest = step * ticks;
  const band = (width - LEFT) / layers.length;
  const up = (value) => HEIGHT - BOTTOM - (value / highest) * (HEIGHT - BOTTOM - 12);
  const figure = drawing("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img",
    "aria-label": say("chartAlt", { name: measureText(name, "") }) });
  for (let tick = 0; tick <= ticks; tick += 1) {
    const value = step * tick;
    figure.append(drawing("line", { class: "axis", x1: LEFT, x2: width, y1: up(value), y2: up(value) }));
    figure.append(drawing("text", { x: LEFT - 6, y: up(value) + 4, "text-anchor": "end" }, short(value)));
  }
  figure.append(drawing("line", { class: "even", x1: LEFT, x2: width, y1: up(even), y2: up(even), "data-value": even }));
  const every = Math.ceil(24 / band);
  layers.forEach((one, layer) => {
    const place = data.statistics.places[layer];
    if (layer % every === 0) {
      figure.append(drawing("text", { x: LEFT + band * (layer + 0.5), y: HEIGHT - 22, "text-anchor": "middle" }, String(place)));
    }
    one.mean.forEach((mean, head) => {
      const x = LEFT + band * (layer + 0.12 + (0.76 * (head + 0.5)) / one.mean.length);
      if (one.low[head] !== null) {
        figure.append(drawing("line", { class: "range", x1: x, x2: x, y1: up(Math.max(one.low[head], 0)), y2: up(one.high[head]) }));
      }
      const values = { layer: place, head, mean: known(mean), low: known(one.low[head]), high: known(one.high[head]) };
      figure.append(drawing("circle", { cx: x, cy: up(mean), r: 3.5 }, drawing("title", {}, say("chartPoint", values))));
    });
  });
  figure.append(drawing("text", { x: LEFT + (width - LEFT) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, say("layer")));
  return figure;
}

/** 1, 2 or 5 times a power of ten, at least so much. */
function tickStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1e-9)));
  return power * [1, 2, 5, 10].find((times) => times * power >= least * 0.999);
}

/** A single picture has no interval. */
function known(value) {
  return value === null ? say("unknown") : short(value);
}

function measureTable(layers) {
  const columns = ["mean", "low", "high", "deviation"];
  const heads = ["layer", "head", ...columns].map((name) => element("th", { scope: "col", class: "number" }, say(name)));
  const table = element("table", {}, element("tr", {}, ...heads));
  layers.forEach((one, layer) => one.mean.forEach((_, head) => {
    const cells = columns.map((name) => element("td", { class: "number", "data-kind": name, "data-value": one[name][head] },
      known(one[name][head])));
    table.append(element("tr", { "data-layer": layer, "data-head": head },
      element("th", { scope: "row", class: "number" }, String(data.statistics.places[layer])),
      element("td", { class: "number" }, String(head)), ...cells));
  }));
  return table;
}

function showSimilarity(layer) {
  const matrix = data.statistics.similarity[layer];
  const heads = matrix.map((_, head) => element("th", { scope: "col" }, say("headName", { head })));
  const caption = element("caption", {}, say("similarityCaption", { layer: data.statistics.places[layer] }));
  const table = element("table", {}, caption, element("tr", {}, element("td"), ...heads));
  matrix.forEach((row, head) => {
    const cells = row.map((value) => {
      const colour = viridis(value);
      const cell = element("td", { class: "number", "data-value": value }, value.toFixed(2));
      Object.assign(cell.style, { background: rgb(colour), color: readable(colour) });
      return cell;
    });
    table.append(element("tr", {}, element("th", { scope: "row" }, say("headName", { head })), ...cells));
  });
  byId("similarity").replaceChildren(table);
}
