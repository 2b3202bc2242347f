/* Three kinds of position encodings. */

lessons.positions = (root) => {
  const panels = {
    "positions.sinusoidal": createSinusoidal(), "positions.learned": createLearned(), "positions.rotary": createRotary(),
  };
  const scheme = createChoice("positions.schemes", Object.keys(panels), show);

  function show() {
    for (const [name, panel] of Object.entries(panels)) panel.hidden = name !== scheme.value;
  }

  root.append(scheme.node, ...Object.values(panels));
  show();
};

const CHANNELS = 64; // of a vector, in a table of numbers

/**
 * Creates two sliders for positions, the values of all positions, and their cosine similarities.
 * Args: name: returns the text of a position; start: the first pair; compare: returns rows of similarities for a pair, and
 * the cell to mark in them; aspect: width / height of these rows.
 */
function createComparison(id, vectors, { name, max, start, aspect = 1, compare }) {
  const options = { min: 0, max: vectors.length - 1, step: 1, format: name };
  const [first, second] = ["first", "second"].map((end, i) => createSlider(`${id}.${end}`, { ...options, value: start[i] }, show));
  const values = createHeatMap(`${id}.values`, { ends: [formatNumber(-max), formatNumber(max)], signed: true });
  const similarity = createHeatMap(`${id}.similarity`, { ends: [-1, 1], signed: true, aspect });
  const readout = createReadout(`${id}.read`, ["cosine"]);
  const announcement = createAnnouncement(`${id}.says`);
  const getHeads = () => [getText("positions.position"), ...vectors[0].slice(0, CHANNELS).map((_, channel) => channel)];
  const getRows = () => vectors.map((vector, position) => [name(position), ...vector.slice(0, CHANNELS)]);
  const table = createNumberTable(`${id}.values`, getHeads, getRows);

  function show() {
    const pair = [first.value, second.value];
    const value = cosine(vectors[pair[0]], vectors[pair[1]]);
    markCell(values.canvas, pair[0]);
    const { rows, cell } = compare(...pair);
    paint(similarity.canvas, rows, { signed: true });
    markCell(similarity.canvas, ...cell);
    readout.show({ cosine: value });
    announcement.show(getText("positions.says", { first: name(pair[0]), second: name(pair[1]), cosine: formatNumber(value) }));
  }

  paint(values.canvas, vectors, { signed: true, max });
  show();
  return createElement("div", { id }, createElement("p", {}, getText(`${id}.text`)), first.node, second.node,
    createElement("div", { class: "pair" }, values.node, similarity.node), readout.node, announcement.node, table.node);
}

function createSinusoidal() {
  const vectors = Array.from({ length: 32 }, (_, position) => encodeSinusoidal(position, 32));
  const rows = vectors.map((vector) => vectors.map((other) => cosine(vector, other)));
  return createComparison("positions.sinusoidals", vectors, {
    name: String, max: 1, start: [10, 13], compare: (row, column) => ({ rows, cell: [row, column] }),
  });
}

function createLearned() {
  const { grid: [rows, columns], source, stride } = data.learned;
  const vectors = unpackTable(data.learned);
  const max = Math.max(...vectors.map((vector) => Math.max(...vector.map(Math.abs))));
  const centre = Math.floor(rows / 2) * columns + Math.floor(columns / 2);
  const name = (patch) => getText("positions.cell", { row: Math.floor(patch / columns), column: patch % columns });
  const panel = createComparison("positions.learneds", vectors, {
    name, max, start: [centre, Math.min(centre + 1, vectors.length - 1)], aspect: columns / rows,
    compare: (first, second) => {
      const similarities = vectors.map((vector) => cosine(vectors[first], vector));
      const grid = Array.from({ length: rows }, (_, row) => similarities.slice(row * columns, (row + 1) * columns));
      return { rows: grid, cell: [Math.floor(second / columns), second % columns] };
    },
  });
  const notes = stride > 1 ? [source, getText("positions.stride", { stride })] : [source];
  panel.prepend(createElement("p", { class: "soft" }, notes.join(getText("space"))));
  return panel;
}

/** Unpacks rows of 16-bit integers, little-endian, times a scale. */
function unpackTable({ packed, dim, scale }) {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const count = bytes.length / 2 / dim;
  return Array.from({ length: count }, (_, row) =>
    Array.from({ length: dim }, (_, channel) => view.getInt16(2 * (row * dim + channel), true) * scale));
}

/** Creates a query and a key that rotate with their positions. */
function createRotary() {
  const { query, key } = data.rotary;
  const last = 23;
  const options = { min: 0, max: last, step: 1, format: String };
  const queryPosition = createSlider("positions.query", { ...options, value: 10 }, show);
  const keyPosition = createSlider("positions.key", { ...options, value: 7 }, show);
  const dials = createElement("div", { class: "dials" });
  const max = (length(query) * length(key)) / Math.sqrt(query.length);
  const scores = createHeatMap("positions.scores", { ends: [formatNumber(-max), formatNumber(max)], signed: true });
  const readout = createReadout("positions.rotaries.read", ["difference", "score", "alone"]);
  const announcement = createAnnouncement("positions.rotaries.says");
  const score = (m, n) => dot(rotate(query, m), rotate(key, n)) / Math.sqrt(query.length);
  const rows = Array.from({ length: last + 1 }, (_, m) => Array.from({ length: last + 1 }, (_, n) => score(m, n)));
  const getHeads = () => [getText("positions.position"), ...rows.map((_, n) => n)];
  const table = createNumberTable("positions.scores", getHeads, () => rows.map((row, m) => [m, ...row]));
  const buttons = createElement("div", { class: "row" }, ...[["back", -1], ["forth", 1]].map(([name, offset]) => {
    const button = createElement("button", { type: "button", id: `positions.${name}` }, getText(`positions.${name}`));
    button.addEventListener("click", () => shift(offset));
    return button;
  }));

  function shift(offset) {
    const [m, n] = [queryPosition.value + offset, keyPosition.value + offset];
    if (Math.min(m, n) < 0 || Math.max(m, n) > last) return;
    setSlider(queryPosition, m);
    setSlider(keyPosition, n);
    show();
  }

  function show() {
    const [m, n] = [queryPosition.value, keyPosition.value];
    dials.replaceChildren(...computeFrequencies(query.length / 2).map((_, pair) => createDial(rotate(query, m), rotate(key, n), pair)));
    markCell(scores.canvas, m, n);
    readout.show({ difference: m - n, score: score(m, n), alone: dot(rotate(query, m - n), key) / Math.sqrt(query.length) });
    announcement.show(getText("positions.rotaries.said", { m, n, difference: m - n, score: formatNumber(score(m, n)) }));
  }

  paint(scores.canvas, rows, { signed: true, max });
  show();
  const figure = createElement("figure", {}, createElement("figcaption", {}, getText("positions.dials")), dials);
  return createElement("div", { id: "positions.rotaries" }, createElement("p", {}, getText("positions.rotaries.text")),
    queryPosition.node, keyPosition.node, buttons, createElement("div", { class: "pair" }, figure, scores.node),
    readout.node, announcement.node, table.node);
}

/** Creates a dial for one pair of channels, with a hand for the query and one for the key. */
function createDial(query, key, pair) {
  const half = query.length / 2;
  const hands = [["a", query], ["b", key]].map(([kind, vector]) => {
    const [x, y] = [vector[pair], vector[pair + half]];
    const size = Math.hypot(x, y);
    return createSvg("line", { class: `shaft ${kind}`, x1: 0, y1: 0, x2: (38 * x) / size, y2: (-38 * y) / size });
  });
  const turn = formatNumber(computeFrequencies(half)[pair]);
  return createElement("div", { class: "dial" },
    createSvg("svg", { viewBox: "-46 -46 92 92", role: "img", "aria-label": getText("positions.dial", { pair, turn }) },
      createSvg("circle", { class: "rim", r: 42 }), ...hands),
    createElement("span", { class: "soft" }, getText("positions.turn", { turn })));
}
