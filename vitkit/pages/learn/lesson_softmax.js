/* Softmax and temperature, and why scores are divided by the square root of the width. */

lessons.softmax = (root) => {
  const scores = [2, 1, 0.5, 0, -1].map((value, i) =>
    createSlider(`softmax.score${i + 1}`, { min: -6, max: 6, step: 0.1, value, format: (score) => score.toFixed(1) }, show));
  const temperature = createSlider("softmax.temperature", { min: 0.1, max: 10, step: 0.1, value: 1, format: (t) => t.toFixed(1) }, show);
  const shares = createBars("softmax.shares");
  const readout = createReadout("softmax.read", ["entropy", "most", "largest"]);
  const announcement = createAnnouncement("softmax.says");

  function show() {
    const weights = softmax(scores.map((score) => score.value), temperature.value);
    shares.show(weights.map((share, i) => ({ label: getText("softmax.key", { place: i + 1 }), share })));
    readout.show({ entropy: entropy(weights), most: Math.log(weights.length), largest: Math.max(...weights) });
    const evenness = entropy(weights) / Math.log(weights.length);
    announcement.show(getText(evenness > 0.95 ? "softmax.flat" : evenness < 0.2 ? "softmax.sharp" : "softmax.between"));
  }

  root.append(
    createElement("h3", {}, getText("softmax.first")),
    createElement("div", { class: "pair" },
      createElement("div", {}, ...scores.map(({ node }) => node), temperature.node),
      createElement("div", {}, shares.node, readout.node, announcement.node)),
    createElement("h3", {}, getText("softmax.second")), createScaling());
  show();
};

const PRODUCTS = new Map(); // by width: wide vectors take a moment

/** Returns dot products of 1,000 pairs of random vectors, the same for the same width. */
function getProducts(dim) {
  if (!PRODUCTS.has(dim)) {
    const random = createRandom(dim);
    PRODUCTS.set(dim, Array.from({ length: 1000 }, () => dot(drawNormals(random, dim), drawNormals(random, dim))));
  }
  return PRODUCTS.get(dim);
}

/** Returns the largest softmax weight of every `size` scores, averaged. */
function averageLargestWeight(scores, size = 10) {
  const rows = Array.from({ length: Math.floor(scores.length / size) }, (_, i) => scores.slice(i * size, (i + 1) * size));
  return mean(rows.map((row) => Math.max(...softmax(row))));
}

function createScaling() {
  const power = createSlider("softmax.dim", { min: 0, max: 9, step: 1, value: 6, format: (p) => String(2 ** p) }, show);
  const plots = { plain: createHistogram("softmax.plain"), scaled: createHistogram("softmax.scaled") };
  const readout = createReadout("softmax.dims", ["plain", "scaled", "largestPlain", "largestScaled"]);

  function show() {
    const dim = 2 ** power.value;
    const plain = getProducts(dim);
    const scaled = plain.map((product) => product / Math.sqrt(dim));
    plots.plain.show(plain);
    plots.scaled.show(scaled);
    readout.show({
      plain: variance(plain), scaled: variance(scaled),
      largestPlain: averageLargestWeight(plain), largestScaled: averageLargestWeight(scaled),
    });
  }

  show();
  return createElement("div", {}, power.node,
    createElement("div", { class: "pair" }, plots.plain.node, plots.scaled.node), readout.node,
    createElement("p", { class: "soft" }, getText("softmax.drawn")));
}

/** Creates a histogram with 41 bins from -41 to 41. */
function createHistogram(id) {
  const node = createElement("figure", { id }, createElement("figcaption", {}, getText(`${id}.title`)));
  const show = (values) => {
    const counts = Array(41).fill(0);
    for (const value of values) counts[Math.min(Math.max(Math.round(value / 2) + 20, 0), 40)] += 1;
    node.replaceChildren(node.firstChild, createBarChart(getText(`${id}.title`), counts, [-41, 0, 41]));
  };
  return { node, show };
}
