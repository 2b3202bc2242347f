/* Which word comes next, and who decides which may. */

lessons.sampling = (root) => {
  const { words, logits } = data.sampling;
  const temperature = slider("sampling.temperature", { min: 0.1, max: 3, step: 0.1, value: 1, show: (t) => t.toFixed(1) }, show);
  const topK = slider("sampling.k", { min: 1, max: words.length, step: 1, value: words.length, show: String }, show);
  const topP = slider("sampling.p", { min: 0.05, max: 1, step: 0.05, value: 1, show: (p) => p.toFixed(2) }, show);
  const shares = bars("sampling.shares");
  const readings = readout("sampling.read", ["kept", "mass", "entropy"]);
  const spoken = announcement("sampling.says");
  const draws = element("p", { id: "sampling.drawn", class: "announcement", "aria-live": "polite" }, say("sampling.none"));
  let random = generator(0);
  let counts = words.map(() => 0);
  let last = null;

  function found() {
    return sampled(logits, temperature.value, topK.value, topP.value);
  }

  function show() {
    counts = words.map(() => 0);
    random = generator(0); // what is drawn depends on the sliders and on how often, on nothing else
    last = null;
    list();
  }

  function list() {
    const { before, kept, after, mass } = found();
    const total = counts.reduce((sum, count) => sum + count, 0);
    shares.show(words.map((word, place) => ({
      label: word, share: after[place], second: before[place], off: !kept[place],
      note: kept[place] ? noted(after[place], counts[place], total) : say("sampling.removed"),
    })));
    const held = kept.filter(Boolean).length;
    readings.show({ kept: held, mass, entropy: entropy(after) });
    spoken.tell(say("sampling.keeps", { kept: held, of: words.length, mass: percent(mass) }));
    draws.textContent = last === null ? say("sampling.none") : say("sampling.draws", { word: words[last], total });
  }

  function noted(share, count, total) {
    return total ? say("sampling.counted", { share: percent(share), count }) : percent(share);
  }

  function draw(times) {
    const { after } = found();
    for (let time = 0; time < times; time += 1) {
      last = drawn(after, random());
      counts[last] += 1;
    }
    list();
  }

  const buttons = [1, 100].map((times) => {
    const button = element("button", { type: "button", id: `sampling.draw${times}` }, say(`sampling.draw${times}`));
    button.addEventListener("click", () => draw(times));
    return button;
  });
  root.append(element("p", { class: "prompt" }, say("sampling.prompt")),
    element("div", { class: "pair" },
      element("div", {}, temperature.whole, topK.whole, topP.whole, element("div", { class: "row" }, ...buttons), draws),
      element("div", {}, shares.whole, readings.whole, spoken.whole)));
  show();
};
