/* The mathematics of the lessons: functions of numbers and arrays. */

function dot(a, b) {
  return a.reduce((sum, value, i) => sum + value * b[i], 0);
}

function length(a) {
  return Math.sqrt(dot(a, a));
}

/** Returns the cosine similarity, NaN where a vector has length 0. */
function cosine(a, b) {
  return dot(a, b) / (length(a) * length(b));
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function variance(values) {
  const centre = mean(values);
  return mean(values.map((value) => (value - centre) ** 2));
}

/** Returns the softmax of scores / temperature; -Infinity becomes exactly 0. */
function softmax(scores, temperature = 1) {
  const largest = Math.max(...scores); // subtracted first, so that no exponential overflows
  const powers = scores.map((score) => Math.exp((score - largest) / temperature));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => power / sum);
}

/** Returns the entropy in nats; a probability of 0 adds 0. */
function entropy(shares) {
  return -shares.reduce((sum, share) => sum + (share > 0 ? share * Math.log(share) : 0), 0);
}

/** Returns the (T, S) weights softmax(q k' / sqrt(d)); with `causal` later tokens are masked. */
function computeAttention(queries, keys, causal) {
  return computeScores(queries, keys).map((row, from) =>
    softmax(row.map((score, to) => (causal && to > from ? -Infinity : score))));
}

function computeScores(queries, keys) {
  return queries.map((query) => keys.map((key) => dot(query, key) / Math.sqrt(query.length)));
}

/** Returns a function that draws numbers from 0 to 1, the same for the same seed (mulberry32). */
function createRandom(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

/** Draws numbers from the standard normal distribution (Box and Muller, 1958). */
function drawNormals(random, count) {
  return Array.from({ length: count }, () =>
    Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random()));
}

/** Returns base^(-k / pairs), the angle by which pair k rotates from one position to the next. */
function computeFrequencies(pairs, base = 10000) {
  return Array.from({ length: pairs }, (_, k) => base ** (-k / pairs));
}

/** Returns the encoding of a position: sines first, then cosines. */
function encodeSinusoidal(position, dim) {
  const turns = computeFrequencies(dim / 2);
  return [...turns.map((turn) => Math.sin(position * turn)), ...turns.map((turn) => Math.cos(position * turn))];
}

/** Rotates each pair of channels i and i + d/2 by an angle proportional to the position. */
function rotate(vector, position) {
  const half = vector.length / 2;
  const angles = computeFrequencies(half).map((turn) => position * turn);
  const first = angles.map((angle, i) => vector[i] * Math.cos(angle) - vector[i + half] * Math.sin(angle));
  const second = angles.map((angle, i) => vector[i] * Math.sin(angle) + vector[i + half] * Math.cos(angle));
  return [...first, ...second];
}

/** Applies temperature, top-k and top-p in this order; returns { before, kept: booleans, after, mass }. */
function filterTokens(logits, temperature, topK, topP) {
  const before = softmax(logits, temperature);
  const order = before.map((_, i) => i).sort((a, b) => before[b] - before[a] || a - b);
  const top = order.slice(0, topK);
  const topMass = top.reduce((sum, i) => sum + before[i], 0);
  const kept = before.map(() => false);
  let sum = 0;
  for (const i of top) {
    if (sum >= topP) break;
    kept[i] = true;
    sum += before[i] / topMass;
  }
  const mass = before.reduce((total, share, i) => total + (kept[i] ? share : 0), 0);
  return { before, kept, after: before.map((share, i) => (kept[i] ? share / mass : 0)), mass };
}

/** Returns the index whose interval of the cumulative sum holds a number from 0 to 1. */
function drawIndex(shares, number) {
  let sum = 0;
  for (const [i, share] of shares.entries()) {
    sum += share;
    if (number < sum) return i;
  }
  return shares.findLastIndex((share) => share > 0); // rounding may leave the sum below 1
}

/** Counts the parameters of a ViT, part by part; `estimate` is 12 L d^2 + V d. */
function countParameters({ depth, dim, patch, image, classes }) {
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
