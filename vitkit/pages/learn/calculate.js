/* The mathematics of the lessons: plain functions of numbers and arrays. */

function dot(a, b) {
  return a.reduce((sum, value, place) => sum + value * b[place], 0);
}

function length(a) {
  return Math.sqrt(dot(a, a));
}

/** NaN where a vector has no direction. */
function cosine(a, b) {
  return dot(a, b) / (length(a) * length(b));
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function variance(values) {
  const middle = mean(values);
  return mean(values.map((value) => (value - middle) ** 2));
}

/** Of scores over a temperature; -Infinity gets exactly 0. */
function softmax(scores, temperature = 1) {
  const most = Math.max(...scores); // subtracted first, so that no exponential is too large
  const powers = scores.map((score) => Math.exp((score - most) / temperature));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => power / sum);
}

/** In nats; what has no probability adds nothing. */
function entropy(shares) {
  return -shares.reduce((sum, share) => sum + (share > 0 ? share * Math.log(share) : 0), 0);
}

/** (T, S) rows of weights softmax(q k' / sqrt(d)); where `causal`, a token does not see what follows it. */
function attention(queries, keys, causal) {
  return scoresOf(queries, keys).map((row, from) =>
    softmax(row.map((score, to) => (causal && to > from ? -Infinity : score))));
}

function scoresOf(queries, keys) {
  return queries.map((query) => keys.map((key) => dot(query, key) / Math.sqrt(query.length)));
}

/** Random numbers from 0 to 1 that are the same for the same seed (mulberry32). */
function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

/** Normal numbers of mean 0 and variance 1 (Box and Muller, 1958). */
function normals(random, count) {
  return Array.from({ length: count }, () =>
    Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random()));
}

/** base^(-k / pairs), the angle by which pair k turns from one position to the next. */
function frequencies(pairs, base = 10000) {
  return Array.from({ length: pairs }, (_, k) => base ** (-k / pairs));
}

/** The vector of a position: sines first, then cosines. */
function sinusoidal(position, dim) {
  const turns = frequencies(dim / 2);
  return [...turns.map((turn) => Math.sin(position * turn)), ...turns.map((turn) => Math.cos(position * turn))];
}

/** Channel i turned with channel i + d/2, as far as the position says. */
function rotary(vector, position) {
  const half = vector.length / 2;
  const angles = frequencies(half).map((turn) => position * turn);
  const first = angles.map((angle, i) => vector[i] * Math.cos(angle) - vector[i + half] * Math.sin(angle));
  const second = angles.map((angle, i) => vector[i] * Math.sin(angle) + vector[i + half] * Math.cos(angle));
  return [...first, ...second];
}

/** What is left of a distribution: { before, kept: booleans, after, mass }; temperature, then top-k, then top-p. */
function sampled(logits, temperature, topK, topP) {
  const before = softmax(logits, temperature);
  const order = before.map((_, place) => place).sort((one, other) => before[other] - before[one] || one - other);
  const few = order.slice(0, topK);
  const all = few.reduce((sum, place) => sum + before[place], 0);
  const kept = before.map(() => false);
  let held = 0;
  for (const place of few) {
    if (held >= topP) break;
    kept[place] = true;
    held += before[place] / all;
  }
  const mass = before.reduce((sum, share, place) => sum + (kept[place] ? share : 0), 0);
  return { before, kept, after: before.map((share, place) => (kept[place] ? share / mass : 0)), mass };
}

/** The place that a number from 0 to 1 falls on. */
function drawn(shares, number) {
  let held = 0;
  for (const [place, share] of shares.entries()) {
    held += share;
    if (number < held) return place;
  }
  return shares.findLastIndex((share) => share > 0); // rounding may leave the sum below 1
}

/** Parameters of a ViT, part by part; `estimate` is 12 L d^2 + V d. */
function counted({ depth, dim, patch, image, classes }) {
  const patches = Math.floor(image / patch) ** 2;
  const rows = 3 * patch * patch + patches + 1 + classes;
  const parts = {
    attention: 4 * depth * dim * dim,
    mlp: 8 * depth * dim * dim,
    patches: 3 * patch * patch * dim,
    positions: (patches + 1) * dim,
    head: classes * dim,
    biases: 9 * depth * dim + dim + classes,
    norms: 4 * depth * dim + 2 * dim,
  };
  const exact = Object.values(parts).reduce((sum, part) => sum + part, 0);
  return { parts, exact, rows, estimate: 12 * depth * dim * dim + rows * dim };
}
