/* The parameters of a Vision Transformer: the exact count and an estimate. */

lessons.counter = (root) => {
  const sizes = { tiny: [192, 12, 3], small: [384, 12, 6], base: [768, 12, 12], large: [1024, 24, 16] };
  const formatCount = (number) => number.toLocaleString(document.documentElement.lang);
  const options = { step: 1, format: formatCount };
  const depth = createSlider("counter.depth", { ...options, min: 1, max: 48, value: 12 }, show);
  const dim = createSlider("counter.dim", { ...options, min: 12, max: 1536, step: 4, value: 192 }, show);
  const heads = createSlider("counter.heads", { ...options, min: 1, max: 24, value: 3 }, show);
  const patch = createSlider("counter.patch", { ...options, min: 2, max: 32, value: 16 }, fitImage);
  const image = createSlider("counter.image", { ...options, min: 16, max: 512, step: 16, value: 224 }, show);
  const classes = createSlider("counter.classes", { ...options, min: 1, max: 2000, value: 1000 }, show);
  const exact = createElement("output", { id: "counter.exact", class: "large number" });
  const estimate = createElement("output", { id: "counter.estimate", class: "large number", "aria-live": "off" });
  const estimateNote = createElement("p", { id: "counter.part" });
  const headsNote = createElement("p", { id: "counter.headed", "aria-live": "polite" });
  const table = createElement("div", {});

  const presets = createElement("div", { class: "row" }, ...Object.entries(sizes).map(([name, [width, layers, count]]) => {
    const button = createElement("button", { type: "button", id: `counter.${name}` }, getText(`counter.${name}`));
    button.addEventListener("click", () => {
      Object.assign(image.input, { min: 16, max: 512, step: 16 });
      const values = [[dim, width], [depth, layers], [heads, count], [patch, 16], [image, 224], [classes, 1000]];
      for (const [slider, value] of values) setSlider(slider, value);
      show();
    });
    return button;
  }));

  /** Rounds the image's side to a whole number of patches. */
  function fitImage() {
    const side = Math.max(1, Math.round(image.value / patch.value)) * patch.value;
    Object.assign(image.input, { min: patch.value, step: patch.value, max: Math.floor(512 / patch.value) * patch.value });
    setSlider(image, side);
    show();
  }

  function show() {
    const values = { depth: depth.value, dim: dim.value, patch: patch.value, image: image.value, classes: classes.value };
    const counts = countParameters(values);
    for (const [output, number] of [[exact, counts.exact], [estimate, counts.estimate]]) {
      output.textContent = formatCount(number);
      output.dataset.value = number;
    }
    estimateNote.textContent = getText("counter.off", {
      off: formatPercent(Math.abs(counts.estimate - counts.exact) / counts.exact), rows: formatCount(counts.rows),
      patch: formatCount(3 * values.patch ** 2), tokens: formatCount((values.image / values.patch) ** 2 + 1),
      classes: formatCount(values.classes),
    });
    const each = dim.value / heads.value;
    const note = Number.isInteger(each)
      ? getText("counter.even", { heads: heads.value, each, dim: formatCount(dim.value) })
      : getText("counter.uneven", { heads: heads.value, dim: formatCount(dim.value) });
    if (headsNote.textContent !== note) headsNote.textContent = note;
    table.replaceChildren(createTable([getText("counter.what"), getText("counter.formula"), getText("counter.number"), getText("counter.share")],
      Object.entries(counts.parts).map(([name, number]) =>
        [getText(`counter.${name}`), getText(`counter.${name}.formula`), formatCount(number), formatPercent(number / counts.exact)]),
      getText("counter.table")));
  }

  root.append(presets,
    createElement("div", { class: "pair" },
      createElement("div", {}, depth.node, dim.node, heads.node, patch.node, image.node, classes.node),
      createElement("div", {},
        createElement("div", { class: "totals" },
          createElement("div", {}, createElement("label", { for: "counter.exact" }, getText("counter.exact.title")), exact),
          createElement("div", {}, createElement("label", { for: "counter.estimate" }, getText("counter.estimate.title")), estimate)),
        estimateNote, headsNote, createElement("div", { class: "scroll whole", tabindex: 0, role: "region", "aria-label": getText("counter.table") }, table))));
  show();
};
