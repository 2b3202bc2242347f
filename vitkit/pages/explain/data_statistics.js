/** Attention statistics over many images. */

const HEIGHT = 300;
const LEFT = 44;
const BOTTOM = 40;

function buildStatistics() {
  const { statistics } = data;
  getById("no-data").hidden = statistics !== null;
  getById("with-data").hidden = statistics === null;
  getById("no-data-hint").textContent = getText("noData");
  if (statistics === null) return () => {};
  const flags = statistics.flags.length ? statistics.flags : [getText("noFlags", { count: statistics.count })];
  getById("flags").replaceChildren(...flags.map((flag) => createElement("li", {}, flag)));
  for (const name of Object.keys(statistics.measures)) {
    getById("measure").append(createElement("option", { value: name }, describeMeasure(name, "")));
  }
  statistics.places.forEach((place, layer) => getById("similarity-layer").append(createElement("option", { value: layer }, String(place))));
  const show = () => showMeasure(getById("measure").value);
  getById("measure").addEventListener("change", show);
  getById("similarity-layer").addEventListener("change", () => showSimilarity(Number(getById("similarity-layer").value)));
  window.addEventListener("resize", show);
  showSimilarity(0);
  return show;
}

/** Returns the text of a measure, or its name if there is none. */
function describeMeasure(name, end) {
  const key = `measure_${name}${end}`;
  return key in data.texts ? getText(key) : name;
}

function showMeasure(name) {
  const { statistics } = data;
  const layers = statistics.measures[name];
  getById("measure-note").textContent = getText("measureNote", {
    what: describeMeasure(name, "_what"), count: statistics.count, source: statistics.source, uniform: formatNumber(statistics.uniform[name]),
  });
  getById("measure-table").replaceChildren(createMeasureTable(layers));
  const width = getById("chart").clientWidth;
  if (width > 0) getById("chart").replaceChildren(createChart(name, layers, width));
}

function createChart(name, layers, width) {
  const uniform = data.statistics.uniform[name];
  const largest = Math.max(...layers.flatMap((layer) => [...layer.mean, ...layer.high]), uniform) || 1; // where all are 0
  const step = chooseTickStep(largest / 4);
  const ticks = Math.ceil(largest / step);
  const highest = step * ticks;
  const band = (width - LEFT) / layers.length;
  const computeY = (value) => HEIGHT - BOTTOM - (value / highest) * (HEIGHT - BOTTOM - 12);
  const figure = createSvg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img",
    "aria-label": getText("chartAlt", { name: describeMeasure(name, "") }) });
  for (let tick = 0; tick <= ticks; tick += 1) {
    const value = step * tick;
    figure.append(createSvg("line", { class: "axis", x1: LEFT, x2: width, y1: computeY(value), y2: computeY(value) }));
    figure.append(createSvg("text", { x: LEFT - 6, y: computeY(value) + 4, "text-anchor": "end" }, formatNumber(value)));
  }
  figure.append(createSvg("line", { class: "uniform", x1: LEFT, x2: width, y1: computeY(uniform), y2: computeY(uniform), "data-value": uniform }));
  const labelStep = Math.ceil(24 / band);
  layers.forEach((measure, layer) => {
    const place = data.statistics.places[layer];
    if (layer % labelStep === 0) {
      figure.append(createSvg("text", { x: LEFT + band * (layer + 0.5), y: HEIGHT - 22, "text-anchor": "middle" }, String(place)));
    }
    measure.mean.forEach((mean, head) => {
      const x = LEFT + band * (layer + 0.12 + (0.76 * (head + 0.5)) / measure.mean.length);
      if (measure.low[head] !== null) {
        figure.append(createSvg("line", { class: "range", x1: x, x2: x, y1: computeY(Math.max(measure.low[head], 0)), y2: computeY(measure.high[head]) }));
      }
      const values = { layer: place, head, mean: formatOrUnknown(mean), low: formatOrUnknown(measure.low[head]), high: formatOrUnknown(measure.high[head]) };
      figure.append(createSvg("circle", { cx: x, cy: computeY(mean), r: 3.5 }, createSvg("title", {}, getText("chartPoint", values))));
    });
  });
  figure.append(createSvg("text", { x: LEFT + (width - LEFT) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, getText("layer")));
  return figure;
}

/** Returns 1, 2 or 5 times a power of ten, at least `least`. */
function chooseTickStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1e-9)));
  return power * [1, 2, 5, 10].find((times) => times * power >= least * 0.999);
}

/** Formats a bound of the interval, which a single image does not have. */
function formatOrUnknown(value) {
  return value === null ? getText("unknown") : formatNumber(value);
}

function createMeasureTable(layers) {
  const columns = ["mean", "low", "high", "deviation"];
  const heads = ["layer", "head", ...columns].map((name) => createElement("th", { scope: "col", class: "number" }, getText(name)));
  const table = createElement("table", {}, createElement("tr", {}, ...heads));
  layers.forEach((measure, layer) => measure.mean.forEach((_, head) => {
    const cells = columns.map((name) => createElement("td", { class: "number", "data-kind": name, "data-value": measure[name][head] },
      formatOrUnknown(measure[name][head])));
    table.append(createElement("tr", { "data-layer": layer, "data-head": head },
      createElement("th", { scope: "row", class: "number" }, String(data.statistics.places[layer])),
      createElement("td", { class: "number" }, String(head)), ...cells));
  }));
  return table;
}

function showSimilarity(layer) {
  const matrix = data.statistics.similarity[layer];
  const heads = matrix.map((_, head) => createElement("th", { scope: "col" }, getText("headName", { head })));
  const caption = createElement("caption", {}, getText("similarityCaption", { layer: data.statistics.places[layer] }));
  const table = createElement("table", {}, caption, createElement("tr", {}, createElement("td"), ...heads));
  matrix.forEach((row, head) => {
    const cells = row.map((value) => {
      const colour = viridis(value);
      const cell = createElement("td", { class: "number", "data-value": value }, value.toFixed(2));
      Object.assign(cell.style, { background: formatRgb(colour), color: chooseInk(colour) });
      return cell;
    });
    table.append(createElement("tr", {}, createElement("th", { scope: "row" }, getText("headName", { head })), ...cells));
  });
  getById("similarity").replaceChildren(table);
}
