/* Three ways to tell a token where it stands. */

lessons.positions = (root) => {
  const panels = { "positions.sinusoidal": fixed(), "positions.learned": learned(), "positions.rotary": turning() };
  const scheme = choice("positions.schemes", Object.keys(panels), show);

  function show() {
    for (const [name, panel] of Object.entries(panels)) panel.hidden = name !== scheme.value;
  }

  root.append(scheme.whole, ...Object.values(panels));
  show();
};

const CHANNELS = 64; // of a vector, in a table of numbers

/**
 * Two positions to choose, the values of all, and how alike they are.
 * Args: start: the two; similar: gives rows, and the cell to mark in them; aspect: of these rows.
 */
function comparison(id, vectors, { place, most, start, aspect = 1, similar }) {
  const options = { min: 0, max: vectors.length - 1, step: 1, show: place };
  const [first, second] = ["first", "second"].map((name, i) => slider(`${id}.${name}`, { ...options, value: start[i] }, show));
  const values = heatMap(`${id}.values`, { ends: [short(-most), short(most)], signed: true });
  const likeness = heatMap(`${id}.likeness`, { ends: [-1, 1], signed: true, aspect });
  const readings = readout(`${id}.read`, ["cosine"]);
  const spoken = announcement(`${id}.says`);
  const heads = () => [say("positions.position"), ...vectors[0].slice(0, CHANNELS).map((_, channel) => channel)];
  const rows = () => vectors.map((vector, position) => [place(position), ...vector.slice(0, CHANNELS)]);
  const table = numbers(`${id}.values`, heads, rows);

  function show() {
    const [one, other] = [first.value, second.value];
    const found = cosine(vectors[one], vectors[other]);
    mark(values.canvas, one);
    const { rows: grid, cell } = similar(one, other);
    paint(likeness.canvas, grid, { signed: true });
    mark(likeness.canvas, ...cell);
    readings.show({ cosine: found });
    spoken.tell(say("positions.says", { first: place(one), second: place(other), cosine: short(found) }));
  }

  paint(values.canvas, vectors, { signed: true, most });
  show();
  return element("div", { id }, element("p", {}, say(`${id}.text`)), first.whole, second.whole,
    element("div", { class: "pair" }, values.whole, likeness.whole), readings.whole, spoken.whole, table.whole);
}

function fixed() {
  const vectors = Array.from({ length: 32 }, (_, position) => sinusoidal(position, 32));
  const all = vectors.map((one) => vectors.map((other) => cosine(one, other)));
  return comparison("positions.sinusoidals", vectors, {
    place: String, most: 1, start: [10, 13], similar: (row, column) => ({ rows: all, cell: [row, column] }),
  });
}

function learned() {
  const { grid: [rows, columns], source, stride } = data.learned;
  const vectors = unpacked(data.learned);
  const most = Math.max(...vectors.map((vector) => Math.max(...vector.map(Math.abs))));
  const middle = Math.floor(rows / 2) * columns + Math.floor(columns / 2);
  const place = (at) => say("positions.cell", { row: Math.floor(at / columns), column: at % columns });
  const panel = comparison("positions.learneds", vectors, {
    place, most, start: [middle, Math.min(middle + 1, vectors.length - 1)], aspect: columns / rows,
    similar: (one, other) => {
      const near = vectors.map((vector) => cosine(vectors[one], vector));
      const split = Array.from({ length: rows }, (_, row) => near.slice(row * columns, (row + 1) * columns));
      return { rows: split, cell: [Math.floor(other / columns), other % columns] };
    },
  });
  panel.prepend(element("p", { class: "soft" }, source, " ", stride > 1 ? say("positions.stride", { stride }) : ""));
  return panel;
}

/** Rows of numbers from 16 bits each, little-endian, times a scale. */
function unpacked({ packed, dim, scale }) {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const count = bytes.length / 2 / dim;
  return Array.from({ length: count }, (_, row) =>
    Array.from({ length: dim }, (_, channel) => view.getInt16(2 * (row * dim + channel), true) * scale));
}

/** A query and a key that turn with their positions. */
function turning() {
  const { query, key } = data.rotary;
  const most = 23;
  const at = { min: 0, max: most, step: 1, show: String };
  const one = slider("positions.query", { ...at, value: 10 }, show);
  const other = slider("positions.key", { ...at, value: 7 }, show);
  const dials = element("div", { class: "dials" });
  const scores = heatMap("positions.scores", { ends: [-1, 1].map((end) => short(end * limit())), signed: true });
  const readings = readout("positions.rotaries.read", ["difference", "score", "alone"]);
  const spoken = announcement("positions.rotaries.says");
  const score = (m, n) => dot(rotary(query, m), rotary(key, n)) / Math.sqrt(query.length);
  const all = Array.from({ length: most + 1 }, (_, m) => Array.from({ length: most + 1 }, (_, n) => score(m, n)));
  const heads = () => [say("positions.position"), ...all.map((_, n) => n)];
  const table = numbers("positions.scores", heads, () => all.map((row, m) => [m, ...row]));
  const steps = element("div", { class: "row" }, ...[["back", -1], ["forth", 1]].map(([name, step]) => {
    const button = element("button", { type: "button", id: `positions.${name}` }, say(`positions.${name}`));
    button.addEventListener("click", () => both(step));
    return button;
  }));

  function limit() {
    return (length(query) * length(key)) / Math.sqrt(query.length);
  }

  function both(step) {
    const to = [one.value + step, other.value + step];
    if (Math.min(...to) < 0 || Math.max(...to) > most) return;
    move(one, to[0]);
    move(other, to[1]);
    show();
  }

  function show() {
    const [m, n] = [one.value, other.value];
    dials.replaceChildren(...frequencies(query.length / 2).map((_, pair) => dial(rotary(query, m), rotary(key, n), pair)));
    mark(scores.canvas, m, n);
    readings.show({ difference: m - n, score: score(m, n), alone: dot(rotary(query, m - n), key) / Math.sqrt(query.length) });
    spoken.tell(say("positions.rotaries.said", { m, n, difference: m - n, score: short(score(m, n)) }));
  }

  paint(scores.canvas, all, { signed: true, most: limit() });
  show();
  return element("div", { id: "positions.rotaries" }, element("p", {}, say("positions.rotaries.text")), one.whole, other.whole, steps,
    element("div", { class: "pair" }, element("figure", {}, element("figcaption", {}, say("positions.dials")), dials), scores.whole),
    readings.whole, spoken.whole, table.whole);
}

/** One pair of channels as a clock with a hand for the query and one for the key. */
function dial(query, key, pair) {
  const half = query.length / 2;
  const hands = [["a", query], ["b", key]].map(([kind, vector]) => {
    const [x, y] = [vector[pair], vector[pair + half]];
    const size = Math.hypot(x, y);
    return drawing("line", { class: `shaft ${kind}`, x1: 0, y1: 0, x2: (38 * x) / size, y2: (-38 * y) / size });
  });
  const turn = short(frequencies(half)[pair]);
  return element("div", { class: "dial" },
    drawing("svg", { viewBox: "-46 -46 92 92", role: "img", "aria-label": say("positions.dial", { pair, turn }) },
      drawing("circle", { class: "rim", r: 42 }), ...hands),
    element("span", { class: "soft" }, say("positions.turn", { turn })));
}
