/* Sampling the next word with temperature, top-k and top-p. */

lessons.sampling = (root) => {
  const { words, logits } = data.sampling;
  const temperature = createSlider("sampling.temperature", { min: 0.1, max: 3, step: 0.1, value: 1, format: (t) => t.toFixed(1) }, show);
  const topK = createSlider("sampling.k", { min: 1, max: words.length, step: 1, value: words.length, format: String }, show);
  const topP = createSlider("sampling.p", { min: 0.05, max: 1, step: 0.05, value: 1, format: (p) => p.toFixed(2) }, show);
  const shares = createBars("sampling.shares");
  const readout = createReadout("sampling.read", ["kept", "mass", "entropy"]);
  const announcement = createAnnouncement("sampling.says");
  const samples = createElement("p", { id: "sampling.drawn", class: "announcement", "aria-live": "polite" }, getText("sampling.none"));
  let random = createRandom(0);
  let counts = words.map(() => 0);
  let last = null;

  function filter() {
    return filterTokens(logits, temperature.value, topK.value, topP.value);
  }

  function show() {
    counts = words.map(() => 0);
    random = createRandom(0); // samples depend on the sliders and on their number only
    last = null;
    showResult();
  }

  function showResult() {
    const { before, kept, after, mass } = filter();
    const total = counts.reduce((sum, count) => sum + count, 0);
    shares.show(words.map((word, i) => ({
      label: word, share: after[i], second: before[i], off: !kept[i],
      note: kept[i] ? formatShare(after[i], counts[i], total) : getText("sampling.removed"),
    })));
    const count = kept.filter(Boolean).length;
    readout.show({ kept: count, mass, entropy: entropy(after) });
    announcement.show(getText("sampling.keeps", { kept: count, of: words.length, mass: formatPercent(mass) }));
    samples.textContent = last === null ? getText("sampling.none") : getText("sampling.draws", { word: words[last], total });
  }

  function formatShare(share, count, total) {
    return total ? getText("sampling.counted", { share: formatPercent(share), count }) : formatPercent(share);
  }

  function draw(times) {
    const { after } = filter();
    for (let time = 0; time < times; time += 1) {
      last = drawIndex(after, random());
      counts[last] += 1;
    }
    showResult();
  }

  const buttons = [1, 100].map((times) => {
    const button = createElement("button", { type: "button", id: `sampling.draw${times}` }, getText(`sampling.draw${times}`));
    button.addEventListener("click", () => draw(times));
    return button;
  });
  root.append(createElement("p", { class: "prompt" }, getText("sampling.prompt")),
    createElement("div", { class: "pair" },
      createElement("div", {}, temperature.node, topK.node, topP.node, createElement("div", { class: "row" }, ...buttons), samples),
      createElement("div", {}, shares.node, readout.node, announcement.node)));
  show();
};
