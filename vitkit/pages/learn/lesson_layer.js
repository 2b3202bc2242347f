/* One encoder layer, step by step, with statistics recorded in a forward pass. */

lessons.layer = (root) => {
  const { steps, source } = data.layer;
  const largest = Math.max(...steps.map((step) => step.variance));
  const card = createElement("div", { class: "card", id: "layer.card" });
  const back = createButton("back", -1);
  const forth = createButton("forth", 1);
  const count = createElement("output", { id: "layer.count", "aria-live": "off" });
  const list = createElement("ol", { class: "steps", "aria-label": getText("layer.steps") });
  let chosen = 0;

  function createButton(name, offset) {
    const button = createElement("button", { type: "button", id: `layer.${name}` }, getText(`layer.${name}`));
    button.addEventListener("click", () => choose(chosen + offset));
    return button;
  }

  const entries = steps.map(({ step, variance: value }, index) => {
    const bar = createElement("span", { class: "bar" });
    bar.style.width = `${(100 * Math.log1p(value / largest * 999)) / Math.log(1000)}%`;
    const entry = createElement("button", { type: "button", id: `layer.step${index}` },
      createElement("span", { class: "name" }, getText(`layer.${step}.title`)),
      createElement("span", { class: "track", "aria-hidden": "true" }, bar),
      createElement("span", { class: "number" }, formatNumber(value)));
    entry.addEventListener("click", () => choose(index));
    list.append(createElement("li", {}, entry));
    return entry;
  });

  function choose(index) {
    chosen = Math.min(Math.max(index, 0), steps.length - 1);
    show();
  }

  function show() {
    const { step, shape, letters, bins, low, high, ...values } = steps[chosen];
    entries.forEach((entry, index) => {
      if (index === chosen) entry.setAttribute("aria-current", "step");
      else entry.removeAttribute("aria-current");
    });
    back.disabled = chosen === 0;
    forth.disabled = chosen === steps.length - 1;
    count.textContent = getText("layer.place", { place: chosen + 1, of: steps.length });
    const readout = createReadout("layer.read", ["mean", "variance", "low", "high"]);
    readout.show({ mean: values.mean, variance: values.variance, low, high });
    card.replaceChildren(
      createElement("h3", {}, getText(`layer.${step}.title`)),
      createElement("p", { class: "formula" }, getText(`layer.${step}.formula`)),
      createElement("p", {}, getText(`layer.${step}.text`)),
      createElement("p", { class: "shape number" }, getText("layer.shape", { letters: letters.join(" × "), shape: shape.join(" × ") })),
      readout.node, createBarChart(getText("layer.histogram"), bins, [low, high]));
    card.dataset.step = step;
  }

  root.append(createElement("p", { class: "soft" }, source),
    createElement("div", { class: "pair" },
      createElement("div", {}, createElement("p", { class: "soft" }, getText("layer.variances")), list),
      createElement("div", { "aria-live": "polite" }, createElement("div", { class: "row" }, back, forth, count), card)));
  show();
};
