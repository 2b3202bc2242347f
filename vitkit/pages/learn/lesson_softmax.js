/* From scores to shares, and why scores are divided by the root of their width. */

lessons.softmax = (root) => {
  const names = ["1", "2", "3", "4", "5"];
  const scores = [2, 1, 0.5, 0, -1].map((value, place) =>
    slider(`softmax.score${place + 1}`, { min: -6, max: 6, step: 0.1, value, show: (score) => score.toFixed(1) }, show));
  const temperature = slider("softmax.temperature", { min: 0.1, max: 10, step: 0.1, value: 1, show: (t) => t.toFixed(1) }, show);
  const shares = bars("softmax.shares");
  const readings = readout("softmax.read", ["entropy", "most", "largest"]);
  const spoken = announcement("softmax.says");

  function show() {
    const found = softmax(scores.map((score) => score.value), temperature.value);
    shares.show(found.map((share, place) => ({ label: say("softmax.key", { place: names[place] }), share })));
    readings.show({ entropy: entropy(found), most: Math.log(found.length), largest: Math.max(...found) });
    const part = entropy(found) / Math.log(found.length);
    spoken.tell(say(part > 0.95 ? "softmax.flat" : part < 0.2 ? "softmax.sharp" : "softmax.between"));
  }

  root.append(
    element("h3", {}, say("softmax.first")),
    element("div", { class: "pair" },
      element("div", {}, ...scores.map(({ whole }) => whole), temperature.whole),
      element("div", {}, shares.whole, readings.whole, spoken.whole)),
    element("h3", {}, say("softmax.second")), width());
  show();
};

const PRODUCTS = new Map(); // wide ones take a moment, and a slider comes back

/** Dot products of 1,000 pairs of random vectors, the same for the same width. */
function products(dim) {
  const random = generator(dim);
  const made = () => Array.from({ length: 1000 }, () => dot(normals(random, dim), normals(random, dim)));
  if (!PRODUCTS.has(dim)) PRODUCTS.set(dim, made());
  return PRODUCTS.get(dim);
}

/** The mean, over rows of 10 of these scores, of the largest weight that softmax makes of them. */
function largest(scores, row = 10) {
  const rows = Array.from({ length: Math.floor(scores.length / row) }, (_, i) => scores.slice(i * row, (i + 1) * row));
  return mean(rows.map((one) => Math.max(...softmax(one))));
}

function width() {
  const power = slider("softmax.dim", { min: 0, max: 9, step: 1, value: 6, show: (p) => String(2 ** p) }, show);
  const plots = { plain: histogram("softmax.plain"), scaled: histogram("softmax.scaled") };
  const readings = readout("softmax.dims", ["plain", "scaled", "largestPlain", "largestScaled"]);

  function show() {
    const dim = 2 ** power.value;
    const plain = products(dim);
    const scaled = plain.map((product) => product / Math.sqrt(dim));
    plots.plain.show(plain);
    plots.scaled.show(scaled);
    readings.show({
      plain: variance(plain), scaled: variance(scaled), largestPlain: largest(plain), largestScaled: largest(scaled),
    });
  }

  show();
  return element("div", {}, power.whole,
    element("div", { class: "pair" }, plots.plain.whole, plots.scaled.whole), readings.whole,
    element("p", { class: "soft" }, say("softmax.drawn")));
}

/** How many numbers fall into each of 41 bins from -41 to 41. */
function histogram(id) {
  const whole = element("figure", { id }, element("figcaption", {}, say(`${id}.title`)));
  const show = (values) => {
    const counts = Array(41).fill(0);
    for (const value of values) counts[Math.min(Math.max(Math.round(value / 2) + 20, 0), 40)] += 1;
    whole.replaceChildren(whole.firstChild, columns(say(`${id}.title`), counts, [-41, 0, 41]));
  };
  return { whole, show };
}
