/* One encoder layer, step by step, in numbers that the model computed. */

lessons.layer = (root) => {
  const { steps, source } = data.layer;
  const widest = Math.max(...steps.map(({ variance: spread }) => spread));
  const card = element("div", { class: "card", id: "layer.card" });
  const back = button("back", -1);
  const forth = button("forth", 1);
  const count = element("output", { id: "layer.count", "aria-live": "off" });
  const list = element("ol", { class: "steps", "aria-label": say("layer.steps") });
  let chosen = 0;

  function button(name, step) {
    const made = element("button", { type: "button", id: `layer.${name}` }, say(`layer.${name}`));
    made.addEventListener("click", () => choose(chosen + step));
    return made;
  }

  const entries = steps.map(({ step, variance: spread }, place) => {
    const bar = element("span", { class: "bar" });
    bar.style.width = `${(100 * Math.log1p(spread / widest * 999)) / Math.log(1000)}%`;
    const entry = element("button", { type: "button", id: `layer.step${place}` },
      element("span", { class: "name" }, say(`layer.${step}.title`)),
      element("span", { class: "track", "aria-hidden": "true" }, bar),
      element("span", { class: "number" }, short(spread)));
    entry.addEventListener("click", () => choose(place));
    list.append(element("li", {}, entry));
    return entry;
  });

  function choose(place) {
    chosen = Math.min(Math.max(place, 0), steps.length - 1);
    show();
  }

  function show() {
    const { step, shape, letters, bins, low, high, ...values } = steps[chosen];
    entries.forEach((entry, place) => {
      if (place === chosen) entry.setAttribute("aria-current", "step");
      else entry.removeAttribute("aria-current");
    });
    back.disabled = chosen === 0;
    forth.disabled = chosen === steps.length - 1;
    count.textContent = say("layer.place", { place: chosen + 1, of: steps.length });
    const readings = readout("layer.read", ["mean", "variance", "low", "high"]);
    readings.show({ mean: values.mean, variance: values.variance, low, high });
    card.replaceChildren(
      element("h3", {}, say(`layer.${step}.title`)),
      element("p", { class: "formula" }, say(`layer.${step}.formula`)),
      element("p", {}, say(`layer.${step}.text`)),
      element("p", { class: "shape number" }, say("layer.shape", { letters: letters.join(" × "), shape: shape.join(" × ") })),
      readings.whole, columns(say("layer.histogram"), bins, [low, high]));
    card.dataset.step = step;
  }

  root.append(element("p", { class: "soft" }, source),
    element("div", { class: "pair" },
      element("div", {}, element("p", { class: "soft" }, say("layer.variances")), list),
      element("div", { "aria-live": "polite" }, element("div", { class: "row" }, back, forth, count), card)));
  show();
};
